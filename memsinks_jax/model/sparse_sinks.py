"""The sinks of an MLP as tables of rows; only those that are on are gathered and computed.

The cost does not depend on the pool. Axes besides those of decoder.py: R blocks of one document
each, C positions of a block, k sinks of a document. A table row is one sink in all layers:
`sink_up` (M, L, D) and, in a gated MLP, `sink_gate`, `sink_down` (M, L, D), and with biases
`sink_up_bias` (M, L), `sink_gate_bias`.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from memsinks_jax.config import ModelConfig
from memsinks_jax.families import FAMILIES
from memsinks_jax.model.exchange import rows_of
from memsinks_jax.model.placement import BATCH, constrain
from memsinks_jax.sinks.blocks import Blocks

PREFIX = "sink_"  # prefix of the tables' names; the rest is the name of the linear map


def tables_of(model: ModelConfig) -> tuple[str, ...]:
    """Names of the tables: those of weights, then those of biases."""
    inputs = ("gate", "up") if FAMILIES[model.family].gated else ("up",)
    biases = tuple(f"{name}_bias" for name in inputs) if model.mlp_bias else ()
    return tuple(f"{PREFIX}{name}" for name in (*inputs, "down", *biases))


def new_tables(
    model: ModelConfig, layers: Mapping[str, jax.Array], pool: int, seed: int
) -> dict[str, np.ndarray]:
    """{name: table} of sinks for a model without any, float32. With all of them on, it computes
    what it did.

    Args:
      layers: the parameters of its layers, stacked. Input weights are drawn with the deviation of
        the layer's own neurons; output weights and biases are 0.
      pool: M, their number.
    """
    random, found = np.random.default_rng(seed), {}
    for name in tables_of(model):
        kernel_LDF = layers.get(f"{name.removeprefix(PREFIX)}_kernel")
        if kernel_LDF is None:
            found[name] = np.zeros((pool, model.layers), np.float32)
            continue
        found[name] = np.zeros((pool, model.layers, model.d_model), np.float32)
        for layer in range(model.layers) if not name.endswith("down") else ():
            deviation = np.asarray(kernel_LDF[layer]).std()
            drawn = random.standard_normal((pool, model.d_model), np.float32)
            np.multiply(drawn, deviation, out=found[name][:, layer])
    return found


def fetch(
    tables: Mapping[str, jax.Array], blocks: Blocks, dtype: DTypeLike
) -> dict[str, jax.Array]:
    """{name: table} -> {name: rows of the sinks that are on, (L, B, R, k, D), for biases (L, B, R,
    k)}; 0 for none.

    One gather serves all layers, so its gradient, the sum over the documents that share a sink, is
    one scatter. On a mesh the rows come from the devices that own them.
    """
    found = rows_of(tables, blocks.sinks_BRk, dtype)
    for name, rows in found.items():
        if blocks.scale_BR is not None:
            rows = _scaled_gradient(
                rows, blocks.scale_BR.reshape(*blocks.scale_BR.shape, *[1] * (rows.ndim - 2))
            )
        rows = constrain(jnp.moveaxis(rows, 3, 0), None, BATCH, *[None] * (rows.ndim - 2))
        # XLA's CPU backend would not move them at once, but a layer at a time and one element at a
        # time.
        found[name] = jax.lax.platform_dependent(
            rows, cpu=jax.lax.optimization_barrier, default=lambda rows: rows
        )
    return {name.removeprefix(PREFIX): rows for name, rows in found.items()}


def added(
    x_BTD: jax.Array, rows: Mapping[str, jax.Array], blocks: Blocks, hidden: Callable
) -> jax.Array:
    """What the sinks of a layer add to the output of its MLP -> x_BTD.

    Blocks of one document make the products batched. Grouped ones (`jax.lax.ragged_dot`) take the
    time of a dense product per group on CPUs. Closed blocks are multiplied too, by rows of 0: with
    a `jax.lax.cond` per block, a step takes 1.18 of one without sinks if all blocks are open and
    1.16 if half are, instead of 1.10 and 1.09; 1.08 either way if none is (laptop preset, CPU).

    Args:
      x_BTD: the input of the MLP.
      rows: one layer of what `fetch` returns.
      hidden: (name of a linear map -> its output) -> hidden activation.
    """
    # Otherwise XLA on TPUs keeps the shared products' input in fast memory for these, which costs
    # 2% of a step.
    x_BTD = jax.lax.platform_dependent(
        x_BTD, tpu=jax.lax.optimization_barrier, default=lambda x_BTD: x_BTD
    )
    x_GCD = (
        x_BTD
        if blocks.positions_BP is None
        else _moved(x_BTD, blocks.positions_BP, blocks.places_BT)
    )
    x_GCD = x_GCD.reshape(rows["down"].shape[0] * rows["down"].shape[1], -1, x_BTD.shape[-1])
    rows = {name: row.reshape(len(x_GCD), *row.shape[2:]) for name, row in rows.items()}

    def linear(name: str) -> jax.Array:
        y_GCk = jnp.einsum("gcd,gkd->gck", x_GCD, rows[name])
        return y_GCk + rows[f"{name}_bias"][:, None] if f"{name}_bias" in rows else y_GCk

    y_GCD = jnp.einsum("gck,gkd->gcd", hidden(linear), rows["down"])
    if blocks.positions_BP is None:
        return y_GCD.reshape(x_BTD.shape)
    y_BPD = y_GCD.reshape(len(x_BTD), -1, x_BTD.shape[-1])
    return _moved(y_BPD, blocks.places_BT, blocks.positions_BP)


def merged(path: str, array, rows: Mapping):
    """An MLP parameter with the sinks appended to the shared neurons, as in a model whose sinks are
    not sparse.

    Args:
      path: of the parameter; parameters without neurons are returned unchanged.
      array: the parameter in all layers, or in one.
      rows: {name of a table: rows of it, (k, L, D), or (k, D) if `array` is of one layer}; for
        biases without D.
    """
    name = path.rpartition("/")[2].removesuffix("_kernel")
    if f"{PREFIX}{name}" not in rows:
        return array
    axis = -2 if name == "down" else -1
    return np.concatenate([array, np.moveaxis(rows[f"{PREFIX}{name}"], 0, axis)], axis=axis)


def without_tables(model: ModelConfig, params: dict) -> dict:
    """The parameters of the same model with all of its sinks in the matrices, as `export` writes
    them.
    """
    tables = {name: np.asarray(params[name]) for name in tables_of(model) if name in params}
    layers = {
        name: merged(f"layers/{name}", array, tables) for name, array in params["layers"].items()
    }
    return {name: leaf for name, leaf in params.items() if name not in tables} | {"layers": layers}


@jax.custom_vjp
def _moved(x_BTD: jax.Array, from_BP: jax.Array, to_BT: jax.Array) -> jax.Array:
    """x[b, from[b, p]] at every place p, 0 if that is past the end. `to` is the inverse of `from`.

    With it, the gradient is a gather too, not a scatter.
    """
    return jax.vmap(lambda x_TD, from_P: x_TD.at[from_P].get(mode="fill", fill_value=0))(
        x_BTD, from_BP
    )


_moved.defvjp(
    lambda x_BTD, from_BP, to_BT: (_moved(x_BTD, from_BP, to_BT), (from_BP, to_BT)),
    lambda places, gradient_BPD: (_moved(gradient_BPD, places[1], places[0]), None, None),
)


@jax.custom_vjp
def _scaled_gradient(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns x; multiplies its gradient by `scale`."""
    return x


_scaled_gradient.defvjp(
    lambda x, scale: (x, scale),
    lambda scale, gradient: ((gradient * scale).astype(gradient.dtype), None),
)
