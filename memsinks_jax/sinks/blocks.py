"""Sparse sinks: rows of tables, known by number. A row of a batch is cut into blocks of one
document each, which read the same rows of the tables.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from memsinks_jax.config import SinksConfig
from memsinks_jax.sinks.draws import document_sinks
from memsinks_jax.sinks.kinds import NONE, check_mode


class Blocks(NamedTuple):
    """The rows of a batch cut into blocks of one document each, and which sinks are on there, by
    number.

    A row has R blocks of C positions; P = R * C places. A row costs at most as much as 2 T
    positions, however many documents it has.

    Attributes:
      sinks_BRk: int32; NONE: no sink. (1, 1, k) means the same sinks in all rows.
      positions_BP: int32, the row's position at each place, T for none; None if a row is one block.
      places_BT: the inverse: the place of each position, P for none.
      scale_BR: float32, multiplies the gradient of a block's sinks; None: 1.
    """

    sinks_BRk: jax.Array
    positions_BP: jax.Array | None = None
    places_BT: jax.Array | None = None
    scale_BR: jax.Array | None = None


def sinks_for_mode(
    mode: str,
    identities_BN2: jax.Array,
    seed: int | jax.Array,
    count: int,
    sinks: SinksConfig,
    segments_BT: jax.Array | None,
    opened_BN: jax.Array | None = None,
) -> jax.Array | None:
    """The sinks that `gates_for_mode` turns on in an MLP, by number -> int32 (B, N, k), NONE if a
    document's are closed.

    Also NONE for a document without a position in the row. None if all sinks are off; (1, 1, M) if
    all are on.
    """
    check_mode(mode)
    if mode == "drop":
        return None
    if mode == "all":
        return jnp.arange(count, dtype=jnp.int32)[None, None]
    chosen = document_sinks(identities_BN2, seed, count, sinks, mode == "other")
    if mode == "own" and opened_BN is not None:
        chosen = jnp.where(opened_BN[..., None], chosen, NONE)
    if segments_BT is not None and chosen.shape[0] == len(segments_BT):
        chosen = jnp.where(
            _positions_of(segments_BT, chosen.shape[1]).any(axis=1)[..., None], chosen, NONE
        )
    return chosen


def _positions_of(segments_BT: jax.Array, documents: int) -> jax.Array:
    """Whether a position belongs to the n-th document of its row -> bool (B, T, N)."""
    return segments_BT[..., None] == jnp.arange(1, documents + 1)


def cut_into_blocks(
    sinks_BNk: jax.Array, segments_BT: jax.Array | None, scale_BN: jax.Array | None = None
) -> Blocks:
    """The sinks of each document -> of each block. The positions of a document are adjacent.

    Args:
      segments_BT: as in `apply_gates`; not read if a row has one document.
      scale_BN: the scale of Blocks, by document.
    """
    documents = sinks_BNk.shape[1]
    if documents == 1:
        return Blocks(sinks_BNk, scale_BR=scale_BN)
    length = segments_BT.shape[1]
    size = -(-length // documents)
    count = (length + documents * (size - 1)) // size  # enough, whatever the documents' lengths
    is_of_BTN = _positions_of(segments_BT, documents)
    ends_BN = jnp.cumsum(-(-is_of_BTN.sum(axis=1) // size), axis=1)
    # `documents` for a block without one
    owner_BR = (jnp.arange(count)[:, None] >= ends_BN[:, None]).sum(axis=-1)
    # A document's places start with its first block, and are adjacent.
    shift_BN = jnp.pad(ends_BN[:, :-1], ((0, 0), (1, 0))) * size - is_of_BTN.argmax(axis=1)
    shift_BT = jnp.take_along_axis(shift_BN, jnp.maximum(segments_BT - 1, 0), axis=1)
    places_BT = jnp.where(segments_BT > 0, jnp.arange(length) + shift_BT, count * size)
    positions_BP = (
        jnp.full((len(segments_BT), count * size), length)
        .at[jnp.arange(len(segments_BT))[:, None], places_BT]
        .set(jnp.arange(length), mode="drop")
    )
    at_BR = jnp.minimum(owner_BR, documents - 1)
    sinks_BRk = jnp.take_along_axis(sinks_BNk, at_BR[..., None], axis=1)
    return Blocks(
        jnp.where(owner_BR[..., None] < documents, sinks_BRk, NONE),
        positions_BP,
        places_BT,
        None if scale_BN is None else jnp.take_along_axis(scale_BN, at_BR, axis=1),
    )
