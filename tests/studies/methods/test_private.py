"""DP-SGD: clipped sums against single-row gradients, and the requested noise."""

import jax
import numpy as np
import optax
import pytest
from conftest import expect_input_error, tiny_config
from test_step import first_batches, one_step

from memsinks_jax.config import with_fields
from memsinks_jax.training.method import method_of

pytestmark = pytest.mark.slow


def private_config(noise):
    """That of plain training if `noise` is 0."""
    method = "memsinks_jax.studies.methods.private:Private"
    return with_fields(
        tiny_config(),
        {
            "sinks.kind": "none",
            "model.layers": 1,
            "optimizer.clip_norm": 0.3,
            "training.method": f"{method},noise_multiplier={noise}" if noise else "",
        },
    )


def moved(config, batch):
    """Change of the parameters by a step of plain SGD with a rate of 1, and its loss."""
    before, after, metrics = one_step(config, batch)
    return jax.tree.map(np.subtract, before, after), metrics["train_loss"]


def test_rows_are_clipped_and_their_sum_gets_noise(plain_sgd):
    (batch,) = first_batches(private_config(0.0), 1)
    rows = [
        batch | {"weights": np.where(np.arange(8)[:, None] == row, batch["weights"], 0)}
        for row in range(8)
    ]
    _, loss = moved(private_config(0.0), batch)
    found, same_loss = moved(private_config(1e-9), batch)
    assert same_loss == pytest.approx(loss, rel=1e-6)
    alone = [moved(private_config(0.0), row)[0] for row in rows]
    norms = [float(optax.tree.norm(gradient)) for gradient in alone]
    assert min(norms) > 0.3  # each is clipped
    expected = jax.tree.map(
        lambda *of: sum(g * 0.3 / n for g, n in zip(of, norms, strict=True)) / 8, *alone
    )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found, expected
    )
    noisy, _ = moved(private_config(2.0), batch)
    noise = np.concatenate(
        [(a - b).ravel() for a, b in zip(*map(jax.tree.leaves, (noisy, found)), strict=True)]
    )
    assert noise.std() == pytest.approx(2.0 * 0.3 / 8, rel=0.02) and abs(noise.mean()) < 0.005


@pytest.mark.parametrize(("field", "value"), [("sinks.kind", "always"), ("compute.accumulate", 2)])
def test_what_has_no_rows_of_its_own_is_refused(field, value):
    config = private_config(1.0)
    method_of(config)
    config = with_fields(config, {field: value})
    with expect_input_error("DP-SGD, which trains a model without sinks"):
        method_of(config)
