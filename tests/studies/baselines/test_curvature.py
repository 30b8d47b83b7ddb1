"""Curvature against ordinary gradients; edits against a linear layer's full Fisher matrix."""

import jax
import numpy as np
import pytest
from planted import FAMILIES, batches_of, random_model

from memsinks_jax.studies.baselines import curvature
from memsinks_jax.studies.baselines.reading import FIELDS, Reader

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("matrix", ["up", "gate"])
def test_factors_are_those_of_gradients(matrix, monkeypatch):
    """If only a row's first position counts, a matrix's gradient is a gᵀ, its bias's is g."""
    family = "gpt2" if matrix == "up" else "llama"
    monkeypatch.setitem(FAMILIES, family, FAMILIES[family] | {"mlp_bias": True})
    config, params = random_model(family)
    (batch,) = batches_of([[3, 4], [5, 6, 8], [9, 2]], batch_size=3)
    batch["weights"] = batch["weights"] * (np.arange(12) == 0)
    found = curvature.factors(config, params, [batch], seed=7)
    reader, rows = Reader(config), {name: batch[name] for name in FIELDS}
    key = jax.random.fold_in(jax.random.key(7, impl="threefry2x32"), 0)
    rows["targets"] = np.asarray(curvature.sampled(reader, params, rows, key))

    @jax.jit
    def gradients(rows):
        return jax.grad(lambda params: reader.nats(params, rows, {}).sum())(params)["layers"]

    of_rows = [gradients({name: of[[row]] for name, of in rows.items()}) for row in range(3)]
    g_RLF = np.array([of[f"{matrix}_bias"] for of in of_rows], np.float64)
    products_RLDF = np.array([of[f"{matrix}_kernel"] for of in of_rows], np.float64)
    a_RLD = np.einsum("rldf,rlf->rld", products_RLDF, g_RLF) / (g_RLF**2).sum(axis=-1)[..., None]
    of_outputs, of_inputs = (np.einsum("rld,rle->lde", of, of) / 3 for of in (g_RLF, a_RLD))
    np.testing.assert_allclose(found[matrix], of_outputs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["inputs"], of_inputs, rtol=1e-3, atol=1e-4)


def test_labels_are_drawn_from_the_model():
    config, params = random_model("gpt2")
    (batch,) = batches_of([[3, 4]] * 2000, batch_size=2000)
    reader, rows = Reader(config), {name: batch[name] for name in FIELDS}
    drawn_RT = np.asarray(curvature.sampled(reader, params, rows, jax.random.key(0)))
    place = (rows[name][:1] for name in ("inputs", "segments", "positions"))
    expected_V = jax.nn.softmax(reader.model(params, *place))[0, 1]
    shares_V = np.bincount(drawn_RT[:, 1], minlength=24) / 2000
    np.testing.assert_allclose(shares_V, expected_V, atol=4 * (0.25 / 2000) ** 0.5)
    assert shares_V.max() < 1


@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
def test_an_edit_keeps_what_the_full_fisher_matrix_says(share):
    """Every input with every gradient: the Fisher matrix is then exactly the product."""
    rng = np.random.default_rng(0)
    a_ND, g_NF, kernel_DF = (rng.normal(size=size) for size in ((7, 3), (6, 4), (3, 4)))
    every = np.array([np.outer(a, g).ravel() for a in a_ND for g in g_NF])
    values, vectors = np.linalg.eigh(every.T @ every / len(every))
    order = np.argsort(-values)
    count = 1 + int((np.cumsum(values[order]) < share * values.sum() * (1 - 1e-12)).sum())
    stays = vectors[:, order[:count]]
    expected = (stays @ (stays.T @ kernel_DF.ravel())).reshape(3, 4)
    found = curvature.by_curvature(kernel_DF, a_ND.T @ a_ND / 7, g_NF.T @ g_NF / 6).reduced(share)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert (np.abs(found - kernel_DF).max() < 1e-10) == (share == 1.0)


def test_the_control_keeps_singular_values():
    rng = np.random.default_rng(0)
    left, right = np.linalg.qr(rng.normal(size=(5, 3)))[0], np.linalg.qr(rng.normal(size=(4, 3)))[0]
    parts = [np.outer(left[:, k], right[:, k]) * size for k, size in enumerate((2.0, 1.0, 3.0))]
    found = curvature.by_singular_values(sum(parts)).reduced(0.9)  # of 9 + 4 + 1
    np.testing.assert_allclose(found, parts[0] + parts[2], atol=1e-10)


def test_other_layers_and_matrices_stay():
    _, params = random_model("llama")
    after = curvature.edited(params, curvature.entries_of(params, None), (1,), 0.5)["layers"]
    for name, leaf in params["layers"].items():
        if name not in ("mlp_norm", "attention_norm"):
            changed = (np.asarray(after[name]) != leaf).reshape(2, -1).any(axis=1)
            assert changed[1] == (name in ("up_kernel", "gate_kernel")), name
            assert name in ("up_kernel", "gate_kernel") or not changed[0]
    np.testing.assert_allclose(after["up_kernel"][0], params["layers"]["up_kernel"][0], rtol=1e-6)
