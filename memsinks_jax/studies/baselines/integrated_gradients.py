"""Integrated gradients of the probability of memorized tokens ("knowledge neurons", Dai et al.
2022; paper appendix C).

For one layer and one target at a time, scales the hidden activation a at the position that predicts
the target to alpha a, with alpha from 0 to 1, both included. Other positions and layers stay
unchanged. The score of a neuron is a_j times the mean over alpha of the gradient of the target's
probability (not its logarithm).

A position attends only to earlier keys and values, which the change does not reach. They are
computed once; each alpha reads one token again. P places (pairs of document and position), N
alphas; other axes as in `reading`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Cache, empty_cache
from memsinks_jax.model.losses import cross_entropy, logits
from memsinks_jax.studies.baselines.reading import Reader, documents_of, in_groups

STEPS = 16  # as in the paper; Chang et al.'s code uses 20
_ROWS_AT_ONCE = 8  # with activations in memory
_TOKENS_AT_ONCE = 128  # read at once, each with its own keys and values


def integrated_gradients(
    config: Config, params: dict, batches: list[dict], steps: int = STEPS
) -> np.ndarray:
    """Scores by integrated gradients, signed, averaged over a document's targets -> float32
    (documents, L, F).

    Args:
      batches: of `documents.document_batches`.
      steps: number of alphas, at least 2.
    Raises:
      InputError: no document has a target.
    """
    reader = Reader(config)
    read = placement.jit(partial(_read, reader))
    credit = placement.jit(partial(_credit, reader, steps))
    places_at_once = max(_TOKENS_AT_ONCE // steps, 1)
    found = []
    for rows, counted in in_groups(documents_of(batches), _ROWS_AT_ONCE):
        activations_LRTF, cache = read(params, rows)
        places_2P = np.stack(np.nonzero(rows["weights"][:counted] > 0))
        total = 0.0
        for start in range(0, places_2P.shape[1], places_at_once):
            some_2P = places_2P[:, start : start + places_at_once]
            real_P = np.arange(places_at_once) < some_2P.shape[1]
            some_2P = np.pad(some_2P, ((0, 0), (0, places_at_once - some_2P.shape[1])))
            total += credit(params, rows, activations_LRTF, cache, some_2P, real_P)
        targets_R = (rows["weights"] > 0).sum(axis=1)
        found.append((np.asarray(total).swapaxes(0, 1) / targets_R[:, None, None])[:counted])
    return np.concatenate(found).astype(np.float32)


def along_path(value: Callable[[jax.Array], jax.Array], x_PF: jax.Array, steps: int) -> jax.Array:
    """Integrated gradients of `value`, (P, F) -> (P,), on the path from 0 to x. Rows must be
    independent.

    Returns:
      (P, F). Averages over the alphas, which is exact for linear and quadratic values, and a few
      percent too large for steeper ones.
    """
    slope = jax.grad(lambda z_PF: value(z_PF).sum())
    gradients_NPF = jax.vmap(lambda alpha: slope(alpha * x_PF))(jnp.linspace(0.0, 1.0, steps))
    return x_PF * gradients_NPF.mean(axis=0)


def _read(reader: Reader, params: dict, rows: dict) -> tuple[jax.Array, Cache]:
    """Activations (L, R, T, F), and the keys and values of every document."""
    places_RT = jnp.broadcast_to(jnp.arange(rows["inputs"].shape[1]), rows["inputs"].shape)
    # With a cache, padding is written too, to places that nothing attends to.
    cache = empty_cache(reader.config.model, *places_RT.shape)
    return reader.activations(params, rows | {"positions": places_RT}, cache)


def _credit(
    reader: Reader, steps: int, params: dict, rows: dict, activations_LRTF, cache, places_2P, real_P
) -> jax.Array:
    """Attributions summed over the places of every document -> (L, R, F)."""
    row_P, position_P = places_2P
    prefix = Cache(cache.keys[:, row_P], cache.values[:, row_P])
    token_P1, target_P1 = (rows[name][row_P, position_P][:, None] for name in ("inputs", "targets"))

    def of_layer(layer: jax.Array) -> jax.Array:
        def probability(z_PF: jax.Array) -> jax.Array:
            def put(x_PTF: jax.Array, at: jax.Array) -> jax.Array:
                return jnp.where(at == layer, z_PF[:, None].astype(x_PTF.dtype), x_PTF)

            def read_out(x_PTD: jax.Array, head_DV: jax.Array) -> jax.Array:
                return jnp.exp(-cross_entropy(logits(x_PTD, head_DV), target_P1))

            place = token_P1, jnp.ones_like(token_P1), position_P[:, None]
            result_P1, _ = reader.model(params, *place, {"mlp": put}, prefix, read_out=read_out)
            return result_P1[:, 0]

        return along_path(probability, activations_LRTF[layer, row_P, position_P], steps)

    credits_LPF = jax.lax.map(of_layer, jnp.arange(reader.layers))
    in_rows = partial(jax.ops.segment_sum, segment_ids=row_P, num_segments=len(rows["inputs"]))
    return jax.vmap(in_rows)(credits_LPF * real_P[:, None])
