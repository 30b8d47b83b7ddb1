"""Figure 5a: how many sinks a document may use. A few shield well; with many, the shared neurons rely on them."""

from memsinks_jax.figures import knob, losses, on_return
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation
from memsinks_jax.reporting.claims import Claim

TITLE = "Figure 5a: the fraction of the sinks that is on for a document"
CONFIG = "ts_repetition.py"
ACTIVE = (0.1, 0.3, 0.5, 0.7)
SINKS = {f"active_{fraction}": fraction for fraction in ACTIVE}
VARIANTS = on_return.both(
    {"standard": Variation("standard")}
    | {name: Variation("sinks_paper", {"sinks.active_fraction": fraction}) for name, fraction in SINKS.items()}
)
ANSWER = (
    "A document with a few sinks of its own is memorized in them, and leaves the shared neurons alone. If more sinks are on "
    "at a time, more documents share each sink, and the rest of the model depends more on what is dropped later."
)
TABLE_NOTE = knob.TABLE_NOTE


@on_return.beside
def claims(runs: list[Run]) -> list[Claim]:
    """Section 5.3, paired by seed: robust with few active sinks, best at 0.3, broken at 0.7."""
    rows = []
    for fraction in (0.1, 0.3):
        rows += losses.paired(
            runs, f"robust_{fraction}", f"share of the gap that dropping closes, {fraction} of the sinks active",
            "robust for small fractions", [f"active_{fraction}", "standard"], losses.gap_closed, at_least=0.7,
        )  # fmt: skip
    rows += losses.paired(
        runs, "best", "repeated loss, dropped, with 0.3 active minus the highest of the other fractions (nats)",
        "0.3 is best", ["active_0.3", "active_0.1", "active_0.5", "active_0.7"],
        lambda best, *others: best.metrics["repeated_loss"] - max(run.metrics["repeated_loss"] for run in others),
        at_least=0.0,
    )  # fmt: skip
    rows += losses.paired(
        runs, "breaks_down_repeated", "repeated loss, dropped, with 0.7 active over that with 0.3", "0.7 breaks down: low",
        ["active_0.7", "active_0.3"], lambda many, few: many.metrics["repeated_loss"] / few.metrics["repeated_loss"],
        at_most=0.9,
    )  # fmt: skip
    return rows + losses.paired(
        runs, "breaks_down_held_out", "held-out loss, dropped, with 0.7 active over standard's",
        "too many active interfere", ["active_0.7", "standard"], losses.held_out_ratio, at_least=1.15,
    )  # fmt: skip


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    table=lambda runs: losses.table(runs, lambda variant: "standard"),
    row_labels=lambda runs: on_return.labels(runs, {name: f"sinks, {share:g} active" for name, share in SINKS.items()}),
    draw=lambda runs, path: knob.draw(runs, path, SINKS, lambda variant: "standard", "active fraction"),
    claims=claims, note=knob.note, sections=knob.sections,
)  # fmt: skip
