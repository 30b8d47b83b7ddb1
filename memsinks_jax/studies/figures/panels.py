"""The pictures of figures. A panel is of one of four kinds: `Panel` has lines over the steps of
training or over a setting that is varied, `Categories` points or bars by name, `Scatter` curves in
a plane, `Matrix` a table of colours.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from memsinks_jax.reporting.claims import interval
from memsinks_jax.reporting.pictures import plt, save, tidy
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Names, Table

RED, GREY, GREEN = "#c0392b", "#7f8c8d", "#1e8449"
COLOURS = {
    "standard": RED,
    "no_repeat": GREY,
    "no_repeat_steps": "#b2babb",
    "sinks_paper": "#5dade2",
    "sinks": "#1f618d",
    "context": "#8e44ad",
    "narrow": "#d68910",
    "dropout": GREEN,
    "gradient_masking": "#6c3483",
    "gradient_detach": "#d68910",
}
# For the losses of one variant.
HELD_OUT, REPEATED = "#1f618d", RED


class Line(NamedTuple):
    """A line through means over seeds, with a band from the lowest to the highest.

    Attributes:
      of: a variant, for a line over the steps of training, or {place on the x axis: variant, or
        values}.
      shown: a metric or a function, run -> (x, y), for a line of one variant; else an expression.
    """

    of: str | dict[float, str | Sequence[float]]
    shown: str | Callable[[Run], tuple[Sequence[float], Sequence[float]]]
    label: str
    colour: object
    style: str = "-"


class Curve(NamedTuple):
    """Points P in a plane, of seeds S. `names` of points are next to them, where there is room."""

    label: str
    colour: str
    style: str
    x_PS: np.ndarray
    y_PS: np.ndarray
    names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kind:
    """What all kinds have.

    Attributes:
      levels: {height: colour} of further lines.
      settings: of the axis, for matplotlib.
      legend: for matplotlib; None draws none, "lines" writes the labels at the lines' ends.
    """

    title: str
    x: str = ""
    y: str = ""
    levels: dict[float, str] = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    legend: dict | str | None = dataclasses.field(default_factory=dict)

    def finish(self, axis) -> None:
        """Title, settings, grid, legend."""
        axis.set(title=self.title, **self.settings)
        if axis.get_yscale() == "log" and axis.get_ylim()[1] < 100 * axis.get_ylim()[0]:
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        tidy(axis)
        if self.legend == "lines":
            name_lines(axis)
        elif self.legend is not None and axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8.5, **self.legend)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel(_Kind):
    """Lines whose variants were not run are left out.

    Attributes:
      floor: draws the entropy floor, if known.
      from_zero: the y axis starts at 0.
      ticks: {place: label} on the x axis, which is logarithmic if `log`.
      early: cuts the y axis where the second evaluation is: the first, of an untrained model, would
        flatten everything.
    """

    x: str = "step"
    lines: Sequence[Line]
    floor: bool = False
    from_zero: bool = True
    ticks: dict[float, str] = dataclasses.field(default_factory=dict)
    log: bool = False
    early: bool = False

    def check(self, names: Names) -> None:
        """Raises InputError if a line is of a variant or a measure that does not exist."""
        for line in self.lines:
            for variant in (line.of,) if isinstance(line.of, str) else line.of.values():
                if isinstance(variant, str):
                    names.check_variant(variant, line.label)
                    if isinstance(line.of, str) and isinstance(line.shown, str):
                        names.check_metric(line.shown, line.label)  # over the steps of training
                    elif isinstance(line.shown, str):
                        names.check(line.shown, variant)

    def draw(self, axis, table: Table) -> None:
        for line in self.lines:
            _draw_line(axis, table, line)
        for height, colour in self.levels.items():
            axis.axhline(height, color=colour, linewidth=1)
        runs = [run for group in table.groups.values() for run in group.values()]
        floors = [run.metrics["entropy_floor"] for run in runs if "entropy_floor" in run.metrics]
        if floors and self.floor:
            dashed = {"color": "black", "linewidth": 1, "linestyle": (0, (4, 3))}
            axis.axhline(np.mean(floors), label="entropy floor", **dashed)
        axis.set(xlabel=self.x, ylabel=self.y)
        if self.from_zero:
            axis.set_ylim(0, None)
        if self.early:
            curves = [run.curve("held_out_loss")[1] for run in runs]
            axis.set_ylim(0, 1.05 * max(curve[min(1, len(curve) - 1)] for curve in curves))
        if self.log:
            axis.set_xscale("log")
        if self.ticks:
            axis.set_xticks(list(self.ticks), list(self.ticks.values()))
            axis.minorticks_off()
        self.finish(axis)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Categories(_Kind):
    """Points with whiskers from the lowest to the highest seed, side by side at every name on the x
    axis.

    Attributes:
      series: {label: (colour, for every name one value per seed; none leaves a gap)}.
      bars: horizontal bars instead, from top to bottom, with their means.
    """

    names: Sequence[str]
    series: dict[str, tuple[str, Sequence[Sequence[float]]]]
    bars: bool = False

    def draw(self, axis, table: Table) -> None:
        step = (0.85 if self.bars else 0.6) / max(len(self.series), 1)
        for number, (label, (colour, columns)) in enumerate(self.series.items()):
            shown = {place: values for place, values in enumerate(columns) if values}
            places = [place + step * (number - (len(self.series) - 1) / 2) for place in shown]
            of_shown = ([of(values) for values in shown.values()] for of in (np.mean, min, max))
            means, lows, highs = map(np.array, of_shown)
            reach, style = [means - lows, highs - means], {"color": colour, "label": label}
            if self.bars:
                thin = {"linewidth": 1}
                drawn = axis.barh(places, means, 0.9 * step, xerr=reach, error_kw=thin, **style)
                axis.bar_label(drawn, fmt="%.2f", fontsize=7.5, padding=3)
            else:
                axis.errorbar(places, means, yerr=reach, fmt="o", markersize=6, **style)
        dotted = axis.axvline if self.bars else axis.axhline
        for height, colour in self.levels.items():
            dotted(height, color=colour, linewidth=1, linestyle=":")
        (axis.set_yticks if self.bars else axis.set_xticks)(range(len(self.names)), self.names)
        if self.bars:
            axis.invert_yaxis()
        axis.set(xlabel=self.x, ylabel=self.y)
        self.finish(axis)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scatter(_Kind):
    """Curves through means, with every seed faint, or `whiskers`: the means' 95% intervals."""

    curves: Sequence[Curve]
    whiskers: bool = False
    # {place: colour} of vertical lines
    upright: dict[float, str] = dataclasses.field(default_factory=dict)

    def draw(self, axis, table: Table) -> None:
        named: list[tuple[float, float]] = []
        for label, colour, style, x_PS, y_PS, names in self.curves:
            x_P, y_P = x_PS.mean(axis=1), y_PS.mean(axis=1)
            about = {"color": colour, "label": label}
            if self.whiskers:
                about |= {"linewidth": 1.4, "markersize": 4.5, "elinewidth": 0.7}
                axis.errorbar(x_P, y_P, _reach(y_PS), _reach(x_PS), style, **about)
            else:
                if x_PS.shape[1] > 1:
                    faint = {"linewidth": 0.7, "alpha": 0.35}
                    axis.plot(x_PS, y_PS, style[1:] or style, color=colour, **faint)
                about |= {"linewidth": 1.8, "markersize": 4 if style[1:] else 12}
                axis.plot(x_P, y_P, style, **about)
            for name, x, y in zip(names, x_P, y_P, strict=False):
                # else it would cover another
                if not any(abs(x - a) < 0.02 and abs(y - b) < 0.035 for a, b in named):
                    named.append((x, y))
                    axis.annotate(name, (x, y), (4, 3), textcoords="offset points", fontsize=7)
        for height, colour in self.levels.items():
            axis.axhline(height, color=colour, linewidth=0.8)
        for place, colour in self.upright.items():
            axis.axvline(place, color=colour, linewidth=0.8)
        axis.set(xlabel=self.x, ylabel=self.y)
        self.finish(axis)


def _reach(values_PS: np.ndarray) -> list[float]:
    bounds = [interval(values.tolist()) for values in values_PS]
    return [(high - low) / 2 for low, high in bounds] if all(bounds) else [0.0] * len(values_PS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix(_Kind):
    """A matrix as colours, numbers in the cells; the first row on top, or with "lower" last."""

    values: np.ndarray
    rows: Sequence
    columns: Sequence
    highest: float | None = None
    origin: str = "upper"

    def draw(self, axis, table: Table) -> None:
        highest = self.values.max() if self.highest is None else self.highest
        colours = {"cmap": "Reds", "vmin": 0, "vmax": highest}
        axis.imshow(self.values, origin=self.origin, aspect="auto", **colours)
        for (y, x), value in np.ndenumerate(self.values):
            colour = "white" if value > highest / 2 else "black"
            axis.text(x, y, f"{value:.2f}", ha="center", va="center", color=colour)
        axis.set_xticks(range(len(self.columns)), self.columns)
        axis.set_yticks(range(len(self.rows)), self.rows)
        axis.set(title=self.title, xlabel=self.x, ylabel=self.y)


AnyPanel = Panel | Categories | Scatter | Matrix | Callable


def draw(
    table: Table,
    panels: Sequence[AnyPanel],
    path: pathlib.Path,
    size=(15, 4.4),
    sharey=False,
    rows=1,
) -> None:
    """Writes a picture of panels, row by row. A function is a panel that draws itself on an
    axis.
    """
    shape = {"nrows": rows, "ncols": len(panels) // rows, "squeeze": False}
    figure, axes = plt.subplots(**shape, figsize=size, sharey=sharey, layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=True):
        panel.draw(axis, table) if isinstance(panel, _Kind) else panel(axis)
    save(figure, path)


def _draw_line(axis, table: Table, line: Line) -> None:
    about = line.label, line.colour, line.style
    if isinstance(line.of, str):
        of = list(table.groups.get(line.of, {}).values())
        curves = [line.shown(run) if callable(line.shown) else run.curve(line.shown) for run in of]
        if curves and len(curves[0][0]):
            steps, values_SX = at_same_steps(curves)
            band(axis, steps, values_SX.T, *about)
        return
    columns = {
        x: table.column(line.shown, of) if isinstance(of, str) else of for x, of in line.of.items()
    }
    columns = {x: values for x, values in columns.items() if len(values)}
    if columns:
        band(axis, list(columns), list(columns.values()), *about)


def band(
    axis, x: Sequence, columns: Sequence[Sequence[float]], label: str | None, colour, style="-"
) -> None:
    """Means over seeds, and a band from the lowest to the highest. columns: values at every x."""
    means, lows, highs = (list(map(of, columns)) for of in (np.mean, min, max))
    (line,) = axis.plot(x, means, style, color=colour, label=label, linewidth=1.8)
    if len(x) == 1 and line.get_marker() == "None":
        line.set_marker("o")  # a line of one point is invisible
    axis.fill_between(x, lows, highs, color=colour, alpha=0.18, linewidth=0)


def at_same_steps(curves: list[tuple]) -> tuple[Sequence[int], np.ndarray]:
    """(steps, values) of every seed -> (steps of the shortest run, values there (S, X),
    interpolated).

    With another seed, documents fill rows differently, so a run of as many epochs has more or fewer
    steps.
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
    places = np.minimum(places, high - apart * np.arange(len(lines))[::-1])
    beside = axis.get_yaxis_transform()  # x in shares of the axis, y in its units
    for line, place in zip(lines, places, strict=True):
        x, y, colour = line.get_xdata()[-1], line.get_ydata()[-1], line.get_color()
        arrow = {
            "arrowstyle": "-",
            "relpos": (0, 0.5),
            "color": colour,
            "linewidth": 0.7,
            "alpha": 0.6,
        }
        axis.annotate(
            line.get_label(),
            (x, y),
            (1.05, place),
            annotation_clip=False,
            xycoords=beside if x == 1 else "data",
            textcoords=beside,
            va="center",
            fontsize=9,
            color=colour,
            arrowprops=arrow,
        )
