"""Schedules, decay rules, Muon."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import expect_input_error

from memsinks_jax.config import OptimizerConfig, with_fields
from memsinks_jax.training.method import clip_by_global_norm
from memsinks_jax.training.optimizer import decay_mask, learning_rate, make_optimizer
from memsinks_jax.training.paths import first_match, path_name
from memsinks_jax.training.step import init_state


def rates(steps, **settings):
    """Of the updates that a run of so many steps makes, the peak being 1."""
    return np.asarray(
        learning_rate(OptimizerConfig(learning_rate=1.0, **settings), steps)(np.arange(steps))
    )


def test_schedule_warms_up_and_ends_at_the_final_fraction():
    values, warmup = rates(401), 20  # a twentieth of 401
    assert values[0] == pytest.approx(1 / 21)
    assert max(values) == pytest.approx(values[warmup]) == pytest.approx(1.0)
    assert (np.diff(values[: warmup + 1]) > 0).all() and (np.diff(values[warmup:]) < 0).all()
    assert values[(400 + warmup) // 2] == pytest.approx(0.55)
    assert values[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 19, 100, 101])
def test_the_last_update_has_the_final_fraction_however_few_there_are(schedule, steps):
    for warmup, decay in itertools.product(
        (0.0, 0.05, 1.0), (0.0, 0.2, 1.0) if schedule == "wsd" else (0.2,)
    ):
        settings = {
            "warmup_steps": 1000,
            "warmup_fraction": warmup,
            "decay_fraction": decay,
            "final_fraction": 0.25,
        }
        values = rates(steps, schedule=schedule, **settings)
        assert values[-1] == pytest.approx(0.25, abs=1e-6)
        assert steps == 1 or max(values[:-1]) == pytest.approx(1.0)  # the peak is reached before it
        top = int(values.argmax())
        assert (np.diff(values[: top + 1]) > 0).all() and (np.diff(values[top:]) <= 1e-6).all()


def test_wsd_stays_at_the_peak_until_the_last_fraction_of_the_steps():
    values = rates(401, schedule="wsd", decay_fraction=0.2)
    assert values[0] == pytest.approx(1 / 21) and values[10] == pytest.approx((1 / 21 + 1) / 2)
    assert values[20:321] == pytest.approx(1.0)
    assert values[360] == pytest.approx(0.55) and values[-1] == pytest.approx(0.1)


def initial(config):
    return jax.jit(lambda: init_state(config, 10).params)()


def named(tree) -> dict:
    return {
        path_name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def test_muon_updates_the_layers_matrices_and_adamw_all_else(tiny):
    fields = {"model.family": "llama", "sinks.sparse": True, "sinks.sampling": "floyd"}
    fields |= {"sinks.pool": 40, "optimizer.weight_decay": 0.0, "optimizer.clip_norm": 1e9}
    tiny = with_fields(tiny, fields)
    params = initial(tiny)
    random = np.random.default_rng(0)
    gradients = [
        jax.tree.map(lambda a: random.normal(size=a.shape).astype(np.float32), params)
        for _ in range(3)
    ]

    def updates_of(optimizer):
        state = optimizer.init(params)
        for gradient in gradients:
            update, state = optimizer.update(gradient, state, params)
        return named(update)

    adamw = updates_of(make_optimizer(tiny, 10))
    tiny = with_fields(tiny, {"optimizer.kind": "muon"})
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
            np.testing.assert_allclose(
                update[layer], expected["x"], rtol=1e-4, atol=1e-8, err_msg=name
            )
    assert sum(name.endswith("_kernel") and name.startswith("layers/") for name in muon) == 7


def test_muon_would_move_sinks_among_its_columns(tiny):
    tiny = with_fields(tiny, {"optimizer.kind": "muon"})
    for kind, refused in (
        ("by_document", True),
        ("none", False),
        ("always", True),
        ("by_chance", False),
    ):
        tiny = with_fields(tiny, {"sinks.kind": kind})
        with expect_input_error("sinks.sparse=True") if refused else contextlib.nullcontext():
            make_optimizer(tiny, 10)


def test_matrices_decay_and_the_rest_does_not(tiny):
    mask = decay_mask(initial(tiny))
    named = {path_name(path): value for path, value in jax.tree_util.tree_leaves_with_path(mask)}
    assert {name for name, decays in named.items() if decays} == {
        "token_embedding",
        "position_embedding",
        *(
            f"layers/{name}_kernel"
            for name in ("query", "key", "value", "attention_output", "up", "down")
        ),
    }
    assert len(named) == 20


def test_a_parameter_without_a_rule_is_refused():
    with expect_input_error("parameter gate_matrix is covered by no rule"):
        first_match(((r"_kernel$", True),), "gate_matrix")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_sinks_learn_faster_and_nothing_else_does(tiny, family):
    """16 of 32 neurons are sinks."""
    tiny = with_fields(tiny, {"model.family": family})
    params = initial(tiny)

    def updates_of(multiple):
        optimizer = make_optimizer(
            with_fields(tiny, {"sinks.learning_rate_multiple": multiple}), 10
        )
        # The parameters as gradients.
        return named(
            jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params)[0])(
                params
            )
        )

    one, three = updates_of(1.0), updates_of(3.0)
    for name, update in one.items():
        expected = update.copy()
        if name.startswith(("layers/up_", "layers/gate_")):
            expected[..., 16:] *= 3
        if name == "layers/down_kernel":
            expected[:, 16:] *= 3
        np.testing.assert_allclose(three[name], expected, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("most", [0.5, 2.0, 1e9])
def test_gradients_are_clipped_as_optax_does(most):
    gradients = {"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.full((2, 3), 0.25, jnp.bfloat16)}
    expected, _ = optax.clip_by_global_norm(most).update(gradients, optax.EmptyState())
    clip = clip_by_global_norm(most)
    state = clip.init(gradients)
    found, after = clip.update(gradients, state, gradients)
    assert state == after == optax.EmptyState()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(
            *(np.asarray(each, np.float32) for each in (found[name], array)),
            rtol=1e-2 if name == "b" else 1e-6,
        )
    assert (float(optax.tree.norm(gradients)) > most) == (
        not np.array_equal(found["a"], gradients["a"])
    )
