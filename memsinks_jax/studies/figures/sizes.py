"""Memory by context in models of several sizes, trained on several amounts of text.

Of what a model reads, 18% are documents that it reads 32 times. The vocabulary is the same for all,
so that losses compare.
"""

from memsinks_jax.models.sizes import SIZES
from memsinks_jax.studies.figures import contexts
from memsinks_jax.studies.figures.contexts import METHODS, MODES
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Line, Panel
from memsinks_jax.studies.figures.runs import Variation

READS = 32
AMOUNTS = {2_400: "1", 7_200: "3", 24_000: "10"}  # documents read once: million tokens, about
REPEATED = 150  # of so many documents one is read READS times, and not once
VOCABULARY = 4096
CELLS = {f"{size}{documents}": (size, documents) for size in SIZES for documents in AMOUNTS}
NAMES = ("standard", "never", "context")
VIEWS = {
    f"{name}_{cell}_{mode}": f"{size}, {AMOUNTS[documents]} million: "
    f"{METHODS[name].label}{MODES[mode]}"
    for cell, (size, documents) in CELLS.items()
    for name in NAMES
    for mode in METHODS[name].modes
}


def _variation(name: str, size: str, documents: int) -> Variation:
    about = {
        "data.unique_documents": documents,
        "data.repeated_documents": documents // REPEATED,
        "data.repetitions": READS,
        "data.vocabulary_size": VOCABULARY,
        "training.evaluate_every": 1000,  # with the usual 100 half of the time goes there
    }
    return Variation(METHODS[name].choice, SIZES[size] | about)


STATEMENTS = "".join(
    f"""
closed_{cell} | {size}, {AMOUNTS[documents]} million: share of the gap closed, over that of a model
    that never read them
    | context_{cell}_drop.closed / min(never_{cell}_drop.closed, 1) >= 0.95
held_out_{cell} | {size}, {AMOUNTS[documents]} million: held-out loss over standard's, off
    | context_{cell}_drop.held_out_ratio <= 1
known_{cell} | {size}, {AMOUNTS[documents]} million: nats per token on what is read often, on
    | context_{cell}_own.repeated_loss <= 0.1"""
    for cell, (size, documents) in CELLS.items()
)


def panels(table) -> list[Panel]:
    """By the size of the model, a line for each amount of text."""
    colours = dict(zip(AMOUNTS, ("#85c1e9", "#2e86c1", "#1b4f72"), strict=True))
    by_size = {
        "x": "million parameters of the layers",
        "log": True,
        "ticks": {int(size[:-1]): size[:-1] for size in SIZES},
        "from_zero": False,
    }

    def lines(shown: str, views: dict[tuple[str, str], str]) -> list[Line]:
        return [
            Line(
                {int(size[:-1]): f"{name}_{size}{documents}_{mode}" for size in SIZES},
                shown,
                f"{METHODS[name].label}{MODES[mode]}, {AMOUNTS[documents]} million tokens",
                colours[documents],
                style,
            )
            for documents in AMOUNTS
            for (name, mode), style in views.items()
        ]

    off = {("context", "drop"): "o-"}
    never = {("never", "drop"): "x:"}
    on = {("context", "own"): "s--"}
    return [
        Panel(
            title="share of the gap closed",
            **by_size,
            levels={1: "black"},
            lines=lines("closed", off | never),
        ),
        Panel(
            title="held-out loss over standard's",
            **by_size,
            levels={1: "black"},
            lines=lines("held_out_ratio", off | on),
        ),
        Panel(
            title="loss on what is read often",
            y="nats per token",
            **by_size,
            lines=lines("repeated_loss", on | {("standard", "drop"): "^-."}),
        ),
        Panel(
            title="AUC, reference",
            **by_size,
            levels={0.5: "black"},
            lines=lines("auc_reference", off),
        ),
    ]


FIGURE = Figure(
    title="Memory by context: larger models, more text",
    answer=f"""Models of three sizes read one, three or ten million tokens. Of some documents they
        read {READS} copies, which are 18% of it. Does memory by context hold as models and texts
        grow?""",
    variants={f"{name}_{cell}": _variation(name, *CELLS[cell]) for cell in CELLS for name in NAMES},
    measure=contexts.measure,
    views=contexts.views,
    seen=VIEWS,
    standard_of=contexts.FIGURE.standard_of,
    metrics=contexts.FIGURE.metrics,
    columns={
        name: shown for name, shown in contexts.FIGURE.columns.items() if name != "relearning"
    },
    labels=lambda table: {of: label for of, label in VIEWS.items() if of in table.groups},
    table_note="""Nats per token. New contexts, recited, AUC: as in the study contexts.""",
    statements=STATEMENTS,
    paper="not asked",
    panels=panels,
    size=(18, 5.2),
    note="{mean}, bands from the lowest to the highest.",
)
