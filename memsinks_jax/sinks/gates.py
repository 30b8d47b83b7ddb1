"""Masked sinks. A gate is a bool array over F: which neurons are on. `apply_gates` turns gates into
an intervention at the model's site `mlp`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from memsinks_jax.config import SinksConfig
from memsinks_jax.sinks.draws import chance_masks, document_masks
from memsinks_jax.sinks.kinds import Partition, check_mode


def gates_for_mode(
    mode: str,
    identities_BN2: jax.Array,
    seed: int | jax.Array,
    parts: Partition,
    sinks: SinksConfig,
    opened_BN: jax.Array | None = None,
) -> jax.Array | None:
    """Gates of the documents of a batch in one of MODES -> bool (B, N, F), or (1, 1, F) if they are
    the same for all; None if all are on.

    Args:
      opened_BN: which documents' own sinks are open, as from `opened` in training; None: all.
    Raises:
      ValueError: the mode is not one of MODES.
    """
    check_mode(mode)
    if mode == "all" or not parts.sinks or (sinks.traits.on_for_all and mode != "drop"):
        return None
    if mode == "drop":
        return _with_shared(jnp.zeros((1, 1, parts.sinks), bool), parts)
    masks = document_masks(identities_BN2, seed, parts.sinks, sinks, mode == "other")
    if mode == "own" and opened_BN is not None:
        masks &= opened_BN[..., None]
    return _with_shared(masks, parts)


def chance_gates(
    step: jax.Array,
    rows_B: jax.Array,
    length: int,
    seed,
    parts: Partition,
    sinks: SinksConfig,
) -> jax.Array:
    """The control: ordinary dropout of the sink pool at the same rate, drawn anew at every position
    of every step. Like the sinks, it does not rescale what is left.

    Args:
      rows_B: int, indices of the rows in the step's batch, so that a row's draw does not depend on
        its microbatch.
      length: T.
    Returns:
      bool (B, T, F); with `by_chance` positions take the place of documents in `gates_for_mode`.
    """
    return _with_shared(chance_masks(step, rows_B, length, seed, parts.sinks, sinks), parts)


def _with_shared(masks: jax.Array, parts: Partition) -> jax.Array:
    """Puts the shared neurons, always on, in front: bool (..., M) -> (..., F)."""
    ones = jnp.ones((*masks.shape[:-1], parts.shared), bool)
    return jnp.concatenate([ones, masks], axis=-1)


def apply_gates(gates: jax.Array | None, segments_BT: jax.Array | None) -> dict[str, Callable]:
    """Gates -> interventions for the model: zeroes every activation whose document's gate is off.

    Args:
      gates: (B or 1, N, F). None: everything on.
      segments_BT: the document of each position, from 1; None if N are the positions themselves.
    """
    if gates is None:
        return {}

    def gate(x_BTF: jax.Array, layer: jax.Array) -> jax.Array:
        here = gates
        if segments_BT is not None and gates.shape[1] > 1:
            here = jnp.take_along_axis(gates, jnp.maximum(segments_BT - 1, 0)[:, :, None], axis=1)
        return _where_on(here, x_BTF)

    return {"mlp": gate}


@jax.custom_vjp
def _where_on(gate: jax.Array, x: jax.Array) -> jax.Array:
    """x where the gate is on, else 0. `where`, not a product: every layer then reads a quarter of
    the bytes.
    """
    return jnp.where(gate, x, 0)


def _where_on_backward(gate: jax.Array, gradient: jax.Array) -> tuple[None, jax.Array]:
    # Without this, XLA on TPUs repeats the choice in each of the three products that read this
    # gradient: 5% of a step.
    choice = jnp.where(gate, gradient, 0)
    return None, jax.lax.platform_dependent(
        choice, tpu=jax.lax.optimization_barrier, default=lambda choice: choice
    )


_where_on.defvjp(lambda gate, x: (_where_on(gate, x), gate), _where_on_backward)
