"""The pictures of figures: panels of lines, over the steps of training or over a setting that is varied."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from memsinks_jax.reporting.pictures import plt, save, tidy
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Table

RED, GREY, GREEN = "#c0392b", "#7f8c8d", "#1e8449"
COLOURS = {
    "standard": RED, "no_repeat": GREY, "no_repeat_steps": "#b2babb", "sinks_paper": "#5dade2", "sinks": "#1f618d",
    "narrow": "#d68910", "dropout": GREEN, "gradient_masking": "#6c3483", "gradient_detach": "#d68910",
}  # fmt: skip
# For the losses of one variant.
HELD_OUT, REPEATED = "#1f618d", RED


class Line(NamedTuple):
    """A line through means over seeds, with a band from the lowest to the highest.

    Attributes:
      of: a variant, for a line over the steps of training, or {place on the x axis: variant}.
      shown: a metric or a function, run -> (x, y), for a line of one variant; else an expression.
    """

    of: str | dict[float, str]
    shown: str | Callable[[Run], tuple[Sequence[float], Sequence[float]]]
    label: str
    colour: object
    style: str = "-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines whose variants were not run are left out.

    Attributes:
      floor: draws the entropy floor, if known.
      levels: {height: colour} of further horizontal lines.
      from_zero: the y axis starts at 0.
      ticks: {place: label} on the x axis, which is logarithmic if `log`.
      early: cuts the y axis where the second evaluation is: the first, of an untrained model, would flatten everything.
      settings: of the axis, for matplotlib.
      legend: for matplotlib; None draws none, "lines" writes the labels at the lines' ends.
    """

    title: str
    x: str = "step"
    y: str = ""
    lines: Sequence[Line]
    floor: bool = False
    levels: dict[float, str] = dataclasses.field(default_factory=dict)
    from_zero: bool = True
    ticks: dict[float, str] = dataclasses.field(default_factory=dict)
    log: bool = False
    early: bool = False
    settings: dict = dataclasses.field(default_factory=dict)
    legend: dict | str | None = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Categories:
    """Points with whiskers from the lowest to the highest seed, side by side at every name on the x axis.

    Attributes:
      series: {label: (colour, for every name one value per seed; none leaves a gap)}.
      bars: horizontal bars instead, from top to bottom, with their means.
      levels: dotted. `settings`, `legend`: as in `Panel`.
    """

    title: str
    names: Sequence[str]
    series: dict[str, tuple[str, Sequence[Sequence[float]]]]
    bars: bool = False
    levels: dict[float, str] = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    legend: dict | None = dataclasses.field(default_factory=dict)


def draw_categories(axis, panel: Categories) -> None:
    step = (0.85 if panel.bars else 0.6) / max(len(panel.series), 1)
    for number, (label, (colour, columns)) in enumerate(panel.series.items()):
        shown = {place: values for place, values in enumerate(columns) if values}
        places = [place + step * (number - (len(panel.series) - 1) / 2) for place in shown]
        means = [np.mean(values) for values in shown.values()]
        reach = [np.subtract(means, list(map(min, shown.values()))), np.subtract(list(map(max, shown.values())), means)]
        if panel.bars:
            drawn = axis.barh(
                places, means, 0.9 * step, xerr=reach, color=colour, label=label, error_kw={"linewidth": 1}
            )
            axis.bar_label(drawn, fmt="%.2f", fontsize=7.5, padding=3)
        else:
            axis.errorbar(places, means, yerr=reach, fmt="o", color=colour, label=label, markersize=6)
    for height, colour in panel.levels.items():
        (axis.axvline if panel.bars else axis.axhline)(height, color=colour, linewidth=1, linestyle=":")
    (axis.set_yticks if panel.bars else axis.set_xticks)(range(len(panel.names)), panel.names)
    if panel.bars:
        axis.invert_yaxis()
    _finish(axis, panel)


AnyPanel = Panel | Categories | Callable


def draw(table: Table, panels: Sequence[AnyPanel], path: pathlib.Path, size=(15, 4.4), sharey=False, rows=1) -> None:
    """Writes a picture of panels, row by row. A function is a panel that draws itself on an axis."""
    figure, axes = plt.subplots(
        rows, len(panels) // rows, figsize=size, sharey=sharey, layout="constrained", squeeze=False
    )
    for axis, panel in zip(axes.flat, panels, strict=True):
        if isinstance(panel, Panel):
            draw_panel(axis, table, panel)
        elif isinstance(panel, Categories):
            draw_categories(axis, panel)
        else:
            panel(axis)
    save(figure, path)


def draw_panel(axis, table: Table, panel: Panel) -> None:
    runs = [run for group in table.groups.values() for run in group.values()]
    for line in panel.lines:
        _draw_line(axis, table, line)
    for height, colour in panel.levels.items():
        axis.axhline(height, color=colour, linewidth=1)
    floors = [run.metrics["entropy_floor"] for run in runs if "entropy_floor" in run.metrics]
    if floors and panel.floor:
        axis.axhline(np.mean(floors), color="black", linewidth=1, linestyle=(0, (4, 3)), label="entropy floor")
    axis.set(xlabel=panel.x, ylabel=panel.y)
    if panel.from_zero:
        axis.set_ylim(0, None)
    if panel.early:
        curves = [run.curve("held_out_loss")[1] for run in runs]
        axis.set_ylim(0, 1.05 * max(curve[min(1, len(curve) - 1)] for curve in curves))
    if panel.log:
        axis.set_xscale("log")
    if panel.ticks:
        axis.set_xticks(list(panel.ticks), list(panel.ticks.values()))
        axis.minorticks_off()
    _finish(axis, panel)


def _finish(axis, panel: Panel | Categories) -> None:
    """Title, settings, grid, legend."""
    axis.set(title=panel.title, **panel.settings)
    if axis.get_yscale() == "log" and axis.get_ylim()[1] < 100 * axis.get_ylim()[0]:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    tidy(axis)
    if panel.legend == "lines":
        name_lines(axis)
    elif panel.legend is not None and axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8.5, **panel.legend)


def _draw_line(axis, table: Table, line: Line) -> None:
    if isinstance(line.of, str):
        of = list(table.groups.get(line.of, {}).values())
        curves = [line.shown(run) if callable(line.shown) else run.curve(line.shown) for run in of]
        if curves and len(curves[0][0]):
            band(axis, *at_same_steps(curves), line.label, line.colour, line.style)
        return
    columns = {place: table.column(line.shown, variant) for place, variant in line.of.items()}
    columns = {place: values for place, values in columns.items() if values}
    if columns:
        band(axis, list(columns), np.array(list(columns.values())).T, line.label, line.colour, line.style)


def heat_map(
    axis, values: np.ndarray, rows: Sequence, columns: Sequence, highest: float | None = None, origin="upper"
) -> None:
    """A matrix as colours, with its numbers in the cells."""
    highest = values.max() if highest is None else highest
    axis.imshow(values, cmap="Reds", vmin=0, vmax=highest, origin=origin, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(x, y, f"{value:.2f}", ha="center", va="center", color="white" if value > highest / 2 else "black")
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)


def band(axis, x: Sequence[float], values_SX: np.ndarray, label: str | None, colour, style: str = "-", **more) -> None:
    """A line through the means over seeds, and a band from the lowest to the highest."""
    (line,) = axis.plot(x, values_SX.mean(axis=0), style, color=colour, label=label, linewidth=1.8, **more)
    if len(x) == 1 and line.get_marker() == "None":
        line.set_marker("o")  # a line of one point is invisible
    axis.fill_between(x, values_SX.min(axis=0), values_SX.max(axis=0), color=colour, alpha=0.18, linewidth=0)


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
