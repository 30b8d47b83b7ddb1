"""Gradient masking, the paper's baseline: repeated documents train the sinks, all others the shared neurons (appendix E).

All neurons are on in every forward pass. Which neurons learn from a position depends on whether its document is repeated.
Parameters that belong to no MLP neuron (attention, embeddings, norms, the down projection's bias) learn from all documents.
There are two kinds, which are different methods:

  masked_weights       a sink's weights get the gradient of the repeated documents, a shared neuron's that of the others.
                       The gradient to earlier layers is complete. This is the paper's text and its theory.
  masked_activations   if a neuron must not learn, its activation is a constant for the gradient. This is the code that the
                       paper follows (Cloud et al. 2024). The neuron's weights of the down projection still learn from all
                       documents, and earlier layers learn only through the neurons that may learn.

Sinks by document have a milder form (`config.sinks.slows_at`): from some encounter on, a document trains everything but its
sinks less and less, and its sinks as before. The gradient of its loss is scaled down, that of the sinks' weights back up.

Selective gradient masking (SGTM, arXiv 2512.05648) uses labels. Here they belong to documents, not to batches:

  forget      the known repeated documents: all neurons are on, and only the sinks learn
  retain      a share of the others: the sinks are off in the forward pass, so everything but the sinks learns
  unlabelled  the rest, with the unknown repeated documents: nothing is masked, and everything learns

  sgtm         one AdamW for all: a masked gradient is 0, and weights still move by moments and decay
  sgtm_frozen  weights that no document of a batch trains stay as they are, moments too

As in the authors' code for Wikipedia, parameters of no neuron or head (embeddings, norms, biases that write to the residual
stream) do not learn from forget documents, except for the last norm. Sinks of attention are whole heads.

With masked_weights, a block stays as it is, moments too, if a batch has no document for it: AdamW would still move it by
weight decay and by its moments. With masked_activations nothing is held back, as in that code.
"""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp

from memsinks_jax import sinks
from memsinks_jax.config import Config, InputError, SinksConfig
from memsinks_jax.model.products import Teaching
from memsinks_jax.sinks import Partition, encounters
from memsinks_jax.training.optimizer import first_match, path_name

# Ordered (regex over the path, (site, axis of its neurons) or None); the first match wins, no match is an error. Axes count
# from the end. The path of a moment ends with its parameter's path.
NEURON_AXES = (
    (r"layers/(gate|up)_(kernel|bias)$", ("mlp", -1)),
    (r"layers/down_kernel$", ("mlp", -2)),
    (r"layers/(query|key|value)_(kernel|bias)$", ("attention", -1)),
    (r"layers/attention_output_kernel$", ("attention", -2)),
    (r"layers/(down|attention_output)_bias$", None),
    (r"(^|/)((token|position)_embedding|head_kernel)$", None),
    (r"_norm/(scale|bias)$", None),
    (r"(^|/)count$", None),
)

LEAST = 2.0**-40  # never 0: the gradient of a slowed document's sinks is divided by it again


def repeated_positions(batch: dict) -> jax.Array:
    """Which positions of a batch belong to repeated documents -> bool (B, T)."""
    return _by_position(batch["repeated"], batch)


def documents_learning(batch: dict, settings: SinksConfig) -> jax.Array:
    """How much each document of a batch trains everything but sinks, from 1 down to LEAST -> float32 (B, N)."""
    encounter_BN = jnp.maximum(encounters(batch), settings.slows_at)
    learning_BN = (settings.slows_at / encounter_BN.astype(jnp.float32)) ** settings.slowing_power
    learning_BN = jnp.maximum(learning_BN, LEAST)
    return jnp.where(batch["common"], 1.0, learning_BN) if "common" in batch else learning_BN


def shared_learning(batch: dict, settings: SinksConfig) -> jax.Array:
    """The same by position -> float32 (B, T)."""
    return _by_position(documents_learning(batch, settings), batch)


def slowed(losses_BT: jax.Array, learning_BT: jax.Array) -> jax.Array:
    """The same losses, whose gradient is `learning_BT` times theirs."""
    return learning_BT * losses_BT + jax.lax.stop_gradient((1 - learning_BT) * losses_BT)


def sinks_not_slowed(learning_BT: jax.Array, parts: Partition) -> Teaching:
    """Undoes `slowed` in the gradient of an MLP's sink weights. Exact, in one backward pass.

    The gradients of a layer's other weights, including sinks of attention, and of earlier layers stay slowed.
    """
    return Teaching(1 / learning_BT, _of_sinks(parts))


def detached(repeated_BT: jax.Array, parts: Partition) -> dict[str, Callable]:
    """masked_activations as an intervention: passes the value, and the gradient only if the neuron may learn."""
    learns_BTF = repeated_BT[:, :, None] == _of_sinks(parts)
    return {"mlp": lambda x_BTF, layer: jnp.where(learns_BTF, x_BTF, jax.lax.stop_gradient(x_BTF))}


def labels(batch: dict, seed: jax.Array, settings: SinksConfig) -> tuple[jax.Array, jax.Array]:
    """SGTM: which documents of a batch are labelled forget, and which retain -> two bool (B, N), drawn by id."""

    def drawn(share: float) -> jax.Array:
        return sinks.document_masks(batch["identities"], seed, 1, SinksConfig(active_fraction=share), 1)[0, ..., 0]

    repeated_BN = batch["repeated"]
    return repeated_BN & ~drawn(settings.undiscovered), ~repeated_BN & drawn(settings.retain_fraction)


def without_sinks(batch: dict, seed: jax.Array, config: Config) -> dict[str, Callable]:
    """SGTM's forward pass as interventions: the sinks are off for documents with the label retain.

    Raises:
      InputError: sinks of attention that are not whole heads with keys of their own.
    """
    model, count = config.model, sinks.partitions(config)["attention"].sinks
    if count and (count % (model.head_width) or model.kv_heads not in (0, model.heads)):
        raise InputError(
            f"config.sinks.attention_fraction is {config.sinks.attention_fraction}: SGTM gives whole heads away, each with "
            f"keys of its own; set it to a multiple of {1 / model.heads:g}, and config.model.kv_heads=0"
        )
    on_BN1 = ~labels(batch, seed, config.sinks)[1][..., None]
    return {
        site: gate
        for site, parts in sinks.partitions(config).items()
        if parts.sinks
        for gate in sinks.apply_gates((on_BN1 | ~_of_sinks(parts))[None], batch["segments"], site).values()
    }


def masked_gradients(
    losses: Callable[[dict, dict], jax.Array],
    params: dict,
    batch: dict,
    tokens: jax.Array,
    config: Config,
    seed: jax.Array,
) -> tuple[jax.Array, dict]:
    """(params, batch -> losses (B, T)) -> (their sum over `tokens`, gradients, each block's of the documents that teach it).

    One forward pass and two backward passes, one per kind of document. This is exact, because the losses of a document
    depend only on its own positions.
    """
    selective, parts = config.sinks.kind in sinks.SGTM, sinks.partitions(config)
    apart_BT = _by_position(labels(batch, seed, config.sinks)[0] if selective else batch["repeated"], batch)

    def sums(params: dict) -> tuple[jax.Array, jax.Array]:
        losses_BT = losses(params, batch)
        return jnp.where(apart_BT, losses_BT, 0).sum() / tokens, jnp.where(apart_BT, 0, losses_BT).sum() / tokens

    (of_apart, of_others), pull_back = jax.vjp(sums, params)
    one, zero = jnp.ones_like(of_apart), jnp.zeros_like(of_apart)

    def taught_by(path: tuple, apart: jax.Array, others: jax.Array) -> jax.Array:
        if selective:
            return _by_block(path, apart + others, others, apart + others if _learns_from_all(path) else others, parts)
        return _by_block(path, apart, others, apart + others, parts)

    gradients = jax.tree_util.tree_map_with_path(taught_by, *pull_back((one, zero)), *pull_back((zero, one)))
    return of_apart + of_others, gradients


def taught(batch: dict, config: Config, seed: jax.Array) -> Callable[[tuple], jax.Array | bool]:
    """Path of a parameter or moment -> bool, one per neuron: whether the batch updates it."""
    parts, yes = sinks.partitions(config), jnp.array(True)
    if config.sinks.kind not in ("masked_weights", "sgtm_frozen"):
        return lambda path: True

    def any_of(documents_BN: jax.Array) -> jax.Array:
        return (_by_position(documents_BN, batch) & (batch["weights"] > 0)).any()

    if config.sinks.kind == "masked_weights":
        by_repeated, by_others = any_of(batch["repeated"]), any_of(~batch["repeated"])
        return lambda path: _by_block(path, by_repeated, by_others, yes, parts)
    forget_BN, retain_BN = labels(batch, seed, config.sinks)
    of_sinks, of_others = any_of(~retain_BN), any_of(~forget_BN)
    return lambda path: _by_block(path, of_sinks, of_others, yes if _learns_from_all(path) else of_others, parts)


def _learns_from_all(path: tuple) -> bool:
    """Whether parameters of no neuron learn from all documents, with SGTM; `count` is the optimizer's."""
    return re.search(r"(^|/)(final_norm/\w+|count)$", path_name(path)) is not None


def _by_position(documents_BN: jax.Array, batch: dict) -> jax.Array:
    """Values of documents -> of their positions, (B, T)."""
    return jnp.take_along_axis(documents_BN, jnp.maximum(batch["segments"] - 1, 0), axis=1)


def _by_block(path: tuple, of_sinks, of_shared, of_rest, parts: dict[str, Partition]) -> jax.Array:
    """Values for sinks, shared neurons, neither -> the last, or the first two along the leaf's neurons."""
    site, axis = first_match(NEURON_AXES, path_name(path)) or ("mlp", None)
    if axis is None or not parts[site].sinks:
        return of_rest
    return jnp.where(_of_sinks(parts[site]).reshape(-1, *[1] * (-axis - 1)), of_sinks, of_shared)


def _of_sinks(parts: Partition) -> jax.Array:
    return jnp.arange(sum(parts)) >= parts.shared
