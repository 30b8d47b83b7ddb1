"""One tidy table of what a figure measured: a value for every variant, seed and measure.

Columns of a page, claims and pictures name what they show by expressions over this table:

    closed                            a measure of the variant at hand
    sinks.gap / sinks_paper.gap       measures of named variants, of the same seed
    lead(sinks, standard)             a function of the figure, of whole runs
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Collection

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim, NotMeasured
from memsinks_jax.studies.figures.runs import Run, by_variant

# The two kinds of sinks that figures compare, and what labels add for each.
KINDS = {"sinks_paper": "", "sinks": ", open on return"}


def detail(run: Run, *path: str):
    """An entry of a run's details. KeyError if there is none, NotMeasured without a value."""
    found = functools.reduce(operator.getitem, path, run.details)
    if found is None:
        raise NotMeasured(f"{' '.join(path)} has no value")
    return found


# A measure is a metric of a run, a function of the run, or an expression of other measures.
Measures = dict[str, str | Callable]
COMMON: Measures = {
    "run": lambda run: run,  # for functions of the variant at hand and others: f(run, standard.run)
    "detail": detail,
    "gap": "held_out_loss - repeated_loss",  # nats per token
    # share of the standard model's gap that is closed; 1 is all of it
    "closed": "1 - gap / standard.gap",
    "held_out_ratio": "held_out_loss / standard.held_out_loss",
}
# As columns of a page.
LOSSES = {
    "held-out": "held_out_loss",
    "repeated": "repeated_loss",
    "repeated, own sinks": "repeated_loss_own",
    "gap closed": "closed",
    "held-out over standard's": "held_out_ratio",
}
# What every run may have measured, see `measures.memorization`; a study adds to them.
_OF_ROLES = ("held_out_loss", "repeated_loss", "canary_loss")
METRICS = frozenset({"step", "tokens", "train_loss", "entropy_floor", *_OF_ROLES})
METRICS |= {f"{name}_own" for name in _OF_ROLES}


def if_seen(value: float, control_fails: bool) -> float:
    """The value, if a control fails the same test: a model from which nothing was removed.

    With too little data every model passes. Raises NotMeasured if the control passes.
    """
    if not control_fails:
        raise NotMeasured("a model from which nothing was removed passes the same test")
    return value


_FUNCTIONS = {
    "min": min,
    "max": max,
    "float": float,
    "median": lambda values: float(np.median(values)),
    "if_seen": if_seen,
}
_CALL = re.compile(r"'[^']*'|\b([A-Za-z]\w*)\(")
# not a function, and nothing within quotes
_NAME = re.compile(r"'[^']*'|([A-Za-z]\w*(?:\.\w+)*)\b(?!\()")
_BOUNDED = re.compile(r"(?:(\S+) <= )?(.+) (<=|>=) (\S+)")


class Table:
    """The values of `runs`.

    Args:
      measures: besides COMMON and the metrics of the runs; functions of several runs may be called
        in expressions.
      standard_of: the variant that `standard` means in an expression about a variant; "" if none.
      across: functions of all runs, of which the expressions of claims are if they are not paired
        by seed.
    """

    def __init__(
        self,
        runs: list[Run],
        measures: Measures | None = None,
        standard_of: Callable[[str], str] | None = None,
        across: dict[str, Callable] | None = None,
    ):
        self.groups = by_variant(runs)
        self.measures = COMMON | (measures or {})
        given = {name: one for name, one in self.measures.items() if callable(one)}
        self._functions, self._across = _FUNCTIONS | given, across
        self._standard_of = standard_of or (lambda variant: "standard")

    def run(self, variant: str, seed: int) -> Run:
        if seed not in self.groups.get(variant, ()):
            raise NotMeasured(f"{variant} was not measured")
        return self.groups[variant][seed]

    def measure(self, name: str, seed: int, variant: str):
        """A measure of one run. Raises NotMeasured, or KeyError if the run does not have it."""
        run, how = self.run(variant, seed), self.measures.get(name)
        if how is None:
            return run.metrics[name]
        return how(run) if callable(how) else self.value(how, seed, variant)

    def value(self, expression: str, seed: int, variant: str = ""):
        """The value of an expression; nan if it divides by zero. Raises as `measure` does.

        Args:
          variant: whose measures are meant by names without a variant. If none, such names mean
            runs.
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
        """A name in an expression about the variant `of`, or about none -> (variant, measure), ""
        if it means the run.

        Names of variants may have dots.
        """
        variant, _, measure = name.rpartition(".")
        if not of and (name in self.groups or not (variant and measure.isidentifier())):
            return name, ""
        return self._standard_of(of) if of and variant == "standard" else variant or of, measure

    def column(self, expression: str, variant: str) -> list[float]:
        """One value per seed of a variant, without those that lack something."""
        found = []
        for seed in self.groups.get(variant, ()):
            try:
                found.append(self.value(expression, seed, variant))
            except (KeyError, NotMeasured):
                continue
        return found

    def paired(self, expression: str) -> list[float]:
        """One value per seed of an expression about named variants. Raises NotMeasured."""
        try:
            if self._across:
                return eval(expression, {"__builtins__": {}, **self._across})
            names = (match[1] for match in _NAME.finditer(expression) if match[1])
            first, _ = self._parts(next(names))
            return [self.value(expression, seed) for seed in self.groups.get(first, [None])]
        except KeyError as error:
            raise NotMeasured(f"{error.args[0]} was not measured") from None

    def claims(self, written: str, paper: str = "") -> list[Claim]:
        """Measures claims, paired by seed. One that lacks something, or a number in a seed, is not
        decided, and says why.

        Args:
          written: rows of `report.rows`: id | statement | measure and bounds | what the paper says
            | variants without which it is not decided, besides those of the measure. The last two
            may be left out. Bounds are as in `sinks.gap >= 0` or `0 <= sinks.gap <= 1`. `{sinks}`
            in a measure stands for the paper's sinks; the same with sinks that open on return is
            shown next to it.
          paper: what it says, for rows that leave that out.
        """
        found = []
        for name, statement, measured, *more in report.rows(written):
            stated, needed = (*more, *(paper, "")[len(more) :])
            least, measure, sign, bound = _BOUNDED.fullmatch(measured).groups()
            bounds = {"at_least": float(least)} if least else {}
            bounds |= {{"<=": "at_most", ">=": "at_least"}[sign]: float(bound)}
            (values, why), returning = (
                self._decided(measure.format(sinks=kind), needed.split()) for kind in KINDS
            )
            bounds["on_return"] = (returning[0] or None) if "{sinks}" in measure else None
            found.append(Claim(name, statement, stated, values, undecided=why, **bounds))
        return found

    def _decided(self, measure: str, needed: Collection[str]) -> tuple[list[float], str | None]:
        """(values, None), or ([], why there are none)"""
        try:
            for variant in needed:
                if variant not in self.groups:
                    raise NotMeasured(f"{variant} was not measured")
            return self.paired(measure), None
        except NotMeasured as error:
            return [], str(error)


class Names(Table):
    """What a figure could show, without values: finds names that do not exist before anything is
    trained.

    Args:
      variants: all that it can train, and its views. `metrics`: of these, besides METRICS. Others:
        as of Table.
    """

    def __init__(self, variants: Collection[str], metrics: Collection[str], *of_table):
        super().__init__([], *of_table)
        self.groups, self._metrics = {name: {} for name in variants}, METRICS.union(metrics)

    def check(self, expression: str, of: str = "") -> None:
        """Raises InputError for names that do not exist; `of` as `variant` of `value`."""
        across = None if of else self._across  # claims alone are about these
        functions = across or self._functions
        for name in filter(None, (match[1] for match in _CALL.finditer(expression))):
            if name not in functions:
                raise InputError(f"{expression}: there is no function {name}")
        names = [] if across else [match[1] for match in _NAME.finditer(expression) if match[1]]
        for variant, name in (self._parts(name, of) for name in names):
            if variant or not of:  # a variant may have no standard model
                self.check_variant(variant, expression)
            how = self.measures.get(name)
            if isinstance(how, str) and variant:
                self.check(how, variant)
            elif name and how is None:
                self.check_metric(name, expression)

    def check_variant(self, name: str, where: str) -> None:
        if name not in self.groups:
            raise InputError(f"{where}: there is no variant {name}")

    def check_metric(self, name: str, where: str) -> None:
        if name not in self._metrics:
            raise InputError(f"{where}: there is no measure {name}")

    def column(self, expression: str, variant: str) -> list[float]:
        self.check_variant(variant, expression)
        self.check(expression, variant)
        return []

    def _decided(self, measure: str, needed: Collection[str]) -> tuple[list[float], str | None]:
        for variant in needed:
            self.check_variant(variant, measure)
        self.check(measure)
        return [], "nothing is trained yet"


def standard_for(variant: str) -> str:
    """The standard model of the same setting: of sinks_SETTING, standard_SETTING."""
    return re.sub("^(sinks_paper|sinks)_", "standard_", variant)
