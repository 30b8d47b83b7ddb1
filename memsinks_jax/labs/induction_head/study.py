"""Shared by the experiments: numbers from a run's curves, and the style of curves."""

import math

import numpy as np

from memsinks_jax.labs.induction_head.training import Run
from memsinks_jax.labs.study import BLUE, GREEN, GREY, ORANGE, RED, VIOLET

COLOURS = (BLUE, RED, GREEN, ORANGE, VIOLET, GREY, "#117a65", "#6e2c00", "#2e4053")


def in_words(label: str) -> str:
    """A label that says what the memories do."""
    for symbol, word in {"W_O^2": "copying", "W_K^2": "matching", "W_K^1": "previous token"}.items():
        label = label.replace(symbol, f"{word} (${symbol}$)")
    return label.replace("both W_K ", "both keys ($W_K$) ")


# Probe -> its colour, and its name for readers.
PROBES = {
    "wo1": (RED, in_words("W_O^2")), "wk1": (GREEN, in_words("W_K^2")),
    "wk0_64": (VIOLET, in_words("W_K^1") + ", t < 64"), "wk0": (BLUE, in_words("W_K^1") + ", all t"),
}  # fmt: skip

Runs = dict[str, list[Run]]  # label -> one run per seed


def record(variant: str, seed: int, metrics: dict[str, float], curves: dict[str, dict] | None = None) -> dict:
    """One run of results.json, without numbers that are not finite."""
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return {"variant": variant, "seed": seed, "metrics": finite, "curves": curves or {}}


def records(runs: Runs) -> list[dict]:
    """Runs of results.json: test rates at the end, and all curves."""
    made = []
    for label, several in runs.items():
        for run in several:
            steps = run.curves["step"]
            curves = {}
            for name, values in run.curves.items():
                kept = np.isfinite(values)
                if name != "step" and kept.any():
                    curves[name] = {"step": steps[kept].astype(int).tolist(), "value": values[kept].round(5).tolist()}
            made.append(record(label, run.seed, run.test, curves))
    return made


def smooth(values: np.ndarray, over: int = 3) -> np.ndarray:
    """Moving average of each point and those before it, `over` in all."""
    sums = np.concatenate([[0.0], np.nancumsum(values)])
    begin = np.maximum(np.arange(len(values)) + 1 - over, 0)
    return (sums[1:] - sums[begin]) / (np.arange(len(values)) + 1 - begin)


def reached(run: Run, name: str, level: float) -> float:
    """The first step at which the smoothed curve reaches `level`, or the run's last step."""
    where = np.flatnonzero(smooth(run.curves[name]) >= level)
    return float(run.curves["step"][where[0]] if len(where) else run.curves["step"][-1])


def fell(run: Run, name: str, level: float) -> float:
    """The first step at which the smoothed curve is down to `level`, or the run's last step."""
    where = np.flatnonzero(smooth(run.curves[name]) <= level)
    return float(run.curves["step"][where[0]] if len(where) else run.curves["step"][-1])


def minus(one: list[float], other: list[float]) -> list[float]:
    """The differences, seed by seed."""
    return [a - b for a, b in zip(one, other, strict=True)]


def at_end(runs: list[Run], name: str) -> list[float]:
    """A test rate, one per seed."""
    return [run.test[name] for run in runs]


def during(run: Run, name: str, first: int, last: int) -> np.ndarray:
    """Smoothed values at steps from `first` to `last`."""
    steps = run.curves["step"]
    return smooth(run.curves[name])[(steps >= first) & (steps <= last)]


def curve(axis, runs: list[Run], name: str, label: str | None, colour, style="-", over: int = 3) -> None:
    """Mean over seeds of a smoothed curve, with a band from the lowest to the highest seed."""
    values_GX = np.array([smooth(run.curves[name], over) for run in runs])
    steps = runs[0].curves["step"]
    axis.plot(steps, values_GX.mean(0), linestyle=style, color=colour, label=label, linewidth=1.7)
    axis.fill_between(steps, values_GX.min(0), values_GX.max(0), color=colour, alpha=0.15, linewidth=0)


def bars(axis, labels: list[str], groups: dict[str, list[list[float]]], colours) -> None:
    """Bars of means, with a dot per seed. groups: {legend: [values of the seeds for every label]}."""
    width = 0.8 / len(groups)
    for place, ((name, values), colour) in enumerate(zip(groups.items(), colours, strict=False)):
        at = np.arange(len(labels)) + (place - (len(groups) - 1) / 2) * width
        axis.bar(at, [np.mean(one) for one in values], width * 0.92, color=colour, alpha=0.75, label=name)
        for x, one in zip(at, values, strict=True):
            axis.plot([x] * len(one), one, ".", color="black", markersize=4)
    axis.set_xticks(np.arange(len(labels)), labels)
