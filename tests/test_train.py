"""Whole runs: stopping anywhere and resuming changes no bit, and a workdir is never half-written."""

import json
import pathlib

import jax
import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.command_line import Interrupted
from memsinks_jax.config import InputError, MeshConfig
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.trained import open_run
from memsinks_jax.training.metrics import MetricWriter, read_metrics


def outcome(workdir):
    """Parameters and everything that was written, but for the speed."""
    lines = [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in read_metrics(workdir)]
    return jax.device_get(open_run(workdir).params), lines


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 5 steps from start to end, on eight devices."""
    config = tiny_config()
    workdir = tmp_path_factory.mktemp("straight") / "run"
    summary = train_and_evaluate(config, workdir)
    return config, workdir, summary


def test_a_run_writes_what_the_contract_says(straight):
    config, workdir, summary = straight
    assert {"step", "train_loss", "tokens", "tokens_per_second"} <= set(summary)
    assert summary["step"] == 5
    names = {path.name for path in workdir.iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "checkpoints",
        "tokenizer.model",
        "documents.jsonl",
        "tensorboard",
        "lock",
    } == names
    steps = [line["step"] for line in read_metrics(workdir) if "held_out_loss" in line]
    assert steps == [2, 4, 5]
    assert [line["step"] for line in read_metrics(workdir) if "train_loss" in line] == [1, 2, 3, 4, 5]
    last = read_metrics(workdir)[-1]
    assert {"held_out_loss", "repeated_loss", "repeated_loss_own", "entropy_floor"} <= set(last)
    assert 0 < last["entropy_floor"] < last["held_out_loss"]
    roles = [json.loads(line) for line in (workdir / "documents.jsonl").read_text().splitlines()]
    assert sum(row["encounters"] for row in roles) == 24 + 2 * 8
    assert list(pathlib.Path(workdir / "tensorboard").glob("events*"))


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_stopping_at_any_step_and_resuming_changes_no_bit(straight, tmp_path, stop):
    config, workdir, summary = straight
    with pytest.raises(Interrupted, match=f"saved step {stop} of 5"):
        train_and_evaluate(config, tmp_path / "run", should_stop=lambda step: step == stop)
    resumed = train_and_evaluate(config, tmp_path / "run")
    assert resumed["step"] == 5
    assert resumed["tokens"] == summary["tokens"]
    expected_params, expected_lines = outcome(workdir)
    params, lines = outcome(tmp_path / "run")
    assert jax.tree.all(jax.tree.map(np.array_equal, params, expected_params))
    assert lines == expected_lines


def test_a_finished_run_is_not_trained_again(straight):
    config, workdir, summary = straight
    before = outcome(workdir)
    again = train_and_evaluate(config, workdir)
    assert again == summary
    after = outcome(workdir)
    assert after[1] == before[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, after[0], before[0]))


def test_resuming_on_another_mesh(straight, tmp_path, monkeypatch):
    """8 -> 4 x 2 devices: the same batches, the same masks, the same losses to rounding. The mesh is part of the config,
    so the workdir's is edited as a user would."""
    config, workdir, _ = straight
    with pytest.raises(Interrupted):
        train_and_evaluate(config, tmp_path / "run", should_stop=lambda step: step == 2)
    path = tmp_path / "run" / "config.json"
    edited = json.loads(path.read_text())
    edited["mesh"] = {"data": 2, "fsdp": 2, "tensor": 2}
    path.write_text(json.dumps(edited))
    mesh = config.mesh
    try:
        config.mesh = MeshConfig(2, 2, 2)
        train_and_evaluate(config, tmp_path / "run")
    finally:
        config.mesh = mesh
    for line, expected in zip(outcome(tmp_path / "run")[1], outcome(workdir)[1], strict=True):
        assert line == pytest.approx(expected, rel=1e-4)


def test_another_config_is_refused_and_nothing_is_touched(straight):
    config, workdir, _ = straight
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    config.data.repetitions = 9
    try:
        with pytest.raises(
            InputError, match=r"holds a run with another config: data.repetitions is 8 there and 9 here"
        ):
            train_and_evaluate(config, workdir)
    finally:
        config.data.repetitions = 8
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_no_workdir_is_refused(tiny, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a run's workdir"):
        train_and_evaluate(tiny, tmp_path)
    with pytest.raises(InputError, match="is not a run's workdir"):
        train_and_evaluate(tiny, tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("batch_size", [12])
def test_what_is_refused_leaves_no_workdir(tiny, tmp_path, batch_size):
    tiny.training.batch_size = batch_size
    with pytest.raises(InputError, match="does not divide"):
        train_and_evaluate(tiny, tmp_path / "run")
    tiny.training.batch_size, tiny.data.files = 8, str(tmp_path / "*.txt")
    with pytest.raises(InputError, match="matches no file"):
        train_and_evaluate(tiny, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_documents_that_changed_are_refused(tiny, tmp_path):
    path = tmp_path / "texts.txt"
    texts = [f"Story number {n} about the number {n * n} and how it came to be." for n in range(40)]
    path.write_text("\n<|endoftext|>\n".join(texts))
    tiny.data.files, tiny.data.repeated_documents = str(path), 3
    with pytest.raises(Interrupted):
        train_and_evaluate(tiny, tmp_path / "run", should_stop=lambda step: step == 1)
    path.write_text("\n<|endoftext|>\n".join([*texts[:-1], "Another story altogether."]))
    with pytest.raises(InputError, match="the documents are not those that .* was started on"):
        train_and_evaluate(tiny, tmp_path / "run")


def test_metric_lines_after_the_checkpoint_are_taken_back(tmp_path):
    writer = MetricWriter(tmp_path, 0)
    for step in (1, 2, 3):
        writer.write(step, {"loss": float(step)})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # killed while writing
    MetricWriter(tmp_path, 2).close()
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}]
