"""Draws a document's sinks.

`jax.random` (threefry) draws them from a key into which both lanes of the id are folded. The draw
depends only on (seed, id), not on the place in the batch, batch size, mesh, host, remat or restart.
"""

import jax
import jax.numpy as jnp

from memsinks_jax.config import SinksConfig
from memsinks_jax.sinks.kinds import NONE, number_on

# Salts of the key: draws for one purpose are independent of the others.
_OWN, _OTHER, _CHANCE = range(3)


def document_masks(
    identities: jax.Array,
    seed: int | jax.Array,
    count: int,
    sinks: SinksConfig,
    other: bool = False,
) -> jax.Array:
    """Which sinks each document may use, the same in all layers.

    Args:
      identities: uint32 (..., 2), the ids of the documents.
      seed: the run's seed; another seed gives every document other sinks.
      count: M, sinks in an MLP.
      other: draw for a random id instead, a function of the document's id.
    Returns:
      bool (..., M).
    """
    if sinks.sampling == "disjoint":
        chosen = _of_groups(identities, seed, count, sinks, other)
        masks = jnp.zeros((*identities.shape[:-1], count), bool)
        return jnp.put_along_axis(masks, chosen, True, axis=-1, inplace=False, mode="drop")
    root = _key(seed, _OTHER if other else _OWN)
    masks = jax.vmap(lambda identity_2: _draw(_of_document(root, identity_2), (count,), sinks))(
        identities.reshape(-1, 2)
    )
    return masks.reshape(*identities.shape[:-1], count)


def document_sinks(
    identities: jax.Array,
    seed: int | jax.Array,
    count: int,
    sinks: SinksConfig,
    other: bool = False,
) -> jax.Array:
    """The sinks of `document_masks` by number, for MLPs with `sinks.sampling=floyd` or disjoint ->
    int32 (..., k), distinct.

    Neither time nor memory depends on the count.
    """
    if sinks.sampling == "disjoint":
        return _of_groups(identities, seed, count, sinks, other)
    root, active = _key(seed, _OTHER if other else _OWN), number_on(sinks, count)
    chosen = jax.vmap(
        lambda identity_2: _distinct(_of_document(root, identity_2), (), active, count)
    )(identities.reshape(-1, 2))
    return chosen.reshape(*identities.shape[:-1], active)


def chance_masks(
    step: jax.Array, rows_B: jax.Array, length: int, seed, count: int, sinks: SinksConfig
) -> jax.Array:
    """Which of `count` sinks are on at each position of a step -> bool (B, T, M). Arguments as in
    `gates.chance_gates`.
    """
    root = jax.random.fold_in(_key(seed, _CHANCE), step)
    return jax.vmap(lambda row: _draw(jax.random.fold_in(root, row), (length, count), sinks))(
        rows_B
    )


def group_numbers(identities: jax.Array, count: int, active: int) -> jax.Array:
    """The number of the group of each id, uint32 (..., 2) -> int32 (...), from 0; NONE for an id of
    no group.

    Args:
      count: M, sinks in an MLP. They hold count // active groups; those of higher numbers are of
        another model.
    """
    number = identities[..., 1].astype(jnp.int32) - 1  # as `ids.numbered_id` has put it there
    return jnp.where((number >= 0) & (number < count // active), number, NONE)


def _of_groups(
    identities: jax.Array, seed: int | jax.Array, count: int, sinks: SinksConfig, other: bool
) -> jax.Array:
    """The sinks of the groups that some ids name, [n k, (n + 1) k) for the n-th -> int32 (..., k),
    NONE for an id of none.

    Args:
      other: those of another group, a function of the id; NONE if there is one group alone.
    """
    groups = count // sinks.active
    number = group_numbers(identities, count, sinks.active)
    if other:
        root = _key(seed, _OTHER)
        bits = jax.vmap(lambda identity_2: _bits(_of_document(root, identity_2), ()))(
            identities.reshape(-1, 2)
        )
        further = 1 + (bits.reshape(number.shape) % max(groups - 1, 1)).astype(jnp.int32)
        there = (number < NONE) & (groups > 1)
        number = jnp.where(there, (jnp.where(there, number, 0) + further) % groups, NONE)
    chosen = jnp.where(number < NONE, number, 0)[..., None] * sinks.active + jnp.arange(
        sinks.active
    )
    return jnp.where(number[..., None] < NONE, chosen, NONE).astype(jnp.int32)


def _key(seed: int | jax.Array, purpose: int) -> jax.Array:
    # Named, so that another default generator cannot change any document's sinks.
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), purpose)


def _of_document(root: jax.Array, identity_2: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(root, identity_2[0]), identity_2[1])


def _bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    # Set here, also while tracing: the layout of bits depends on a flag of the process. The flag
    # may change initial parameters and generated text, but must not move anybody's sinks.
    with jax.threefry_partitionable(True):
        return jax.random.bits(key, shape, jnp.uint32)


def _draw(key: jax.Array, shape: tuple[int, ...], sinks: SinksConfig) -> jax.Array:
    """On/off of `shape` sinks, the last axis being the sinks -> bool. Integers only: the same bits
    on any device.
    """
    if sinks.sampling == "floyd":
        chosen = _distinct(key, shape[:-1], number_on(sinks, shape[-1]), shape[-1])
        return jnp.put_along_axis(jnp.zeros(shape, bool), chosen, True, axis=-1, inplace=False)
    bits = _bits(key, shape)
    if sinks.active or sinks.sampling == "exact":
        ranks = jnp.argsort(jnp.argsort(bits, axis=-1, stable=True), axis=-1, stable=True)
        return ranks < number_on(sinks, shape[-1])
    # bits <= threshold, not <: all 2**32 values must pass at an active fraction of 1.
    return bits <= jnp.uint32(max(round(sinks.active_fraction * 2**32) - 1, 0))


def _distinct(key: jax.Array, shape: tuple[int, ...], active: int, count: int) -> jax.Array:
    """`active` distinct numbers below `count`, every set of them equally likely -> int32 (*shape,
    active).

    Robert Floyd's algorithm: active^2 comparisons, independent of the count. The remainder of 32
    bits favours small numbers by at most count / 2^32.
    """
    bits = _bits(key, (*shape, active))

    def put(number: jax.Array, chosen: jax.Array) -> jax.Array:
        last = count - active + number
        drawn = (bits[..., number] % (last + 1).astype(jnp.uint32)).astype(jnp.int32)
        taken = (chosen == drawn[..., None]).any(axis=-1)
        return chosen.at[..., number].set(jnp.where(taken, last, drawn))

    return jax.lax.fori_loop(0, active, put, jnp.full((*shape, active), -1, jnp.int32))
