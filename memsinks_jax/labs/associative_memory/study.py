"""Shared by the figures of this lab: their settings, their runs, the style of curves."""

import dataclasses
import math

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.labs.study import DASHED
from memsinks_jax.reporting.pictures import plt

GROUPS = 10  # of independent runs: every measured number has one value per group, so an interval
LARGEST_SIMULATION = 2**26  # coordinates of the embeddings of one run: 256 MiB


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a figure. None: the figure has no such setting, or takes its default.

    Attributes:
      seed: of all randomness.
      runs: independent draws of data and embeddings to average over.
      alpha: exponent of Zipf's law. n, m: numbers of inputs and outputs. d: dimensions of the embeddings.
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

    def check(self, figure: str) -> "Settings":
        """Returns itself.

        Raises:
          InputError: names the flag, what is wrong with it and what to do.
        """

        def refuse(flag, problem):
            raise InputError(f"--{flag}={_written(getattr(self, flag))}: {problem}")

        if not 0 <= self.seed < 2**24:
            refuse("seed", "give a whole number from 0 to 16777215")
        if self.runs < 1:
            refuse("runs", "give a whole number from 1")
        if self.alpha is not None and not 0 < self.alpha <= 5:  # also refuses NaN
            refuse("alpha", "the exponent of Zipf's law must lie above 0 and be at most 5")
        if self.m is not None and self.m < 2:
            refuse("m", "recall needs at least 2 outputs")
        if self.n is not None and self.n < self.m:
            refuse("n", f"give at least as many inputs as there are outputs, {self.m}")
        if self.d is not None and (not self.d or min(self.d) < 1):
            refuse("d", "dimensions are whole numbers from 1, for example --d=32,64,128")
        if self.p is not None and not 1 <= self.p <= self.n:
            refuse(
                "p", f"a scheme stores from 1 to N of the inputs, and figure {figure} has N={self.n}; set --n or --p"
            )
        if self.n is not None and self.n * min(self.n, max(self.d or (self.n,))) > LARGEST_SIMULATION:
            refuse(
                "n", f"a run of {self.n} inputs in {max(self.d or (self.n,))} dimensions is too large; lower --n or --d"
            )
        return self


def _written(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def record(variant: str, seeds: list[int], curves: dict[str, tuple[str, list, np.ndarray]], **metrics) -> list[dict]:
    """One run of results.json for every group.

    Args:
      curves: {name: (name of the x axis, its values (X,), values (groups, X))}.
      metrics: numbers, each (groups,).
    """
    return [
        {
            "variant": variant, "seed": seed,
            "metrics": {name: float(values[group]) for name, values in metrics.items()},
            "curves": {
                name: {axis: [float(x) for x in places], "value": [float(value) for value in values[group]]}
                for name, (axis, places, values) in curves.items()
            },
        }
        for group, seed in enumerate(seeds)
    ]  # fmt: skip


def curve(axis, x, values_GX: np.ndarray, label: str, colour, style="-", **settings) -> None:
    """Mean over groups of runs, with a band from the lowest to the highest group."""
    axis.plot(x, values_GX.mean(0), linestyle=style, color=colour, label=label, linewidth=1.8, **settings)
    axis.fill_between(x, values_GX.min(0), values_GX.max(0), color=colour, alpha=0.18, linewidth=0)


def mark(axis, values, which: str = "x") -> None:
    """Puts ticks of a log axis only at these values, as plain numbers; at most about seven of them."""
    chosen = list(values)[:: -(-len(values) // 7)]
    (axis.set_xticks if which == "x" else axis.set_yticks)(chosen, [f"{value:g}" for value in chosen])
    (axis.xaxis if which == "x" else axis.yaxis).set_minor_locator(plt.NullLocator())


def theory(axis, x, values, label: str | None = None, colour="black") -> None:
    axis.plot(x, values, color=colour, linewidth=1.2, linestyle=DASHED, label=label)


def shades(count: int) -> list:
    """Colours for an ordered family of curves, dark to light."""
    return list(plt.get_cmap("viridis")(np.linspace(0, 0.85, count)))
