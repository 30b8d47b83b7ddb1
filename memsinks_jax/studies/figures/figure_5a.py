"""Figure 5a: how many sinks a document may use. A few shield well; with many, the shared neurons rely on them."""

from memsinks_jax.studies.figures import knob
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.runs import Variation
from memsinks_jax.studies.figures.table import KINDS, Statement

ACTIVE = {f"active_{fraction}": fraction for fraction in (0.1, 0.3, 0.5, 0.7)}

FIGURE = Figure(
    title="Figure 5a: the fraction of the sinks that is on for a document",
    answer=(
        "A document with a few sinks of its own is memorized in them, and leaves the shared neurons alone. If more sinks "
        "are on at a time, more documents share each sink, and the rest of the model depends more on what is dropped later."
    ),
    config="ts_repetition.py",
    variants={"standard": Variation("standard")} | {
        f"{kind}_{name}": Variation(kind, {"sinks.active_fraction": fraction})
        for kind in KINDS for name, fraction in ACTIVE.items()
    },
    columns=knob.COLUMNS,
    labels={
        f"{kind}_{name}": f"sinks, {fraction:g} active{said}"
        for kind, said in KINDS.items() for name, fraction in ACTIVE.items()
    },
    table_note=knob.TABLE_NOTE,
    statements=(
        *(Statement(
            f"robust_{fraction}", f"share of the gap that dropping closes, {fraction} of the sinks active",
            "robust for small fractions", f"{{sinks}}_active_{fraction}.closed", at_least=0.7,
        ) for fraction in (0.1, 0.3)),
        Statement(
            "best", "repeated loss, dropped, with 0.3 active minus the highest of the other fractions (nats)", "0.3 is best",
            "{sinks}_active_0.3.repeated_loss - max({sinks}_active_0.1.repeated_loss, {sinks}_active_0.5.repeated_loss, "
            "{sinks}_active_0.7.repeated_loss)", at_least=0.0,
        ),
        Statement(
            "breaks_down_repeated", "repeated loss, dropped, with 0.7 active over that with 0.3", "0.7 breaks down: low",
            "{sinks}_active_0.7.repeated_loss / {sinks}_active_0.3.repeated_loss", at_most=0.9,
        ),
        Statement(
            "breaks_down_held_out", "held-out loss, dropped, with 0.7 active over standard's", "too many active interfere",
            "{sinks}_active_0.7.held_out_loss / standard.held_out_loss", at_least=1.15,
        ),
    ),
    panels=lambda table: knob.panels(table, ACTIVE, "active fraction"),
    note=knob.NOTE,
)  # fmt: skip
