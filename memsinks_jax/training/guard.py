"""Skips and counts updates with a non-finite loss or gradient, or with a loss spike.

A skipped update leaves parameters, moments and the optimizer's count as they are. The step, and so
the data, advances.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from memsinks_jax.config import TrainingConfig

WINDOW = 128  # W: losses that a spike is compared with


class Guard(NamedTuple):
    """The guard's state, counts int32 (). Checkpoints hold it, so a resumed run skips the same
    updates as an uninterrupted one.
    """

    losses_W: jax.Array  # losses of the last accepted updates, a ring buffer
    accepted: jax.Array
    skipped: jax.Array
    in_a_row: jax.Array  # skipped since the last accepted one


def init_guard() -> Guard:
    # Separate zeros: donated buffers must not be shared.
    return Guard(jnp.zeros(WINDOW), *(jnp.zeros((), jnp.int32) for _ in range(3)))


def check_update(
    guard: Guard, loss: jax.Array, gradient_norm: jax.Array, config: TrainingConfig
) -> tuple[jax.Array, Guard]:
    """-> (whether to make the update, bool (); the guard after it).

    A spike lies more than `spike_sigma` standard deviations above the mean of the window, once the
    window is full.
    """
    accept = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    if config.spike_sigma:
        limit = guard.losses_W.mean() + config.spike_sigma * guard.losses_W.std()
        accept &= (guard.accepted < WINDOW) | (loss <= limit)
    place = guard.accepted % WINDOW
    return accept, Guard(
        losses_W=guard.losses_W.at[place].set(jnp.where(accept, loss, guard.losses_W[place])),
        accepted=guard.accepted + accept,
        skipped=guard.skipped + ~accept,
        in_a_row=jnp.where(accept, 0, guard.in_a_row + 1),
    )
