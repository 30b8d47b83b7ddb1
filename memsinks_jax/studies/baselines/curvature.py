"""Weight editing by curvature (arXiv 2510.24256): removes the parts of a matrix in directions of
low curvature.

Curvature is the Fisher information in the Kronecker approximation (K-FAC). For a matrix with inputs
a and gradients g of the loss at its output, A = E[a aᵀ] and G = E[g gᵀ], neither centred, over
tokens of ordinary text with labels sampled from the model. The matrix is written in the
eigenvectors of both. Each entry has as mass the product of its eigenvalues. The edit keeps the
fewest entries whose masses add up to `share` of the total. It applies to the MLP matrices that read
the residual stream, as in the paper's language models. The singular value decomposition is the
control without curvature.

L layers, R rows, T positions, D d_model, F hidden neurons, I and O directions of inputs and
outputs.
"""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Layer, recorded
from memsinks_jax.model.losses import logits, token_losses
from memsinks_jax.studies.baselines.reading import FIELDS, Reader

MATRICES = ("up", "gate")  # of a layer; only Llama has the second


def factors(
    config: Config, params: dict, batches: list[dict], seed: int = 0
) -> dict[str, np.ndarray]:
    """Computes {"inputs": A, float64 (L, D, D); "up" and, if there is one, "gate": G, (L, F, F)}.

    Args:
      batches: of `documents.document_batches`, of text that was read once. On repeated text,
        the directions that memorize it would show high curvature. Here every position has a target,
        so none is left out.
    """
    names = [name for name in MATRICES if f"{name}_kernel" in params["layers"]]
    multiply = placement.jit(partial(_products, Reader(config), names))
    found, tokens, key = {}, 0.0, jax.random.key(seed, impl="threefry2x32")
    for number, batch in enumerate(batches):
        rows = {name: batch[name] for name in FIELDS}
        for name, sums in jax.device_get(multiply(params, rows, key, number)).items():
            found[name] = found.get(name, 0.0) + np.asarray(sums, np.float64)
        tokens += float((rows["weights"] > 0).sum())
    return {name: sums / tokens for name, sums in found.items()}


def sampled(reader: Reader, params: dict, rows: dict, key: jax.Array) -> jax.Array:
    """Samples labels from the model's predictions at every position -> int32 (R, T)."""
    about = rows["inputs"], rows["segments"], rows["positions"]
    logits_RTV = reader.model(params, *about, read_out=logits)
    return jax.random.categorical(key, logits_RTV).astype(jnp.int32)


def _products(
    reader: Reader, names: list[str], params: dict, rows: dict, key: jax.Array, number
) -> dict[str, jax.Array]:
    """Sums of a aᵀ and g gᵀ over the target positions."""
    targets_RT = sampled(reader, params, rows, jax.random.fold_in(key, number))
    layers, shape = reader.layers, rows["inputs"].shape
    inputs_LRTD = jnp.zeros((layers, *shape, reader.config.model.d_model))
    outputs = {name: jnp.zeros((layers, *shape, reader.hidden)) for name in names}

    def loss(inputs_LRTD: jax.Array, outputs: dict) -> jax.Array:
        at = {}

        class Recording(Layer):
            def mlp(self, x_RTD, layer, *others):
                at["layer"] = layer
                return super().mlp(x_RTD, layer, *others)

            def linear(self, name, x, **others):
                if name not in names:
                    return super().linear(name, x, **others)
                if name == names[0]:
                    x = recorded(x, inputs_LRTD[at["layer"]])
                y_RTF = super().linear(name, x, **others)
                return y_RTF + outputs[name][at["layer"]].astype(y_RTF.dtype)

        read_out = partial(token_losses, targets_BT=targets_RT, weights_BT=rows["weights"])
        place = rows["inputs"], rows["segments"], rows["positions"]
        model = dataclasses.replace(reader.model, layer=Recording)
        return model(params, *place, read_out=read_out).sum()

    inputs_LRTD, gradients = jax.grad(loss, argnums=(0, 1))(inputs_LRTD, outputs)
    counts_RT = (rows["weights"] > 0).astype(jnp.float32)

    def summed(x: jax.Array) -> jax.Array:
        return jnp.einsum("lrtx,lrty,rt->lxy", x, x, counts_RT, precision="highest")

    return {"inputs": summed(inputs_LRTD)} | {name: summed(of) for name, of in gradients.items()}


class Entries(NamedTuple):
    """A matrix in two orthonormal bases, and the mass of each of its entries there, float64."""

    entries_IO: np.ndarray
    mass_IO: np.ndarray
    inputs_DI: np.ndarray
    outputs_FO: np.ndarray

    def reduced(self, share: float) -> np.ndarray:
        """The matrix with the fewest entries whose masses add up to `share` of the total -> (D,
        F).
        """
        kept_IO = np.where(_most(self.mass_IO, share), self.entries_IO, 0)
        return self.inputs_DI @ kept_IO @ self.outputs_FO.T


def by_curvature(kernel_DF: np.ndarray, inputs_DD: np.ndarray, outputs_FF: np.ndarray) -> Entries:
    """In the eigenvectors of a matrix's factors."""
    of_inputs_D, inputs_DD = np.linalg.eigh(inputs_DD)
    of_outputs_F, outputs_FF = np.linalg.eigh(outputs_FF)
    # Rounding can make zero eigenvalues slightly negative.
    mass_DF = np.outer(np.maximum(of_inputs_D, 0), np.maximum(of_outputs_F, 0))
    return Entries(inputs_DD.T @ kernel_DF @ outputs_FF, mass_DF, inputs_DD, outputs_FF)


def by_singular_values(kernel_DF: np.ndarray) -> Entries:
    """The control: in the matrix's singular vectors. Masses are the squares of the singular
    values.
    """
    inputs_DK, values_K, outputs_KF = np.linalg.svd(kernel_DF, full_matrices=False)
    return Entries(np.diag(values_K), np.diag(values_K**2), inputs_DK, outputs_KF.T)


def _most(mass: np.ndarray, share: float) -> np.ndarray:
    """Selects the fewest entries that add up to `share` of the sum -> bool."""
    order = np.argsort(-mass, axis=None, kind="stable")
    through = np.cumsum(mass.reshape(-1)[order])
    selected = np.zeros(mass.size, bool)
    selected[order[: int(np.searchsorted(through, share * through[-1])) + 1]] = True
    return selected.reshape(mass.shape)


def entries_of(params: dict, of: dict[str, np.ndarray] | None) -> dict[str, list[Entries]]:
    """{"up_kernel": of each layer; "gate_kernel" if there is one}. `of` is what `factors` returns;
    None: by singular values.
    """
    found = {}
    for name in MATRICES:
        if (kernel := f"{name}_kernel") in params["layers"]:
            kernel_LDF = np.array(params["layers"][kernel], np.float64)
            if of is None:
                found[kernel] = list(map(by_singular_values, kernel_LDF))
            else:
                found[kernel] = list(map(by_curvature, kernel_LDF, of["inputs"], of[name]))
    return found


def edited(params: dict, of: dict[str, list[Entries]], layers: Iterable[int], share: float) -> dict:
    """Edits the matrices of some layers -> parameters. `of` is what `entries_of` returns."""
    changed = {}
    for name, of_layers in of.items():
        kernel_LDF = np.array(params["layers"][name])
        for layer in layers:
            kernel_LDF[layer] = of_layers[layer].reduced(share)
        changed[name] = jnp.asarray(kernel_LDF)
    return params | {"layers": params["layers"] | changed}
