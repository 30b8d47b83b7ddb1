"""Figure 6: a rare domain that is repeated in a general corpus. Do sinks learn from the repeats
without memorizing them?

The rare domain is read once (deduplicated), five and twenty times. The general corpus fills the
rest of the same token budget. A second set of runs attends across the documents of a row, as at the
paper's scale.
"""

import json
import pathlib

from memsinks_jax.data.embedded import facts
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import COLOURS, GREEN, RED, Line, Panel
from memsinks_jax.studies.figures.runs import Run, Variation
from memsinks_jax.studies.figures.table import KINDS, LOSSES, Table, standard_for

REPEATS = (1, 5, 20)
MANY = REPEATS[-1]
# in the corpus that `prepare` writes; most words per document
GENERAL_DOCUMENTS, GENERAL_LENGTH = 8000, 64
_ACROSS = {f"{MANY}x_across": {"data.repetitions": MANY, "data.across_documents": True}}
_SETTINGS = {f"{n}x": {"data.repetitions": n} for n in REPEATS}
_KINDS = {"standard": "", **KINDS}
_BLUE = COLOURS["sinks"]


def prepare(out: pathlib.Path) -> list[str]:
    """Writes a general corpus -> the flag that names it. One on the command line comes later."""
    folder = out / "general"
    folder.mkdir(parents=True, exist_ok=True)
    documents = facts.documents(facts.world(0), 0, GENERAL_DOCUMENTS, GENERAL_LENGTH)
    lines = (json.dumps({"text": text}) + "\n" for text in documents)
    (folder / "facts.jsonl").write_text("".join(lines))
    return [f"--config.general.files={folder / 'facts.jsonl'}"]


def _labels() -> dict[str, str]:
    labels = {
        f"{kind}_{name}": f"{kind.removesuffix('_paper')}, {name.partition('_')[0]}{end}{suffix}"
        for ends in (
            {f"{n}x": "" for n in REPEATS},
            {f"{MANY}x_across": ", attention across documents"},
        )
        for kind, suffix in _KINDS.items()
        for name, end in ends.items()
    }
    return labels | {"standard_1x": "standard, 1x (deduplicated)"}


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    within = [run for run in runs if not run.variant.endswith("_across")] or runs
    return shared.choices(
        within,
        f"""
        repeats of the rare domain | {", ".join(map(str, REPEATS))}; the paper names 20 only, of its
            second setting
        budget | the same tokens, filled with general text: the fewer repeats, the more of it
        attention across documents, as at the paper's scale | besides, at {MANY}x
    """,
    )


def panels(table: Table) -> list[Panel]:
    """Both losses against the number of repeats, and over training at the most repeats."""
    read = {kind: {n: f"{kind}_{n}x" for n in REPEATS} for kind in _KINDS}
    kinds = (
        ("standard", "standard", RED),
        ("sinks_paper", "sinks, dropped", _BLUE),
        ("sinks", "open on return, dropped", GREEN),
    )

    def against_repeats(title: str, loss: str, further: Line, y: str = "") -> Panel:
        lines = [Line(read[kind], loss, label, colour, "o-") for kind, label, colour in kinds]
        times, ticks = "times that the rare domain is read", {n: f"{n}x" for n in REPEATS}
        lines.append(further)
        return Panel(title=title, x=times, y=y, floor=True, log=True, ticks=ticks, lines=lines)

    once = dict.fromkeys(REPEATS, "standard_1x")
    deduplicated = Line(once, "held_out_loss", "deduplicated", RED, ":")
    own = Line(read["sinks_paper"], "repeated_loss_own", "sinks, own on", _BLUE, "o:")
    losses = (("held_out_loss", "held-out", "-"), ("repeated_loss", "repeated", "--"))
    over_training = [
        Line(f"{kind}_{MANY}x", loss, f"{kind.removesuffix('_paper')}, {of}", colour, style)
        for kind, _, colour in kinds[:2]
        for loss, of, style in losses
    ]
    title = f"over training, {MANY}x, sinks dropped"
    return [
        against_repeats(
            "held-out, rare domain", "held_out_loss", deduplicated, "loss (nats per token)"
        ),
        against_repeats("repeated documents", "repeated_loss", own),
        Panel(title=title, floor=True, early=True, lines=over_training),
    ]


FIGURE = Figure(
    title="Figure 6: a rare domain, repeated",
    answer="""A rare domain is worth reading more than once, but text that is read more than once is
        memorized. Sinks should keep the benefit and remove the memory: as good on the rare domain
        as a model that read it many times, and no better on the documents that it has read.""",
    config="rare_domain.py",
    variants={
        f"{kind}_{name}": Variation(kind, settings)
        for kinds in (("standard", "sinks_paper"), ("sinks",))
        for of in (_SETTINGS, _ACROSS)
        for name, settings in of.items()
        for kind in kinds
    },
    prepare=prepare,
    standard_of=lambda variant: "" if variant.endswith("_1x") else standard_for(variant),
    columns=LOSSES | {"steps": "step"},
    labels=_labels(),
    table_note="""Losses in nats per token on the rare domain, sinks dropped unless stated
        otherwise. Gap closed: the share that is gone of the gap between held-out and repeated loss
        of the standard model with as many repeats; at 1x there is hardly one.""",
    # Section 5.2.
    statements="".join(
        f"""
repeats_help_{n}x | held-out loss of standard, {n}x, over deduplicated
    | standard_{n}x.held_out_loss / standard_1x.held_out_loss <= 1 | repeats help
beats_deduplicated_{n}x | held-out loss of sinks, {n}x, over deduplicated
    | {{sinks}}_{n}x.held_out_loss / standard_1x.held_out_loss <= 1 | outperforming or comparable
equals_standard_{n}x | held-out loss of sinks over standard's, both {n}x
    | {{sinks}}_{n}x.held_out_ratio <= 1.01 | about equal
memorizes_{n}x | held-out over repeated loss of standard, {n}x
    | standard_{n}x.held_out_loss / standard_{n}x.repeated_loss >= 2 | 200 (section 1)
gap_closed_{n}x | share of standard's gap closed, sinks dropped, {n}x | {{sinks}}_{n}x.closed >= 0.5
    | >= 0.5"""
        for n in REPEATS[1:]
    )
    + f"""
larger_effect | repeated loss, sinks minus standard: at 20x minus at 5x (nats)
    | ({{sinks}}_20x.repeated_loss - standard_20x.repeated_loss) - ({{sinks}}_5x.repeated_loss -
    standard_5x.repeated_loss) >= 0 | more pronounced at 20x
gap_closed_across | share of standard's gap closed, sinks dropped, {MANY}x, attention across
    documents | {{sinks}}_{MANY}x_across.closed >= 0.5 | >= 0.5 (appendix I)""",
    panels=panels,
    sharey=True,
    note="""{mean}, band from the lowest to the highest. {config.data.repeated_documents} documents
        of the rare domain; every run reads {config.general.token_budget:,} tokens in all.
        {floor}""",
    sections=sections,
)
