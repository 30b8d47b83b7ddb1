"""The idea: a document's id decides which sink neurons are on (paper section 5.1, appendix G).

The hidden neurons of every MLP are split: the first `shared` are always on, the rest are sinks. A
document may use only its own share of the sinks. `jax.random` (threefry) draws them from a key into
which both lanes of the id are folded. The draw depends only on (seed, id), not on the place in the
batch, batch size, mesh, host, remat or restart.

S shared neurons, M sinks, F = S + M hidden neurons, B rows of a batch, N documents of a row, T
positions. A gate is a bool array over F: which neurons are on. `apply_gates` turns gates into an
intervention at the model's site `mlp`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config, InputError, ModelConfig, SinksConfig

# How sinks are set when a model is used:
#   own    the document's own sinks are on, as in training (none for one that never came back)
#   drop   every sink is off (the paper's measure)
#   all    every sink is on
#   other  sinks of another, random id: an attack's probe
MODES = ("own", "drop", "all", "other")

# Salts of the key: draws for one purpose are independent of the others.
_OWN, _OTHER, _CHANCE = range(3)

NONE = np.iinfo(np.int32).max  # stands for no sink


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


class Partition(NamedTuple):
    """Numbers of shared neurons and of sinks in every MLP; together the width that is built."""

    shared: int
    sinks: int


def partition(model: ModelConfig, sinks: SinksConfig) -> Partition:
    """Splits `model.hidden` neurons, or adds `sinks.pool` sinks to the shared ones.

    Without sinks all are shared; `cut` builds only the shared ones (narrow control).

    Raises:
      InputError: a document would have more sinks than exist, or almost never one.
    """
    shared = max(int(sinks.shared_fraction * model.hidden), 1)
    if not sinks.traits.exist:
        return Partition(shared if sinks.traits.cut else model.hidden, 0)
    parts = Partition(shared, sinks.pool or model.hidden - shared)
    if sinks.active > parts.sinks:
        raise InputError(
            f"config.sinks.active is {sinks.active}, but an MLP has {parts.sinks} sinks; lower "
            "it, or raise "
            "config.sinks.pool"
        )
    if sinks.sampling == "bernoulli" and 0 < share_on(sinks, parts.sinks or 1) * parts.sinks < 0.5:
        raise InputError(
            f"config.sinks.active_fraction={sinks.active_fraction:g}: most documents would have "
            "no sink; raise it"
        )
    if is_sparse(sinks) and sinks.sampling not in ("floyd", "disjoint"):
        raise InputError(
            "config.sinks.sparse needs sinks that are known by number; set "
            "config.sinks.sampling=floyd"
        )
    return parts


def is_sparse(sinks: SinksConfig) -> bool:
    """Whether the MLPs have sinks that are tables of rows. With `by_chance` or masking all are on
    somewhere, so all are computed.
    """
    return sinks.sparse and sinks.traits.owned and (sinks.pool > 0 or sinks.shared_fraction < 1)


def has_sinks(config: Config) -> bool:
    return config.sinks.traits.by_context or partition(config.model, config.sinks).sinks > 0


def has_tables(config: Config) -> bool:
    """Whether sinks are rows of tables, of which a step reads and writes those that are on."""
    return config.sinks.traits.by_context or is_sparse(config.sinks)


def _key(seed: int | jax.Array, purpose: int) -> jax.Array:
    # Named, so that another default generator cannot change any document's sinks.
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), purpose)


def share_on(sinks: SinksConfig, count: int) -> float:
    """Share of the `count` sinks of an MLP that is on for a document."""
    return sinks.active / count if sinks.active else sinks.active_fraction


def number_on(sinks: SinksConfig, count: int) -> int:
    """How many of an MLP's `count` sinks are on for a document, if all documents have equally
    many.
    """
    return sinks.active or max(round(sinks.active_fraction * count), 1)


def _bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    # Set here, also while tracing: the layout of bits depends on a flag of the process. The flag
    # may change initial parameters and generated text, but must not move anybody's sinks.
    with jax.threefry_partitionable(True):
        return jax.random.bits(key, shape, jnp.uint32)


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


def _of_document(root: jax.Array, identity_2: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(root, identity_2[0]), identity_2[1])


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


def encounters(batch: dict) -> jax.Array:
    """Numbers each document's encounter, not counting one per epoch -> int32 (B, N), 1 for the
    first.
    """
    return batch["seen"] - batch["epoch"][:, None] + 1


def opened(batch: dict, sinks: SinksConfig) -> jax.Array | None:
    """Which documents of a batch have their sinks open -> bool (B, N); None if all have.

    At its first encounter a document trains only the shared neurons, as if it had no sinks. When it
    comes back, it writes to sinks that hold nothing else. Every document has one encounter per
    epoch; that is not a return.
    """
    return None if sinks.opens_at == 1 else encounters(batch) >= sinks.opens_at


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
    _check_mode(mode)
    if mode == "all" or not parts.sinks or (sinks.traits.on_for_all and mode != "drop"):
        return None
    if mode == "drop":
        return _with_shared(jnp.zeros((1, 1, parts.sinks), bool), parts)
    masks = document_masks(identities_BN2, seed, parts.sinks, sinks, mode == "other")
    if mode == "own" and opened_BN is not None:
        masks &= opened_BN[..., None]
    return _with_shared(masks, parts)


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"sinks={mode!r}; choose one of: {', '.join(MODES)}")


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
    _check_mode(mode)
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
    root = jax.random.fold_in(_key(seed, _CHANCE), step)
    masks = jax.vmap(
        lambda row: _draw(jax.random.fold_in(root, row), (length, parts.sinks), sinks)
    )(rows_B)
    return _with_shared(masks, parts)


def _with_shared(masks: jax.Array, parts: Partition) -> jax.Array:
    """Puts the shared neurons, always on, in front: bool (..., M) -> (..., F)."""
    ones = jnp.ones((*masks.shape[:-1], parts.shared), bool)
    return jnp.concatenate([ones, masks], axis=-1)


def interventions(
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
        _check_mode(mode)
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


def of_batch(config: Config, mode: str, batch: dict, seed: int | jax.Array) -> dict[str, Callable]:
    """The interventions of `interventions` for a batch of measures/document_loss."""
    about = batch["identities"], seed, batch["segments"], batch["opened"]
    return interventions(config, mode, *about, contexts_BT=batch.get("contexts"))


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
