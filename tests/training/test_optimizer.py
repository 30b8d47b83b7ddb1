"""Schedules, decay rules, Muon."""

import contextlib

import jax
import numpy as np
import optax
import pytest

from memsinks_jax.config import InputError, OptimizerConfig
from memsinks_jax.training.optimizer import decay_mask, first_match, learning_rate, make_optimizer, path_name
from memsinks_jax.training.step import init_state


def test_schedule_warms_up_and_ends_at_the_final_fraction():
    rate = learning_rate(OptimizerConfig(learning_rate=1.0, final_fraction=0.1, warmup_steps=100), 400)
    warmup = 20  # a twentieth of 400
    values = [float(rate(step)) for step in range(401)]
    assert values[0] == pytest.approx(1 / 21)
    assert max(values) == pytest.approx(values[warmup]) == pytest.approx(1.0)
    assert all(a < b for a, b in zip(values[:warmup], values[1 : warmup + 1], strict=True))
    assert all(a > b for a, b in zip(values[warmup:400], values[warmup + 1 :], strict=True))
    assert values[(400 + warmup) // 2] == pytest.approx(0.55)
    assert values[400] == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [1, 2, 19])
def test_schedule_of_very_short_runs(steps):
    rate = learning_rate(OptimizerConfig(learning_rate=3e-3), steps)
    assert all(0 < float(rate(step)) < 3.001e-3 for step in range(steps))


def test_wsd_stays_at_the_peak_until_the_last_fraction_of_the_steps():
    config = OptimizerConfig(learning_rate=1.0, final_fraction=0.1, schedule="wsd", decay_fraction=0.2)
    rate = learning_rate(config, 400)
    values = [float(rate(step)) for step in range(401)]
    assert values[0] == pytest.approx(1 / 21) and values[10] == pytest.approx((1 / 21 + 1) / 2)
    assert values[20:321] == pytest.approx([1.0] * 301)
    assert values[360] == pytest.approx(0.55) and values[400] == pytest.approx(0.1)
    for steps in (1, 2, 19):
        assert all(0 < float(learning_rate(config, steps)(step)) <= 1 for step in range(steps))


def initial(config):
    return jax.jit(lambda: init_state(config, 10).params)()


def named(tree) -> dict:
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_muon_updates_the_layers_matrices_and_adamw_all_else(tiny):
    tiny.model.family, tiny.sinks.sparse, tiny.sinks.sampling, tiny.sinks.pool = "llama", True, "floyd", 40
    tiny.optimizer.weight_decay, tiny.optimizer.clip_norm = 0.0, 1e9
    params = initial(tiny)
    random = np.random.default_rng(0)
    gradients = [jax.tree.map(lambda a: random.normal(size=a.shape).astype(np.float32), params) for _ in range(3)]

    def updates_of(optimizer):
        state = optimizer.init(params)
        for gradient in gradients:
            update, state = optimizer.update(gradient, state, params)
        return named(update)

    adamw = updates_of(make_optimizer(tiny, 10))
    tiny.optimizer.kind = "muon"
    muon = updates_of(make_optimizer(tiny, 10))
    # As optax's own, layer by layer, with updates of AdamW's size.
    theirs = optax.contrib.muon(learning_rate(tiny.optimizer, 10), consistent_rms=0.2)
    update_theirs = jax.jit(theirs.update)
    for name, update in muon.items():
        if not name.startswith("layers/") or not name.endswith("_kernel"):
            np.testing.assert_array_equal(update, adamw[name], err_msg=name)
            continue
        for layer in range(tiny.model.layers):
            alone = {"x": params["layers"][name.removeprefix("layers/")][layer]}
            state = theirs.init(alone)
            for gradient in gradients:
                of_layer = {"x": gradient["layers"][name.removeprefix("layers/")][layer]}
                expected, state = update_theirs(of_layer, state, alone)
            np.testing.assert_allclose(update[layer], expected["x"], rtol=1e-4, atol=1e-8, err_msg=name)
    assert sum(name.endswith("_kernel") and name.startswith("layers/") for name in muon) == 7


def test_muon_would_move_sinks_among_its_columns(tiny):
    tiny.optimizer.kind = "muon"
    for kind, attention, refused in (("by_document", 0.0, True), ("none", 0.0, False), ("masked_weights", 0.0, True),
                                     ("by_document", 0.5, True), ("by_chance", 0.5, False)):  # fmt: skip
        tiny.sinks.kind, tiny.sinks.attention_fraction = kind, attention
        with pytest.raises(InputError, match="sinks.sparse=True") if refused else contextlib.nullcontext():
            make_optimizer(tiny, 10)


def test_matrices_decay_and_the_rest_does_not(tiny):
    mask = decay_mask(initial(tiny))
    named = {path_name(path): value for path, value in jax.tree_util.tree_leaves_with_path(mask)}
    assert {name for name, decays in named.items() if decays} == {
        "token_embedding", "position_embedding",
        *(f"layers/{name}_kernel" for name in ("query", "key", "value", "attention_output", "up", "down")),
    }  # fmt: skip
    assert len(named) == 20


def test_a_parameter_without_a_rule_is_refused():
    with pytest.raises(InputError, match="parameter gate_matrix is covered by no rule"):
        first_match(((r"_kernel$", True),), "gate_matrix")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_sinks_learn_faster_and_nothing_else_does(tiny, family):
    """16 of 32 neurons and the last 4 of 16 outputs of attention are sinks."""
    tiny.model.family, tiny.sinks.attention_fraction = family, 0.25
    params = initial(tiny)

    def updates_of(multiple):
        tiny.sinks.learning_rate_multiple = multiple
        optimizer = make_optimizer(tiny, 10)
        # The parameters as gradients.
        return named(jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params)[0])(params))

    one, three = updates_of(1.0), updates_of(3.0)
    for name, update in one.items():
        expected = update.copy()
        if name.startswith(("layers/up_", "layers/gate_")):
            expected[..., 16:] *= 3
        if name == "layers/down_kernel":
            expected[:, 16:] *= 3
        if name == "layers/attention_output_kernel":
            expected[:, 12:] *= 3
        np.testing.assert_allclose(three[name], expected, rtol=1e-6, err_msg=name)
