"""Figure 4: sinks train as well as standard training with repeats, and do not recite once dropped.

Curves of held-out and repeated loss for standard training, training without repeats, sinks as in the paper, and sinks that
open when a document comes back. Two controls are not in the paper: a standard model of the width that is left after
dropping, and ordinary dropout of the same neurons. Figure 4c, sinks beside post-hoc methods, is in `trade_off`.
"""

import pathlib

from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures import trade_off
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import COLOURS, Line, Panel
from memsinks_jax.studies.figures.runs import Run, by_variant
from memsinks_jax.studies.figures.table import LOSSES, Statement, Table

LABELS = {
    "standard": "standard",
    "no_repeat": "no repeats, same epochs",
    "sinks_paper": "sinks as in the paper, dropped",
    "sinks": "sinks that open on return, dropped",
    "no_repeat_steps": "no repeats, same steps",
    "narrow": "control: narrow from the start",
    "dropout": "control: ordinary dropout, dropped",
}
_STYLES = {"narrow": "--", "dropout": "-."}  # they lie on the standard line, which shows through


def measure(runs: list[Run]) -> list[Run]:
    """Adds the measurements of 4c -> the same runs. Takes minutes, so only the whole figure has them."""
    return trade_off.measure(runs) if set(by_variant(runs)) == set(LABELS) else runs


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    return [
        *trade_off.sections(FIGURE.of(runs), out), report.heading("Does it recite?"), *shared.continuations(runs),
        *shared.token_by_token(runs, out), shared.open_choices(runs),
    ]  # fmt: skip


def statements(table: Table) -> list[Statement]:
    """Of the paper's claims about sinks, those about its own have bounds of their own, as have those that open on return."""
    of_sinks = [
        Statement(
            f"{name}{suffix}", text.format(of=of, sinks=of or " of sinks"), paper, measure.format(sinks=sinks),
            **{"at_least" if at_least else "at_most": bound},
        )
        for sinks, suffix, of, closed, held_out in (
            ("sinks_paper", "", "", 0.75, 1.01), ("sinks", "_on_return", " of sinks that open on return", 0.9, 1.0),
        )
        for name, text, paper, measure, at_least, bound in (
            ("gap_closed", "share of the gap between held-out and repeated loss that dropping{of} closes",
             ">= 0.5 (section 1, at 360M and 1.7B)", "{sinks}.closed", True, closed),
            ("recovery", "repeated loss{of} over that of the model without repeats, same epochs", "about 0.66",
             "{sinks}.recovery", True, 0.6),
            ("held_out_standard", "held-out loss{sinks} dropped over standard's", "about equal", "{sinks}.held_out_ratio",
             False, held_out),
            ("held_out_no_repeat", "held-out loss{sinks} dropped over no_repeat's, same epochs", "better",
             "{sinks}.held_out_loss / no_repeat.held_out_loss", False, 1.0),
        )
    ]  # fmt: skip
    return [
        Statement(
            "memorizes", "standard training memorizes: repeated loss over held-out loss", "close to 0",
            "standard.repeated_loss / standard.held_out_loss", at_most=0.25,
        ),
        *of_sinks,
        Statement(
            "gap_left", "gap that is left, sinks that open on return over the paper's", "not in the paper",
            "sinks.gap / sinks_paper.gap", at_most=0.5,
        ),
        Statement(
            "repeats_help", "held-out loss of standard over no_repeat's, same epochs", "repeats help (4a)",
            "standard.held_out_loss / no_repeat.held_out_loss", at_most=1.0,
        ),
        Statement(
            "late_rise", "rise of the repeated loss, dropped, from its lowest point to the end (nats)",
            "rises late in training", "sinks_paper.repeated_loss - sinks_paper.lowest_repeated_loss", at_least=0.01,
        ),
        Statement(
            "control_narrow", "repeated loss, sinks dropped over narrow from the start", "not run in the paper",
            "sinks_paper.repeated_loss / narrow.repeated_loss", at_least=1.5,
        ),
        Statement(
            "control_dropout", "repeated loss, sinks dropped over ordinary dropout dropped", "not run in the paper",
            "sinks_paper.repeated_loss / dropout.repeated_loss", at_least=1.5,
        ),
        *trade_off.statements(table),
    ]  # fmt: skip


def panels(table: Table) -> list[Panel]:
    def lines(loss: str) -> list[Line]:
        return [Line(name, loss, LABELS[name], COLOURS[name], _STYLES.get(name, "-")) for name in table.groups]

    own = [
        Line(kind, "repeated_loss_own", LABELS[kind].replace("dropped", "own on"), COLOURS[kind], ":")
        for kind in ("sinks_paper", "sinks")
    ]
    return [
        Panel(
            title="4a: held-out documents", y="loss (nats per token)", lines=lines("held_out_loss"), floor=True, early=True,
            legend=None,
        ),
        Panel(
            title="4b: repeated documents", lines=lines("repeated_loss") + own, floor=True, early=True, legend="lines",
        ),
    ]  # fmt: skip


FIGURE = Figure(
    title="Figure 4: memorization that can be switched off",
    answer=(
        "A model trained with sinks learns as much as a model of standard training, including from repeats. Without its "
        "sinks it is a smaller, ordinary model that no longer recites the repeated documents."
    ),
    config="ts_repetition.py",
    variants=tuple(LABELS),
    measure=measure,
    measures={
        "recovery": "repeated_loss / no_repeat.repeated_loss",
        "lowest_repeated_loss": lambda run: min(run.curve("repeated_loss")[1]),
    } | trade_off.MEASURES,
    columns=LOSSES | {"recovery": "recovery", "steps": "step"},
    labels=LABELS,
    table_note=(
        "Losses in nats per token. Gap closed: share of standard's gap between held-out and repeated loss that is gone. "
        "Recovery: repeated loss over that of the model without repeats."
    ),
    statements=statements,
    panels=panels,
    size=(11.5, 4.4),
    sharey=True,
    note=(
        "{mean}, band from the lowest to the highest. {floor} Every loss is measured on documents that stand alone in their "
        "context, with the sinks dropped unless it says otherwise."
    ),
    sections=sections,
)  # fmt: skip
