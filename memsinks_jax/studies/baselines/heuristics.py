"""Zero-out, activation, random: scores without gradients (Chang et al. 2024). Axes: `reading`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.measures.documents import rows_at_once
from memsinks_jax.model import placement
from memsinks_jax.studies.baselines.reading import Reader, documents_of, in_groups

_ROWS_AT_ONCE = 8  # with activations in memory
_NEURONS_AT_ONCE = 64


def zero_out(config: Config, params: dict, batches: list[dict]) -> np.ndarray:
    """Rise of a document's mean target loss when one neuron is set to 0 at all positions, in nats,
    signed.

    Exact: reads the document once for every neuron of the model.

    Args:
      batches: of `documents.document_batches`.
    Returns:
      float32 (documents, L, F).
    Raises:
      InputError: no document has a target.
    """
    reader, rows = Reader(config), documents_of(batches)
    nats = placement.jit(lambda params, rows: reader.nats(params, rows, {}))
    groups = in_groups(rows, rows_at_once(config, placement.mesh_of(params)))
    read = [np.asarray(nats(params, group))[:counted] for group, counted in groups]
    nats_R = np.concatenate(read)
    without_each = placement.jit(partial(_nats_without_each, reader))
    scores_RLF = np.zeros((len(nats_R), reader.layers, reader.hidden), np.float32)
    for number in range(len(nats_R)):
        row = {name: values[number] for name, values in rows.items()}
        for layer in range(reader.layers):
            nats_F = np.asarray(without_each(params, row, layer))
            scores_RLF[number, layer] = (nats_F - nats_R[number]) / row["weights"].sum()
    return scores_RLF


def activation(config: Config, params: dict, batches: list[dict]) -> np.ndarray:
    """Absolute mean activation over a document's targets, times the norm of the neuron's row of the
    down projection.

    Arguments, result and errors as in `zero_out`.
    """
    reader = Reader(config)
    means = placement.jit(partial(_mean_activations, reader))
    lengths_LF = np.linalg.norm(np.asarray(params["layers"]["down_kernel"], np.float32), axis=-1)
    found = []
    for rows, counted in in_groups(documents_of(batches), _ROWS_AT_ONCE):
        found.append(np.abs(np.asarray(means(params, rows)))[:counted] * lengths_LF)
    return np.concatenate(found)


def random(config: Config, params: dict, batches: list[dict], seed: int = 0) -> np.ndarray:
    """Chance level: uniform in [0, 1), the same for every document. Otherwise as `zero_out`."""
    reader = Reader(config)
    key = jax.random.key(seed, impl="threefry2x32")
    scores_LF = np.asarray(jax.random.uniform(key, (reader.layers, reader.hidden)))
    return np.tile(scores_LF, (len(documents_of(batches)["inputs"]), 1, 1))


def _nats_without_each(reader: Reader, params: dict, row: dict, layer: jax.Array) -> jax.Array:
    """Summed loss of one document without each neuron of a layer -> (F,)."""
    size = min(_NEURONS_AT_ONCE, reader.hidden)
    rows = {name: jnp.broadcast_to(values, (size, *values.shape)) for name, values in row.items()}

    def without(neurons_N: jax.Array) -> jax.Array:
        gone_NF = neurons_N[:, None] == jnp.arange(reader.hidden)

        def drop(x_NTF: jax.Array, at: jax.Array) -> jax.Array:
            return jnp.where(gone_NF[:, None] & (at == layer), 0, x_NTF)

        return reader.nats(params, rows, {"mlp": drop})

    # Numbers past the last neuron fill up the last group.
    groups = -(-reader.hidden // size)
    neurons_GN = jnp.arange(groups * size).reshape(groups, size)
    return jax.lax.map(without, neurons_GN).reshape(-1)[: reader.hidden]


def _mean_activations(reader: Reader, params: dict, rows: dict) -> jax.Array:
    activations_LRTF, _ = reader.activations(params, rows)
    asked_RT = (rows["weights"] > 0).astype(jnp.float32)
    sums_RLF = jnp.einsum("lrtf,rt->rlf", activations_LRTF, asked_RT)
    return sums_RLF / asked_RT.sum(axis=1)[:, None, None]
