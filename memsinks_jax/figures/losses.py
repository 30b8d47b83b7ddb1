"""Held-out and repeated loss of runs, which figures compare: measures, claims, a table, and panels."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from memsinks_jax.figures.runs import Run, by_variant
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import tidy


def gap_closed(run: Run, standard: Run) -> float:
    """Share of the standard model's gap between held-out and repeated loss that is closed; 1 is all of it. nan: no gap."""
    return 1 - gap(run) / gap(standard) if gap(standard) else math.nan


def recovery_ratio(run: Run, no_repeat: Run) -> float:
    """Repeated loss over that of a model that never saw the repeats; 1 means as if never seen."""
    return run.metrics["repeated_loss"] / no_repeat.metrics["repeated_loss"]


def held_out_ratio(one: Run, other: Run) -> float:
    return one.metrics["held_out_loss"] / other.metrics["held_out_loss"]


def gap(run: Run) -> float:
    """Held-out minus repeated loss, nats per token."""
    return run.metrics["held_out_loss"] - run.metrics["repeated_loss"]


def paired(
    runs: list[Run], name: str, statement: str, paper: str, variants: Sequence[str], measure: Callable[..., float], **bounds
) -> list[Claim]:  # fmt: skip
    """The claim about `measure(a run of each of variants)`, one value per seed. No claim if a variant was not run."""
    groups = by_variant(runs)
    if not set(variants) <= set(groups):
        return []
    values = [measure(*(groups[variant][seed] for variant in variants)) for seed in groups[variants[0]]]
    return [Claim(name, statement, paper, values, **bounds)]


def table(
    runs: list[Run], standard_of: Callable[[str], str], no_repeat: str | None = None
) -> tuple[list[str], list[list[list[float]]]]:
    """Final numbers -> (names of columns, one row per variant; a cell holds one value per seed, none if undefined).

    Args:
      standard_of: the variant to compare a variant's gap and held-out loss with.
      no_repeat: the variant to compare recovery with; None omits the column.
    """
    groups = by_variant(runs)
    columns = ["held-out", "repeated", "repeated, own sinks", "gap closed", "held-out over standard's"]
    columns += ["recovery"] * (no_repeat is not None) + ["steps"]
    rows = []
    for variant, group in groups.items():
        of_seed = list(group.items())
        standard, without = groups.get(standard_of(variant), {}), groups.get(no_repeat, {})
        row = [
            [run.metrics["held_out_loss"] for _, run in of_seed],
            [run.metrics["repeated_loss"] for _, run in of_seed],
            [run.metrics["repeated_loss_own"] for _, run in of_seed if "repeated_loss_own" in run.metrics],
            [gap_closed(run, standard[seed]) for seed, run in of_seed if seed in standard],
            [held_out_ratio(run, standard[seed]) for seed, run in of_seed if seed in standard],
        ]
        if no_repeat is not None:
            row.append([recovery_ratio(run, without[seed]) for seed, run in of_seed if seed in without])
        rows.append([*row, [run.metrics["step"] for _, run in of_seed]])
    return columns, rows


def band(axis, x: Sequence[float], values_SX: np.ndarray, label: str | None, colour, style: str = "-", **more) -> None:
    """A line through the means over seeds, and a band from the lowest to the highest."""
    (line,) = axis.plot(x, values_SX.mean(axis=0), style, color=colour, label=label, linewidth=1.8, **more)
    if len(x) == 1 and line.get_marker() == "None":
        line.set_marker("o")  # a line of one point is invisible
    axis.fill_between(x, values_SX.min(axis=0), values_SX.max(axis=0), color=colour, alpha=0.18, linewidth=0)


def curve(axis, runs: list[Run], name: str, label: str, colour, style: str = "-") -> None:
    """One metric of a variant over training."""
    band(axis, *at_same_steps([run.curve(name) for run in runs]), label, colour, style)


def at_same_steps(curves: list[tuple[Sequence[int], Sequence[float]]]) -> tuple[Sequence[int], np.ndarray]:
    """(steps, values) of every seed -> (steps of the shortest run, values there (S, X), interpolated).

    With another seed, documents fill rows differently, so a run of as many epochs has more or fewer steps.
    """
    steps, _ = min(curves, key=lambda curve: curve[0][-1])
    return steps, np.array([np.interp(steps, *curve) for curve in curves])


def name_lines(axis) -> None:
    """Labels every line at its right end, in its colour. Moves labels apart that would overlap."""
    low, high = axis.get_ylim()
    lines = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
    lines.sort(key=lambda line: line.get_ydata()[-1])
    apart, places = (high - low) * 0.065, []
    for line in lines:
        places.append(max([line.get_ydata()[-1], *(place + apart for place in places[-1:])]))
    for line, place in zip(lines, np.minimum(places, high - apart * np.arange(len(lines))[::-1]), strict=True):
        axis.annotate(
            line.get_label(), (line.get_xdata()[-1], line.get_ydata()[-1]), (1.05, place), annotation_clip=False,
            xycoords=axis.get_yaxis_transform() if line.get_xdata()[-1] == 1 else "data", va="center", fontsize=9,
            textcoords=axis.get_yaxis_transform(), color=line.get_color(),
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "color": line.get_color(), "linewidth": 0.7, "alpha": 0.6},
        )  # fmt: skip


def finish(axis, runs: list[Run], title: str, x: str) -> None:
    """Draws the entropy floor, if known, title and grid."""
    floors = [run.metrics["entropy_floor"] for run in runs if "entropy_floor" in run.metrics]
    if floors:
        axis.axhline(np.mean(floors), color="black", linewidth=1, linestyle=(0, (4, 3)), label="entropy floor")
    axis.set(title=title, xlabel=x, ylim=(0, None))
    tidy(axis)
