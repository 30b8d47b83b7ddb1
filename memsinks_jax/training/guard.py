"""Guards an update: one whose loss or gradient is not finite, or whose loss is a spike, is skipped and counted."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from memsinks_jax.config import TrainingConfig


class Guard(NamedTuple):
    """What the guard remembers; part of the state that a checkpoint holds, so a resumed run skips what it would have.

    W is `config.training.spike_window`; the counts are int32 ().
    """

    losses_W: jax.Array  # of the last accepted updates, a ring
    accepted: jax.Array
    skipped: jax.Array
    in_a_row: jax.Array  # skipped since the last accepted one


def init_guard(config: TrainingConfig) -> Guard:
    # One zero each: donated buffers must not be shared.
    return Guard(jnp.zeros(config.spike_window), *(jnp.zeros((), jnp.int32) for _ in range(3)))


def judge(guard: Guard, loss: jax.Array, gradient_norm: jax.Array, config: TrainingConfig) -> tuple[jax.Array, Guard]:
    """-> (whether to make the update, bool (); the guard after it).

    A spike lies more than `spike_sigma` standard deviations above the mean of the window, once the window is full.
    """
    accept = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    if config.spike_sigma:
        limit = guard.losses_W.mean() + config.spike_sigma * guard.losses_W.std()
        accept &= (guard.accepted < config.spike_window) | (loss <= limit)
    place = guard.accepted % config.spike_window
    return accept, Guard(
        losses_W=guard.losses_W.at[place].set(jnp.where(accept, loss, guard.losses_W[place])),
        accepted=guard.accepted + accept,
        skipped=guard.skipped + ~accept,
        in_a_row=jnp.where(accept, 0, guard.in_a_row + 1),
    )
