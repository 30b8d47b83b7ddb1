"""One tidy table of what a figure measured: a value for every variant, seed and measure.

Columns of a page, claims and pictures name what they show by expressions over this table:

    closed                            a measure of the variant at hand
    sinks.gap / sinks_paper.gap       measures of named variants, of the same seed
    lead(sinks, standard)             a function of the figure, of whole runs
"""

import functools
import logging
import math
import operator
import re
from collections.abc import Callable

import numpy as np

from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.studies.figures.runs import Run, by_variant

logger = logging.getLogger(__name__)

# The two kinds of sinks that figures compare, and what labels add for each.
KINDS = {"sinks_paper": "", "sinks": ", open on return"}

# A measure is a metric of a run, a function of the run, or an expression of other measures.
Measures = dict[str, str | Callable]
COMMON: Measures = {
    "run": lambda run: run,  # for functions of the variant at hand and others: f(run, standard.run)
    "detail": lambda run, *path: functools.reduce(operator.getitem, path, run.details),
    "gap": "held_out_loss - repeated_loss",  # nats per token
    "closed": "1 - gap / standard.gap",  # share of the standard model's gap that is closed; 1 is all of it
    "held_out_ratio": "held_out_loss / standard.held_out_loss",
}
# As columns of a page.
LOSSES = {
    "held-out": "held_out_loss", "repeated": "repeated_loss", "repeated, own sinks": "repeated_loss_own",
    "gap closed": "closed", "held-out over standard's": "held_out_ratio",
}  # fmt: skip
_FUNCTIONS = {"min": min, "max": max, "median": lambda values: float(np.median(values))}
_NAME = re.compile(r"'[^']*'|([A-Za-z]\w*(?:\.\w+)*)\b(?!\()")  # not a function, and nothing within quotes
_BOUNDED = re.compile(r"(?:(\S+) <= )?(.+) (<=|>=) (\S+)")


class NotRun(KeyError):
    """A variant that was not run."""


class Table:
    """The values of `runs`.

    Args:
      measures: besides COMMON and the metrics of the runs; functions of several runs may be called in expressions.
      standard_of: the variant that `standard` means in an expression about a variant; "" if none.
      across: functions of all runs, of which the expressions of claims are if they are not paired by seed.
    """

    def __init__(
        self, runs: list[Run], measures: Measures | None = None, standard_of: Callable[[str], str] | None = None,
        across: dict[str, Callable] | None = None,
    ):  # fmt: skip
        self.groups = by_variant(runs)
        self.measures = COMMON | (measures or {})
        self._functions = _FUNCTIONS | {name: one for name, one in self.measures.items() if callable(one)}
        self._across = across
        self._standard_of = standard_of or (lambda variant: "standard")

    def run(self, variant: str, seed: int) -> Run:
        if variant not in self.groups:
            raise NotRun(variant)
        return self.groups[variant][seed]

    def measure(self, name: str, seed: int, variant: str):
        """A measure of one run. Raises NotRun, or KeyError if the run does not have it."""
        run, how = self.run(variant, seed), self.measures.get(name)
        if how is None:
            return run.metrics[name]
        return how(run) if callable(how) else self.value(how, seed, variant)

    def value(self, expression: str, seed: int, variant: str = ""):
        """The value of an expression; nan if it divides by zero. Raises as `measure` does.

        Args:
          variant: whose measures are meant by names without a variant. If none, such names mean runs.
        """
        values = {}

        def read(match: re.Match) -> str:
            if match[1] is None:
                return match[0]
            whose, name = self._parts(match[1], variant)
            place = f"_{len(values)}"
            values[place] = self.measure(name, seed, whose) if name else self.run(whose, seed)
            return place

        program = _NAME.sub(read, expression)
        try:
            return eval(program, {"__builtins__": {}, **self._functions, **values})
        except ZeroDivisionError:
            return math.nan

    def _parts(self, name: str, of: str = "") -> tuple[str, str]:
        """A name in an expression about the variant `of`, or about none -> (variant, measure), "" if it means the run.

        Names of variants may have dots.
        """
        if not of and name in self.groups:
            return name, ""
        variant, _, measure = name.rpartition(".")
        return self._standard_of(of) if of and variant == "standard" else variant or of, measure

    def column(self, expression: str, variant: str) -> list[float]:
        """One value per seed of a variant, without those that lack something."""
        found = []
        for seed in self.groups.get(variant, ()):
            try:
                found.append(self.value(expression, seed, variant))
            except KeyError:
                continue
        return found

    def paired(self, expression: str) -> list[float] | None:
        """One value per seed of an expression about named variants; None if one that it needs was not run."""
        if self._across:
            return eval(expression, {"__builtins__": {}, **self._across}) or None
        first, _ = self._parts(next(match[1] for match in _NAME.finditer(expression) if match[1]))
        try:
            return [self.value(expression, seed) for seed in self.groups.get(first, [None])]
        except NotRun:
            return None

    def claims(self, written: str, paper: str = "") -> list[Claim]:
        """Measures claims, paired by seed. Leaves out those about variants that were not run, or without a number in a seed.

        Args:
          written: rows of `report.rows`: id | statement | measure and bounds | what the paper says | variants without which
            it is not claimed, besides those of the measure. The last two may be left out. Bounds are as in `sinks.gap >= 0`
            or `0 <= sinks.gap <= 1`. `{sinks}` in a measure stands for the paper's sinks; the same with sinks that open on
            return is shown next to it.
          paper: what it says, for rows that leave that out.
        """
        found = []
        for name, statement, measured, *more in report.rows(written):
            stated, needed = (*more, *(paper, "")[len(more) :])
            least, measure, sign, bound = _BOUNDED.fullmatch(measured).groups()
            if not set(needed.split()) <= set(self.groups):
                continue
            values, returning = (self.paired(measure.format(sinks=kind)) for kind in KINDS)
            if values is None:
                continue
            if not all(map(math.isfinite, values)):
                logger.warning("not defined in every seed: %s", name)
                continue
            bounds = {"at_least": float(least)} if least else {}
            bounds |= {{"<=": "at_most", ">=": "at_least"}[sign]: float(bound)}
            returning = returning if "{sinks}" in measure else None
            found.append(Claim(name, statement, stated, values, on_return=returning, **bounds))
        return found


def standard_for(variant: str) -> str:
    """The standard model of the same setting: of sinks_SETTING or sinks_paper_SETTING, standard_SETTING."""
    return re.sub("^(sinks_paper|sinks)_", "standard_", variant)
