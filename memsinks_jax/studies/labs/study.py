"""Shared by the labs: a finished study, its claims, kinds of panels, its report page."""

import contextlib
import dataclasses
import itertools
import logging
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tqdm

from memsinks_jax.config import InputError
from memsinks_jax.reporting import pictures, report
from memsinks_jax.reporting.claims import Claim, with_interval
from memsinks_jax.reporting.pictures import plt, tidy
from memsinks_jax.runs.interruption import atomic_folder

logger = logging.getLogger("memsinks_jax.labs")

DASHED, GREY = (0, (4, 3)), "#7f8c8d"
COLOURS = ("#1f618d", "#c0392b", "#1e8449", "#d68910", "#7d3c98", GREY)
COLOURS += ("#117a65", "#6e2c00", "#2e4053", "#85c1e9")
SHARE = (0, 1.02)  # the limits of an axis of shares
Panel = Callable[[plt.Axes], None]  # draws on an axis


@dataclasses.dataclass(frozen=True)
class Study:
    """A finished study of one figure, experiment or theorem.

    Attributes:
      name: on the command line; `title` and `answer` for readers, `note`: the setting and the
        choices made.
      runs: of results.json, each {"variant", "seed", "metrics": {name: number},
        "curves": {name: {axis: [], "value": []}}}.
      panels: of the picture. `sections`: further HTML for the page.
    """

    name: str
    title: str
    answer: str
    note: str
    runs: list[dict]
    claims: list[Claim]
    panels: Sequence[Panel]
    sections: Sequence[str] = ()

    def draw(self, path: pathlib.Path) -> None:
        """Writes the panels as a PNG, two in a row."""
        rows = -(-len(self.panels) // 2)
        figure, axes = plt.subplots(
            rows, 2, figsize=(10.8, 4.7 * rows), layout="constrained", squeeze=False
        )
        for panel, axis in itertools.zip_longest(self.panels, axes.flat, fillvalue=plt.Axes.remove):
            panel(axis)
        pictures.save(figure, path, dpi=140, bbox_inches="tight")


class Claims(list[Claim]):
    """The table of claims of a study. `values` have one number per seed."""

    def add(self, id: str, statement: str, paper: str, values: Iterable[float], **bounds) -> None:
        """bounds: at_least, at_most."""
        self.append(Claim(id, statement, paper, list(map(float, values)), **bounds))

    def near(self, id, statement, paper, values, expected: float, reach: float, digits=6) -> None:
        """Claims a number within `reach` of the expected one; bounds have so many digits."""
        low, high = (round(float(expected + sign * reach), digits) for sign in (-1, 1))
        self.add(id, statement, paper, values, at_least=low, at_most=high)

    def never(self, id: str, statement: str, paper: str, counts, trials: int) -> None:
        """Claims that a bound is never violated. One count per seed."""
        self.add(id, f"{statement}: violations in {trials:,} trials", paper, counts, at_most=0)


def mean_ci(values: Iterable[float], digits: int = 2) -> str:
    """'0.95 ± 0.01': the mean over seeds, and half of its 95% interval."""
    return with_interval(list(map(float, values)), digits)


@contextlib.contextmanager
def folder(out: str) -> Iterator[pathlib.Path]:
    """The folder of --out, in which no other command writes until the block ends. Raises InputError
    if it is a file, or another command writes there.
    """
    path = pathlib.Path(out)
    if path.exists() and not path.is_dir():
        raise InputError(f"--out={out}: is a file; give a folder")
    with atomic_folder(path / "results.json"):
        yield path


def measure(unit: str, makers: dict[str, Callable[[], Study]]) -> list[Study]:
    """Makes all studies, with a progress bar on a terminal, else one line per study."""
    studies = []
    with tqdm.tqdm(makers.items(), unit=unit, disable=not sys.stderr.isatty()) as bar:
        for name, make in bar:
            bar.set_description(f"{unit} {name}")
            start = time.monotonic()
            studies.append(make())
            if bar.disable:
                logger.info("%s %s: %.1f s", unit, name, time.monotonic() - start)
    return studies


def write(out: pathlib.Path, about: dict, title: str, studies: list[Study], command: str) -> dict:
    """Draws the plots, writes results.json and index.html, prints the claims -> results.json.

    Nothing appears in `out` until everything is made. With several studies, the names of variants
    and claims in results.json start with the study's name. about: the first entries of
    results.json. The very first, such as {"figure": "5"}, also names the PNG files. title: of a
    page of several studies.
    """
    several, kind = len(studies) > 1, next(iter(about))
    runs, claims = [], []
    for study in studies:
        prefix = f"{study.name}: " if several else ""
        runs += [{**run, "variant": prefix + run["variant"]} for run in study.runs]
        claims += [{**claim.to_dict(), "id": prefix + claim.id} for claim in study.claims]
    content = {**about, "runs": runs, "claims": claims}
    with atomic_folder(out / "index.html") as made:
        sections = []
        for study in studies:
            picture = made / f"{kind}_{study.name}.png"
            study.draw(picture)
            sections += [report.heading(study.title)] if several else []
            sections += [
                report.paragraph(study.answer, "lead"),
                report.picture(picture, f"{study.title}. {study.answer}"),
                report.paragraph(study.note, "note"),
                *study.sections,
                *report.claims_section(study.claims),
            ]
        sections += [report.heading("How it was made"), report.code(command)]
        report.write_json(made / "results.json", content)
        report.write_page(made / "index.html", title if several else studies[0].title, sections)
        for path in sorted(made.iterdir()):
            os.replace(path, out / path.name)
    every = [claim for study in studies for claim in study.claims]
    print(report.plain_table(*report.claims_table(every)), file=sys.stderr)
    print(f"\nreport: {out / 'index.html'}", file=sys.stderr)
    return content


def finish(
    axis, title: str, x: str, y: str, legend: int = 0, log: str = "", ticks=(), **settings
) -> None:
    """Sets title, labels, grid and log scales, and a legend of `legend` columns below. ticks: of a
    logarithmic x axis, as plain numbers, about seven of them. settings: of `Axes.set`.
    """
    axis.set(
        title=title, xlabel=x, ylabel=y, **settings, **{f"{which}scale": "log" for which in log}
    )
    tidy(axis)
    if len(ticks):
        chosen = list(ticks)[:: -(-len(ticks) // 7)]
        axis.set_xticks(chosen, [f"{place:g}" for place in chosen])
        axis.xaxis.set_minor_locator(plt.NullLocator())
    if legend:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
        axis.legend(ncols=legend, frameon=False, fontsize=8.5, **below)


def lines(
    title: str,
    x: str,
    y: str,
    shown: dict[str, tuple],
    style="-",
    legend=3,
    level=None,
    at=(),
    ordered=False,
    **settings,
) -> Panel:
    """A panel of curves, each with what is derived for it, dashed.

    Args:
      x, y: labels of the axes.
      shown: {label: (places (X,), values (seeds, X) or (X,) or None, and optionally what is derived
        (X,))}. Of several seeds: the mean, in a band from the lowest to the highest.
      level, at: dotted lines at a height, and at places of the x axis.
      ordered: the curves are a family, dark to light. settings: of `finish`.
    """

    def draw(axis) -> None:
        dark_to_light = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(shown)))
        colours = dark_to_light if ordered else itertools.cycle(COLOURS)
        for (label, (places, values, *derived)), colour in zip(
            shown.items(), colours, strict=False
        ):
            if values is not None:
                values_SX, look = np.atleast_2d(values), {"linewidth": 1.8, "markersize": 4}
                axis.plot(places, values_SX.mean(0), style, color=colour, label=label, **look)
                ends = values_SX.min(0), values_SX.max(0)
                axis.fill_between(places, *ends, color=colour, alpha=0.18, linewidth=0)
            for number, line in enumerate(derived):
                name = label if values is None and number == 0 else None
                axis.plot(places, line, color=colour, linestyle=DASHED, linewidth=1.2, label=name)
        for height in [] if level is None else [level]:
            axis.axhline(height, color=GREY, linewidth=0.8, linestyle=":")
        for place in at:
            axis.axvline(place, color=GREY, linewidth=0.8, linestyle=":")
        finish(axis, title, x, y, min(legend, len(shown)), **settings)

    return draw


def scatter(
    title: str, x: str, y: str, shown: dict[str, tuple], diagonal: str, **settings
) -> Panel:
    """A panel of points {label: (x, y)}, and the line of equal values, labelled `diagonal`."""
    every = np.concatenate([np.ravel(across) for across, _ in shown.values()])
    ends = [every.min(), every.max()]
    return lines(title, x, y, shown | {diagonal: (ends, None, ends)}, ".", **settings)


def bars(
    title: str, y: str, labels: Sequence[str], groups: dict[str, Sequence], **settings
) -> Panel:
    """A panel of bars of means, with a dot per seed. groups: {legend: [values for every label]}."""

    def draw(axis) -> None:
        width, places = 0.8 / len(groups), np.arange(len(labels))
        for group, ((name, values), colour) in enumerate(
            zip(groups.items(), COLOURS, strict=False)
        ):
            at = places + (group - (len(groups) - 1) / 2) * width
            means = [np.mean(one) for one in values]
            axis.bar(at, means, width * 0.92, color=colour, alpha=0.75, label=name)
            for place, one in zip(at, values, strict=True):
                axis.plot([place] * len(one), one, ".", color="black", markersize=4)
        axis.set_xticks(
            places, labels, **({"rotation": 40, "ha": "right"} if len(labels) > 5 else {})
        )
        finish(axis, title, "", y, len(groups) * (len(groups) > 1), **settings)

    return draw


def record(
    variant: str,
    seeds,
    metrics: dict,
    curves: dict[str, tuple[str, list, np.ndarray]] | None = None,
):
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
                name: {
                    axis: [float(x) for x in places],
                    "value": [float(value) for value in values_SX[place]],
                }
                for name, (axis, places, values_SX) in (curves or {}).items()
            },
        }
        for place, seed in enumerate(seeds)
    ]


def columns(rows: list[dict]) -> dict[str, np.ndarray]:
    """Metrics of several seeds, one row per seed -> {name: values (seeds,)}."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
