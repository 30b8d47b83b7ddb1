"""Figure 7: documents that come back after a while are learned and forgotten in cycles. Do sinks
dampen the cycles?

Some documents appear in every N-th batch, all others once. Their loss is measured before and after
each encounter, with their own sinks on as in training (the paper's measure), and with all sinks
dropped.
"""

from collections.abc import Callable, Sequence

import numpy as np

from memsinks_jax import plugin
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import COLOURS, GREEN, GREY, RED, Line, Panel
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Table

LABELS = {
    "standard": "standard",
    "sinks_paper": "sinks, own on",
    "sinks": "sinks, own on, open on return",
}
_COLOURS = {"standard": RED, "sinks_paper": COLOURS["sinks"], "sinks": GREEN}
OWN, DROPPED = "repeated_loss_own", "repeated_loss"


def encounters(run: Run, name: str = OWN) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of the encounters, and the loss one step before and one step after each, in nats.

    Args:
      name: of a metric with own sinks on. Models without sinks use their only one.
    """
    every = plugin.schedule(workdirs.read_config(run.workdir)).settings.steps
    at = dict(zip(*run.curve(name if run.curve(name)[0] else DROPPED), strict=True))
    steps = range(every, run.metrics["step"] + 1, every)
    steps = [step for step in steps if {step - 1, step + 1} <= at.keys()]
    before, after = (np.array([at[step + by] for step in steps]) for by in (-1, 1))
    return np.array(steps), before, after


def _in_third(run: Run, steps: np.ndarray, third: int) -> np.ndarray:
    return np.minimum(3 * steps // run.metrics["step"], 2) == third


def amplitude(run: Run, third: int = 2, name: str = OWN) -> float:
    """Mean fall of the loss at an encounter, in nats, over a third of training."""
    steps, before, after = encounters(run, name)
    return float(np.mean((before - after)[_in_third(run, steps, third)]))


def amplitudes(run: Run) -> tuple[Sequence[int], list[float]]:
    """Over the thirds of training."""
    return (1, 2, 3), [amplitude(run, third) for third in range(3)]


def level(run: Run, name: str = OWN) -> float:
    """Mean loss around the encounters of the last third of training, in nats."""
    steps, before, after = encounters(run, name)
    return float(np.mean((before + after)[_in_third(run, steps, 2)]) / 2)


def cycles(run: Run, name: str = OWN, late: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(steps around every encounter, the loss there), of the last third if `late`."""
    steps, *pair = encounters(run, name)
    chosen = _in_third(run, steps, 2) if late else np.ones(len(steps), bool)
    around = np.stack([steps - 1, steps + 1], axis=1)
    return around[chosen].ravel(), np.stack(pair, axis=1)[chosen].ravel()


def panels(table: Table) -> list[Panel]:
    """The cycles over all of training and over its last third, and their amplitude."""

    def lines(shown: Callable, style: str) -> list[Line]:
        return [Line(kind, shown, label, _COLOURS[kind], style) for kind, label in LABELS.items()]

    dropped = [
        line._replace(label=line.label.replace("own on", "dropped"))
        for line in lines(lambda run: cycles(run, DROPPED), ":")[1:]
    ]
    # The first encounters of an untrained model would flatten everything else.
    runs = [run for group in table.groups.values() for run in group.values()]
    highest = max((encounters(run)[2][:2].max() for run in runs), default=1.0)
    return [
        Panel(
            title="loss of the repeated documents",
            y="loss (nats per token)",
            floor=True,
            lines=lines(cycles, "-") + dropped,
            settings={"ylim": (0, 1.05 * highest)},
        ),
        Panel(
            title="the last third",
            from_zero=False,
            legend=None,
            lines=lines(lambda run: cycles(run, late=True), ".-"),
        ),
        Panel(
            title="fall of the loss at an encounter",
            x="third of training",
            from_zero=False,
            levels={0: GREY},
            legend=None,
            ticks={1: "1", 2: "2", 3: "3"},
            lines=lines(amplitudes, "o-"),
        ),
    ]


FIGURE = Figure(
    title="Figure 7: learned and forgotten, in cycles",
    answer="""A document that comes back after many steps is learned a little at each encounter, and
        partly forgotten before the next, because other documents overwrite it. Its own sinks are
        off for most other documents, so they should keep it in memory.""",
    config="single_repeat.py",
    variants=tuple(LABELS),
    measures={
        "first_amplitude": lambda run: amplitude(run, 0),
        "amplitude": amplitude,
        "amplitude_dropped": lambda run: amplitude(run, name=DROPPED),
        "level": level,
        "level_dropped": lambda run: level(run, DROPPED),
    },
    columns={
        "amplitude, first third": "first_amplitude",
        "amplitude, last third": "amplitude",
        "amplitude, dropped": "amplitude_dropped",
        "level": "level",
        "level, dropped": "level_dropped",
        "held-out": "held_out_loss",
        "steps": "step",
    },
    labels=LABELS,
    table_note="""Losses in nats per token. Amplitude: the loss one step before an encounter minus
        the loss one step after it, mean over the encounters of a third of training. Level: the mean
        of those losses over the last third. With sinks, a document's own are on, unless marked as
        dropped.""",
    # Section 5.4.
    statements="""
amplitude | amplitude in the last third: sinks, own on, minus standard (nats)
    | {sinks}.amplitude - standard.amplitude <= 0 | lower-amplitude cycles later in training
level | loss of repeated documents in the last third: sinks, own on, over standard's
    | {sinks}.level / standard.level <= 1 | a lower train loss
dropped | the same loss: sinks dropped over own on | {sinks}.level_dropped / {sinks}.level >= 1
    | not in the figure""",
    panels=panels,
    note="""{mean}, band from the lowest to the highest; in each seed, documents that come every
        {schedule.steps} steps: {config.data.repeated_documents}, in batches of
        {config.training.batch_size} rows. {floor}""",
)
