"""Runs an experiment of the paper: python -m memsinks_jax.reproduce --figure=4 --preset=laptop --out=runs/figure4

Trains what the figure needs (a run that is there already is not trained again), then writes results.json, a PNG and
index.html. Fields of the config can be set for all runs: --config.data.files='texts/*.txt'.
"""

import logging
import pathlib
import sys

import numpy as np
from absl import flags

from memsinks_jax import command_line, report
from memsinks_jax import workdir as workdirs
from memsinks_jax.claims import Claim, with_interval
from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.figures import figure_4
from memsinks_jax.figures.runs import CONFIGS, Run, by_variant, default_jobs, results, train_all

logger = logging.getLogger("memsinks_jax.reproduce")

FIGURES = {"4": figure_4}
PRESETS = ("laptop", "paper")

OPENING_TOKENS = 16  # of a repeated document, given to the models that continue it
CONTINUED_TOKENS = 64
STORIES_SHOWN = 4


def reproduce(
    figure: str, preset: str, variants: list[str], seeds: list[int], overrides: list[str], out: pathlib.Path, jobs: int
) -> dict:
    """Trains, measures, draws, writes -> the content of results.json. Raises as `train_all` does."""
    module = FIGURES[figure]
    runs = train_all(module.CONFIG, preset, variants, seeds, overrides, out, jobs)
    claims = module.claims(runs)
    content = results(figure, preset, seeds, runs, claims)
    module.draw(runs, out / f"figure_{figure}.png")
    report.write_json(out / "results.json", content)
    report.write_page(out / "index.html", *_page(module, figure, preset, seeds, overrides, runs, claims, out))
    _print_summary(module, runs, claims, out)
    return content


def _page(module, figure, preset, seeds, overrides, runs: list[Run], claims: list[Claim], out) -> tuple[str, list[str]]:
    seeds_text = f"{len(seeds)} seed" + ("s" if len(seeds) > 1 else "")
    columns, rows = _final_numbers(module, runs)
    command = (
        f"python -m memsinks_jax.reproduce --figure={figure} --preset={preset} --seeds={','.join(map(str, seeds))}"
    )
    command += f" --variants={','.join(by_variant(runs))}"
    sections = [
        report.paragraph(module.ANSWER, "lead"),
        report.picture(out / f"figure_{figure}.png", f"figure {figure}"),
        report.paragraph(
            f"Mean over {seeds_text}, band from the lowest to the highest. {_floor_sentence(runs)} Every loss is measured "
            "on documents that stand alone in their context, with the sinks dropped unless it says otherwise.", "note",
        ),
        report.heading("Final numbers"),
        report.table(columns, [[report.text(cell) for cell in row] for row in rows], ["", *["number"] * len(columns[1:])]),
        report.paragraph(
            "Nats per token; mean ± half of the 95% interval over seeds. Gap closed: share of standard's gap between "
            "held-out and repeated loss that is gone. Recovery: repeated loss over that of the model without repeats.",
            "note",
        ),
        *report.claims_section(claims),
        report.heading("Does it recite?"),
        *_continuations(runs),
        report.heading("How it was made"),
        report.code(" ".join([command, *overrides, f"--out={out}"])),
        _choices(runs),
    ]  # fmt: skip
    return f"Figure {figure}: memorization that can be switched off", sections


def _final_numbers(module, runs: list[Run]) -> tuple[list[str], list[list[str]]]:
    columns, rows = module.table(runs)
    digits = [0 if column == "steps" else 3 for column in columns]
    cells = [[with_interval(values, d) if d else f"{values[0]:.0f}" for values, d in zip(row, digits, strict=True)]
             for row in rows]  # fmt: skip
    labels = [module.LABELS[variant] for variant in by_variant(runs)]
    return ["variant", *columns], [[label, *row] for label, row in zip(labels, cells, strict=True)]


def _continuations(runs: list[Run]) -> list[str]:
    """Repeated stories, continued by the standard model and by the sink model with its sinks dropped."""
    # Imported here: opening a model starts jax, which must wait until the runs have left the accelerator.
    from memsinks_jax.generation import Generator, Settings
    from memsinks_jax.trained import open_run

    groups = by_variant(runs)
    if not {"standard", "sinks"} <= set(groups):
        return [report.paragraph("Needs the variants standard and sinks.", "note")]
    seed = runs[0].seed
    corpus = workdirs.read_corpus(groups["sinks"][seed].workdir)
    chosen = [i for i in corpus.mixture.repeated if len(corpus.tokens[i]) >= 2 * OPENING_TOKENS]
    if not chosen:
        return [report.paragraph("The repeated documents are too short to be continued.", "note")]
    cuts = [_end_of_word(corpus.tokenizer, corpus.tokens[i], OPENING_TOKENS) for i in chosen]
    openings = [corpus.tokens[i][:cut] for i, cut in zip(chosen, cuts, strict=True)]
    room = workdirs.read_config(groups["sinks"][seed].workdir).data.row_length - max(cuts)
    greedy = Settings(max_tokens=min(CONTINUED_TOKENS, room), temperature=0.0, sinks="drop")
    written = {}
    for variant in ("standard", "sinks"):
        run = open_run(groups[variant][seed].workdir)
        tails = Generator(run.config, run.tokenizer, run.params)(openings, greedy)
        written[variant] = [corpus.tokenizer.decode(tail.tokens) for tail in tails]
    originals = [
        corpus.tokenizer.decode(corpus.tokens[i][cut : cut + greedy.max_tokens])
        for i, cut in zip(chosen, cuts, strict=True)
    ]
    alike = {
        v: np.mean([report.share_alike(t, o) for t, o in zip(written[v], originals, strict=True)]) for v in written
    }
    rows = [
        [report.text(corpus.tokenizer.decode(opening)) + " …", report.marked_like(standard, original),
         report.marked_like(sinks, original)]
        for opening, standard, sinks, original in zip(
            openings[:STORIES_SHOWN], written["standard"], written["sinks"], originals, strict=False)
    ]  # fmt: skip
    return [
        report.paragraph(
            f"Greedy continuations of the first words of repeated documents (seed {seed}). Marked: words "
            f"that stand in the original at the same place. Over all {len(chosen)} repeated documents that is "
            f"{alike['standard']:.0%} of the original's words for standard and {alike['sinks']:.0%} for sinks dropped."
        ),
        report.table(["opening", "standard", "sinks, dropped"], rows, ["note", "", ""]),
    ]


def _end_of_word(tokenizer: AnyTokenizer, tokens: np.ndarray, at_least: int) -> int:
    """How many tokens make an opening of whole words, so that what follows begins with a word -> >= at_least."""
    for cut in range(at_least, len(tokens)):
        if tokenizer.decode(tokens[: cut + 1])[len(tokenizer.decode(tokens[:cut])) :].startswith((" ", "\n")):
            return cut
    return at_least


def _floor_sentence(runs: list[Run]) -> str:
    floors = [run.metrics["entropy_floor"] for run in runs if "entropy_floor" in run.metrics]
    if not floors:
        return "The entropy of this text is not known, so no floor is drawn."
    return f"No model can be below the entropy floor on held-out stories: {np.mean(floors):.3f} nats per token."


def _choices(runs: list[Run]) -> str:
    """What the paper leaves open, and what was taken."""
    config = workdirs.read_config(next((run for run in runs if run.variant == "sinks"), runs[0]).workdir)
    choices = [
        ["active_fraction", f"{config.sinks.active_fraction:g} of the sinks are on for a document (the paper's p)"],
        ["sampling", config.sinks.sampling],
        ["masks of the layers", "one a layer" if config.sinks.per_layer else "the same in all"],
        ["rescaling when sinks are dropped", "none"],
        ["ids", f"{config.data.ids}, 64 bits; noise {config.data.id_noise:g} per {config.data.id_noise_per}"],
        ["rows", f"{config.data.rows} of {config.data.row_length} tokens, batch {config.training.batch_size}; attention "
                 "stays within a document"],
        ["budget without repeats", "the same epochs, and the same steps: two variants"],
    ]  # fmt: skip
    return report.table(["the paper leaves open", "here"], [[report.text(c) for c in row] for row in choices], ["", ""])


def _print_summary(module, runs: list[Run], claims: list[Claim], out: pathlib.Path) -> None:
    columns, rows = _final_numbers(module, runs)
    print(report.plain_table(columns, rows), file=sys.stderr)
    print(_floor_sentence(runs), file=sys.stderr)
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
    jobs_flag = flags.DEFINE_integer("jobs", 0, "Runs at a time; 0: one a core on a CPU, else one.", lower_bound=0)

    def run() -> dict:
        command_line.read_config(config_flag)
        known = FIGURES[figure_flag.value].VARIANTS
        variants = variants_flag.value or list(known)
        for variant in variants:
            if variant not in known:
                raise InputError(
                    f"--variants: figure {figure_flag.value} has no {variant!r}; choose of {', '.join(known)}"
                )
        return reproduce(
            figure_flag.value, preset_flag.value, variants, _parse_seeds(seeds_flag.value),
            command_line.overrides(config_flag), pathlib.Path(out_flag.value), jobs_flag.value or default_jobs(),
        )  # fmt: skip

    command_line.run(run)


if __name__ == "__main__":
    main()
