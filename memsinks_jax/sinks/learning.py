"""How much a document trains everything but its sinks: less and less, from `sinks.slows_at` on."""

import jax
import jax.numpy as jnp

from memsinks_jax.config import SinksConfig
from memsinks_jax.sinks.draws import group_numbers
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.sinks.opening import encounters

# never 0: the gradient of a slowed document's sinks is divided by it again
_LEAST = 2.0**-40


def documents_learning(batch: dict, settings: SinksConfig) -> jax.Array:
    """How much each document of a batch trains everything but sinks, from 1 down to _LEAST ->
    float32 (B, N).
    """
    encounter_BN = jnp.maximum(encounters(batch), settings.slows_at).astype(jnp.float32)
    learning_BN = jnp.maximum((settings.slows_at / encounter_BN) ** settings.slowing_power, _LEAST)
    if settings.by_group:  # documents without a group are not slowed
        has_group_BN = group_numbers(batch["identities"], settings.pool, settings.active) < NONE
        learning_BN = jnp.where(has_group_BN, learning_BN, 1.0)
    return learning_BN


def by_position(documents_BN: jax.Array, batch: dict) -> jax.Array:
    """Values of documents -> of their positions, (B, T)."""
    return jnp.take_along_axis(documents_BN, jnp.maximum(batch["segments"] - 1, 0), axis=1)


def slowed(losses_BT: jax.Array, learning_BT: jax.Array) -> jax.Array:
    """The same losses, whose gradient is `learning_BT` times theirs."""
    return learning_BT * losses_BT + jax.lax.stop_gradient((1 - learning_BT) * losses_BT)
