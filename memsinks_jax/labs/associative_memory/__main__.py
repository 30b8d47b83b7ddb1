"""Scaling laws for associative memories: python -m memsinks_jax.labs.associative_memory --figure=laws --out=runs/laws

Measures, draws, and writes results.json, figure_NAME.png and index.html, all of them once everything is done.
"""

import logging
import os
import pathlib
import sys
import tempfile
import time

import tqdm
from absl import flags

from memsinks_jax import command_line, report
from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import (
    figure_1,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_laws,
    figure_sinks,
)
from memsinks_jax.labs.associative_memory.study import Settings, Study

logger = logging.getLogger("memsinks_jax.labs.associative_memory")

FIGURES = {
    "1": figure_1, "3": figure_3, "4": figure_4, "5": figure_5, "6": figure_6, "7": figure_7, "8": figure_8,
    "laws": figure_laws, "sinks": figure_sinks,
}  # fmt: skip


def settings_of(figure: str, seed: int, chosen: dict, lenient: bool = False) -> Settings:
    """The figure's defaults with what was chosen on the command line.

    Args:
      chosen: {flag: value}, without those that were not given.
      lenient: leave out flags which the figure has no use for, instead of refusing them.
    Raises:
      InputError: a value that cannot be used, or a flag the figure has no use for.
    """
    defaults = FIGURES[figure].DEFAULTS
    for flag in chosen:
        if flag not in defaults and not lenient:
            raise InputError(
                f"--{flag}: figure {figure} has no use for it; leave it out (it has {', '.join(defaults)})"
            )
    mine = {flag: value for flag, value in chosen.items() if flag in defaults}
    return Settings(seed=seed, **{**defaults, **mine}).check(figure)


def measure(settings: dict[str, Settings]) -> list[Study]:
    """Every figure of `settings`, with a progress bar on a terminal and a line a figure elsewhere."""
    studies = []
    with tqdm.tqdm(total=len(settings), unit="figure", disable=not sys.stderr.isatty()) as bar:
        for name, mine in settings.items():
            bar.set_description(f"figure {name}")
            start = time.monotonic()
            studies.append(FIGURES[name].study(mine))
            bar.update()
            if bar.disable:
                logger.info("figure %s: %.1f s", name, time.monotonic() - start)
    return studies


def results(figure: str, studies: list[Study]) -> dict:
    """The content of results.json. With several figures the names of variants and claims begin with the figure's."""
    runs, claims = [], []
    for study in studies:
        prefix = f"{study.figure}: " if len(studies) > 1 else ""
        runs += [{**run, "variant": prefix + run["variant"]} for run in study.runs]
        claims += [{**claim.to_dict(), "id": prefix + claim.id} for claim in study.claims]
    return {
        "figure": figure, "preset": "laptop", "seeds": sorted({seed for study in studies for seed in study.seeds}),
        "runs": runs, "claims": claims,
    }  # fmt: skip


def write(out: pathlib.Path, figure: str, studies: list[Study], command: str) -> dict:
    """Draws and writes everything -> the content of results.json. Nothing appears in `out` until all of it is made."""
    content = results(figure, studies)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as scratch:
        made = pathlib.Path(scratch)
        sections = []
        for study in studies:
            picture = made / f"figure_{study.figure}.png"
            study.draw(picture)
            sections += [] if len(studies) == 1 else [report.heading(study.title)]
            sections += [
                report.paragraph(study.answer, "lead"), report.picture(picture, study.title),
                report.paragraph(study.note, "note"), *study.sections, *report.claims_section(study.claims),
            ]  # fmt: skip
        title = studies[0].title if len(studies) == 1 else "Scaling laws for associative memories, and for sinks"
        report.write_json(made / "results.json", content)
        report.write_page(
            made / "index.html", title, [*sections, report.heading("How it was made"), report.code(command)]
        )
        for path in sorted(made.iterdir()):
            os.replace(path, out / path.name)
    return content


def main() -> None:
    figure_flag = flags.DEFINE_enum("figure", None, [*FIGURES, "all"], "Figure of the paper, or study.", required=True)
    out_flag = flags.DEFINE_string("out", None, "Folder for results.json, the pictures and index.html.", required=True)
    seed_flag = flags.DEFINE_integer("seed", 0, "All randomness follows from it.")
    choices = {
        "runs": flags.DEFINE_integer(
            "runs", None, "Draws of data and embeddings; the figure's own number if not given."
        ),
        "alpha": flags.DEFINE_float("alpha", None, "Exponent of Zipf's law."),
        "n": flags.DEFINE_integer("n", None, "Inputs, the paper's N; documents in the study of sinks."),
        "m": flags.DEFINE_integer("m", None, "Outputs, the paper's M."),
        "d": flags.DEFINE_list("d", None, "Dimensions of the embeddings; numbers of sinks in the study of sinks."),
        "p": flags.DEFINE_integer("p", None, "Inputs a thresholded scheme stores, the paper's P (figures 1 and 3)."),
    }

    def run() -> dict:
        chosen = {name: flag.value for name, flag in choices.items() if flag.value is not None}
        if "d" in chosen:
            if not all(text.strip().isdigit() for text in chosen["d"]):
                raise InputError(f"--d={','.join(chosen['d'])}: give whole numbers, for example --d=32,64,128")
            chosen["d"] = tuple(sorted({int(text) for text in chosen["d"]}))
        figure = figure_flag.value
        names = list(FIGURES) if figure == "all" else [figure]
        settings = {name: settings_of(name, seed_flag.value, chosen, lenient=figure == "all") for name in names}
        out = pathlib.Path(out_flag.value)
        if out.exists() and not out.is_dir():
            raise InputError(f"--out={out}: is a file; give a folder")
        studies = measure(settings)
        command = f"python -m memsinks_jax.labs.associative_memory --figure={figure} --seed={seed_flag.value}"
        for name, value in chosen.items():
            command += f" --{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        content = write(out, figure, studies, f"{command} --out={out}")
        claims = [claim for study in studies for claim in study.claims]
        print(report.plain_table(*report.claims_table(claims)), file=sys.stderr)
        print(f"\nreport: {out / 'index.html'}", file=sys.stderr)
        return content

    command_line.run(run)


if __name__ == "__main__":
    main()
