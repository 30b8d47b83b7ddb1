"""The form of all experiments: a grid of recipes, each trained with several seeds, conclusions."""

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence

import numpy as np

from memsinks_jax.studies.labs.induction_head.measures import MEASURES, PROBES
from memsinks_jax.studies.labs.induction_head.presets import Preset
from memsinks_jax.studies.labs.induction_head.sinks import World
from memsinks_jax.studies.labs.induction_head.training import Recipe, Run
from memsinks_jax.studies.labs.study import Panel, Study, lines


@dataclasses.dataclass(frozen=True)
class Group:
    """The runs of one recipe, one per seed (axis G). All numbers are arrays (G,)."""

    runs: Sequence[Run]

    @classmethod
    def untrained(cls, seeds: Sequence[int], measure: Callable[[int], dict[str, float]]) -> "Group":
        """Of measures without training, a function of the seed."""
        return cls([Run(None, seed, {}, {}, measure(seed)) for seed in seeds])

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def steps_X(self) -> np.ndarray:
        return self.runs[0].curves["step"]

    def each(self, measure: Callable[[Run], float]) -> np.ndarray:
        return np.array([measure(run) for run in self.runs])

    def test(self, name: str) -> np.ndarray:
        """A rate on fresh sequences at the end."""
        return self.each(lambda run: run.test[name])

    def values(self, name: str, over: int = 1) -> np.ndarray:
        """A curve: the mean of each point and those before it, `over` in all -> (G, X)."""
        values_GX = self.each(lambda run: run.curves[name])
        sums_GX = np.nancumsum(np.pad(values_GX, ((0, 0), (1, 0))), axis=1)
        ends = np.arange(1, values_GX.shape[1] + 1)
        begins = np.maximum(ends - over, 0)
        return values_GX if over == 1 else (sums_GX[:, ends] - sums_GX[:, begins]) / (ends - begins)

    def during(self, name: str, first: int, last: int) -> np.ndarray:
        """The smoothed curve at steps from `first` to `last` -> (G, points)."""
        return self.values(name, 3)[:, (self.steps_X >= first) & (self.steps_X <= last)]

    def first_step(self, reached_GX: np.ndarray) -> np.ndarray:
        """The first step at which something is reached, or the last step."""
        return self.steps_X[np.where(reached_GX.any(1), reached_GX.argmax(1), -1)].astype(float)

    def reached(self, name: str, level: float | np.ndarray) -> np.ndarray:
        """The first step at which the smoothed curve reaches `level` (of each run), or the last."""
        return self.first_step(self.values(name, 3) >= np.reshape(level, (-1, 1)))

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A curve, to be drawn. What is sampled, not a probe of the weights, is smoothed."""
        return self.steps_X, self.values(name, 1 if name in (*PROBES, "ff1") else 3)

    def records(self, variant: str) -> list[dict]:
        """Runs of results.json: test rates at the end, and all curves."""
        return [record(variant, run.seed, run.test, run.curves) for run in self.runs]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """run: a generator (preset) that yields its grid {label: recipe}, is sent {label: Group}, and
    returns an answer and a note as in `Study`, claims, panels, and further runs of results.json if
    any.
    """

    name: str
    title: str
    run: Callable[[Preset], Generator[dict[str, Recipe | World], dict[str, Group], tuple]]

    def recipes(self, preset: Preset) -> dict[str, Recipe | World]:
        return next(self.run(preset))

    def study(self, preset: Preset, runs: dict[str, list[Run]]) -> Study:
        """runs: {label: [one run per seed]}."""
        groups = {label: Group(several) for label, several in runs.items()}
        running = self.run(preset)
        next(running)
        try:
            running.send(groups)
        except StopIteration as stop:
            answer, note, claims, panels, *further = stop.value
        records = [record for label, group in groups.items() for record in group.records(label)]
        return Study(
            self.name,
            f"{self.name}: {self.title}",
            answer,
            note,
            sum(further, records),
            claims,
            panels,
        )


def ends(groups: dict[str, Group], name: str = "acc_clean") -> dict[str, np.ndarray]:
    """A rate on fresh sequences at the end, of every group."""
    return {label: group.test(name) for label, group in groups.items()}


def measured(title: str, group: Group, names: Sequence[str], **settings) -> Panel:
    """A panel of several measures of one group while it trains."""
    _, y, limits = MEASURES[names[0]]
    shown = {MEASURES[name][0]: group.curve(name) for name in names}
    return lines(title, "step", y, shown, ylim=limits, **settings)


def compared(
    title: str, groups: dict[str, Group], name: str, floors: dict[str, float] | None = None
) -> Panel:
    """A panel of one measure of several groups while they train. floors: of each group, dashed."""
    shown = {label: group.curve(name) for label, group in groups.items()}
    if floors:
        shown = {
            label: (steps, curve, steps * 0 + floors[label])
            for label, (steps, curve) in shown.items()
        }
    return lines(title, "step", MEASURES[name][1], shown, ylim=MEASURES[name][2])


def record(
    variant: str, seed: int, metrics: dict[str, float], curves: dict[str, np.ndarray], axis="step"
) -> dict:
    """One run of results.json, without what is not finite. `axis`: the curve of the places."""
    shortened = {}
    for name in [name for name in curves if name != axis]:
        finite_X = np.isfinite(curves[name])
        if finite_X.any():
            places, values = curves[axis][finite_X].astype(int), curves[name][finite_X]
            shortened[name] = {axis: places.tolist(), "value": values.round(5).tolist()}
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return {"variant": variant, "seed": seed, "metrics": finite, "curves": shortened}
