"""Hard Concrete and slimming: their formulas, and the loop that learns masks against a plain
one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planted import MEMORIZED, OTHERS, batches_of, planted_model, random_model

from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.model.decoder import build_model
from memsinks_jax.studies.baselines import learned_masks, reading
from memsinks_jax.studies.baselines.learned_masks import (
    HardConcrete,
    Slimming,
    inclusive_clip,
    learn,
    stretched,
)
from memsinks_jax.studies.baselines.removal import mean_loss, top_neurons, without
from memsinks_jax.studies.baselines.tuning import tune

pytestmark = pytest.mark.slow


def test_the_first_mask_is_the_one_asked_for():
    for start in (0.9, 0.5, 0.2):
        settings = HardConcrete(start=start)
        values = jnp.full((3, 2, 5), settings.initial())
        np.testing.assert_allclose(stretched(jax.nn.sigmoid(values)), start, rtol=1e-5)
        penalty = settings.penalty(values)
        assert penalty.shape == (3,) and ((penalty > 0) & (penalty < 1)).all()


def test_the_penalty_is_the_chance_of_a_mask_over_zero():
    settings = HardConcrete(temperature=0.67)
    values = jnp.full((1, 1, 20_000), -0.7)
    drawn = settings.mask(values, 3)
    assert settings.penalty(values)[0] == pytest.approx(float((drawn > 0).mean()), abs=0.01)
    assert (drawn == 0).any() and (drawn == 1).any()
    assert (drawn == settings.mask(values, 3)).all() and (drawn != settings.mask(values, 4)).any()
    assert np.isfinite(jax.grad(lambda v: settings.mask(v, 3).sum())(values)).all()


def test_the_clips_gradient_is_one_at_both_bounds():
    x = jnp.array([-0.1, 0.0, 0.3, 1.0, 1.1])
    np.testing.assert_array_equal(inclusive_clip(x), [0, 0, np.float32(0.3), 1, 1])
    assert jax.vmap(jax.grad(inclusive_clip))(x).tolist() == [0, 1, 1, 1, 0]


def test_slimming_leaves_the_bound_it_starts_on():
    settings = Slimming()
    start = jnp.full((1, 2, 3), settings.initial())
    assert (settings.mask(start, 0) == 1).all()
    assert (jax.grad(lambda values: settings.mask(values, 0).sum())(start) == 1).all()
    slope = jax.grad(lambda values: settings.penalty(values).sum())
    np.testing.assert_allclose(slope(start), 1 / 6)
    # Without a penalty the loss alone moves it.
    scores = learned_masks.slimming(*planted_model(), batches_of(MEMORIZED), Slimming(0.0, 1, 0.03))
    assert (scores < 1).any() and (scores >= 0.96).all()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_masks_are_learned_as_by_a_plain_loop(family):
    """Five steps of Adam, all formulas written out, one document."""
    config, params = random_model(family)
    settings = HardConcrete(strength=0.1, iterations=5, learning_rate=0.1, stop_below=0)
    model, _ = build_model(config)
    rows = reading.documents_of(batches_of(OTHERS[1:2]))
    count = len(OTHERS[1]) + 1

    @jax.jit
    @jax.grad
    def slope(s_LF, u_LF):
        t = 1 / (1 + jnp.exp(-(jnp.log(u_LF / (1 - u_LF)) + s_LF) / 0.33))
        mask_LF = jnp.minimum(jnp.maximum(1.2 * t - 0.1, 0), 1)

        def gate(x, layer):
            return x * mask_LF[layer]

        logits = model(params, rows["inputs"], rows["segments"], rows["positions"], {"mlp": gate})
        logged = jax.nn.log_softmax(logits[0, :count])
        nats = -jnp.take_along_axis(logged, rows["targets"][0, :count, None], axis=-1).mean()
        return nats + 0.1 * (1 / (1 + jnp.exp(-(s_LF - 0.33 * jnp.log(0.1 / 1.1))))).mean()

    s_LF, first, second = np.full((2, 11), np.log(5.0)), 0, 0
    for n in range(5):
        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), n)
        gradient = np.asarray(slope(s_LF, jax.random.uniform(key, (2, 11))))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        size = np.sqrt(second / (1 - 0.999 ** (n + 1))) + 1e-8
        s_LF = s_LF - 0.1 * (first / (1 - 0.9 ** (n + 1))) / size
    found = learned_masks.hard_concrete(config, params, batches_of(OTHERS[1:2]), settings)
    np.testing.assert_allclose(found[0], 1 / (1 + np.exp(-s_LF)), atol=1e-4)
    assert np.ptp(found) > 0.1


def test_masks_learned_together_are_each_alone(monkeypatch):
    monkeypatch.setattr(learned_masks, "ROWS_AT_ONCE", 4)
    config, params = random_model("gpt2")
    settings = HardConcrete(learning_rate=0.1, stop_below=0)
    found = learn(config, params, batches_of(OTHERS), settings, (1.0, 9.0), (2, 5))
    assert set(found) == {(1.0, 2), (1.0, 5), (9.0, 2), (9.0, 5)}
    alone = learn(config, params, batches_of(OTHERS[2:]), settings, (9.0,), (5,))[9.0, 5]
    np.testing.assert_allclose(found[9.0, 5][2:], alone, atol=1e-5)
    shorter = learn(config, params, batches_of(OTHERS[:1]), settings, (1.0,), (2,))[1.0, 2]
    np.testing.assert_allclose(found[1.0, 2][:1], shorter, atol=1e-5)
    assert np.abs(found[9.0, 5] - found[1.0, 5]).max() > 0.01


def test_a_joint_mask_is_of_all_documents():
    """Of two copies it is that of the one, and each of two documents counts."""
    config, params = random_model("gpt2")
    settings = HardConcrete(strength=1.0, iterations=4, learning_rate=0.1, stop_below=0)
    alone = learn(config, params, batches_of(OTHERS[:1]), settings)[1.0, 4]
    joint = dataclasses.replace(settings, joint=True)
    first, both, second = (
        learn(config, params, batches_of([OTHERS[i] for i in pair]), joint)[1.0, 4]
        for pair in ((0, 0), (0, 1), (1, 1))
    )
    assert both.shape == (1, 2, 11)
    np.testing.assert_allclose(first, alone, atol=1e-5)
    assert min(np.abs(both - first).max(), np.abs(both - second).max()) > 1e-3


def test_a_mask_is_finished_when_few_neurons_are_left():
    """The penalty is checked every tenth step: nothing changes after it is found low."""
    model = planted_model()
    settings = HardConcrete(50.0, learning_rate=0.1, stop_below=0.7)
    found = learn(*model, batches_of(MEMORIZED), settings, iterations=(10, 20, 25, 30, 40, 150))
    shares = {}
    for (_, end), scores in found.items():
        values = np.log(scores / (1 - scores))
        shares[end] = np.asarray(settings.penalty(values))
    stopped = next(end for end in (10, 20, 30) if (shares[end] < 0.7).all())
    assert stopped == 20 and (shares[10] > 0.7).all()
    for end in (25, 30, 40, 150):
        np.testing.assert_array_equal(found[50.0, end], found[50.0, stopped])
    endless = dataclasses.replace(settings, stop_below=0)
    on = learn(*model, batches_of(MEMORIZED), endless, iterations=(25,))
    assert (on[50.0, 25] != found[50.0, 25]).any()


def test_tuning_takes_the_lowest_held_out_loss():
    config, params = planted_model()
    documents, held_out = batches_of(MEMORIZED[:1], 4), batches_of(OTHERS, 4)
    loss = DocumentLoss(config)
    settings = HardConcrete(learning_rate=0.1, stop_below=0)
    trials = tune(
        loss,
        config,
        params,
        documents,
        held_out,
        settings,
        (0.5, 200.0),
        (2, 20),
        ratios=(0.1, 0.3),
    )
    assert {(t.settings.strength, t.settings.iterations) for t in trials} == {
        (0.5, 2),
        (0.5, 20),
        (200, 2),
        (200, 20),
    }
    assert [t.held_out_loss for t in trials] == sorted(t.held_out_loss for t in trials)
    trial = trials[-1]
    scores_LF = learned_masks.hard_concrete(config, params, documents, trial.settings).mean(axis=0)
    dropped = [without(params, top_neurons(scores_LF, ratio)) for ratio in (0.1, 0.3)]
    expected = np.mean([mean_loss(loss, p, held_out) for p in dropped])
    assert trial.held_out_loss == pytest.approx(expected, rel=1e-5)
    forgetting = np.mean([mean_loss(loss, p, documents) for p in dropped]) - mean_loss(
        loss, params, documents
    )
    assert trial.forgetting == pytest.approx(forgetting, rel=1e-4)
