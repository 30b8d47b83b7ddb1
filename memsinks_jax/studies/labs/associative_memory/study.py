"""Shared by the figures of this lab: their settings."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from memsinks_jax.config import InputError
from memsinks_jax.studies.labs.study import Study

GROUPS = 10  # of independent runs: every measured number has one value per group, so an interval
LARGEST_SIMULATION = 2**26  # coordinates of the embeddings of one run: 256 MiB


@dataclasses.dataclass(frozen=True)
class FigureSettings:
    """The settings of a figure. None: the figure has no such setting, or takes its default.

    Attributes:
      seed: of all randomness.
      runs: independent draws of data and embeddings to average over.
      alpha: exponent of Zipf's law. n, m: numbers of inputs and outputs. d: dimensions of the
        embeddings.
      p: number of inputs that a thresholded scheme stores, the paper's P; None: d / 8.
    """

    seed: int
    runs: int = 1
    alpha: float | None = None
    n: int | None = None
    m: int | None = None
    d: tuple[int, ...] | None = None
    p: int | None = None

    @property
    def seeds(self) -> list[int]:
        """One per group of runs. Different seeds on the command line share none."""
        return [100 * self.seed + group for group in range(min(GROUPS, self.runs))]

    @property
    def draws(self) -> int:
        """Runs per group, rounded up."""
        return math.ceil(self.runs / len(self.seeds))

    def stored(self, d: float) -> int:
        """P of the thresholded scheme at this d: `p`, or d / 8 as in the paper's figures."""
        return self.p or min(max(int(d) // 8, 1), self.n)

    def check(self, figure: str) -> "FigureSettings":
        """Returns itself. Raises an InputError that names the flag, what is wrong, what to do."""

        def refuse(flag: str, wrong: bool, problem: str) -> None:
            if wrong:
                raise self.refusal(flag, problem)

        n, d, alpha = self.n, self.d, self.alpha
        refuse("seed", not 0 <= self.seed < 2**24, "give a whole number from 0 to 16777215")
        refuse("runs", self.runs < 1, "give a whole number from 1")
        wrong = alpha is not None and not 0 < alpha <= 5  # also refuses NaN
        refuse("alpha", wrong, "the exponent of Zipf's law must lie above 0 and be at most 5")
        refuse("m", self.m is not None and self.m < 2, "recall needs at least 2 outputs")
        problem = f"give at least as many inputs as there are outputs, {self.m}"
        refuse("n", n is not None and n < self.m, problem)
        problem = "dimensions are whole numbers from 1, for example --d=32,64,128"
        refuse("d", d is not None and (not d or min(d) < 1), problem)
        problem = f"a scheme stores from 1 to N of the inputs, and figure {figure} has N={n}; "
        refuse("p", self.p is not None and not 1 <= self.p <= n, problem + "set --n or --p")
        largest = max(d or (n or 1,))
        problem = f"a run of {n} inputs in {largest} dimensions is too large; lower --n or --d"
        refuse("n", n is not None and n * min(n, largest) > LARGEST_SIMULATION, problem)
        return self

    def refusal(self, flag: str, problem: str) -> InputError:
        """Of the value of a flag, in one line."""
        value = getattr(self, flag)
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        return InputError(f"--{flag}={shown}: {problem}")

    def dimensions(self, figure: str, count: str, example: str) -> tuple[int, ...]:
        """d. Raises InputError if it is not `count`, "one" or "several"."""
        if (len(self.d) > 1) == (count == "one"):
            shows = "shows several dimensions; give at least 2"
            shows = "has one dimension; give one" if count == "one" else shows
            raise self.refusal("d", f"figure {figure} {shows}, for example --d={example}")
        return self.d


class Figure(NamedTuple):
    """A figure: `study(settings)` makes it; settings are `defaults` where no flag is given."""

    study: Callable[[FigureSettings], Study]
    defaults: dict
