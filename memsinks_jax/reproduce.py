"""Reproduces a figure of the paper: python -m memsinks_jax.reproduce --figure=4 --preset=laptop
--out=runs/figure4

Trains the runs of the figure (finished ones are reused), then writes results.json, a PNG and
index.html. With --all reproduces every figure of the paper, each in its own folder, and writes a
page of all claims. With --dry_run prints the cost of the first seed's runs and trains nothing.
Config fields can be set for all runs: --config.data.files='texts/*.txt'.
"""

import dataclasses
import json
import logging
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from memsinks_jax.config import Config, InputError
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import option
from memsinks_jax.runs.interruption import atomic_folder
from memsinks_jax.studies.figures import (
    audit,
    contexts,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    forgetting,
    local_memory,
    membership,
    overview,
    pool,
    removal,
    rivals,
    sizes,
    theory,
    tofu,
)
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.runs import Job, Run, default_jobs, make_jobs, train_all
from memsinks_jax.variants import CONFIGS

logger = logging.getLogger("memsinks_jax.reproduce")

FIGURES = {
    "2": figure_2.FIGURE,
    "3": figure_3.FIGURE,
    "4": figure_4.FIGURE,
    "5a": figure_5.FIGURE_5A,
    "5b": figure_5.FIGURE_5B,
    "5c": figure_5.FIGURE_5C,
    "6": figure_6.FIGURE,
    "7": figure_7.FIGURE,
    "theory": theory.FIGURE,
}
STUDIES = {
    "audit": audit.FIGURE,
    "forgetting": forgetting.FIGURE,
    "local_memory": local_memory.FIGURE,
    "membership": membership.FIGURE,
    "contexts": contexts.FIGURE,
    "pool": pool.FIGURE,
    "removal": removal.FIGURE,
    "rivals": rivals.FIGURE,
    "sizes": sizes.FIGURE,
    "tofu": tofu.FIGURE,
}  # not in the paper: --all skips them
PRESETS = ("small", "laptop", "paper", "full")

_FILES = ("hf", "tofu", "general_text")  # of a request, those that are the user's


@dataclasses.dataclass(frozen=True)
class FigureOptions:
    """The options for a figure, like the flags. `variants` None means all; `overrides` are flags
    for every run.
    """

    preset: str
    seeds: list[int]
    overrides: list[str]
    at_once: int
    variants: Sequence[str] | None = None
    hf: str | None = None
    tofu: str | None = None
    general_text: str | None = None

    def command(self, what: str, out: pathlib.Path) -> str:
        parts = ["python -m memsinks_jax.reproduce", what, f"--preset={self.preset}"]
        parts += [f"--seeds={','.join(map(str, self.seeds))}"]
        parts += [f"--variants={','.join(self.variants)}"] if self.variants else []
        files = [f"--{name}={value}" for name in _FILES if (value := getattr(self, name))]
        return " ".join([*parts, *self.overrides, *files, f"--out={out}"])


def jobs_of(
    name: str, asked: FigureOptions, out: pathlib.Path, workdirs: dict[str, pathlib.Path]
) -> list[Job]:
    """The runs that a figure needs; `workdirs` as in `make_jobs`. Raises InputError for a variant
    it does not have.
    """
    figure = (FIGURES | STUDIES)[name]
    figure.check()
    known = figure.variations
    if asked.variants is not None and not asked.variants:
        raise InputError(
            f"--variants is empty; choose of {', '.join(known)}, or leave it out for all"
        )
    for variant in asked.variants or ():
        if variant not in known:
            raise InputError(
                f"--variants: figure {name} has no {variant!r}; choose of {', '.join(known)}"
            )
    if not known:
        return []
    chosen = {name: known[name] for name in asked.variants or known}
    flags = (
        figure.prepare_for(out, asked) if figure.prepare_for else figure.prepare(out)
    ) + asked.overrides
    return make_jobs(
        CONFIGS / figure.config, asked.preset, chosen, asked.seeds, flags, out, workdirs
    )


def reproduce(
    name: str, asked: FigureOptions, out: pathlib.Path, jobs: list[Job], command: str
) -> dict:
    """Trains, measures, draws, writes -> the content of results.json. Raises as `train_all`
    does.
    """
    figure = (FIGURES | STUDIES)[name]
    about = {"figure": name, "preset": asked.preset, "seeds": asked.seeds, "command": command}
    if figure.make:
        return figure.make(about, out, command)
    runs = figure.measure(train_all(jobs, asked.at_once))
    claims = figure.claims(runs)
    out.mkdir(parents=True, exist_ok=True)
    figure.draw(runs, out / f"figure_{name}.png")
    more = figure.sections(runs, out) + (
        figure.published(asked.hf) if asked.hf and figure.published else []
    )
    found = {
        "runs": [run.to_dict() for run in runs],
        "claims": [claim.to_dict() for claim in claims],
    }
    report.write_json(out / "results.json", about | found)
    report.write_page(
        out / "index.html", figure.title, _page(figure, name, runs, claims, more, command, out)
    )
    _print_summary(figure, runs, claims, out)
    return about | found


def reproduce_all(asked: FigureOptions, out: pathlib.Path) -> dict:
    """Every figure of the paper in a folder of its own, and the page of all claims -> the content
    of its results.json.

    Runs that several figures need are trained once. A finished figure that trains nothing stays as
    it is.
    """
    command, workdirs = asked.command("--all", out), {}
    folders = {figure: out / f"figure_{figure}" for figure in FIGURES}
    plans = {figure: jobs_of(figure, asked, folder, workdirs) for figure, folder in folders.items()}
    # Train all before measuring any, because measuring takes the accelerator. Together they also
    # fill the cores.
    train_all([job for jobs in plans.values() for job in jobs], asked.at_once)
    contents = {
        figure: _made_by(command, figure, folders[figure])
        or reproduce(figure, asked, folders[figure], jobs, command)
        for figure, jobs in plans.items()
    }
    about = {"figure": "all", "preset": asked.preset, "seeds": asked.seeds, "command": command}
    content = overview.write(out, FIGURES, contents, about, command)
    print(f"\nall claims: {out / 'index.html'}", file=sys.stderr)
    return content


def _made_by(command: str, figure: str, out: pathlib.Path) -> dict | None:
    """The content of results.json, if this command made all of it. Not of models: these may be
    others by now.
    """
    if FIGURES[figure].variants:
        return None
    try:
        content = json.loads((out / "results.json").read_text())
    except (OSError, ValueError):
        return None
    return content if content.get("command") == command and (out / "index.html").exists() else None


def dry_run(figures: list[str], asked: FigureOptions) -> dict:
    """Prints the cost of every run of the first seed -> {"preset", "seeds", "runs": [...]}; trains
    nothing.
    """
    from memsinks_jax.models.initial import inherit
    from memsinks_jax.studies.figures import forecast  # jax takes seconds to import

    asked, workdirs = dataclasses.replace(asked, seeds=asked.seeds[:1]), {}
    with atomic_folder(pathlib.Path(tempfile.gettempdir(), f"dry_run-{os.getpid()}")) as scratch:
        jobs = {}
        for figure in figures:
            for job in jobs_of(figure, asked, scratch / figure, workdirs):
                jobs.setdefault(job.workdir, (figure, job))
        names = [f"{figure}: {job.variant}" for figure, job in jobs.values()]
        found = [forecast.forecast(inherit(job.config)) for _, job in jobs.values()]
    print(report.plain_table(*forecast.table(names, found)), file=sys.stderr)
    print(forecast.NOTE, file=sys.stderr)
    runs = [{"run": name, **one.to_dict()} for name, one in zip(names, found, strict=True)]
    return {"preset": asked.preset, "seeds": asked.seeds, "runs": runs}


def _page(
    figure: Figure, name, runs: list[Run], claims: list[Claim], more: list[str], command: str, out
) -> list[str]:
    note = figure.note_text(runs)
    columns, rows = figure.final_numbers(runs)
    return [
        report.paragraph(figure.answer, "lead"),
        report.picture(out / f"figure_{name}.png", f"{figure.title}. {note}"),
        report.paragraph(note, "note"),
        report.heading("Final numbers"),
        report.text_table(columns, rows, len(columns) - 1),
        report.paragraph(
            f"Mean ± half of the 95% interval over seeds. {figure.table_note}", "note"
        ),
        *report.claims_section(claims),
        *more,
        report.heading("How it was made"),
        report.code(command),
    ]


def _print_summary(figure: Figure, runs: list[Run], claims: list[Claim], out: pathlib.Path) -> None:
    print(report.plain_table(*figure.final_numbers(runs)), file=sys.stderr)
    print(figure.note_text(runs), file=sys.stderr)
    decided = [claim for claim in claims if not claim.undecided]
    print("\n" + report.plain_table(*report.claims_table(decided)), file=sys.stderr)
    if len(decided) < len(claims):
        print(f"{len(claims) - len(decided)} more claims are not decided", file=sys.stderr)
    print(f"\nreport: {out / 'index.html'}", file=sys.stderr)


def _check(
    name: str | None, asked: FigureOptions, everything: bool, dry: bool, out: str | None
) -> None:
    """Raises InputError for flags that do not go together."""
    if (name is None) == (not everything):
        raise InputError(
            f"give --figure or --all, not both; figures are {', '.join(FIGURES | STUDIES)}"
        )
    if asked.preset.split(",")[0] not in PRESETS:
        raise InputError(f"--preset={asked.preset} is unknown; choose of {', '.join(PRESETS)}")
    if out is None and not dry:
        raise InputError("--out is missing; give a folder for results and runs")
    if everything and asked.variants:
        raise InputError("--variants are of one figure; give --figure, or leave them out")
    figure = (FIGURES | STUDIES).get(name)
    for flag in ("tofu", "general_text"):
        if getattr(asked, flag) and name != "tofu":
            raise InputError(f"--{flag} is of study tofu; leave it out")
    if asked.hf and not (figure and (figure.published or name == "tofu")):
        raise InputError(
            f"--hf: {f'figure {name}' if name else '--all'} compares with no pretrained model; "
            "leave it out"
        )
    if figure and not figure.variants and asked.overrides:
        raise InputError(f"{asked.overrides[0]}: figure {name} trains no model; leave it out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    # Overrides are checked against it here, and passed on to every run's own variant of it.
    config: Config = str(CONFIGS / "ts_repetition.py")
    figure: str | None = option(None, "Figure of the paper, or study.", choices=FIGURES | STUDIES)
    all: bool = option(
        False, "Reproduce every figure of the paper, and write one page of all claims."
    )
    dry_run: bool = option(
        False,
        "Print the cost of the first seed's runs: steps, tokens, memory, hours; train nothing.",
        alias="dry-run",
    )
    preset: str = option(
        "laptop",
        "laptop or paper. Figure 6 has paper,1.7b too; study tofu has small, laptop and full.",
    )
    seeds: tuple[str, ...] = option(
        ("0", "1", "2"), "Seeds; every variant is trained once with each."
    )
    variants: tuple[str, ...] | None = option(None, "Train only these variants of the figure.")
    out: str | None = option(None, "Folder for results and runs.")
    hf: str | None = option(
        None,
        "Folder of GPT-2 small, for figures that repeat published experiments; the model that "
        "tofu fine-tunes.",
    )
    tofu: str | None = option(None, "Folder of TOFU's JSONL files, for study tofu.")
    general_text: str | None = option(
        None, "File of other text, on which study tofu measures its models."
    )
    jobs: int = option(0, "Parallel runs; 0: one per core on a CPU, up to 8, else one.", 0)


def main(options: Options) -> dict:
    asked = FigureOptions(
        preset=options.preset,
        seeds=list(command_line.seeds(options.seeds)),
        overrides=command_line.overrides(),
        at_once=options.jobs or default_jobs(),
        variants=options.variants,
        hf=options.hf,
        tofu=options.tofu,
        general_text=options.general_text,
    )
    figure = options.figure
    _check(figure, asked, options.all, options.dry_run, options.out)
    if options.dry_run:
        return dry_run(list(FIGURES) if options.all else [figure], asked)
    out = pathlib.Path(options.out)
    with atomic_folder(out / "results.json"):  # one command at a time
        if options.all:
            return reproduce_all(asked, out)
        jobs = jobs_of(figure, asked, out, {})
        return reproduce(figure, asked, out, jobs, asked.command(f"--figure={figure}", out))


if __name__ == "__main__":
    command_line.run(main, Options)
