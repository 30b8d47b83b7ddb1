"""Whose sinks are removed, what is zero afterwards, and the arithmetic of the receipt."""

import types

import jax
import numpy as np
import pytest
from conftest import EVERYBODY
from planted import END, random_model

from memsinks_jax.config import with_fields
from memsinks_jax.forgetting import neurons
from memsinks_jax.forgetting.neurons import Losses
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.model import sparse_sinks
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.draws import document_sinks
from memsinks_jax.sinks.gates import gates_for_mode
from memsinks_jax.sinks.kinds import partition

IDS = np.array([[3, 1], [4, 1], [5, 9]], np.uint32)


def model(family, **settings):
    config, params = random_model(family)
    config = with_fields(config, {"sinks.kind": "by_document", "sinks.shared_fraction": 0.5})
    for name, value in settings.items():
        config = with_fields(config, {f"sinks.{name}": value})
    return config, params


def test_the_neurons_are_the_union_of_the_documents_sinks():
    config, _ = model("gpt2")
    found = neurons.neurons_of(config, IDS)
    parts = partition(config.model, config.sinks)
    gates = gates_for_mode("own", IDS, config.seed, parts, config.sinks)
    union = np.broadcast_to(np.asarray(gates).any(axis=0), found.shape)
    assert not found[:, : parts.shared].any()
    np.testing.assert_array_equal(found[:, parts.shared :], union[:, parts.shared :])


def test_sinks_that_many_others_use_are_spared():
    config, _ = model("gpt2")
    removed, others = neurons.neurons_of(config, IDS), np.arange(40, dtype=np.uint32).reshape(20, 2)
    use = sum(neurons.neurons_of(config, others[[n]]).astype(int) for n in range(20))
    for most in (3, 6, 20):
        left = neurons.spared(config, removed, others, most)
        np.testing.assert_array_equal(left, removed & (use <= most))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_is_removed_is_zero_and_nothing_else_changes(family):
    config, params = model(family)
    removed = neurons.neurons_of(config, IDS)
    after = jax.tree.map(np.asarray, neurons.without(config, params, removed))
    # By neuron, written out: rows of what reads it, columns and biases of what makes it.
    zero = {
        name: np.zeros(array.shape, bool)
        for name, array in params["layers"].items()
        if name.endswith(("kernel", "bias"))
    }
    for layer in range(config.model.layers):
        for neuron in np.flatnonzero(removed[layer]):
            zero["down_kernel"][layer, neuron] = True
            for name in ("up_kernel", "up_bias", "gate_kernel"):
                if name in zero:
                    zero[name][layer, ..., neuron] = True
    assert removed.any()
    for name, where in zero.items():
        np.testing.assert_array_equal(
            after["layers"].pop(name), np.where(where, 0, params["layers"][name])
        )
    untouched = {name: array for name, array in params["layers"].items() if name not in zero} | {
        name: array for name, array in params.items() if name != "layers"
    }
    jax.tree.map(np.testing.assert_array_equal, after.pop("layers") | after, untouched)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_removed_rows_of_sparse_sinks_are_zero_and_nothing_else_changes(family):
    config, params = model(family, sampling="floyd", pool=30, active=4, sparse=True)
    shape = (30, config.model.layers, config.model.d_model)
    names = sparse_sinks.tables_of(config.model)
    params |= {
        name: np.ones(shape[:2] if name.endswith("_bias") else shape, np.float32) for name in names
    }
    after = jax.tree.map(
        np.asarray, neurons.without(config, params, neurons.neurons_of(config, IDS))
    )
    gone = np.unique(document_sinks(IDS, config.seed, 30, config.sinks))
    assert 4 < len(gone) < 13
    for name in names:
        assert not after[name][gone].any()
        assert (np.delete(after.pop(name), gone, axis=0) == 1).all()
        del params[name]
    jax.tree.map(np.testing.assert_array_equal, after, params)


def test_rises_are_means_over_tokens_and_selectivity_their_ratio():
    target = Losses(np.array([1.0, 2.0]), np.array([4.0, 8.0]), np.array([3.0, 9.0]))
    others = Losses(np.zeros(4), np.array([0.0, 1.0, 2.0, 3.0]), np.full(4, 8.0))
    assert target.rise == pytest.approx(9 / 12)
    assert neurons.selectivity(target, others) == pytest.approx((9 / 12) / (6 / 32))
    assert neurons.selectivity(target, Losses(np.ones(1), np.ones(1), np.ones(1))) == float("inf")
    low, high = others.to_dict()["rise_ci95"]
    assert 0 <= low < 6 / 32 < high <= 3 / 8
    assert target.chosen(np.array([0])).to_dict()["rise_ci95"] is None


def test_capacity_is_the_mean_over_choices_of_documents():
    config, params = model("gpt2", active_fraction=0.3)
    run = Trained(
        config, types.SimpleNamespace(end_of_text=END, begin_of_text=END), params, 0, EVERYBODY
    )
    documents = Documents([np.array([3, 4, 5, 8]), np.array([10, 11, 12]), np.array([20, 3])], IDS)
    (row,) = neurons.capacity(run, documents, sizes=(1, 3))  # of three at once nobody would be left
    loss, targets, others = DocumentLoss(config), [], []
    for one in range(3):
        after = neurons.without(config, params, neurons.neurons_of(config, IDS[[one]]))
        found = neurons.losses(loss, run, after, documents, ("own",))["own"]
        targets.append(found.chosen(np.array([one])).rise)
        others.append(found.chosen(np.array([n for n in range(3) if n != one])).rise)
    assert (row["removed"], row["target_rise"], row["others_rise"]) == (
        1,
        pytest.approx(np.mean(targets)),
        pytest.approx(np.mean(others)),
    )
    assert row["selectivity"] == (
        pytest.approx(np.mean(targets) / np.mean(others)) if np.mean(others) > 0 else np.inf
    )
    assert 0 < row["left"] < 1
