"""BalancedSubnet (arXiv 2410.02159): drops MLP weights, chosen to forget some documents and keep
other text.

The model is frozen. Every weight of an MLP matrix has a score. Each matrix drops the weights with
the smallest absolute scores; gradients pass straight through this choice. Training minimizes the
loss on other text minus the loss on the documents to forget. Follows the authors' code, except that
their batches have 64 documents and ours `batch_size`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.config import Config
from memsinks_jax.model import placement
from memsinks_jax.studies.baselines.reading import Reader, documents_of

MATRICES = ("up_kernel", "gate_kernel", "down_kernel")


@dataclasses.dataclass(frozen=True)
class BalancedSubnetSettings:
    """Settings of the authors' code, except for the batch size."""

    ratio: float = 0.01  # share of every matrix that is dropped
    # w: minimizes w times the loss on other text, minus 1 - w times that on the documents to forget
    weight: float = 0.05
    learning_rate: float = 0.1
    momentum: float = 0.9
    decay: float = 5e-4
    epochs: int = 5  # of the other text
    batch_size: int = 32  # documents, at most half of them to forget
    seed: int = 0  # of the scores and the order


def initial(params: dict, settings: BalancedSubnetSettings) -> dict[str, jax.Array]:
    """Initial scores of every matrix, drawn as torch draws weights: uniform up to sqrt(1 /
    inputs).
    """
    seed, found = jax.random.key(settings.seed, impl="threefry2x32"), {}
    for number, name in enumerate(MATRICES):
        if name in params["layers"]:
            key, shape = jax.random.fold_in(seed, number), params["layers"][name].shape
            most = shape[1] ** -0.5
            found[name] = jax.random.uniform(key, shape, minval=-most, maxval=most)
    return found


def keep_mask(scores_LIO: jax.Array, dropped: jax.Array | int) -> jax.Array:
    """Weights to keep: all but `dropped` of each layer -> bool."""
    sizes_LN = jnp.abs(scores_LIO).reshape(len(scores_LIO), -1)
    order_LN = jnp.argsort(sizes_LN, axis=1)
    kept_LN = jnp.broadcast_to(jnp.arange(sizes_LN.shape[1]) >= dropped, sizes_LN.shape)
    kept_LN = jnp.put_along_axis(kept_LN, order_LN, kept_LN, axis=1, inplace=False)
    return kept_LN.reshape(scores_LIO.shape)


def masked(params: dict, scores: dict[str, jax.Array], dropped: jax.Array | int) -> dict:
    """Parameters without dropped weights. A mask's gradient is its score's absolute value's."""
    layers = dict(params["layers"])
    for name, scores_LIO in scores.items():
        size = jnp.abs(scores_LIO)
        mask = size + jax.lax.stop_gradient(keep_mask(scores_LIO, dropped) - size)
        layers[name] = layers[name] * mask
    return params | {"layers": layers}


@placement.shared
def _programs(config: Config, rate: float, momentum: float, decay: float) -> tuple[Callable, ...]:
    """(first state of the optimizer, a step, `masked`), compiled once for all settings."""
    reader = Reader(config)
    optimizer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum))

    def loss(params: dict, rows: dict) -> jax.Array:
        return reader.nats(params, rows, {}).sum() / rows["weights"].sum()

    def step(params: dict, scores: dict, state, lost: dict, stays: dict, weight, dropped):
        def objective(scores: dict) -> jax.Array:
            of = masked(params, scores, dropped)
            return weight * loss(of, stays) - (1 - weight) * loss(of, lost)

        updates, state = optimizer.update(jax.grad(objective)(scores), state, scores)
        return optax.apply_updates(scores, updates), state

    return optimizer.init, placement.jit(step), placement.jit(masked)


def balanced_subnet(
    config: Config,
    params: dict,
    forgotten: list[dict],
    other: list[dict],
    settings: BalancedSubnetSettings | None = None,
) -> dict:
    """Finds and drops weights -> the remaining parameters.

    Args:
      forgotten: batches of `documents.document_batches` of the documents to forget.
      other: the same of text that was read once.
    Raises:
      InputError: no document has a target.
    """
    settings = settings or BalancedSubnetSettings()
    forgotten, other = documents_of(forgotten), documents_of(other)
    about = settings.learning_rate, settings.momentum, settings.decay
    first, step, without = _programs(config, *about)
    scores = initial(params, settings)
    state = first(scores)
    # the matrices of an MLP have one size
    dropped = int(settings.ratio * scores["up_kernel"][0].size)
    for lost, stays in _batches(forgotten, other, settings):
        scores, state = step(params, scores, state, lost, stays, settings.weight, dropped)
    return without(params, scores, dropped)


def _batches(forgotten: dict, other: dict, settings: BalancedSubnetSettings):
    """Yields (rows to forget, rows of other text) for every step, drawn anew each epoch."""
    rng = np.random.default_rng(settings.seed)
    count = {"lost": len(forgotten["inputs"]), "stays": len(other["inputs"])}
    lost = min(count["lost"], settings.batch_size // 2)
    stays = min(settings.batch_size - lost, count["stays"])
    for _ in range(settings.epochs):
        orders = {name: rng.permutation(size) for name, size in count.items()}
        for number in range(count["stays"] // stays):
            at = np.arange(number * lost, (number + 1) * lost) % count["lost"]
            chosen = orders["lost"][at], orders["stays"][number * stays : (number + 1) * stays]
            yield tuple(
                {name: of[name][places] for name in of}
                for of, places in zip((forgotten, other), chosen, strict=True)
            )
