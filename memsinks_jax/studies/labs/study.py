"""Shared by the labs: a finished study, its claims, the kinds of panels in its picture, its report page."""

import dataclasses
import itertools
import logging
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tqdm

from memsinks_jax.config import InputError
from memsinks_jax.reporting import pictures, report
from memsinks_jax.reporting.claims import Claim, with_interval
from memsinks_jax.reporting.pictures import plt, tidy
from memsinks_jax.runs import output
from memsinks_jax.runs.interruption import half_written

logger = logging.getLogger("memsinks_jax.labs")

DASHED = (0, (4, 3))
RED, BLUE, GREEN, ORANGE, GREY, VIOLET = "#c0392b", "#1f618d", "#1e8449", "#d68910", "#7f8c8d", "#7d3c98"
COLOURS = (BLUE, RED, GREEN, ORANGE, VIOLET, GREY, "#117a65", "#6e2c00", "#2e4053")


@dataclasses.dataclass(frozen=True)
class Study:
    """A finished study of one figure, experiment or theorem.

    Attributes:
      name: on the command line; `title` and `answer` for readers, `note`: the setting and the choices made.
      runs: of results.json, each {"variant", "seed", "metrics": {name: number},
        "curves": {name: {axis: [], "value": []}}}.
      draw: draw(path) writes the PNG. `sections`: further HTML for the page.
    """

    name: str
    title: str
    answer: str
    note: str
    runs: list[dict]
    claims: list[Claim]
    draw: Callable[[pathlib.Path], None]
    sections: list[str] = dataclasses.field(default_factory=list)

    @property
    def told(self) -> list[Claim]:
        """Its claims, without those about something that never happened."""
        return [claim for claim in self.claims if all(map(math.isfinite, claim.values))]


def claim(id: str, statement: str, paper: str, values: Iterable[float], **bounds: float) -> Claim:
    """A row of the table of claims. values: one per seed. bounds: at_least, at_most."""
    return Claim(id, statement, paper, list(map(float, values)), **bounds)


def mean_ci(values: Iterable[float], digits: int = 2) -> str:
    """'0.95 ± 0.01': the mean over seeds, and half of its 95% interval."""
    return with_interval(list(map(float, values)), digits)


def folder(out: str) -> pathlib.Path:
    """The folder of the flag --out. Raises InputError if it is a file."""
    path = pathlib.Path(out)
    if path.exists() and not path.is_dir():
        raise InputError(f"--out={out}: is a file; give a folder")
    output.refuse_unwritable(path / "index.html")
    return path


def measure(unit: str, makers: dict[str, Callable[[], Study]]) -> list[Study]:
    """Makes all studies, with a progress bar on a terminal, else one line per study. unit: 'figure', 'theorem'."""
    studies = []
    with tqdm.tqdm(total=len(makers), unit=unit, disable=not sys.stderr.isatty()) as bar:
        for name, make in makers.items():
            bar.set_description(f"{unit} {name}")
            start = time.monotonic()
            studies.append(make())
            bar.update()
            if bar.disable:
                logger.info("%s %s: %.1f s", unit, name, time.monotonic() - start)
    return studies


def write(out: pathlib.Path, about: dict, title: str, studies: list[Study], command: str) -> dict:
    """Draws the plots, writes results.json and index.html, prints the claims -> the content of results.json.

    Nothing appears in `out` until everything is made. With several studies, the names of variants and claims in
    results.json start with the study's name.

    Args:
      about: the first entries of results.json. The very first, such as {"figure": "5"}, also names the PNG files.
      title: of the page, if there are several studies.
    """
    several, kind = len(studies) > 1, next(iter(about))
    runs, claims = [], []
    for study in studies:
        prefix = f"{study.name}: " if several else ""
        runs += [{**run, "variant": prefix + run["variant"]} for run in study.runs]
        claims += [{**claim.to_dict(), "id": prefix + claim.id} for claim in study.told]
    content = {**about, "runs": runs, "claims": claims}
    with half_written(out / "index.html") as made:
        sections = []
        for study in studies:
            picture = made / f"{kind}_{study.name}.png"
            study.draw(picture)
            sections += [report.heading(study.title)] if several else []
            sections += [
                report.paragraph(study.answer, "lead"), report.picture(picture, f"{study.title}. {study.answer}"),
                report.paragraph(study.note, "note"), *study.sections, *report.claims_section(study.told),
            ]  # fmt: skip
        sections += [report.heading("How it was made"), report.code(command)]
        report.write_json(made / "results.json", content)
        report.write_page(made / "index.html", title if several else studies[0].title, sections)
        for path in sorted(made.iterdir()):
            os.replace(path, out / path.name)
    told = [claim for study in studies for claim in study.told]
    print(report.plain_table(*report.claims_table(told)), file=sys.stderr)
    print(f"\nreport: {out / 'index.html'}", file=sys.stderr)
    return content


def panels(count: int):
    """A figure of `count` panels, two per row at the page's full width, an odd last one centred; and its axes."""
    rows = -(-count // 2)
    figure = plt.figure(figsize=(10.8, 4.7 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 4)
    lefts = [1 if count % 2 and number == count - 1 else number % 2 * 2 for number in range(count)]
    return figure, [figure.add_subplot(grid[number // 2, left : left + 2]) for number, left in enumerate(lefts)]


def finish(axis, title: str, x: str, y: str, legend: int = 0, log: str = "", **settings) -> None:
    """Sets title, labels, grid and log scales, and puts a legend of `legend` columns below the panel."""
    axis.set(title=title, xlabel=x, ylabel=y, **settings)
    if "x" in log:
        axis.set_xscale("log")
    if "y" in log:
        axis.set_yscale("log")
    tidy(axis)
    if legend:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=legend, frameon=False, fontsize=8.5)


def save(figure, path: pathlib.Path) -> None:
    pictures.save(figure, path, dpi=140, bbox_inches="tight")


SHARE = (0, 1.02)  # the limits of an axis of shares


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a panel: the mean over seeds of values_GX (seeds, places), in a band from the lowest to the highest.

    label: None leaves it out of the legend. colour: None takes the next of `COLOURS`.
    """

    x: Sequence[float]
    values_GX: np.ndarray
    label: str | None
    colour: str | None = None
    style: str = "-"


Panel = Callable[[plt.Axes], None]  # draws on an axis


def lines(title: str, x: str, y: str, shown: Sequence[Line], vertical=(), horizontal=(), **settings) -> Panel:
    """A panel of lines.

    Args:
      x, y: labels of the axes.
      vertical, horizontal: dotted lines, each (place, colour).
      settings: of matplotlib's `Axes.set`.
    """

    def draw(axis) -> None:
        for line, next_colour in zip(shown, itertools.cycle(COLOURS), strict=False):
            values_GX, colour = line.values_GX, line.colour or next_colour
            axis.plot(line.x, values_GX.mean(0), line.style, color=colour, label=line.label, linewidth=1.7)
            axis.fill_between(line.x, values_GX.min(0), values_GX.max(0), color=colour, alpha=0.15, linewidth=0)
        for place, colour in vertical:
            axis.axvline(place, color=colour, linestyle=":", linewidth=1)
        for place, colour in horizontal:
            axis.axhline(place, color=colour, linestyle=":", linewidth=1)
        finish(axis, title, x, y, legend=min(len(shown), 3), **settings)

    return draw


def bars(title: str, y: str, labels: Sequence[str], groups: dict[str, Sequence], **settings) -> Panel:
    """A panel of bars of means, with a dot per seed. groups: {legend: [values of the seeds for every label]}."""

    def draw(axis) -> None:
        width, places = 0.8 / len(groups), np.arange(len(labels))
        for group, ((name, values), colour) in enumerate(zip(groups.items(), COLOURS, strict=False)):
            at = places + (group - (len(groups) - 1) / 2) * width
            axis.bar(at, [np.mean(one) for one in values], width * 0.92, color=colour, alpha=0.75, label=name)
            for place, one in zip(at, values, strict=True):
                axis.plot([place] * len(one), one, ".", color="black", markersize=4)
        crowded = {"rotation": 40, "ha": "right"} if len(labels) > 5 else {}
        axis.set_xticks(places, labels, **crowded)
        finish(axis, title, "", y, legend=len(groups) if len(groups) > 1 else 0, **settings)

    return draw


def picture(shown: Sequence[Panel]) -> Callable[[pathlib.Path], None]:
    """The function `draw` of a study whose picture has these panels. Panels with the same legend share one."""

    def draw(path: pathlib.Path) -> None:
        figure, axes = panels(len(shown))
        for panel, axis in zip(shown, axes, strict=True):
            panel(axis)
        handles, labels = axes[0].get_legend_handles_labels()
        if labels and all(axis.get_legend_handles_labels()[1] == labels for axis in axes):
            for legend in filter(None, (axis.get_legend() for axis in axes)):
                legend.remove()
            figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        save(figure, path)

    return draw


def family(
    title: str, x: str, y: str, shown: dict[str, tuple], style="-", legend=3, log="", level=None, ticks=(), **settings
) -> Panel:
    """A panel of curves, each with what is derived for it, dashed.

    Args:
      x, y: labels of the axes.
      shown: {label: (places (X,), values (seeds, X) or (X,) or None, and optionally what is derived (X,))}. Of several
        seeds: the mean, in a band from the lowest to the highest. More than four are an ordered family, dark to light.
      level: of a dotted line. ticks: the only ones of a logarithmic x axis, as plain numbers, at most about seven.
      settings: of matplotlib's `Axes.set`.
    """

    def draw(axis) -> None:
        ordered = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(shown)))
        colours = (BLUE, ORANGE, GREEN, RED) if len(shown) <= 4 else ordered
        for (label, (places, values, *derived)), colour in zip(shown.items(), colours, strict=False):
            if values is not None:
                values_SX = np.atleast_2d(values)
                axis.plot(places, values_SX.mean(0), style, color=colour, label=label, linewidth=1.8, markersize=4)
                if len(values_SX) > 1:
                    axis.fill_between(places, values_SX.min(0), values_SX.max(0), color=colour, alpha=0.18, linewidth=0)
            for number, line in enumerate(derived):
                name = label if values is None and number == 0 else None
                axis.plot(places, line, color=colour, linestyle=DASHED, linewidth=1.2, label=name)
        if level is not None:
            axis.axhline(level, color=GREY, linewidth=0.8, linestyle=":")
        finish(axis, title, x, y, min(legend, len(shown)), log, **settings)
        plain_ticks(axis, ticks)

    return draw


def plain_ticks(axis, places, which: str = "x") -> None:
    """Ticks of a logarithmic axis at these places alone, if any, as plain numbers; at most about seven."""
    if len(places):
        chosen = list(places)[:: -(-len(places) // 7)]
        axis.set(**{f"{which}ticks": chosen, f"{which}ticklabels": [f"{place:g}" for place in chosen]})
        getattr(axis, f"{which}axis").set_minor_locator(plt.NullLocator())


def scatter(title: str, x: str, y: str, shown: dict[str, tuple], diagonal: str, ticks=(), **settings) -> Panel:
    """A panel of points {label: (x, y)}, and the line of equal values, labelled `diagonal`. ticks: of both axes, if any."""

    def draw(axis) -> None:
        for (label, (across, up)), colour in zip(shown.items(), (BLUE, RED, GREEN, ORANGE, VIOLET, GREY), strict=False):
            axis.plot(across, up, ".", color=colour, markersize=5, alpha=0.6, label=label)
        every = np.concatenate([np.ravel(across) for across, _ in shown.values()])
        ends = [every.min(), every.max()]
        axis.plot(ends, ends, color=GREY, linewidth=1.2, label=diagonal)
        finish(axis, title, x, y, legend=3, **settings)
        plain_ticks(axis, ticks)
        plain_ticks(axis, ticks, "y")

    return draw


def record(variant: str, seeds, metrics: dict, curves: dict[str, tuple[str, list, np.ndarray]] | None = None):
    """Rows of the table of runs, one per seed -> list of `Study.runs`.

    Args:
      metrics: {name: its values (seeds,)}.
      curves: {name: (name of the x axis, its values (X,), values (seeds, X))}.
    """
    return [
        {
            "variant": variant,
            "seed": seed,
            "metrics": {name: float(values_S[place]) for name, values_S in metrics.items()},
            "curves": {
                name: {axis: [float(x) for x in places], "value": [float(value) for value in values_SX[place]]}
                for name, (axis, places, values_SX) in (curves or {}).items()
            },
        }
        for place, seed in enumerate(seeds)
    ]


def columns(rows: list[dict]) -> dict[str, list]:
    """Metrics of several seeds, one row per seed -> {name: values (seeds,)}."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def values(runs: list[dict], variant: str, name: str) -> np.ndarray:
    """A metric (seeds,), or the values of a curve (seeds, X), out of the table of runs."""
    rows = [run for run in runs if run["variant"] == variant]
    return np.array([run["metrics"][name] if name in run["metrics"] else run["curves"][name]["value"] for run in rows])


def near(id: str, statement: str, paper: str, values, expected: float, tolerance: float, digits: int = 6) -> Claim:
    """A claim that a number is `expected` to within `tolerance`; bounds have so many digits."""
    low, high = (round(float(expected + sign * tolerance), digits) for sign in (-1, 1))
    return claim(id, statement, paper, values, at_least=low, at_most=high)
