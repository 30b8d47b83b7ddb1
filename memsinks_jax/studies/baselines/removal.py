"""Drops the neurons that a method found and measures losses: the trade-off of figures 2 and 4c.

Forgetting is the rise of the loss on repeated documents, delta_val that on held-out documents, both
in nats per token. The paper plots minus delta_val ("degradation, higher is better"). L layers, F
hidden neurons.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from memsinks_jax.measures.document_loss import DocumentLoss, mean_loss

# Shares of every layer, up to as much forgetting as with sinks dropped. The paper does not give its
# own.
RATIOS = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)


class Point(NamedTuple):
    """Dropping the share `ratio` of every layer: nats per token, and both losses after it."""

    ratio: float
    forgetting: float
    delta_val: float
    repeated_loss: float
    held_out_loss: float


def top_neurons(scores_LF: np.ndarray, ratio: float) -> np.ndarray:
    """The round(ratio * F) neurons of each layer with the highest scores -> bool (L, F).

    Rounds to the nearest number, halves to even (Chang et al. round in one experiment and truncate
    in the other). Ties go to the lower neuron number.
    """
    count = round(ratio * scores_LF.shape[1])
    order_LF = np.argsort(-scores_LF, axis=1, kind="stable")
    dropped_LF = np.zeros(scores_LF.shape, bool)
    np.put_along_axis(dropped_LF, order_LF[:, :count], True, axis=1)
    return dropped_LF


def without(params: dict, dropped_LF: np.ndarray) -> dict:
    """Sets the dropped neurons' rows of the down projection to 0, as if these neurons were always
    0.

    One compiled program can then measure many removals.
    """
    down_LFD = params["layers"]["down_kernel"]
    remaining_LFD = jnp.where(jnp.asarray(dropped_LF)[:, :, None], 0, down_LFD)
    return params | {"layers": params["layers"] | {"down_kernel": remaining_LFD}}


def tradeoff(
    loss: DocumentLoss,
    params: dict,
    scores_LF: np.ndarray,
    forgotten: dict[str, list[dict]],
    held_out: list[dict],
    ratios: Sequence[float] = RATIOS,
) -> dict[str, list[Point]]:
    """Drops more and more neurons and measures each time -> one curve for each set of documents to
    forget.

    Args:
      loss: of the model's config.
      forgotten: batches of `documents.document_batches` by name, such as those of repeated
        documents.
      held_out: batches of documents never seen.
    """

    def losses(params: dict) -> dict[str, tuple[float, float]]:
        """Of every set, and of held-out documents."""
        of_sets = {name: mean_loss(loss, params, batches) for name, batches in forgotten.items()}
        other = mean_loss(loss, params, held_out)
        return {name: (of_set, other) for name, of_set in of_sets.items()}

    before = losses(params)
    curves: dict[str, list[Point]] = {name: [] for name in forgotten}
    for ratio in ratios:
        for name, after in losses(without(params, top_neurons(scores_LF, ratio))).items():
            curves[name].append(point(before[name], after, ratio))
    return curves


def point(before: Sequence[float], after: Sequence[float], ratio: float = math.nan) -> Point:
    """The point of any two models, from (loss on repeated, loss on held-out documents) of each.

    In figure 4c, `after` is the model trained with sinks, with its sinks dropped, and `before` the
    standard model.
    """
    return Point(ratio, after[0] - before[0], after[1] - before[1], *after)


def delta_val_at(points: Sequence[Point], forgetting: float) -> float:
    """The lowest delta_val at which a curve reaches a positive `forgetting`; infinite if it never
    does.

    The curve runs in straight lines from the untouched model, (0, 0), through the points in the
    order of their ratios.
    """
    ordered = sorted(points, key=lambda p: p.ratio)
    places = [(0.0, 0.0), *((p.forgetting, p.delta_val) for p in ordered)]
    reached = [d for f, d in places if f >= forgetting]
    for (f0, d0), (f1, d1) in zip(places, places[1:], strict=False):
        if min(f0, f1) < forgetting < max(f0, f1):
            reached.append(d0 + (forgetting - f0) / (f1 - f0) * (d1 - d0))
    return min(reached, default=math.inf)


def hypervolume(points: Sequence[Point], worst: float, enough: float = math.inf) -> float:
    """Area dominated by the points, up to a delta_val of `worst`, in nats squared. Larger is
    better.

    Args:
      enough: caps the forgetting that counts, for example at that of a model which never saw the
        documents.
    """
    better = [p for p in points if p.forgetting > 0 and p.delta_val < worst]
    corners = sorted((min(p.forgetting, enough), p.delta_val) for p in better)
    area, reached = 0.0, 0.0
    for number, (forgetting, _) in enumerate(corners):
        area += (forgetting - reached) * (worst - min(d for _, d in corners[number:]))
        reached = forgetting
    return area
