"""The idea: a document's id decides which sink neurons are on (paper section 5.1, appendix G).

The hidden neurons of every MLP are split: the first `shared` are always on, the rest are sinks. A document may use only
its own share of the sinks, drawn by threefry bits of `jax.random` from a key into which both lanes of its id are folded.
The draw depends on (seed, id) alone: not on place in the batch, batch size, mesh, host, remat or restart.

S shared neurons, M sinks, F = S + M hidden neurons, B rows of a batch, N documents of a row, T positions.
A gate is a bool array over F: what is on. `apply_gates` turns gates into an intervention at a site of the model. Where
attention has sinks too, its heads' outputs, D of them, are split and gated in the same way, by draws of their own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from memsinks_jax.config import Config, ModelConfig, SinksConfig

# How sinks are set when a model is used:
#   own    the document's own sinks are on, as in training       drop   every sink is off (the paper's measure)
#   all    every sink is on                                      other  sinks of another, random id: an attack's probe
MODES = ("own", "drop", "all", "other")

SITES = ("mlp", "attention")  # of the model; either can have sinks

# Kinds whose sinks are on for every document; what is told apart is whose gradient reaches them.
MASKED = ("masked_weights", "masked_activations")

# Salts of the key: draws for one purpose say nothing about the others. Those of attention come after these.
_OWN, _OTHER, _CHANCE = range(3)
_PURPOSES = 3


class Partition(NamedTuple):
    """Numbers of shared neurons and of sinks in every MLP; together the width that is built."""

    shared: int
    sinks: int


def partition(model: ModelConfig, sinks: SinksConfig) -> Partition:
    """Splits `model.hidden` neurons. Without sinks all are shared; `cut` builds only the shared ones (narrow control)."""
    shared = max(int(sinks.shared_fraction * model.hidden), 1)
    if sinks.kind == "none":
        return Partition(model.hidden, 0)
    if sinks.kind == "cut":
        return Partition(shared, 0)
    return Partition(shared, model.hidden - shared)


def partitions(config: Config) -> dict[str, Partition]:
    """{site: how it is split}: the MLPs' neurons, and the d_model outputs of attention, of which the last are sinks."""
    settings, width = config.sinks, config.model.d_model
    count = int(settings.attention_fraction * width) if settings.kind in ("by_document", "by_chance") else 0
    return {"mlp": partition(config.model, settings), "attention": Partition(width - count, count)}


def has_sinks(config: Config) -> bool:
    return any(parts.sinks for parts in partitions(config).values())


def _key(seed: int | jax.Array, purpose: int, site: str) -> jax.Array:
    # Named, so that a user's choice of another default generator cannot move anybody's sinks.
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), purpose + _PURPOSES * SITES.index(site))


def _draw(key: jax.Array, shape: tuple[int, ...], sinks: SinksConfig) -> jax.Array:
    """On/off of `shape` sinks, the last axis being the sinks -> bool. Integers only: the same bits on any device."""
    # Set here, also for what is traced here: how bits are laid out depends on a flag of the process, which moves initial
    # parameters and generated text, but must not move anybody's sinks.
    with jax.threefry_partitionable(True):
        bits = jax.random.bits(key, shape, jnp.uint32)
    if sinks.sampling == "exact":
        active = max(round(sinks.active_fraction * shape[-1]), 1)
        ranks = jnp.argsort(jnp.argsort(bits, axis=-1, stable=True), axis=-1, stable=True)
        return ranks < active
    # bits <= threshold, not <: all 2**32 values must pass at an active fraction of 1.
    return bits <= jnp.uint32(max(round(sinks.active_fraction * 2**32) - 1, 0))


def document_masks(
    identities: jax.Array, seed: int | jax.Array, count: int, sinks: SinksConfig, layers: int, other: bool = False,
    site: str = "mlp",
) -> jax.Array:  # fmt: skip
    """Which sinks each document may use.

    Args:
      identities: uint32 (..., 2), the ids of the documents.
      seed: of the run; another seed gives every document other sinks.
      count: M, sinks in an MLP.
      layers: layers of the model; used with `sinks.per_layer` only.
      other: draw for a random id that is a function of the document's instead.
    Returns:
      bool (1, ..., M), or (layers, ..., M) with `sinks.per_layer`.
    """
    root = _key(seed, _OTHER if other else _OWN, site)

    def of_document(identity_2: jax.Array, layer: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(root, identity_2[0]), identity_2[1])
        if sinks.per_layer:
            key = jax.random.fold_in(key, layer)
        return _draw(key, (count,), sinks)

    over_documents = jax.vmap(of_document, in_axes=(0, None))
    over_layers = jax.vmap(over_documents, in_axes=(None, 0))
    masks = over_layers(identities.reshape(-1, 2), jnp.arange(layers if sinks.per_layer else 1))
    return masks.reshape(masks.shape[0], *identities.shape[:-1], count)


def gates_for_mode(
    mode: str, identities_BN2: jax.Array, seed: int | jax.Array, parts: Partition, sinks: SinksConfig, layers: int,
    site: str = "mlp",
) -> jax.Array | None:  # fmt: skip
    """Gates of the documents of a batch in one of MODES -> bool (1 or layers, B, N, F); None where all are on.

    Raises:
      ValueError: a mode that is none of MODES.
    """
    if mode not in MODES:
        raise ValueError(f"sinks={mode!r}; choose one of: {', '.join(MODES)}")
    if mode == "all" or not parts.sinks or (sinks.kind in MASKED and mode != "drop"):
        return None
    if mode == "drop":
        return _with_shared(jnp.zeros((1, 1, 1, parts.sinks), bool), parts)
    masks = document_masks(identities_BN2, seed, parts.sinks, sinks, layers, mode == "other", site)
    return _with_shared(masks, parts)


def chance_gates(
    step: jax.Array, rows_B: jax.Array, length: int, seed, parts: Partition, sinks: SinksConfig, site: str = "mlp"
) -> jax.Array:
    """Ordinary dropout of the sink pool at the same rate, the control: fresh at every position of every step.

    Args:
      rows_B: int, places of the rows in the step's batch: a row's draw is the same in whichever microbatch it comes.
      length: T.
    Returns:
      bool (1, B, T, F); with `by_chance` a position stands where a document stands in `gates_for_mode`.
    """
    root = jax.random.fold_in(_key(seed, _CHANCE, site), step)
    masks = jax.vmap(lambda row: _draw(jax.random.fold_in(root, row), (length, parts.sinks), sinks))(rows_B)
    return _with_shared(masks[None], parts)


def _with_shared(masks: jax.Array, parts: Partition) -> jax.Array:
    """Puts the shared neurons, always on, in front: bool (..., M) -> (..., F)."""
    ones = jnp.ones((*masks.shape[:-1], parts.shared), bool)
    return jnp.concatenate([ones, masks], axis=-1)


def interventions(
    config: Config, mode: str, identities_BN2: jax.Array | None, seed: int | jax.Array, segments_BT: jax.Array | None
) -> dict[str, Callable]:
    """The sinks of all sites in one of MODES, for the model. Arguments as in `gates_for_mode` and `apply_gates`."""
    found = {}
    for site, parts in partitions(config).items():
        gates = gates_for_mode(mode, identities_BN2, seed, parts, config.sinks, config.model.layers, site)
        found |= apply_gates(gates, segments_BT, site)
    return found


def apply_gates(gates: jax.Array | None, segments_BT: jax.Array | None, site: str = "mlp") -> dict[str, Callable]:
    """Gates -> interventions for the model: zeroes the activations that their document's gate leaves off.

    Args:
      gates: (1 or layers, B or 1, N, F). None: everything on.
      segments_BT: which document of the row a position belongs to, from 1; None where N is the positions themselves.
    """
    if gates is None:
        return {}

    def gate(x_BTF: jax.Array, layer: jax.Array) -> jax.Array:
        gate_BNF = gates[layer if gates.shape[0] > 1 else 0]
        if segments_BT is not None and gate_BNF.shape[1] > 1:
            gate_BNF = jnp.take_along_axis(gate_BNF, jnp.maximum(segments_BT - 1, 0)[:, :, None], axis=1)
        return _where_on(gate_BNF, x_BTF)

    return {site: gate}


@jax.custom_vjp
def _where_on(gate: jax.Array, x: jax.Array) -> jax.Array:
    """x where the gate is on, else 0. A choice, not a product: what every layer reads is a quarter as large."""
    return jnp.where(gate, x, 0)


def _where_on_backward(gate: jax.Array, gradient: jax.Array) -> tuple[None, jax.Array]:
    # XLA on TPUs would choose anew in each of the three products that read this gradient: 5% of a step.
    choice = jnp.where(gate, gradient, 0)
    return None, jax.lax.platform_dependent(choice, tpu=jax.lax.optimization_barrier, default=lambda choice: choice)


_where_on.defvjp(lambda gate, x: (_where_on(gate, x), gate), _where_on_backward)
