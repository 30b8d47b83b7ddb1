"""Removes single documents after training: which sinks to remove, and the effect on these documents
and on others.

The sinks of a document are those that its id has on. They are shared: about active_fraction of all
documents use each one. Removing one document therefore also takes something from others, and this
is measured. F neurons, L layers.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.data import ids, order
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.model import sparse_sinks
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.draws import document_masks
from memsinks_jax.sinks.kinds import is_sparse, partition

RESAMPLES = 2000  # resamplings of the documents, for intervals

# A neuron's own parameters: (parameter, the axis of the neurons).
_OWN = (
    ("down_kernel", 1),
    ("up_kernel", 2),
    ("up_bias", 1),
    ("gate_kernel", 2),
    ("gate_bias", 1),
)


def neurons_of(config: Config, identities: np.ndarray) -> np.ndarray:
    """The sinks that any of the documents has on -> bool (L, F).

    Args:
      identities: uint32 (documents, 2).
    """
    return _users(config, identities) > 0


def spared(config: Config, removed_LF: np.ndarray, others: np.ndarray, most: int) -> np.ndarray:
    """The neurons to remove, except those that more than `most` of the `others`, uint32 (documents,
    2), have on.
    """
    return removed_LF & (_users(config, others) <= most)


def _users(config: Config, identities: np.ndarray) -> np.ndarray:
    """How many of the documents have each neuron on as a sink -> int (L, F); 0 for shared
    neurons.
    """
    parts = partition(config.model, config.sinks)
    masks = document_masks(identities, config.seed, parts.sinks, config.sinks)
    found = np.zeros((config.model.layers, sum(parts)), int)
    found[:, parts.shared :] = np.asarray(masks).sum(axis=0)  # in every layer
    return found


def unused_ids(config: Config, count: int) -> np.ndarray:
    """Ids that no document has -> uint32 (count, 2). Removing their sinks is a placebo: the effect
    of a removal is what goes beyond it.
    """
    return ids.as_lanes(order.bits(config.seed, "placebos").random_raw(count))


def without(config: Config, params: dict, removed_LF: np.ndarray) -> dict:
    """The parameters with everything that belongs only to the removed neurons set to 0; all others
    are bitwise the same.
    """
    if is_sparse(config.sinks):  # a row is one sink in all layers
        gone_M = removed_LF[0, partition(config.model, config.sinks).shared :]
        return params | {
            name: jax.numpy.where(
                gone_M.reshape(-1, *[1] * (params[name].ndim - 1)), 0, params[name]
            )
            for name in sparse_sinks.tables_of(config.model)
        }
    layers = dict(params["layers"])
    for name, axis in _OWN:
        if name in layers:
            shape = [1] * layers[name].ndim
            shape[0], shape[axis] = removed_LF.shape
            layers[name] = jax.numpy.where(removed_LF.reshape(shape), 0, layers[name])
    return params | {"layers": layers}


@dataclasses.dataclass(frozen=True)
class Losses:
    """Losses of a set of documents in one mode; `[i]` of every field is document i's, nats are
    summed over its tokens.
    """

    before: np.ndarray
    after: np.ndarray
    tokens: np.ndarray

    @property
    def rise(self) -> float:
        """Nats per token."""
        return _rise(self)

    def chosen(self, which: np.ndarray) -> "Losses":
        return Losses(self.before[which], self.after[which], self.tokens[which])

    def to_dict(self) -> dict:
        """Nats per token, and the 95% interval of the rise over documents."""
        total = self.tokens.sum()
        return {
            "documents": len(self.tokens),
            "tokens": int(total),
            "before": float(self.before.sum() / total),
            "after": float(self.after.sum() / total),
            "rise": self.rise,
            "rise_ci95": bootstrap(_rise, self),
        }


def losses(
    loss: DocumentLoss, run: Trained, after: dict, documents: Documents, modes: Sequence[str]
) -> dict[str, Losses]:
    """{mode: losses of the documents by `run`, and by its model with the parameters `after`}."""
    batches, found = documents.batches(run), {}
    for mode in modes:
        nats, tokens = loss(run.params, batches, mode)
        found[mode] = Losses(nats, loss(after, batches, mode)[0], tokens)
    return found


def selectivity(target: Losses, others: Losses) -> float:
    """The rise of the target's loss divided by that of the others; infinite if theirs does not
    rise.
    """
    theirs = _rise(others)
    return _rise(target) / theirs if theirs > 0 else float("inf")


def bootstrap(measure, *sets: Losses) -> list[float] | None:
    """95% interval of `measure(*sets)` over the documents of all sets -> [low, high]; None if all
    hold one document.
    """
    if all(len(each.tokens) < 2 for each in sets):
        return None
    random = np.random.default_rng(0)
    values = [
        measure(
            *(
                each.chosen(random.integers(len(each.tokens), size=len(each.tokens)))
                for each in sets
            )
        )
        for _ in range(RESAMPLES)
    ]
    return [float(np.quantile(values, side, method="nearest")) for side in (0.025, 0.975)]


def _rise(of: Losses) -> float:
    return float((of.after - of.before).sum() / of.tokens.sum())


def capacity(
    run: Trained, documents: Documents, sizes: Sequence[int], draws: int = 20
) -> list[dict]:
    """Selectivity of removing `sizes` documents at once, their own sinks on, over random choices of
    documents.

    Args:
      documents: those that the run has memorized.
      draws: choices per size; single documents are taken at most once each.
    Returns:
      [{"removed": documents at once, "left": share of the sinks that is left, "target_rise",
      "others_rise": nats per token, "selectivity": of all choices together}], without sizes at
      which nobody or no sink is left.
    """
    loss, random = DocumentLoss(run.config), np.random.default_rng(run.config.seed)
    count, batches = len(documents.tokens), documents.batches(run)
    before, tokens = loss(run.params, batches, "own")
    found = []
    for size in sizes:
        rises, lefts = [], []
        for targets in _choices(random, count, size, draws) if size < count else ():
            removed = neurons_of(run.config, documents.identities[targets])
            after = loss(without(run.config, run.params, removed), batches, "own")[0]
            of = Losses(before, after, tokens)
            rises.append(
                (of.chosen(targets).rise, of.chosen(np.setdiff1d(np.arange(count), targets)).rise)
            )
            shared = partition(run.config.model, run.config.sinks).shared
            lefts.append(1 - np.mean(removed[:, shared:]))
        if rises and min(lefts) > 0:
            target, others = np.mean(rises, axis=0).tolist()
            found.append(
                {
                    "removed": size,
                    "left": float(np.mean(lefts)),
                    "target_rise": target,
                    "others_rise": others,
                    "selectivity": target / others if others > 0 else float("inf"),
                }
            )
    return found


def _choices(random: np.random.Generator, count: int, size: int, draws: int) -> list[np.ndarray]:
    if size == 1:
        return list(random.permutation(count)[:draws, None])
    return [random.choice(count, size, replace=False) for _ in range(draws)]
