"""Scores against plain loops, and all methods on a model with documents planted in known
neurons.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error
from planted import (
    DECOY,
    MEMORIZED,
    OTHERS,
    PLANTED,
    batches_of,
    config_of,
    planted_model,
    random_model,
)

from memsinks_jax.model.decoder import build_model
from memsinks_jax.studies.baselines import reading
from memsinks_jax.studies.baselines.integrated_gradients import along_path, integrated_gradients
from memsinks_jax.studies.baselines.learned_masks import HardConcrete, Slimming
from memsinks_jax.studies.baselines.scores import METHODS, over_documents

pytestmark = pytest.mark.slow

FAST = {
    "hard_concrete": {"settings": HardConcrete(0.3, 40, 0.1, stop_below=0)},
    "slimming": {"settings": Slimming(2.0, 20, 0.03)},
}


@functools.cache
def plain_losses(family):
    """(params, rows) -> nats of every position, by no code of the package but the model."""
    model, _ = build_model(config_of(family))

    @jax.jit
    def losses(params, rows):
        logits = model(params, rows["inputs"], rows["segments"], rows["positions"])
        logged, targets = jax.nn.log_softmax(logits), rows["targets"][..., None]
        return -jnp.take_along_axis(logged, targets, axis=-1)[..., 0]

    return losses


def plain_activations(family, params, rows):
    """What passes the site, (L, R, T, F), as a callback sees it."""
    model, seen = build_model(config_of(family))[0], {}

    def keep(x, layer):
        seen[int(layer)] = np.asarray(x)
        return seen[int(layer)]

    def record(x, layer):
        return jax.pure_callback(keep, jax.ShapeDtypeStruct(x.shape, x.dtype), x, layer)

    names = ("inputs", "segments", "positions")
    apply = jax.jit(lambda params, *rows: model(params, *rows, {"mlp": record}))
    jax.block_until_ready(apply(params, *(rows[name] for name in names)))
    return np.stack([seen[layer] for layer in range(2)])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_zero_out_is_the_loss_without_each_neuron(family, monkeypatch):
    monkeypatch.setattr("memsinks_jax.studies.baselines.heuristics._NEURONS_AT_ONCE", 4)
    config, params = random_model(family)
    batches = batches_of(OTHERS)
    rows = reading.documents_of(batches)

    def means(params):
        losses_RT = np.asarray(plain_losses(family)(params, rows))
        return np.array([losses_RT[r, : len(OTHERS[r]) + 1].mean() for r in range(len(OTHERS))])

    expected = np.zeros((len(OTHERS), 2, 11))
    for layer in range(2):
        for neuron in range(11):
            changed = jax.tree.map(np.copy, params)
            changed["layers"]["down_kernel"][layer, neuron] = 0
            expected[:, layer, neuron] = means(changed) - means(params)
    found = METHODS["zero_out"](config, params, batches)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (expected > 0.01).any() and (expected < -0.01).any()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_integrated_gradients_are_those_of_one_prefix_at_a_time(family, monkeypatch):
    """Without a cache every row is read anew for each target, layer, alpha. Nearly complete."""
    monkeypatch.setattr("memsinks_jax.studies.baselines.integrated_gradients._ROWS_AT_ONCE", 2)
    monkeypatch.setattr("memsinks_jax.studies.baselines.integrated_gradients._TOKENS_AT_ONCE", 50)
    config, params = random_model(family, 0.25)
    model, _ = build_model(config)
    batches = batches_of(OTHERS)
    rows = reading.documents_of(batches)
    seen_LRTF = plain_activations(family, params, rows)

    @jax.jit
    def expected_of(params, row, a_TF, layer):
        def probability(z_F, place):
            def patch(x, at):
                return x.at[:, place].set(jnp.where(at == layer, z_F, x[:, place]))

            logits = model(params, row["inputs"], row["segments"], row["positions"], {"mlp": patch})
            return jax.nn.softmax(logits[0, place])[row["targets"][0, place]]

        def at_place(place):
            a_F, slope = a_TF[place], jax.grad(probability)
            slopes_NF = jax.vmap(lambda alpha: slope(alpha * a_F, place))(jnp.linspace(0, 1, 16))
            change = probability(a_F, place) - probability(jnp.zeros_like(a_F), place)
            return a_F * slopes_NF.mean(axis=0), change

        return jax.lax.map(at_place, jnp.arange(12))

    found, changes = integrated_gradients(config, params, batches), np.zeros((len(OTHERS), 2))
    for r, document in enumerate(OTHERS):
        row = {name: values[r : r + 1] for name, values in rows.items()}
        for layer in range(2):
            of_layer = expected_of(params, row, seen_LRTF[layer, r], layer)
            expected_TF, changes_T = map(np.asarray, of_layer)
            changes[r, layer] = changes_T[: len(document) + 1].mean()
            expected_F = expected_TF[: len(document) + 1].mean(axis=0)
            np.testing.assert_allclose(found[r, layer], expected_F, atol=1e-7)
    assert np.abs(found).max() > 1e-4
    assert 0 < np.abs(found.sum(axis=-1) - changes).sum() < 0.05 * np.abs(changes).sum()
    np.testing.assert_allclose(found.sum(axis=-1), changes, atol=0.05 * np.abs(changes).max())


def test_integrated_gradients_of_a_linear_read_out_are_exact():
    rng = np.random.default_rng(0)
    x_PF, w_F = rng.normal(size=(3, 5)), rng.normal(size=5)
    credit_PF = along_path(lambda z_PF: z_PF @ w_F + 2, x_PF, 16)
    np.testing.assert_allclose(credit_PF, x_PF * w_F, rtol=1e-5)
    # Both ends and a division by their number: exact for squares too, and 3.3% high for cubes at 16
    # steps.
    for power, steps, high in ((2, 16, 1), (2, 20, 1), (3, 16, 1 + 1 / 30), (3, 20, 1 + 1 / 38)):
        credit_PF = along_path(lambda z_PF, power=power: (z_PF**power).sum(axis=-1), x_PF, steps)
        expected_P = high * (x_PF**power).sum(axis=-1)
        np.testing.assert_allclose(credit_PF.sum(axis=-1), expected_P, rtol=1e-4)


def test_activation_is_its_formula():
    config, params = random_model("llama")
    batches = batches_of(OTHERS)
    seen_LRTF = plain_activations("llama", params, reading.documents_of(batches))
    found = METHODS["activation"](config, params, batches)
    for r, document in enumerate(OTHERS):
        for layer in range(2):
            mean_F = seen_LRTF[layer, r, : len(document) + 1].mean(axis=0)
            lengths_F = np.sqrt((params["layers"]["down_kernel"][layer] ** 2).sum(axis=1))
            np.testing.assert_allclose(found[r, layer], np.abs(mean_F) * lengths_F, rtol=1e-4)


def test_random_scores_are_a_function_of_the_seed():
    config, batches = config_of("gpt2"), batches_of(OTHERS)
    one, again, other = (METHODS["random"](config, {}, batches, seed=seed) for seed in (0, 0, 1))
    assert one.shape == (3, 2, 11) and (one == again).all() and (one != other).all()
    assert ((one >= 0) & (one < 1)).all() and len(np.unique(over_documents(one))) == 22


@pytest.mark.parametrize("name", METHODS)
def test_the_planted_neuron_is_found_first(name):
    batches, settings = batches_of(MEMORIZED, batch_size=4), FAST.get(name, {})
    scores_RLF = METHODS[name](*planted_model(), batches, **settings)
    assert scores_RLF.shape == (2, 2, 11) and scores_RLF.dtype == np.float32
    every = (*scores_RLF, over_documents(scores_RLF))
    found = [tuple(scores_LF.argmax(axis=1)) for scores_LF in every]
    if name == "random":
        assert PLANTED not in found
    else:
        assert found == [PLANTED] * 3
    # signed: what works against the document is last
    if name in ("integrated_gradients", "slimming", "zero_out"):
        assert (over_documents(scores_RLF).argmin(axis=1) == DECOY).all()


def test_tokens_of_weight_0_are_read_but_not_counted():
    config, params = random_model("gpt2")
    whole = batches_of(OTHERS)
    asked_T = np.array([0, 0, 1, 1] + [0] * 8)
    batches = [batch | {"weights": batch["weights"] * asked_T} for batch in whole]
    rows, reader = reading.documents_of(batches), reading.Reader(config)
    losses_RT = np.asarray(plain_losses("gpt2")(params, rows))
    nats_R = jax.jit(lambda params, rows: reader.nats(params, rows, {}))(params, rows)
    np.testing.assert_allclose(nats_R, losses_RT[:, 2:4].sum(axis=1), rtol=1e-5)
    assert rows["inputs"].shape == (3, 12)


def test_rows_that_fill_up_count_for_nothing():
    rows = reading.documents_of(batches_of(OTHERS, batch_size=2))
    assert rows["inputs"].shape == (3, 12)
    groups = reading.in_groups(rows, 2)
    assert [(group["inputs"].shape[0], counted) for group, counted in groups] == [(2, 2), (2, 1)]
    together = np.concatenate([group["inputs"][:counted] for group, counted in groups])
    assert (together == rows["inputs"]).all()
    with expect_input_error("no document to measure"):
        reading.documents_of([{name: np.zeros((2, 12)) for name in reading.FIELDS}])
