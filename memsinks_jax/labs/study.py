"""Shared by the labs: a finished study, its report page, the style of its plots."""

import dataclasses
import logging
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable

import tqdm

from memsinks_jax.config import InputError
from memsinks_jax.reporting import pictures, report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, tidy
from memsinks_jax.runs import output
from memsinks_jax.runs.interruption import half_written

logger = logging.getLogger("memsinks_jax.labs")

DASHED = (0, (4, 3))
RED, BLUE, GREEN, ORANGE, GREY, VIOLET = "#c0392b", "#1f618d", "#1e8449", "#d68910", "#7f8c8d", "#7d3c98"


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
