"""Runs an experiment of the paper: python -m memsinks_jax.reproduce --figure=4 --preset=laptop --out=runs/figure4

Trains what the figure needs (a run that is there already is not trained again), then writes results.json, a PNG and
index.html. Fields of the config can be set for all runs: --config.data.files='texts/*.txt'.
"""

import logging
import pathlib
import sys

from absl import flags

from memsinks_jax import command_line, report
from memsinks_jax.claims import Claim, with_interval
from memsinks_jax.config import InputError
from memsinks_jax.figures import figure_3, figure_4, local_memory
from memsinks_jax.figures.runs import CONFIGS, Run, by_variant, default_jobs, results, train_all

logger = logging.getLogger("memsinks_jax.reproduce")

FIGURES = {"3": figure_3, "4": figure_4, "local_memory": local_memory}
PRESETS = ("laptop", "paper")


def reproduce(
    figure: str, preset: str, variants: list[str], seeds: list[int], overrides: list[str], out: pathlib.Path, jobs: int,
    hf: str | None = None,
) -> dict:  # fmt: skip
    """Trains, measures, draws, writes -> the content of results.json. Raises as `train_all` does.

    `hf` is a folder of the pretrained model that the original study took, for figures that compare with it.
    """
    module = FIGURES[figure]
    mine = module.prepare(out) if hasattr(module, "prepare") else []
    runs = train_all(module.CONFIG, preset, variants, seeds, mine + overrides, out, jobs)
    if hasattr(module, "measure"):
        runs = module.measure(runs)
    claims = module.claims(runs)
    content = results(figure, preset, seeds, runs, claims)
    module.draw(runs, out / f"figure_{figure}.png")
    command = (
        f"python -m memsinks_jax.reproduce --figure={figure} --preset={preset} --seeds={','.join(map(str, seeds))} "
        f"--variants={','.join(by_variant(runs))}"
    )
    command = " ".join([command, *overrides, *([f"--hf={hf}"] if hf else []), f"--out={out}"])
    more = module.sections(runs, out, hf) if hf else module.sections(runs, out)
    report.write_json(out / "results.json", content)
    report.write_page(out / "index.html", module.TITLE, _page(module, figure, runs, claims, more, command, out))
    _print_summary(module, runs, claims, out)
    return content


def _page(module, figure, runs: list[Run], claims: list[Claim], more: list[str], command: str, out) -> list[str]:
    columns, rows = _final_numbers(module, runs)
    return [
        report.paragraph(module.ANSWER, "lead"),
        report.picture(out / f"figure_{figure}.png", f"figure {figure}"),
        report.paragraph(module.note(runs), "note"),
        report.heading("Final numbers"),
        report.table(columns, [[report.text(cell) for cell in row] for row in rows], ["", *["number"] * len(columns[1:])]),
        report.paragraph(f"Mean ± half of the 95% interval over seeds. {module.TABLE_NOTE}", "note"),
        *report.claims_section(claims),
        *more,
        report.heading("How it was made"),
        report.code(command),
    ]  # fmt: skip


def _final_numbers(module, runs: list[Run]) -> tuple[list[str], list[list[str]]]:
    columns, rows = module.table(runs)
    digits = [0 if column == "steps" else 3 for column in columns]
    cells = [[with_interval(values, d) if d else f"{values[0]:.0f}" for values, d in zip(row, digits, strict=True)]
             for row in rows]  # fmt: skip
    labels = module.row_labels(runs)
    return ["variant", *columns], [[label, *row] for label, row in zip(labels, cells, strict=True)]


def _print_summary(module, runs: list[Run], claims: list[Claim], out: pathlib.Path) -> None:
    columns, rows = _final_numbers(module, runs)
    print(report.plain_table(columns, rows), file=sys.stderr)
    print(module.note(runs), file=sys.stderr)
    print("\n" + report.plain_table(*report.claims_table(claims)), file=sys.stderr)
    print(f"\nreport: {out / 'index.html'}", file=sys.stderr)


def _parse_seeds(texts: list[str]) -> list[int]:
    if not texts or not all(text.strip().isdigit() for text in texts):
        raise InputError(f"--seeds={','.join(texts)}: give whole numbers, for example --seeds=0,1,2")
    return [int(text) for text in texts]


def main() -> None:
    # Overrides are checked against this config here, and passed on to every run's own variant of it.
    config_flag = command_line.define_config(str(CONFIGS / "ts_repetition.py"))
    figure_flag = flags.DEFINE_enum("figure", None, list(FIGURES), "Figure of the paper.", required=True)
    preset_flag = flags.DEFINE_enum("preset", "laptop", PRESETS, "Size of the experiment.")
    seeds_flag = flags.DEFINE_list("seeds", "0,1,2", "Seeds; every variant runs once with each.")
    variants_flag = flags.DEFINE_list("variants", None, "Only these variants of the figure.")
    out_flag = flags.DEFINE_string("out", None, "Folder for results and runs.", required=True)
    hf_flag = flags.DEFINE_string(
        "hf", None, "GPT-2 small, a Hugging Face folder: local_memory's published experiments."
    )
    jobs_flag = flags.DEFINE_integer("jobs", 0, "Runs at a time; 0: one a core on a CPU, else one.", lower_bound=0)

    def run() -> dict:
        command_line.read_config(config_flag)
        known = FIGURES[figure_flag.value].VARIANTS
        variants = variants_flag.value or list(known)
        if hf_flag.value and figure_flag.value != "local_memory":
            raise InputError(f"--hf is for --figure=local_memory; figure {figure_flag.value} has no pretrained model")
        for variant in variants:
            if variant not in known:
                raise InputError(
                    f"--variants: figure {figure_flag.value} has no {variant!r}; choose of {', '.join(known)}"
                )
        return reproduce(
            figure_flag.value, preset_flag.value, variants, _parse_seeds(seeds_flag.value),
            command_line.overrides(config_flag), pathlib.Path(out_flag.value), jobs_flag.value or default_jobs(),
            hf_flag.value,
        )  # fmt: skip

    command_line.run(run)


if __name__ == "__main__":
    main()
