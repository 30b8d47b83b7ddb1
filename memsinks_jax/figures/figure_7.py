"""Figure 7: documents that come back after a while are learned and forgotten in cycles. Do sinks dampen the cycles?

Some documents appear in every N-th batch, all others once. Their loss is measured before and after each encounter, with
their own sinks on as in training (the paper's measure), and with all sinks dropped.
"""

import pathlib

import numpy as np

from memsinks_jax.figures import losses, on_return
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.figure import Figure
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.runs import workdir as workdirs

TITLE = "Figure 7: learned and forgotten, in cycles"
CONFIG = "single_repeat.py"
VARIANTS = on_return.both({"standard": Variation("standard"), "sinks": Variation("sinks_paper")})
ANSWER = (
    "A document that comes back after many steps is learned a little at each encounter, and partly forgotten before the "
    "next, because other documents overwrite it. Its own sinks are off for most of these, and should keep it."
)
TABLE_NOTE = (
    "Losses in nats per token. Amplitude: the loss one step before an encounter minus the loss one step after it, mean over "
    "the encounters of a third of training. Level: the mean of those losses over the last third. With sinks, a document's "
    "own are on, unless it says dropped."
)
LABELS = {"standard": "standard", "sinks": "sinks, own on"}
_COLOURS = {"standard": "#c0392b", "sinks": "#1f618d", f"sinks{on_return.SUFFIX}": "#1e8449"}
OWN, DROPPED = "repeated_loss_own", "repeated_loss"


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    config = workdirs.read_config(runs[0].workdir)
    many = config.data.repeated_documents
    return (
        f"{shared.mean_over_seeds(runs)}, band from the lowest to the highest; in each seed "
        f"{f'{many} documents come' if many > 1 else 'one document comes'} every {config.data.repeat_every} steps, in "
        f"batches of {config.training.batch_size} rows. {shared.floor_sentence(runs)}"
    )


def row_labels(runs: list[Run]) -> list[str]:
    """Labels of the rows of `table`."""
    return on_return.labels(runs, LABELS)


def encounters(run: Run, name: str = OWN) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of the encounters, and the loss one step before and one step after each, in nats.

    Args:
      name: of a metric with own sinks on. Models without sinks use their only one.
    """
    every = workdirs.read_config(run.workdir).data.repeat_every
    at = dict(zip(*run.curve(name if run.curve(name)[0] else DROPPED), strict=True))
    steps = [step for step in range(every, run.metrics["step"] + 1, every) if {step - 1, step + 1} <= at.keys()]
    return np.array(steps), np.array([at[step - 1] for step in steps]), np.array([at[step + 1] for step in steps])


def _in_third(run: Run, steps: np.ndarray, third: int) -> np.ndarray:
    return np.minimum(3 * steps // run.metrics["step"], 2) == third


def amplitude(run: Run, third: int = 2, name: str = OWN) -> float:
    """Mean fall of the loss at an encounter, in nats, over a third of training, by default the last."""
    steps, before, after = encounters(run, name)
    return float(np.mean((before - after)[_in_third(run, steps, third)]))


def level(run: Run, name: str = OWN) -> float:
    """Mean loss around the encounters of the last third of training, in nats."""
    steps, before, after = encounters(run, name)
    return float(np.mean((before + after)[_in_third(run, steps, 2)]) / 2)


@on_return.beside
def claims(runs: list[Run]) -> list[Claim]:
    """Section 5.4, paired by seed."""
    both = ["sinks", "standard"]
    return [
        *losses.paired(
            runs, "amplitude", "amplitude over the last third: sinks, own on, less standard (nats)",
            "lower-amplitude cycles later in training", both, lambda s, other: amplitude(s) - amplitude(other), at_most=0.0,
        ),
        *losses.paired(
            runs, "level", "loss of the repeated documents over the last third: sinks, own on, over standard",
            "a lower train loss", both, lambda s, other: level(s) / level(other), at_most=1.0,
        ),
        *losses.paired(
            runs, "dropped", "the same loss: sinks dropped over own on", "not in the figure", both[:1],
            lambda s: level(s, DROPPED) / level(s), at_least=1.0,
        ),
    ]  # fmt: skip


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    """Final numbers -> (names of columns, one row per variant; a cell holds one value per seed)."""
    columns = {
        "amplitude, first third": lambda run: amplitude(run, 0),
        "amplitude, last third": amplitude,
        "amplitude, dropped": lambda run: amplitude(run, name=DROPPED),
        "level": level,
        "level, dropped": lambda run: level(run, DROPPED),
        "held-out": lambda run: run.metrics["held_out_loss"],
        "steps": lambda run: run.metrics["step"],
    }
    groups = by_variant(runs).values()
    return list(columns), [[[value(run) for run in group.values()] for value in columns.values()] for group in groups]


def _cycles(runs: list[Run], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps of the encounters that all runs have, the loss before and after each in turn, a row per run)"""
    found = [encounters(run, name) for run in runs]
    count = min(len(steps) for steps, _, _ in found)
    return found[0][0][:count], np.array([np.stack(pair, axis=1)[:count].ravel() for _, *pair in found])


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """The cycles over all of training and over its last third, and their amplitude."""
    groups = by_variant(runs)
    figure, (whole, zoom, amplitudes) = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    for label, (variant, group) in zip(row_labels(runs), groups.items(), strict=True):
        of_variant, colour = list(group.values()), _COLOURS[variant]
        steps, cycle = _cycles(of_variant, OWN)
        around = np.stack([steps - 1, steps + 1], axis=1).ravel()
        losses.band(whole, around, cycle, label, colour)
        late = np.repeat(_in_third(of_variant[0], steps, 2), 2)
        losses.band(zoom, around[late], cycle[:, late], label, colour, ".-")
        if variant != "standard":
            _, dropped = _cycles(of_variant, DROPPED)
            losses.band(whole, around, dropped, label.replace("own on", "dropped"), colour, ":")
        of_thirds = np.array([[amplitude(run, third) for third in range(3)] for run in of_variant])
        losses.band(amplitudes, (1, 2, 3), of_thirds, label, colour, "o-")
    losses.finish(whole, runs, "loss of the repeated documents", "step")
    losses.finish(zoom, [], "the last third", "step")
    losses.finish(amplitudes, [], "fall of the loss at an encounter", "third of training")
    # The first encounters of an untrained model would flatten everything else.
    whole.set_ylim(0, 1.05 * max(encounters(run)[2][:2].max() for run in runs))
    zoom.autoscale(axis="y")
    amplitudes.autoscale(axis="y")
    amplitudes.set_xticks((1, 2, 3))
    amplitudes.axhline(0, color="#7f8c8d", linewidth=1)
    whole.set_ylabel("loss (nats per token)")
    whole.legend(frameon=False, fontsize=8.5)
    save(figure, path)


FIGURE = Figure(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    sections=lambda runs, out: [report.heading("Choices"), shared.open_choices(runs)],
    claims=claims, table=table, row_labels=row_labels, draw=draw, note=note,
)  # fmt: skip
