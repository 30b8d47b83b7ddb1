"""Figure 6: a rare domain that is repeated in a general corpus. Do sinks learn from the repeats without memorizing them?

The rare domain is read once (deduplicated), five and twenty times. The general corpus fills the rest of the same token
budget. A second set of runs attends across the documents of a row, as at the paper's scale.
"""

import json
import pathlib

import numpy as np

from memsinks_jax.data.embedded import facts
from memsinks_jax.figures import losses, on_return
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.runs import workdir as workdirs

TITLE = "Figure 6: a rare domain, repeated"
CONFIG = "rare_domain.py"
REPEATS = (1, 5, 20)
MANY = REPEATS[-1]
DEDUPLICATED = "standard_1x"
_MODELS = {"standard": "standard", "sinks": "sinks_paper"}
VARIANTS = on_return.both(
    {f"{name}_{n}x": Variation(v, {"data.repetitions": n}) for n in REPEATS for name, v in _MODELS.items()}
    | {
        f"{name}_{MANY}x_across": Variation(v, {"data.repetitions": MANY, "data.across_documents": True})
        for name, v in _MODELS.items()
    }
)
ANSWER = (
    "A rare domain is worth reading more than once, but text that is read more than once is memorized. Sinks should keep "
    "the benefit and remove the memory: as good on the rare domain as a model that read it many times, and no better on "
    "the documents that it has read."
)
TABLE_NOTE = (
    "Losses in nats per token on the rare domain, sinks dropped unless it says so. Gap closed: the share that is gone "
    "of the gap between held-out and repeated loss of the standard model with as many repeats; at 1x there is hardly one."
)
GENERAL_DOCUMENTS, GENERAL_LENGTH = 8000, 64  # in the corpus that `prepare` writes; most words per document
_BLUE, _RED, _GREEN = "#1f618d", "#c0392b", "#1e8449"


def prepare(out: pathlib.Path) -> list[str]:
    """Writes a general corpus -> the flag that names it. The same flag on the command line comes later and wins."""
    folder = out / "general"
    folder.mkdir(parents=True, exist_ok=True)
    documents = facts.documents(facts.world(0), 0, GENERAL_DOCUMENTS, GENERAL_LENGTH)
    (folder / "facts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return [f"--config.general.files={folder / 'facts.jsonl'}"]


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    config = workdirs.read_config(runs[0].workdir)
    return (
        f"{shared.mean_over_seeds(runs)}, band from the lowest to the highest. "
        f"{config.data.repeated_documents} documents of the rare domain; every run reads {config.general.token_budget:,} "
        f"tokens in all. {shared.floor_sentence(runs)}"
    )


def row_labels(runs: list[Run]) -> list[str]:
    """Labels of the rows of `table`."""
    names = map(on_return.published, VARIANTS)
    labels = {name: name.replace("_across", ", attention across documents").replace("_", ", ") for name in names}
    return on_return.labels(runs, labels | {DEDUPLICATED: f"{labels[DEDUPLICATED]} (deduplicated)"})


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page."""
    within = [run for run in runs if not on_return.published(run.variant).endswith("_across")] or runs
    choices = [
        ["repeats of the rare domain", f"{', '.join(map(str, REPEATS))}; the paper names 20 only, of its second setting"],
        ["budget", "the same tokens, filled with general text: the fewer repeats, the more of it"],
        ["attention across documents, as at the paper's scale", f"besides, at {MANY}x"],
    ]  # fmt: skip
    rows = [[report.text(cell) for cell in row] for row in choices]
    columns = ["the paper leaves open", "here"]
    return [report.heading("Choices"), shared.open_choices(within), report.table(columns, rows, ["", ""])]


def _standard_of(variant: str) -> str:
    variant = on_return.published(variant)
    return "" if variant.endswith("_1x") else variant.replace("sinks_", "standard_")


@on_return.beside
def claims(runs: list[Run]) -> list[Claim]:
    """Section 5.2, paired by seed. Omits claims about variants that were not run."""
    rows = []

    def add(name, variants, statement, paper, measure, **bounds):
        rows.extend(losses.paired(runs, name, statement, paper, variants, measure, **bounds))

    for n in REPEATS[1:]:
        sinks, standard = f"sinks_{n}x", f"standard_{n}x"
        add(
            f"repeats_help_{n}x", [standard, DEDUPLICATED], f"held-out loss of standard, {n}x, over deduplicated",
            "repeats help", losses.held_out_ratio, at_most=1.0,
        )  # fmt: skip
        add(
            f"beats_deduplicated_{n}x", [sinks, DEDUPLICATED], f"held-out loss of sinks, {n}x, over deduplicated",
            "outperforming or comparable", losses.held_out_ratio, at_most=1.0,
        )  # fmt: skip
        add(
            f"equals_standard_{n}x", [sinks, standard], f"held-out loss of sinks over standard's, both {n}x",
            "about equal", losses.held_out_ratio, at_most=1.01,
        )  # fmt: skip
        add(
            f"memorizes_{n}x", [standard], f"held-out over repeated loss of standard, {n}x", "200 (section 1)",
            lambda run: run.metrics["held_out_loss"] / run.metrics["repeated_loss"], at_least=2.0,
        )  # fmt: skip
        add(
            f"gap_closed_{n}x", [sinks, standard], f"share of the gap that dropping closes, {n}x", ">= 0.5",
            losses.gap_closed, at_least=0.5,
        )  # fmt: skip
    few, many = REPEATS[1:]
    add(
        "larger_effect", [f"{v}_{n}x" for n in (few, many) for v in ("sinks", "standard")],
        f"rise of the repeated loss from standard to sinks: at {many}x less at {few}x (nats)", "more pronounced at 20x",
        lambda *four: (four[2].metrics["repeated_loss"] - four[3].metrics["repeated_loss"])
        - (four[0].metrics["repeated_loss"] - four[1].metrics["repeated_loss"]), at_least=0.0,
    )  # fmt: skip
    add(
        "gap_closed_across", [f"sinks_{MANY}x_across", f"standard_{MANY}x_across"],
        f"share of the gap that dropping closes, {MANY}x, attention across documents", ">= 0.5 (appendix I)",
        losses.gap_closed, at_least=0.5,
    )  # fmt: skip
    return rows


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Both losses against the number of repeats, and over training at the most repeats."""
    groups = by_variant(runs)
    figure, (held_out, repeated, training) = plt.subplots(1, 3, figsize=(15, 4.4), sharey=True, layout="constrained")

    def against_repeats(axis, variant: str, name: str, label: str, colour: str, style: str, suffix: str = "") -> None:
        there = [n for n in REPEATS if f"{variant}_{n}x{suffix}" in groups]
        values = [[run.metrics[name] for run in groups[f"{variant}_{n}x{suffix}"].values()] for n in there]
        if there:
            losses.band(axis, there, np.array(values).T, label, colour, style)

    for axis, name in ((held_out, "held_out_loss"), (repeated, "repeated_loss")):
        against_repeats(axis, "standard", name, "standard", _RED, "o-")
        against_repeats(axis, "sinks", name, "sinks, dropped", _BLUE, "o-")
        against_repeats(axis, "sinks", name, "open on return, dropped", _GREEN, "o-", on_return.SUFFIX)
    against_repeats(repeated, "sinks", "repeated_loss_own", "sinks, own on", _BLUE, "o:")
    if DEDUPLICATED in groups:
        once = np.mean([run.metrics["held_out_loss"] for run in groups[DEDUPLICATED].values()])
        held_out.axhline(once, color=_RED, linewidth=1, linestyle=":", label="deduplicated")
    for variant, colour in (("standard", _RED), ("sinks", _BLUE)):
        if of_variant := list(groups.get(f"{variant}_{MANY}x", {}).values()):
            losses.curve(training, of_variant, "held_out_loss", f"{variant}, held-out", colour)
            losses.curve(training, of_variant, "repeated_loss", f"{variant}, repeated", colour, "--")
    losses.finish(held_out, runs, "held-out, rare domain", "times that the rare domain is read")
    losses.finish(repeated, runs, "repeated documents", "times that the rare domain is read")
    losses.finish(training, runs, f"over training, {MANY}x, sinks dropped", "step")
    for axis in (held_out, repeated):
        axis.set_xscale("log")
        axis.set_xticks(REPEATS, [f"{n}x" for n in REPEATS])
        axis.minorticks_off()
    for axis in (held_out, repeated, training):
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8.5)
    held_out.set_ylabel("loss (nats per token)")
    # The first evaluations of an untrained model would flatten everything else.
    highest = max(run.curve("held_out_loss")[1][min(1, len(run.curve("held_out_loss")[1]) - 1)] for run in runs)
    held_out.set_ylim(0, highest * 1.05)
    save(figure, path)


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    table=lambda runs: losses.table(runs, _standard_of),
    row_labels=row_labels, prepare=prepare, claims=claims, draw=draw, note=note, sections=sections,
)  # fmt: skip
