"""Figure 3: gradient masking holds the whole model back, and its parts come to depend on each
other.

Held-out loss over training for standard training, and for gradient masking with its sinks kept and
dropped. Shows both kinds of masking (studies/methods/gradient_masking.py), and the sinks of the
paper as a control for its argument.
"""

import pathlib

import numpy as np

from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import COLOURS, Line, Panel
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.sections import left_open
from memsinks_jax.studies.figures.table import Table

MASKED = {"gradient_masking": "gradient masking", "gradient_detach": "masking of activations"}
_DROPPABLE = MASKED | {"sinks_paper": "control: sinks"}


def gap(run: Run) -> list[float]:
    """Held-out loss with sinks dropped minus kept, at every evaluation, in nats."""
    (_, dropped), (_, own) = run.curve("held_out_loss"), run.curve("held_out_loss_own")
    return [d - k for d, k in zip(dropped, own, strict=True)]


def growth(run: Run) -> float:
    """Mean gap over the last third of the evaluations minus that over the first third, in nats."""
    third = max(len(gap(run)) // 3, 1)
    return float(np.mean(gap(run)[-third:]) - np.mean(gap(run)[:third]))


def _own_loss(run: Run, loss: str) -> float:
    """A loss with the sinks on; of a model without sinks its only one."""
    return run.metrics.get(f"{loss}_own", run.metrics[loss])


def _dropped(run: Run, loss: str) -> float:
    """A loss with the sinks off. Raises KeyError if the model has none."""
    if f"{loss}_own" not in run.metrics:
        raise KeyError(loss)
    return run.metrics[loss]


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """What the paper leaves open about gradient masking, and the choices here."""
    shared_fraction = workdirs.read_config(runs[0].workdir).sinks.shared_fraction
    masking = left_open(f"""
        what is masked | both: the gradients of an MLP's weights, as in the text and the theory; its
            activations, as in the code that the paper follows
        share of the neurons for all other documents | {shared_fraction:g}
        which documents train attention, embeddings and norms | all
        batches without a repeated document, or with only these | weights: a block that no document
            trains stays as it is, moments too; activations: AdamW still moves it
    """)
    return [masking]


def panels(table: Table) -> list[Panel]:
    """Held-out loss, and what dropping adds to it."""
    # Dropped losses are many times the kept ones, which must stay distinguishable from standard's.
    lines = [Line("standard", "held_out_loss", "standard, with repeats", COLOURS["standard"])]
    gaps = []
    for name, label in _DROPPABLE.items():
        lines += [
            Line(name, "held_out_loss_own", f"{label}, kept", COLOURS[name]),
            Line(name, "held_out_loss", f"{label}, dropped", COLOURS[name], ":"),
        ]
        gaps.append(
            Line(name, lambda run: (run.curve("held_out_loss")[0], gap(run)), label, COLOURS[name])
        )
    return [
        Panel(
            title="held-out documents",
            y="loss (nats per token)",
            floor=True,
            from_zero=False,
            settings={"yscale": "log"},
            lines=lines,
        ),
        Panel(
            title="dropped minus kept, held-out documents",
            y="gap (nats per token)",
            from_zero=False,
            levels={0: "black"},
            lines=gaps,
        ),
    ]


FIGURE = Figure(
    title="Figure 3: gradient masking",
    answer="""With gradient masking, repeated documents train only some neurons, and all other
        documents only the rest. If this isolated memorization, training would lose nothing, and
        those neurons could be dropped without harm.""",
    variants=("standard", "gradient_masking", "gradient_detach", "sinks_paper"),
    measures={
        "gap": "held_out_loss - held_out_loss_own",
        "growth": growth,
        "kept": _own_loss,
        "dropped": _dropped,
    },
    columns={
        "held-out, kept": "kept(run, 'held_out_loss')",
        "held-out, dropped": "dropped(run, 'held_out_loss')",
        "gap": "gap",
        "repeated, kept": "kept(run, 'repeated_loss')",
        "repeated, dropped": "dropped(run, 'repeated_loss')",
        "steps": "step",
    },
    labels={"standard": "standard, with repeats"} | _DROPPABLE,
    table_note="""Losses in nats per token. Kept: the neurons for repeated documents are on, as in
        training; dropped: they are off. Gap: held-out loss dropped minus held-out loss kept. It
        shows how much the rest depends on those neurons.""",
    statements="".join(
        f"""
{variant}_kept | held-out loss of {label}, kept, over standard's
    | {variant}.held_out_loss_own / standard.held_out_loss >= 1 | significantly worse
{variant}_gap | held-out loss of {label}, dropped minus kept (nats) | {variant}.gap >= 0
    | dropping degrades
{variant}_growth | growth of dropped minus kept, {label}: last third of training minus first third
    (nats) | {variant}.growth >= 0 | as training progresses
{variant}_control | held-out loss, dropped minus kept: {label} minus the paper's sinks (nats)
    | {variant}.gap - sinks_paper.gap >= 0 | not run in the paper"""
        for variant, label in MASKED.items()
    ),
    panels=panels,
    size=(13, 4.4),
    note="""{mean}, band from the lowest to the highest. {floor} With sinks, kept means each
        document's own.""",
    sections=sections,
)
