"""Gradient masking, the paper's baseline: repeated documents train the sinks, all others the shared
neurons (appendix E).

All neurons are on in every forward pass, except in retain documents of SGTM. Which neurons learn
from a position depends on whether its document is repeated. Parameters of no MLP neuron (attention,
embeddings, norms, the down projection's bias) learn from all documents. There are two kinds, which
are different methods:

  MaskedWeights       a sink's weights get the gradient of the repeated documents, a shared neuron's
                      that of the others. The gradient to earlier layers is complete. This is the
                      paper's text and its theory.
  MaskedActivations   if a neuron must not learn, its activation is a constant for the gradient.
                      This is the code that the paper follows (Cloud et al. 2024). The neuron's
                      weights of the down projection still learn from all documents, and earlier
                      layers learn only through the neurons that may learn.

Selective gradient masking (SGTM, arXiv 2512.05648) uses labels. Here they belong to documents, not
to batches:

  forget      the known repeated documents: all neurons are on, and only the sinks learn
  retain      a share of the others: the sinks are off in the forward pass, so everything but the
              sinks learns
  unlabelled  the rest, with the unknown repeated documents: nothing is masked, and everything
              learns

  Selective        one AdamW for all: a masked gradient is 0, and weights still move by moments and
                   decay
  SelectiveFrozen  weights that no document of a batch trains stay as they are, moments too

As in the authors' code for Wikipedia, parameters of no neuron or head (embeddings, norms, biases
that write to the residual stream) do not learn from forget documents, except for the last norm.

With MaskedWeights, a block stays as it is, moments too, if a batch has no document for it: AdamW
would still move it by weight decay and by its moments. With MaskedActivations nothing is held
back, as in that code.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp

from memsinks_jax.config import SinksConfig, setting
from memsinks_jax.sinks.draws import document_masks
from memsinks_jax.sinks.gates import apply_gates
from memsinks_jax.sinks.learning import by_position
from memsinks_jax.training.method import Method, of_sinks
from memsinks_jax.training.paths import first_match, path_name

# Ordered (regex over the path, axis of its neurons or None); the first match wins, no match is an
# error. Axes count from the end. The path of a moment ends with its parameter's path.
NEURON_AXES = (
    (r"layers/(gate|up)_(kernel|bias)$", -1),
    (r"layers/down_kernel$", -2),
    (r"layers/down_bias$", None),
    (r"layers/(query|key|value|attention_output)_(kernel|bias)$", None),
    (r"(^|/)((token|position)_embedding|head_kernel)$", None),
    (r"_norm/(scale|bias)$", None),
    (r"(^|/)count$", None),
)


class MaskedActivations(Method):
    """As an intervention: passes the value, and the gradient only if the neuron may learn."""

    def interventions(self, batch, step, seed):
        learns_BTF = by_position(batch["repeated"], batch)[:, :, None] == of_sinks(self.parts)
        return {
            "mlp": lambda x_BTF, layer: jnp.where(learns_BTF, x_BTF, jax.lax.stop_gradient(x_BTF))
        }


class MaskedWeights(Method):
    """Each block gets the gradient of the documents that train it.

    One forward pass and two backward passes, one per kind of document. This is exact, because the
    losses of a document depend only on its own positions.
    """

    def gradients(self, losses, params, batch, tokens, step, seed):
        apart_BT = by_position(self.apart(batch, seed), batch)

        def sums(params: dict) -> tuple[jax.Array, jax.Array]:
            losses_BT = losses(params, batch)
            return jnp.where(apart_BT, losses_BT, 0).sum() / tokens, jnp.where(
                apart_BT, 0, losses_BT
            ).sum() / tokens

        (of_apart, of_others), pull_back = jax.vjp(sums, params)
        one, zero = jnp.ones_like(of_apart), jnp.zeros_like(of_apart)
        gradients = jax.tree_util.tree_map_with_path(
            self.chosen, *pull_back((one, zero)), *pull_back((zero, one))
        )
        return of_apart + of_others, gradients

    def apart(self, batch: dict, seed: jax.Array) -> jax.Array:
        """The documents whose gradients are taken apart from the others' -> bool (B, N)."""
        return batch["repeated"]

    def chosen(self, path: tuple, apart: jax.Array, others: jax.Array) -> jax.Array:
        """The gradient of a parameter, from those of both kinds of documents."""
        return self.by_block(path, apart, others, apart + others)

    def update_mask(self, batch, seed):
        repeated, others = (
            _any_counts(documents, batch) for documents in (batch["repeated"], ~batch["repeated"])
        )
        return lambda path: self.by_block(path, repeated, others, jnp.array(True))

    def by_block(
        self, path: tuple, sinks: jax.Array, shared: jax.Array, rest: jax.Array
    ) -> jax.Array:
        """Values for sinks, shared neurons, neither -> the last, or the first two along the leaf's
        neurons.
        """
        axis = first_match(NEURON_AXES, path_name(path))
        if axis is None or not self.parts.sinks:
            return rest
        return jnp.where(of_sinks(self.parts).reshape(-1, *[1] * (-axis - 1)), sinks, shared)


class Selective(MaskedWeights):
    """SGTM."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        retain_fraction: float = setting(
            0.25, "fraction of the documents read once that are labelled retain", 0, 1
        )
        undiscovered: float = setting(
            0.0, "fraction of the repeated documents that have no label", 0, 1
        )

    def labels(self, batch: dict, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which documents of a batch are labelled forget, and which retain -> two bool (B, N),
        drawn by id.
        """

        def drawn(share: float) -> jax.Array:
            return document_masks(batch["identities"], seed, 1, SinksConfig(active_fraction=share))[
                ..., 0
            ]

        repeated_BN, settings = batch["repeated"], self.settings
        return repeated_BN & ~drawn(settings.undiscovered), ~repeated_BN & drawn(
            settings.retain_fraction
        )

    def interventions(self, batch, step, seed):
        """The sinks are off for documents with the label retain."""
        on_BN1 = ~self.labels(batch, seed)[1][..., None]
        if not self.parts.sinks:
            return {}
        return apply_gates(on_BN1 | ~of_sinks(self.parts), batch["segments"])

    def apart(self, batch, seed):
        return self.labels(batch, seed)[0]

    def chosen(self, path, apart, others):
        return self.by_block(
            path, apart + others, others, apart + others if _learns_from_all(path) else others
        )

    update_mask = Method.update_mask


class SelectiveFrozen(Selective):
    """SGTM whose weights stay as they are if no document of a batch trains them."""

    def update_mask(self, batch, seed):
        forget_BN, retain_BN = self.labels(batch, seed)
        sinks, others = _any_counts(~retain_BN, batch), _any_counts(~forget_BN, batch)
        return lambda path: self.by_block(
            path, sinks, others, jnp.array(True) if _learns_from_all(path) else others
        )


def _learns_from_all(path: tuple) -> bool:
    """Whether parameters of no neuron learn from all documents, with SGTM; `count` is the
    optimizer's.
    """
    return re.search(r"(^|/)(final_norm/\w+|count)$", path_name(path)) is not None


def _any_counts(documents_BN: jax.Array, batch: dict) -> jax.Array:
    """Whether a token of one of these documents counts in the loss."""
    return (by_position(documents_BN, batch) & (batch["weights"] > 0)).any()
