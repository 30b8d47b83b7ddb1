"""Bad updates are skipped, counted and reported, and too many of them end the run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config

from memsinks_jax.config import MeshConfig, TrainingConfig, with_fields
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.training import guard as guards
from memsinks_jax.training import sharding
from memsinks_jax.training.guard import check_update, init_guard
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.training.step import init_state, make_train_step


def after(losses, norms=None, **fields):
    """-> whether each update was accepted, and the guard after the last."""
    config = TrainingConfig(**fields)
    guard, accepted = init_guard(), []
    for loss, norm in zip(losses, norms or [1.0] * len(losses), strict=True):
        accept, guard = check_update(guard, jnp.float32(loss), jnp.float32(norm), config)
        accepted.append(bool(accept))
    return accepted, guard


def test_what_is_not_finite_is_skipped_and_counted():
    nan, inf = float("nan"), float("inf")
    accepted, guard = after([1, nan, inf, 2, 3, 4], [1, 1, 1, inf, nan, 1])
    assert accepted == [True, False, False, False, False, True]
    assert (int(guard.accepted), int(guard.skipped), int(guard.in_a_row)) == (2, 4, 0)
    assert guard.losses_W[:3].tolist() == [1, 4, 0]


def test_a_spike_lies_far_above_the_window(monkeypatch):
    monkeypatch.setattr(guards, "WINDOW", 4)
    window = [1.0, 2.0, 1.0, 2.0]  # mean 1.5, deviation 0.5
    assert after([*window, 2.9], spike_sigma=3)[0][-1]
    accepted, guard = after([*window, 3.1, 0.0], spike_sigma=3)
    assert accepted[-2:] == [False, True]  # far below is no spike
    # the oldest went, the spike never came in
    assert guard.losses_W.tolist() == [0.0, 2.0, 1.0, 2.0]
    # the window was not full
    assert after([1.0, 2.0, 1.0, 1e9], spike_sigma=3)[0] == [True] * 4
    assert after([*window, 1e9])[0] == [True] * 5  # spike_sigma 0: never


@pytest.fixture(scope="module")
def compiled():
    config = tiny_config()
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    return config, mesh, jax.jit(make_train_step(config, 10))


def batch_of(config, targets=None):
    rng = np.random.default_rng(0)
    shape = (config.training.batch_size, config.data.row_length)
    tokens = rng.integers(3, 200, shape).astype(np.int32)
    return {
        "inputs": tokens,
        "targets": tokens if targets is None else targets,
        "weights": np.ones(shape, np.float32),
        "segments": np.ones(shape, np.int32),
        "positions": np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1)),
        "identities": np.ones((shape[0], 1, 2), np.uint32),
        "seen": np.zeros((shape[0], 1), np.int32),
        "epoch": np.zeros(shape[0], np.int32),
    }


def test_a_skipped_update_changes_nothing_but_the_step(compiled):
    config, mesh, step = compiled
    state = init_state(config, 10)
    bad = dict(batch_of(config))
    bad["weights"] = bad["weights"] * np.float32("nan")
    after_bad, metrics = step(state, bad, np.uint32(0))
    assert int(after_bad.step) == 1
    assert float(metrics["skipped_updates"]) == 1
    for one, other in ((after_bad.params, state.params), (after_bad.optimizer, state.optimizer)):
        assert jax.tree.all(jax.tree.map(np.array_equal, one, other))
    good, metrics = step(after_bad, batch_of(config), np.uint32(0))
    straight, expected = step(state, batch_of(config), np.uint32(0))
    assert jax.tree.all(jax.tree.map(np.array_equal, good.params, straight.params))
    assert float(metrics["learning_rate"]) == float(expected["learning_rate"])


def test_labels_out_of_range_are_counted_and_left_out(compiled):
    config, mesh, step = compiled
    whole = batch_of(config)
    targets = whole["targets"].copy()
    targets[0, :3] = (-100, config.data.vocabulary_size, 10**6)
    bad = batch_of(config, targets)
    fewer = dict(whole, weights=whole["weights"].copy())
    fewer["weights"][0, :3] = 0
    _, metrics = step(init_state(config, 10), bad, np.uint32(0))
    _, expected = step(init_state(config, 10), fewer, np.uint32(0))
    assert float(metrics["invalid_labels"]) == 3
    assert float(expected["invalid_labels"]) == 0
    for name in ("train_loss", "tokens", "gradient_norm"):
        assert float(metrics[name]) == float(expected[name])


def test_a_run_that_diverges_ends_with_the_documents_of_its_batches(tiny, tmp_path):
    fields = {"model.layers": 1, "optimizer.learning_rate": 1e30, "training.skips_in_a_row": 3}
    tiny = with_fields(tiny, fields)
    message = (
        r"3 consecutive updates were skipped, the last at step (\d+) .*skipped.jsonl; remove "
        r"them or lower "
        "config.optimizer.learning_rate in another --workdir, or go on past them with a higher "
        "config.training.skips_in_a"
    )
    with expect_input_error(message):
        train_and_evaluate(tiny, tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "skipped.jsonl")
    assert [line["step"] for line in lines] == list(range(lines[0]["step"], lines[0]["step"] + 3))
    known = {line["id"] for line in read_lines(tmp_path / "run" / "documents.jsonl")}
    assert all(
        0 < len(line["documents"]) <= 8 and set(line["documents"]) <= known for line in lines
    )
    assert read_metrics(tmp_path / "run")[-1]["skipped_updates"] == 3
    # the same again, and every batch is written down once
    with expect_input_error(message):
        train_and_evaluate(tiny, tmp_path / "run")
    assert len((tmp_path / "run" / "skipped.jsonl").read_text().splitlines()) == 3
    # What the message advises works.
    tiny = with_fields(tiny, {"training.skips_in_a_row": 100})
    assert train_and_evaluate(tiny, tmp_path / "run")["skipped_updates"] > 3
    tiny = with_fields(tiny, {"optimizer.learning_rate": 1e-3})
    assert train_and_evaluate(tiny, tmp_path / "other")["skipped_updates"] == 0
