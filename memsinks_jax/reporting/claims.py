"""Claims with intervals: what the paper says, what was measured, whether it holds."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import scipy.special


class NotMeasured(LookupError):
    """Why a number is not there, in words: for what was not run, or cannot be decided. A claim
    about it is not decided.
    """


@dataclasses.dataclass(frozen=True)
class Claim:
    """One row of the table of claims; `measured` is the mean of `values`, one per seed.

    `ci95` is Student's 95% interval of the mean, None with a single seed. The claim holds if the
    mean and, with several seeds, the whole interval are on the right side of the bound. A claim
    without values, or with one that is not finite, is not decided: `holds`, `measured` and `ci95`
    are None, and `undecided` says why.
    """

    id: str
    statement: str
    paper: str
    values: list[float]
    at_least: float | None = None
    at_most: float | None = None
    # the same for sinks that open on return, if `values` are for the paper's
    on_return: list[float] | None = None
    undecided: str | None = None

    def __post_init__(self):
        if self.undecided is None and not (self.values and all(map(math.isfinite, self.values))):
            why = (
                "it is not a finite number in every seed" if self.values else "nothing was measured"
            )
            object.__setattr__(self, "undecided", why)

    @property
    def measured(self) -> float | None:
        return None if self.undecided else statistics.mean(self.values)

    @property
    def ci95(self) -> list[float] | None:
        return None if self.undecided else interval(self.values)

    @property
    def holds(self) -> bool | None:
        if self.undecided:
            return None
        low, high = self.ci95 or (self.measured, self.measured)
        return (self.at_least is None or low >= self.at_least) and (
            self.at_most is None or high <= self.at_most
        )

    @property
    def verdict(self) -> str:
        """'yes', 'no', or 'not decided: twin was not run'."""
        return f"not decided: {self.undecided}" if self.undecided else "yes" if self.holds else "no"

    @property
    def bound(self) -> str:
        """The bound in words: '≥ 0.75', or '0.2 to 0.3'."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def to_dict(self) -> dict:
        return {
            "id": self.id,
            "statement": self.statement,
            "paper": self.paper,
            "measured": self.measured,
            "ci95": self.ci95,
            "holds": self.holds,
            "undecided": self.undecided,
            "values": _finite(self.values),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "on_return": None if self.on_return is None else _finite(self.on_return),
        }

    @classmethod
    def from_dict(cls, content: dict) -> "Claim":
        """The inverse of `to_dict`."""
        fields = {field.name: content[field.name] for field in dataclasses.fields(cls)}
        for name in ("values", "on_return"):
            fields[name] = fields[name] and [
                math.nan if value is None else value for value in fields[name]
            ]
        return cls(**fields)


def _finite(values: Sequence[float]) -> list[float | None]:
    """For JSON, which has no nan."""
    return [value if math.isfinite(value) else None for value in values]


def summary(claims: Sequence[Claim]) -> str:
    """'5 of 12 hold, 3 are not decided'."""
    words = f"{sum(claim.holds is True for claim in claims)} of {len(claims)} hold"
    undecided = sum(claim.holds is None for claim in claims)
    return (
        f"{words}, {undecided} {'is' if undecided == 1 else 'are'} not decided"
        if undecided
        else words
    )


def interval(values: list[float]) -> list[float] | None:
    """Student's 95% interval of the mean -> [low, high]; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    reach = float(scipy.special.stdtrit(len(values) - 1, 0.975)) * error
    return [mean - reach, mean + reach]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import spearmanr  # half a second, which no other command needs

    return float(spearmanr(one, other).statistic)


def with_interval(values: list[float], digits: int = 3) -> str:
    """'1.036 ± 0.012', the mean and half of its 95% interval; the mean alone for one seed, a dash
    for none.
    """
    if not values:
        return "–"
    text = f"{statistics.mean(values):.{digits}f}"
    bounds = interval(values)
    return text if bounds is None else f"{text} ± {(bounds[1] - bounds[0]) / 2:.{digits}f}"
