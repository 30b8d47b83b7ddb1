"""Schedule and decay rules."""

import jax
import numpy as np
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


def test_matrices_decay_and_the_rest_does_not(tiny):
    mask = decay_mask(init_state(tiny, 1).params)
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
    params = init_state(tiny, 10).params

    def updates_of(multiple):
        tiny.sinks.learning_rate_multiple = multiple
        optimizer = make_optimizer(tiny, 10)
        update, _ = optimizer.update(params, optimizer.init(params), params)  # the parameters as gradients
        return {path_name(path): np.asarray(a) for path, a in jax.tree_util.tree_leaves_with_path(update)}

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
