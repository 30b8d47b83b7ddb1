"""Schedule and decay rules."""

import jax
import pytest

from memsinks_jax.config import InputError, OptimizerConfig
from memsinks_jax.training.optimizer import decay_mask, first_match, learning_rate, path_name
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
