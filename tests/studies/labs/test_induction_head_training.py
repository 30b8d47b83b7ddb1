"""Training: bitwise resumption, frozen memories, split batches, learning; sinks and their gates."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error

from memsinks_jax.studies.labs.induction_head import bigrams, measures, presets, sinks, training
from memsinks_jax.studies.labs.induction_head.law import Law, sampler
from memsinks_jax.studies.labs.induction_head.model import Full, TwoLayers
from memsinks_jax.studies.labs.induction_head.training import Recipe

pytestmark = pytest.mark.slow

SHAKESPEARE = bigrams.bundled()
TINY = Recipe(Law(k=2, length=24), TwoLayers(8), steps=12, batch=4, learning_rate=0.1, log_every=4)


def silent(step, point):
    pass


def run(recipe, path, seed=0, report=silent):
    return training.train(recipe, SHAKESPEARE, seed, path, report)


class Stop(Exception):
    pass


# Compiled: many small programs, one for each operation, cost more than one large one.
gradient = jax.jit(training.gradient, static_argnums=0)
draw = jax.jit(
    lambda recipe, key: sampler(SHAKESPEARE, recipe.law)(key, recipe.batch), static_argnums=0
)


@pytest.mark.parametrize(
    "recipe",
    [
        dataclasses.replace(TINY, frozen_until=(("key_1", 6),), clip=1.0),
        pytest.param(
            Recipe(
                Law(k=2, fixed=False, length=24),
                Full(8, heads=2),
                12,
                4,
                0.01,
                optimizer="adamw",
                everywhere=True,
                test_law=Law(k=2, length=24),
                log_every=4,
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=("sgd", "adamw"),
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(recipe, tmp_path):
    def stop_at_8(step, point):
        if step == 8:
            raise Stop

    whole = run(recipe, tmp_path / "whole.npz")
    with pytest.raises(Stop):
        run(recipe, tmp_path / "parts.npz", report=stop_at_8)
    reported = []
    parts = run(recipe, tmp_path / "parts.npz", report=lambda step, point: reported.append(step))
    assert reported == [12] and whole.curves["step"].tolist() == [4, 8, 12]
    assert set(parts.curves) == set(whole.curves)
    for name, values in whole.curves.items():
        np.testing.assert_array_equal(parts.curves[name], values)
    for name, matrix in whole.weights.items():
        np.testing.assert_array_equal(parts.weights[name], matrix)
    assert parts.test == pytest.approx(whole.test, nan_ok=True)
    never = functools.partial(pytest.fail, "a finished run is not trained again")
    again = run(recipe, tmp_path / "parts.npz", report=lambda *_: never())
    np.testing.assert_array_equal(again.weights["token"], whole.weights["token"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.npz", "whole.npz"]


def test_a_broken_checkpoint_is_refused(tmp_path):
    (tmp_path / "run.npz").write_bytes(b"PK\x03\x04 broken")
    with expect_input_error("delete it"):
        run(TINY, tmp_path / "run.npz")


def test_runs_are_distinguished():
    other = bigrams.count("abcd" * 9, "here")
    digests = {
        training.digest(recipe, statistics, seed)
        for recipe in (TINY, dataclasses.replace(TINY, batch=5))
        for statistics in (SHAKESPEARE, other)
        for seed in (0, 1)
    }
    assert len(digests) == 8


def steps(recipe, count, first=0, carry=None):
    trained, others, state = training.start(recipe, SHAKESPEARE, 0)
    carry, _ = training.steps(
        recipe, SHAKESPEARE, carry or (trained, state), others, jax.random.key(1), first, count
    )
    return carry


def test_frozen_memories_stay_and_start_without_momentum():
    """Until its step a memory does not move; its first update is -rate (gradient + decay w),
    nothing of before.
    """
    recipe = dataclasses.replace(
        TINY, frozen_until=(("key_2", 3), ("output_2", 10**6)), weight_decay=0.1
    )
    start, others, _ = training.start(recipe, SHAKESPEARE, 0)
    at_3, state = steps(recipe, 3)
    np.testing.assert_array_equal(at_3["key_2"], start["key_2"])
    assert jnp.abs(at_3["key_1"] - start["key_1"]).max() > 0
    at_4, _ = steps(recipe, 1, 3, (at_3, state))
    grads, _ = gradient(
        recipe, at_3, others, draw(recipe, jax.random.fold_in(jax.random.key(1), 3))
    )
    expected = at_3["key_2"] - 0.1 * (grads["key_2"] + 0.1 * at_3["key_2"])
    np.testing.assert_allclose(at_4["key_2"], expected, atol=1e-6)
    np.testing.assert_array_equal(at_4["output_2"], start["output_2"])


def test_momentum_and_decay_are_pytorchs():
    recipe = dataclasses.replace(TINY, weight_decay=0.1)
    weights, others, _ = training.start(recipe, SHAKESPEARE, 0)
    velocity = {name: 0.0 for name in weights}
    for number in range(3):
        batch = draw(recipe, jax.random.fold_in(jax.random.key(1), number))
        grads, _ = gradient(recipe, weights, others, batch)
        velocity = {
            name: 0.9 * velocity[name] + grads[name] + 0.1 * weights[name] for name in weights
        }
        weights = {name: weights[name] - 0.1 * velocity[name] for name in weights}
    got, _ = steps(recipe, 3)
    for name in weights:
        np.testing.assert_allclose(got[name], weights[name], atol=1e-5)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_large_batch_is_one_mean(everywhere, monkeypatch):
    recipe = dataclasses.replace(TINY, batch=12, everywhere=everywhere)
    trained, others, _ = training.start(recipe, SHAKESPEARE, 0)
    batch = draw(recipe, jax.random.key(0))
    whole, tally = gradient(recipe, trained, others, batch)
    monkeypatch.setattr(training, "AT_ONCE", 4)
    parts, tally_parts = jax.jit(lambda *given: training.gradient(recipe, *given))(
        trained, others, batch
    )
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], atol=1e-6)
    assert measures.rates(tally_parts) == pytest.approx(
        measures.rates(tally), rel=1e-5, nan_ok=True
    )

    def mean(trained):
        logits = recipe.model.forward({**others, **trained}, batch.tokens_BS[:, :-1]).logits_BTV
        loss = measures.losses(logits, batch.tokens_BS[:, 1:])
        return loss.mean() if everywhere else loss.mean(where=batch.seen_BT >= 2)

    automatic = jax.jit(jax.grad(mean))(trained)
    for name in whole:
        np.testing.assert_allclose(whole[name], automatic[name], atol=1e-6)


def test_only_the_memories_are_trained(tmp_path):
    finished = run(TINY, tmp_path / "run.npz")
    start = TINY.model.initial(training.purpose(0, 0), 65, 24)
    moved = {name for name in start if not np.array_equal(start[name], finished.weights[name])}
    assert moved == {"key_1", "key_2", "output_2"}
    known = ["wo1", "wk1", "wk0", "wk0_64", "acc_end", "acc_clean", "score_acc", "loss_bigram"]
    assert set(known) <= set(finished.curves)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (TwoLayers(8, feed_forward="linear"), {"wo1", "wk1", "wk0", "wk0_64", "ff1"}),
        (TwoLayers(8, positions="rotary"), {"wo1", "wk1"}),
        (Full(8), set()),
    ],
    ids=("linear", "rotary", "full"),
)
def test_live_probes_are_those_of_the_model(model, expected):
    recipe = dataclasses.replace(TINY, model=model)
    weights = jax.eval_shape(lambda: model.initial(jax.random.key(0), 65, 24))
    found = jax.eval_shape(lambda weights: training.probes(recipe, SHAKESPEARE, weights), weights)
    fresh = functools.partial(training.fresh, model, SHAKESPEARE, recipe.law, 4)
    tally = jax.eval_shape(lambda weights: fresh(weights, jax.random.key(0)), weights)
    assert set(found) == expected and "score_acc" in tally


def test_work_counts_steps_and_sequences():
    double = dataclasses.replace(TINY, steps=24, batch=8)
    assert presets.work(double) == 4 * presets.work(TINY)
    assert presets.predicted_seconds(presets.Preset("laptop", SHAKESPEARE), [TINY, double]) > 0


@pytest.mark.slow
def test_a_head_is_born(tmp_path):
    """Small enough for seconds: few triggers, short sequences."""
    recipe = Recipe(Law(k=2, length=32), TwoLayers(64), 600, 32, 0.2, clip=1.0, log_every=100)
    finished = run(recipe, tmp_path / "run.npz")
    assert finished.curves["acc_end"][0] < 0.3 and finished.test["acc_clean"] > 0.75, finished.test


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_the_laptop_preset_learns_the_head(seed, tmp_path):
    recipe = presets.Preset("laptop", SHAKESPEARE).alone(256)
    finished = run(recipe, tmp_path / "run.npz", seed)
    assert finished.test["acc_clean"] > 0.9, finished.test
    assert finished.curves["wo1"][-1] == 1.0


# ---- sinks


WORLD = sinks.World(
    Law(k=2, length=24), 8, shared=6, sinks=10, active=0.4, pool=4, batch=4, steps=40
)


def test_gates_are_a_sequences_own():
    key = jax.random.key(0)
    numbers = jnp.array([3, 7, 3, 900])
    own = np.asarray(sinks.gates(WORLD, key, numbers, "own"))
    assert own.shape == (4, 16) and set(np.unique(own)) == {0.0, 1.0}
    assert (own[:, :6] == 1).all()
    np.testing.assert_array_equal(own[0], own[2])
    assert not np.array_equal(own[0], own[1])
    dropped = np.asarray(sinks.gates(WORLD, key, numbers, "dropped"))
    assert (dropped[:, :6] == 1).all() and (dropped[:, 6:] == 0).all()
    wide = dataclasses.replace(WORLD, sinks=4000)
    assert np.asarray(sinks.gates(wide, key, numbers, "own"))[:, 6:].mean() == pytest.approx(
        0.4, abs=0.02
    )


def test_sinks_that_are_off_neither_act_nor_learn():
    weights = WORLD.model.initial(jax.random.key(0), 65, 24)
    batch = draw(dataclasses.replace(TINY, batch=3), jax.random.key(1))
    gates = sinks.gates(WORLD, jax.random.key(2), jnp.arange(3), "own")
    gates = gates.at[:, 8:10].set(jnp.array([1.0, 0.0]))

    def loss(weights):
        return measures.losses(
            sinks.logits(WORLD, weights, batch.tokens_BS[:, :-1], gates), batch.tokens_BS[:, 1:]
        ).mean()

    grads = jax.jit(jax.grad(loss))(weights)
    assert (grads["ff_1"][9] == 0).all() and (grads["ff_2"][:, 9] == 0).all()
    assert jnp.abs(grads["ff_2"][:, 8]).max() > 0
    cut = {**weights, "ff_1": weights["ff_1"].at[9].set(5.0)}
    assert loss(cut) == pytest.approx(float(loss(weights)), abs=1e-6)


@pytest.mark.slow
def test_training_with_sinks_goes_on_where_it_stopped(tmp_path):
    def stop_at_20(step, point):
        if step == 20:
            raise Stop

    whole = sinks.train(WORLD, SHAKESPEARE, 0, tmp_path / "whole.npz", silent).curves
    with pytest.raises(Stop):
        sinks.train(WORLD, SHAKESPEARE, 0, tmp_path / "parts.npz", stop_at_20)
    parts = sinks.train(WORLD, SHAKESPEARE, 0, tmp_path / "parts.npz", silent).curves
    assert whole["step"].tolist() == [20, 40]
    for name, values in whole.items():
        np.testing.assert_array_equal(parts[name], values)
    assert not math.isclose(
        whole["pool own loss_bigram"][-1], whole["pool dropped loss_bigram"][-1], rel_tol=1e-4
    )
