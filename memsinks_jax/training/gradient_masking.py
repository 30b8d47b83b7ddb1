"""Gradient masking, the paper's baseline: repeated documents teach the sinks, all others the shared neurons (appendix E).

In every forward pass all neurons are on; whose gradient reaches what is decided by whether a position's document is one of
those repeated. What belongs to no neuron of an MLP (attention, embeddings, norms, the down projection's bias) learns from
all. Two kinds, and they are not the same method:

  masked_weights       the gradient of a sink's weights is that of the repeated documents, of a shared neuron's that of the
                       others; what goes on to earlier layers is whole. The paper's text and its theory.
  masked_activations   where a neuron is not to learn, its activation is a constant for the gradient. The code that the paper
                       follows (Cloud et al. 2024). The neuron's weights of the down projection learn from all documents
                       nevertheless, and earlier layers learn only through the neurons that may.

Sinks by document have a milder form (`config.sinks.slows_at`): from some encounter on a document teaches all that is no sink
less and less, and its sinks as before. The gradient of its loss is scaled down, and that of the sinks' weights back up.

With masked_weights a block of which a batch holds no document stays as it is, moments too: AdamW would go on moving it by
weight decay and by what its moments remember. With masked_activations nothing is held back, as in that code.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from memsinks_jax.model.products import Teaching
from memsinks_jax.sinks import Partition, encounters
from memsinks_jax.training.optimizer import first_match, path_name

# Ordered (regex over the path, axis of the hidden neurons or None); the first match wins, no match is an error. Axes count
# from the end; moments have their parameter's path at the end of theirs.
NEURON_AXES = (
    (r"layers/(gate|up)_(kernel|bias)$", -1),
    (r"layers/down_kernel$", -2),
    (r"layers/down_bias$", None),
    (r"layers/(query|key|value|attention_output)_(kernel|bias)$", None),
    (r"(^|/)((token|position)_embedding|head_kernel)$", None),
    (r"_norm/(scale|bias)$", None),
    (r"(^|/)count$", None),
)


def repeated_positions(batch: dict) -> jax.Array:
    """Which positions of a batch are of repeated documents -> bool (B, T)."""
    return jnp.take_along_axis(batch["repeated"], jnp.maximum(batch["segments"] - 1, 0), axis=1)


def documents_learning(batch: dict, slows_at: int) -> jax.Array:
    """How much the documents of a batch teach all that is no sink, 1 at first -> float32 (B, N)."""
    encounter_BN = jnp.maximum(encounters(batch), slows_at)
    return (slows_at / encounter_BN.astype(jnp.float32)) ** 2


def shared_learning(batch: dict, slows_at: int) -> jax.Array:
    """The same by position -> float32 (B, T)."""
    return jnp.take_along_axis(documents_learning(batch, slows_at), jnp.maximum(batch["segments"] - 1, 0), axis=1)


def slowed(losses_BT: jax.Array, learning_BT: jax.Array) -> jax.Array:
    """The same losses, whose gradient is `learning_BT` times theirs."""
    return learning_BT * losses_BT + jax.lax.stop_gradient((1 - learning_BT) * losses_BT)


def sinks_not_slowed(learning_BT: jax.Array, parts: Partition) -> Teaching:
    """Gives back to the weights of an MLP's sinks what `slowed` took from their gradient. Exact, in one backward pass.

    What reaches a layer's other weights, sinks of attention among them, and the layers before it stays slowed.
    """
    return Teaching(1 / learning_BT, _of_sinks(parts))


def detached(repeated_BT: jax.Array, parts: Partition) -> dict[str, Callable]:
    """masked_activations as an intervention: the value passes, the gradient only where the neuron may learn."""
    learns_BTF = repeated_BT[:, :, None] == _of_sinks(parts)
    return {"mlp": lambda x_BTF, layer: jnp.where(learns_BTF, x_BTF, jax.lax.stop_gradient(x_BTF))}


def masked_gradients(
    losses: Callable[[dict], jax.Array], params: dict, repeated_BT: jax.Array, tokens: jax.Array, parts: Partition
) -> tuple[jax.Array, dict]:
    """masked_weights: (params -> losses (B, T)) -> (their sum over `tokens`, gradients, each block's of its own documents).

    One forward pass and two backward passes, one a kind of document: exact, since what a document's losses depend on is
    its own positions alone.
    """

    def sums(params: dict) -> tuple[jax.Array, jax.Array]:
        losses_BT = losses(params)
        return jnp.where(repeated_BT, losses_BT, 0).sum() / tokens, jnp.where(repeated_BT, 0, losses_BT).sum() / tokens

    (of_repeated, of_others), pull_back = jax.vjp(sums, params)
    one, zero = jnp.ones_like(of_repeated), jnp.zeros_like(of_repeated)

    gradients = jax.tree_util.tree_map_with_path(
        lambda path, repeated, others: _by_block(path, repeated, others, repeated + others, parts),
        *pull_back((one, zero)),
        *pull_back((zero, one)),
    )
    return of_repeated + of_others, gradients


def taught(batch: dict, parts: Partition) -> Callable[[tuple], jax.Array]:
    """masked_weights: path of a parameter or moment -> bool, as wide as its neurons: whether the batch teaches it."""
    repeated_BT, counts_BT = repeated_positions(batch), batch["weights"] > 0
    by_repeated, by_others = (repeated_BT & counts_BT).any(), (~repeated_BT & counts_BT).any()
    return lambda path: _by_block(path, by_repeated, by_others, jnp.array(True), parts)


def _by_block(path: tuple, of_sinks, of_shared, of_rest, parts: Partition) -> jax.Array:
    """What belongs to sinks, to shared neurons, to neither -> the last, or the first two along the leaf's neurons."""
    axis = first_match(NEURON_AXES, path_name(path))
    if axis is None:
        return of_rest
    return jnp.where(_of_sinks(parts).reshape(-1, *[1] * (-axis - 1)), of_sinks, of_shared)


def _of_sinks(parts: Partition) -> jax.Array:
    return jnp.arange(sum(parts)) >= parts.shared
