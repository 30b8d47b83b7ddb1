"""Sparse updates: in the tables of sparse sinks, a step reads and writes only the rows of its
documents.

A step gathers the rows of tables and moments that its batch uses, updates them as if there were no
others, and writes them back. So a sink's moments, weight decay and bias correction advance only in
steps whose batch has a document with it on, as in training sparse embeddings (lazy Adam). A dense
update would still move the sink in between, by weight decay and by its moments. For a sink that
every step uses, both updates are the same.

M is the pool, whose rows are in n parts along `fsdp`. The same number of rows is gathered from each
part, U in all. If a part has no more rows than a batch has sinks, B * N * k, nothing is gathered, U
is M, and the update itself leaves out the other rows (`update_mask`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from memsinks_jax.model.placement import FSDP, constrain, parts_along
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.training.optimizer import is_table


class ActiveRows(NamedTuple):
    """Table rows by part, int32 (n, U / n), padded with NONE; and the places in U of the rows that
    were requested.
    """

    rows_nU: jax.Array
    places: jax.Array


def find(requested: jax.Array, pool: int) -> ActiveRows:
    """Finds the rows that a batch uses, int32 (...): of documents (B, N, k) or of positions (B, T).
    NONE stays NONE.
    """
    parts = parts_along(FSDP, pool)
    size, requested_U = pool // parts, requested.ravel()
    if size <= len(requested_U):
        used_M = jnp.zeros(pool, bool).at[requested_U].set(True, mode="drop")
        return ActiveRows(jnp.where(used_M, jnp.arange(pool), NONE).reshape(parts, size), requested)
    sorted_U = jnp.sort(requested_U)
    # The place in the sorted list (first of equal numbers), minus the start of the part, is the
    # place in the part.
    first_U = jnp.searchsorted(sorted_U, sorted_U)
    begins_n = jnp.searchsorted(sorted_U, jnp.arange(parts) * size)
    part_U = sorted_U // size  # NONE stays NONE
    rows_nU = (
        jnp.full((parts, len(requested_U)), NONE)
        .at[part_U, first_U - begins_n[part_U]]
        .set(sorted_U, mode="drop")
    )
    places = jnp.searchsorted(sorted_U, requested)
    part = requested // size
    places += part * len(requested_U) - begins_n[part]
    return ActiveRows(rows_nU, jnp.where(requested == NONE, NONE, places).astype(jnp.int32))


def gather(tree, active: ActiveRows):
    """Parameters or an optimizer's state -> the same, with only the active rows of tables."""

    def gathered(table: jax.Array) -> jax.Array:
        if active.rows_nU.size == len(table):
            return table
        rows = jax.vmap(lambda part, rows_U: part.at[rows_U].get(mode="fill", fill_value=0))(
            *_by_part(table, active)
        )
        return rows.reshape(-1, *table.shape[1:])

    return _of_tables(gathered, tree)


def update_mask(path: tuple, leaf: jax.Array, active: ActiveRows) -> jax.Array | bool:
    """Which rows an update changes of what `gather` has returned: of a table bool (U, 1, ...), of
    everything else True.
    """
    if not is_table(path):
        return True
    return active.rows_nU.reshape(-1, *[1] * (leaf.ndim - 1)) != NONE


def scatter(tree, rows, active: ActiveRows):
    """The inverse of `gather`: writes the table rows of `rows` back into `tree`; everything else is
    from `rows`.
    """

    def written(now: jax.Array, table: jax.Array) -> jax.Array:
        if active.rows_nU.size == len(table):
            return now
        parts, rows_nU = _by_part(table, active)
        now = now.reshape(*rows_nU.shape, *table.shape[1:])
        scatter_into = jax.vmap(lambda part, rows_U, now: part.at[rows_U].set(now, mode="drop"))
        return scatter_into(parts, rows_nU, now).reshape(table.shape)

    return _of_tables(written, rows, tree, rest=lambda now, table: now)


def _by_part(table: jax.Array, active: ActiveRows) -> tuple[jax.Array, jax.Array]:
    """The parts of a table (n, M / n, ...), and their active rows; for NONE, one past the last
    row.
    """
    parts = len(active.rows_nU)
    size = len(table) // parts
    rows_nU = active.rows_nU - size * jnp.arange(parts)[:, None]
    rows_nU = jnp.where(active.rows_nU == NONE, size, rows_nU)
    split = table.reshape(parts, size, *table.shape[1:])
    return constrain(split, FSDP, *[None] * table.ndim), constrain(rows_nU, FSDP, None)


def _of_tables(function, tree, *others, rest=lambda leaf: leaf):
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: (function if is_table(path) else rest)(*leaves), tree, *others
    )
