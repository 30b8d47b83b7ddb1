"""Gathers rows of tables that are sharded along `fsdp`. Only the requested rows go between devices.

One all-to-all sends every device the numbers of the rows that others need from it, and a second one
returns the rows. Gradients go back the same way. With XLA's own gather every device would fetch its
part of all rows, and sum them all: 250 GiB for a model of 1.7B.

A device needs K rows. There are n devices along `fsdp`, and each has room for C rows for each of
the others.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from memsinks_jax.model.placement import AXES, BATCH, FSDP, divides, parts_along


def rows_of(
    tables: dict[str, jax.Array], numbers: jax.Array, dtype: DTypeLike
) -> dict[str, jax.Array]:
    """{name: (M, *row)} -> {name: (*numbers, *row)} in another type; 0 for a number without a row.

    Args:
      numbers: int32 (B, ...). Rows are exchanged if the mesh divides B and M.
    """
    pool = len(next(iter(tables.values())))
    shards = parts_along(FSDP, pool)
    if shards == 1 or not divides(BATCH, len(numbers)):
        return {name: _taken(table, numbers).astype(dtype) for name, table in tables.items()}
    return _exchanged((shards, pool // shards, jnp.dtype(dtype)), tables, numbers)


def _taken(table: jax.Array, numbers: jax.Array) -> jax.Array:
    return table.at[numbers].get(mode="fill", fill_value=0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchanged(sizes, tables, numbers):
    def fetch(tables, numbers):
        def add_round(number, rows):
            slots_K, asked = _asked(numbers.ravel(), number, sizes)
            answer = jax.tree.map(
                lambda table: _sent(_taken(table, asked).astype(sizes[-1])), tables
            )
            return jax.tree.map(
                lambda rows, got: rows + _taken(got, slots_K).reshape(rows.shape), rows, answer
            )

        rows = {
            name: jnp.zeros((*numbers.shape, *table.shape[1:]), sizes[-1])
            for name, table in tables.items()
        }
        return jax.lax.fori_loop(0, _turns(numbers.ravel(), sizes), add_round, rows)

    return jax.shard_map(fetch, in_specs=(P(FSDP), P(BATCH)), out_specs=P(BATCH), check_vma=False)(
        tables, numbers
    )


def _exchanged_backward(sizes, numbers, gradients):
    shards, count, _ = sizes

    def give_back(numbers, gradients):
        def add_round(number, tables):
            slots_K, asked = _asked(numbers.ravel(), number, sizes)
            room = _room(numbers.size, shards)
            whose = (
                jnp.full(shards * room, numbers.size)
                .at[slots_K]
                .set(jnp.arange(numbers.size), mode="drop")
            )

            def added(table, gradient):
                sent = _sent(_taken(gradient.reshape(numbers.size, *table.shape[1:]), whose))
                return table.at[asked].add(sent.astype(table.dtype), mode="drop")

            return jax.tree.map(added, tables, gradients)

        rank = numbers.ndim
        tables = {
            name: jnp.zeros((count, *rows.shape[rank:]), jnp.float32)
            for name, rows in gradients.items()
        }
        tables = jax.lax.fori_loop(0, _turns(numbers.ravel(), sizes), add_round, tables)
        return jax.lax.psum(tables, "data")

    specs = {"in_specs": (P(BATCH), P(BATCH)), "out_specs": P(FSDP)}
    return jax.shard_map(give_back, **specs, check_vma=False)(numbers, gradients), None


_exchanged.defvjp(
    lambda sizes, tables, numbers: (_exchanged(sizes, tables, numbers), numbers),
    _exchanged_backward,
)


def _room(numbers: int, shards: int) -> int:
    """C: with random numbers, a device almost never asks another one for more."""
    mean = numbers / shards
    return min(math.ceil(mean + 4 * mean**0.5 + 2), numbers)


def _places(numbers_K: jax.Array, sizes: tuple) -> tuple[jax.Array, jax.Array]:
    """The device of each row, n or more for none, and how many rows were requested from it
    before.
    """
    shards, count, _ = sizes
    owner_K = numbers_K // count
    is_of_Kn = owner_K[:, None] == jnp.arange(shards)
    return owner_K, ((jnp.cumsum(is_of_Kn, axis=0) - 1) * is_of_Kn).sum(axis=1)


def _turns(numbers_K: jax.Array, sizes: tuple) -> jax.Array:
    """The number of rounds of the exchange, the same on all devices."""
    _, before_K = _places(numbers_K, sizes)
    return jax.lax.pmax(before_K.max(), AXES) // _room(numbers_K.size, sizes[0]) + 1


def _asked(numbers_K: jax.Array, number: jax.Array, sizes: tuple) -> tuple[jax.Array, jax.Array]:
    """Where the answers of a round go, (K,), n * C for none; and the rows that others request from
    this device, (n * C,).
    """
    shards, count, _ = sizes
    room = _room(numbers_K.size, shards)
    owner_K, before_K = _places(numbers_K, sizes)
    slots_K = jnp.where(
        (owner_K < shards) & (before_K // room == number),
        owner_K * room + before_K % room,
        shards * room,
    )
    wanted = (
        jnp.full(shards * room, count, jnp.int32).at[slots_K].set(numbers_K % count, mode="drop")
    )
    return slots_K, _sent(wanted)


def _sent(rows: jax.Array) -> jax.Array:
    """(n * C, ...): sends the n-th part to the n-th device, and receives one from it."""
    shards = jax.lax.axis_size(FSDP)
    parts = rows.reshape(shards, -1, *rows.shape[1:])
    return jax.lax.all_to_all(parts, FSDP, 0, 0).reshape(rows.shape)
