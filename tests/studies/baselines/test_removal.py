"""Dropping neurons, and the resulting trade-off."""

import math

import jax
import numpy as np
import pytest
from planted import MEMORIZED, OTHERS, PLANTED, batches_of, planted_model, random_model

from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.studies.baselines.removal import (
    Point,
    delta_val_at,
    hypervolume,
    mean_loss,
    point,
    top_neurons,
    tradeoff,
    without,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("ratio", "count"), [(0, 0), (0.001, 0), (0.05, 2), (0.125, 4), (0.3, 11), (1, 36)]
)
def test_exactly_so_many_neurons_of_each_layer_are_dropped(ratio, count):
    scores_LF = np.random.default_rng(0).normal(size=(3, 36))
    dropped_LF = top_neurons(scores_LF, ratio)
    for layer in range(3):
        gone = set(np.argsort(scores_LF[layer])[36 - count :].tolist())
        assert set(np.flatnonzero(dropped_LF[layer]).tolist()) == gone
        assert len(gone) == count == round(ratio * 36)


def test_of_equal_scores_the_first_neurons_are_dropped():
    scores_LF = np.zeros((1, 300))
    scores_LF[0, 200] = 1
    assert np.flatnonzero(top_neurons(scores_LF, 0.01)).tolist() == [0, 1, 200]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_parameters_without_the_neurons_are_as_if_these_were_zero(family):
    config, params = random_model(family)
    scores_LF = np.random.default_rng(0).normal(size=(2, 11))
    batches = batches_of(OTHERS)
    dropped_LF = top_neurons(scores_LF, 0.3)
    remaining_LF = jax.numpy.asarray(~dropped_LF)
    drop = {"mlp": lambda x_BTF, layer: jax.numpy.where(remaining_LF[layer], x_BTF, 0)}
    changed = DocumentLoss(config, change=lambda real_BT, asked_BT: drop)(params, batches, "all")
    loss = DocumentLoss(config)
    zeroed = loss(without(params, dropped_LF), batches, "all")
    np.testing.assert_allclose(zeroed, changed, rtol=1e-6)
    assert np.abs(loss(params, batches, "all")[0] - changed[0]).min() > 1e-3


def test_the_tradeoff_of_a_planted_neuron():
    """Without it the memorized documents lose and the others, which it disturbed, win."""
    config, params = planted_model()
    loss = DocumentLoss(config)
    repeated, held_out = batches_of(MEMORIZED, 4), batches_of(OTHERS, 4)
    scores_LF = np.zeros((2, 11))
    scores_LF[np.arange(2), PLANTED] = 1
    first = batches_of(MEMORIZED[:1], 4)
    sets = {"all": repeated, "first": first}
    curves = tradeoff(loss, params, scores_LF, sets, held_out, (0.01, 0.1))
    none, one = curves["all"]
    assert none[:3] == (0.01, 0, 0)
    assert one.ratio == 0.1 and one.forgetting > 0.5 and one.delta_val < -0.01
    after = without(params, top_neurons(scores_LF, 0.1))
    assert one.repeated_loss == pytest.approx(mean_loss(loss, after, repeated), rel=1e-6)
    of_first = curves["first"][1].repeated_loss
    assert of_first == pytest.approx(mean_loss(loss, after, first), rel=1e-6)
    assert one.repeated_loss != pytest.approx(mean_loss(loss, after, first), rel=1e-6)
    assert curves["first"][1].held_out_loss == one.held_out_loss
    assert one.forgetting == pytest.approx(one.repeated_loss - none.repeated_loss, rel=1e-5)
    assert one.delta_val == pytest.approx(one.held_out_loss - none.held_out_loss, rel=1e-5)


def test_a_point_of_two_models():
    assert point((0.1, 1.4), (1.0, 1.5))[1:] == (pytest.approx(0.9), pytest.approx(0.1), 1.0, 1.5)


def curve(*pairs):
    return [Point(ratio, *pair, 0, 0) for ratio, pair in enumerate(pairs, start=1)]


def test_degradation_at_matched_forgetting():
    points = curve((0.5, 0.1), (1.0, 0.6), (0.8, 2.0))
    assert delta_val_at(points, 0.25) == pytest.approx(0.05)  # from the untouched model on
    assert delta_val_at(points, 0.75) == pytest.approx(0.35)
    assert delta_val_at(points[::-1], 0.75) == pytest.approx(0.35)
    assert delta_val_at(points, 1.0) == 0.6
    assert delta_val_at(points, 1.1) == math.inf
    assert delta_val_at(curve((0.5, 0.4), (1.0, 0.2)), 0.5) == 0.2  # more forgetting for less


def test_hypervolume_is_the_area_that_is_dominated():
    points = curve((0.5, 0.1), (1.0, 0.6), (0.8, 2.0), (-0.3, -0.2))
    assert hypervolume(points, worst=1.0) == pytest.approx(0.5 * 0.9 + 0.5 * 0.4)
    assert hypervolume(points, worst=3.0) == pytest.approx(0.5 * 2.9 + 0.5 * 2.4)
    assert hypervolume(points, worst=1.0, enough=0.75) == pytest.approx(0.5 * 0.9 + 0.25 * 0.4)
    assert hypervolume(points, worst=1.0, enough=0.4) == pytest.approx(0.4 * 0.9)
    assert hypervolume([], worst=1.0) == 0
    # Improvement counts as more.
    assert hypervolume(curve((0.5, -0.1)), worst=1.0) == pytest.approx(0.5 * 1.1)
