"""Claims with intervals: what the paper says, what was measured, whether it holds."""

import dataclasses
import statistics
from collections.abc import Sequence

import scipy.special


@dataclasses.dataclass(frozen=True)
class Claim:
    """One row of the table of claims; `measured` is the mean of `values`, one per seed.

    `ci95` is Student's 95% interval of the mean, None with a single seed. The claim holds if the mean and, with several
    seeds, the whole interval are on the right side of the bound.
    """

    id: str
    statement: str
    paper: str
    values: list[float]
    at_least: float | None = None
    at_most: float | None = None
    on_return: list[float] | None = None  # the same for sinks that open on return, if `values` are for the paper's

    @property
    def measured(self) -> float:
        return statistics.mean(self.values)

    @property
    def ci95(self) -> list[float] | None:
        return interval(self.values)

    @property
    def holds(self) -> bool:
        low, high = self.ci95 or (self.measured, self.measured)
        return (self.at_least is None or low >= self.at_least) and (self.at_most is None or high <= self.at_most)

    @property
    def bound(self) -> str:
        """The bound in words: '≥ 0.75', or '0.2 to 0.3'."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def to_dict(self) -> dict:
        return {
            "id": self.id, "statement": self.statement, "paper": self.paper, "measured": self.measured,
            "ci95": self.ci95, "holds": self.holds, "values": self.values,
            "at_least": self.at_least, "at_most": self.at_most, "on_return": self.on_return,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, content: dict) -> "Claim":
        """The inverse of `to_dict`."""
        return cls(**{field.name: content[field.name] for field in dataclasses.fields(cls)})


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
    """'1.036 ± 0.012', the mean and half of its 95% interval; the mean alone for one seed, a dash for none."""
    if not values:
        return "–"
    text = f"{statistics.mean(values):.{digits}f}"
    bounds = interval(values)
    return text if bounds is None else f"{text} ± {(bounds[1] - bounds[0]) / 2:.{digits}f}"
