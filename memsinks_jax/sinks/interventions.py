"""The sinks that are on, as interventions: what the decoder is called with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from memsinks_jax.config import Config
from memsinks_jax.sinks.blocks import cut_into_blocks, sinks_for_mode
from memsinks_jax.sinks.gates import apply_gates, gates_for_mode
from memsinks_jax.sinks.kinds import NONE, check_mode, is_sparse, partition


def sink_interventions(
    config: Config,
    mode: str,
    identities_BN2: jax.Array | None,
    seed: int | jax.Array,
    segments_BT: jax.Array | None,
    opened_BN: jax.Array | None = None,
    chosen_BNk: jax.Array | None = None,
    scale_BN: jax.Array | None = None,
    contexts_BT: jax.Array | None = None,
) -> dict[str, Callable]:
    """Interventions for the sinks in one of MODES. Arguments as in `gates_for_mode`
    and `apply_gates`.

    For sparse sinks the entry `sinks` is a Blocks, not a function; for sinks by context `contexts`
    is an array.

    Args:
      contexts_BT: with sinks by context, the row of each position, NONE for none. In the mode other
        each gets another one's.
      chosen_BNk: sparse sinks that are on, if known; None: those of `sinks_for_mode`.
      scale_BN: for sparse sinks, as in `cut_into_blocks`.
    """
    parts = partition(config.model, config.sinks)
    if config.sinks.traits.by_context:
        check_mode(mode)
        if mode == "other":
            rows = config.contexts.rows
            contexts_BT = jnp.where(contexts_BT == NONE, NONE, (contexts_BT + rows // 2) % rows)
        return {} if mode == "drop" else {"contexts": contexts_BT}
    if is_sparse(config.sinks):
        if chosen_BNk is None:
            chosen_BNk = sinks_for_mode(
                mode, identities_BN2, seed, parts.sinks, config.sinks, segments_BT, opened_BN
            )
        if chosen_BNk is None:
            return {}
        return {"sinks": cut_into_blocks(chosen_BNk, segments_BT, scale_BN)}
    gates = gates_for_mode(mode, identities_BN2, seed, parts, config.sinks, opened_BN)
    return apply_gates(gates, segments_BT)


def interventions_of_batch(
    config: Config, mode: str, batch: dict, seed: int | jax.Array
) -> dict[str, Callable]:
    """The interventions of `sink_interventions` for a batch of measures/document_loss."""
    about = batch["identities"], seed, batch["segments"], batch["opened"]
    return sink_interventions(config, mode, *about, contexts_BT=batch.get("contexts"))
