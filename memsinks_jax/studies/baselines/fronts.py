"""Chooses settings of an edit on half of the documents and evaluates them on the other half."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from memsinks_jax.measures.document_loss import DocumentLoss, mean_loss
from memsinks_jax.studies.baselines.removal import Point, point


class Trial(NamedTuple):
    """Settings of an edit, and its effect on each half of the documents."""

    settings: dict
    tuned: Point
    evaluated: Point


def half(batches: list[dict], number: int) -> list[dict]:
    """Every other document of `documents.document_batches`, from `number` on -> batches."""
    size = len(batches[0]["weights"])
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    places = np.flatnonzero((rows["document"] % 2 == number) & (rows["weights"].sum(axis=1) > 0))
    filled = np.append(places, np.repeat(places[:1], -len(places) % size))
    taken = {name: values[filled] for name, values in rows.items()}
    taken["weights"][len(places) :] = 0
    return [
        {name: values[at : at + size] for name, values in taken.items()}
        for at in range(0, len(filled), size)
    ]


def tried(
    loss: DocumentLoss,
    params: dict,
    edits: Iterable[tuple[dict, dict]],
    repeated: list[dict],
    held_out: list[dict],
) -> list[Trial]:
    """Measures edits, given as (settings, parameters), on the even and on the odd documents.

    Args:
      loss: of the model's config. repeated, held_out: batches of `documents.document_batches`.
    """
    sets = [(half(repeated, number), half(held_out, number)) for number in range(2)]

    def losses(params: dict) -> list[list[float]]:
        return [[mean_loss(loss, params, batches) for batches in of] for of in sets]

    before = losses(params)
    return [
        Trial(settings, *(point(*pair, 0.0) for pair in zip(before, losses(changed), strict=True)))
        for settings, changed in edits
    ]


def front(trials: list[Trial]) -> list[Trial]:
    """The Pareto front on the tuning half, from the least forgetting to the most.

    A trial dominates another if it forgets at least as much at no higher held-out loss.
    """
    found, lowest = [], np.inf
    for trial in sorted(trials, key=lambda t: (-t.tuned.forgetting, t.tuned.delta_val)):
        if trial.tuned.delta_val < lowest and trial.tuned.forgetting > 0:
            found.append(trial)
            lowest = trial.tuned.delta_val
    return found[::-1]
