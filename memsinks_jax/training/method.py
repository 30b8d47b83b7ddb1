"""What a way of training does to a step: hooks that `step` and `optimizer` call and that methods
override.

Sinks by document also slow down (`config.sinks.slows_at`): from some encounter on, a document
trains everything but its sinks less and less, and its sinks as before. The gradient of the loss is
scaled down, that of the sinks' weights back up.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from memsinks_jax import plugin
from memsinks_jax.config import Config, InputError
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.model.products import GradientScale
from memsinks_jax.sinks.gates import apply_gates, chance_gates
from memsinks_jax.sinks.interventions import sink_interventions
from memsinks_jax.sinks.kinds import NONE, Partition, is_sparse, partition
from memsinks_jax.sinks.learning import by_position, documents_learning
from memsinks_jax.sinks.opening import encounters, opened

# among the gradients: the loss at each context, summed as the gradients are
OF_CONTEXTS = "of_contexts"
_SINKS_ALONE = 2.0**-16  # scales a loss for shared weights; Polyak's step does not depend on it
# of a gradient's norm: rows that no position has have gradients of 0, and steps of 0
_LEAST_SQUARE = 1e-30


class Method:
    """Plain training. Methods of others are classes like this one, see plugin.py."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        """Numbers that `config.training.method` may set, each a `config.setting`."""

    # (settings, a document's tokens with its end of text, start, stop) -> which of those from start
    # to before stop count in the loss, bool; None: all do
    counted: Callable | None = None

    def __init__(self, config: Config, settings: Settings | None = None):
        self.config, self.settings = config, settings
        self.parts = partition(config.model, config.sinks)

    def interventions(self, batch: dict, step: jax.Array, seed: jax.Array) -> dict:
        """Those of the forward pass on a batch or a microbatch.

        Besides the arrays of data/packing.py the batch has `rows`, int (B,): the index of each row
        in the step's batch. With sparse sinks it also has `sinks`, int32 (B, N, k): the table rows
        of each document; with sinks by context `contexts`, int32 (B, T): the row of each position.
        """
        return {}

    def slowing(self, batch: dict) -> tuple[jax.Array | None, GradientScale | None]:
        """The scale of each position's gradient, float32 (B, T), and the weights that undo it;
        None: no scale.
        """
        return None, None

    def gradients(
        self,
        losses: Callable,
        params: dict,
        batch: dict,
        tokens: jax.Array,
        step: jax.Array,
        seed: jax.Array,
    ) -> tuple[jax.Array, dict]:
        """(params, batch -> losses (B, T)) -> (their sum over `tokens`, gradients)."""
        return jax.value_and_grad(lambda params: losses(params, batch).sum() / tokens)(params)

    def steps(self, gradients: dict) -> dict:
        """Gradients of a whole batch, as `gradients` returns them -> what the optimizer gets."""
        return gradients

    def update_mask(self, batch: dict, seed: jax.Array) -> Callable[[tuple], jax.Array | bool]:
        """Path of a parameter or moment -> bool, of each neuron or of all: whether the batch
        updates it.
        """
        return lambda path: True

    def clip(self) -> optax.GradientTransformation:
        """What bounds the gradient of a batch."""
        return clip_by_global_norm(self.config.optimizer.clip_norm)


def clip_by_global_norm(most: float) -> optax.GradientTransformation:
    """optax's, as a product with one factor.

    XLA's CPU backend computes it within the passes over the moments. It would store optax's
    quotients first, a quarter of the memory that an update reads and writes.
    """

    def clipped(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        norm = optax.tree.norm(updates)
        factor = jnp.where(norm < most, 1, most / norm)
        return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), updates)

    return optax.stateless(clipped)


class ByDocument(Method):
    """The sinks of a document are on where it is."""

    def interventions(self, batch, step, seed):
        settings, scale_BN = self.config.sinks, None
        if is_sparse(settings) and settings.slows_at:
            scale_BN = 1 / documents_learning(batch, settings)
        of = batch["identities"], seed, batch["segments"], opened(batch, settings)
        return sink_interventions(self.config, "own", *of, batch.get("sinks"), scale_BN)

    def slowing(self, batch):
        settings = self.config.sinks
        if not settings.slows_at:
            return None, None
        learning_BT = by_position(documents_learning(batch, settings), batch)
        # Sparse sinks are scaled by document, in their intervention.
        return learning_BT, None if is_sparse(settings) else sinks_not_slowed(
            learning_BT, self.parts
        )


class ByContext(Method):
    """The sink of the context of each position is on.

    Sinks learn by Polyak's step: as far along the gradient as would take their loss to 0 if it were
    linear (Polyak 1969; Loizou et al. 2021, arXiv:2002.10542). So they need no learning rate of
    their own, and have no moments. Where a sink knows the next token, the shared weights have no
    gradient.
    """

    def interventions(self, batch, step, seed):
        return {"contexts": batch["contexts"]}

    def slowing(self, batch):
        if not self.config.contexts.reads:
            return None, None
        later_BN = encounters(batch) > self.config.contexts.reads
        return jnp.where(
            (batch["contexts"] < NONE) & by_position(later_BN, batch), _SINKS_ALONE, 1.0
        ), None

    def gradients(self, losses, params, batch, tokens, step, seed):
        learning_BT, _ = self.slowing(batch)

        def mean(params: dict) -> tuple[jax.Array, jax.Array]:
            losses_BT = losses(params, batch)
            # as its gradient is
            scaled_BT = losses_BT if learning_BT is None else learning_BT * losses_BT
            return losses_BT.sum() / tokens, jax.lax.stop_gradient(scaled_BT) / tokens

        (loss, losses_BT), gradients = jax.value_and_grad(mean, has_aux=True)(params)
        of_rows = jnp.zeros(len(params[CONTEXTS])).at[batch["contexts"]].add(losses_BT, mode="drop")
        return loss, gradients | {OF_CONTEXTS: of_rows}

    def steps(self, gradients):
        of_rows = gradients[OF_CONTEXTS][:, None]
        rows = (
            gradients[CONTEXTS]
            * of_rows
            / jnp.maximum((gradients[CONTEXTS] ** 2).sum(-1, keepdims=True), _LEAST_SQUARE)
        )
        return {name: leaf for name, leaf in gradients.items() if name != OF_CONTEXTS} | {
            CONTEXTS: rows
        }


class ByChance(Method):
    """The control: ordinary dropout of the sinks."""

    def interventions(self, batch, step, seed):
        if not self.parts.sinks:
            return {}
        length = batch["inputs"].shape[1]
        gates = chance_gates(step, batch["rows"], length, seed, self.parts, self.config.sinks)
        return apply_gates(gates, None)


_OF_KINDS = {"by_document": ByDocument, "by_context": ByContext, "by_chance": ByChance}


def method_of(config: Config) -> Method:
    """That of a run. Raises InputError if it cannot train the config's model."""
    ours, other = _OF_KINDS.get(config.sinks.kind), plugin.method_class(config)
    if ours and other:
        raise InputError(
            f"config.sinks.kind is {config.sinks.kind}, which has a method of its own; with "
            "config.training.method set it to always, none or cut"
        )
    method, *settings = other or (ours or Method,)
    return method(config, *settings)


def sinks_not_slowed(learning_BT: jax.Array, parts: Partition) -> GradientScale:
    """Undoes `slowed` in the gradient of an MLP's sink weights. Exact, in one backward pass.

    The gradients of a layer's other weights, and of earlier layers, stay slowed.
    """
    return GradientScale(1 / learning_BT, of_sinks(parts))


def of_sinks(parts: Partition) -> jax.Array:
    """Which of the neurons are sinks -> bool (F,)."""
    return jnp.arange(sum(parts)) >= parts.shared
