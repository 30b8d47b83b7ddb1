"""Whole runs: stopping and resuming anywhere changes no bit, and a workdir is never
half-written.
"""

import logging
import os
import re
import shutil

import jax
import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config

from memsinks_jax.api import evaluate
from memsinks_jax.config import MeshConfig, with_fields
from memsinks_jax.data.counts import counts
from memsinks_jax.data.ids import to_hex
from memsinks_jax.forgetting.removal import Request, forget
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.audit import audit
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdir_module
from memsinks_jax.runs.interruption import Interrupted, locked
from memsinks_jax.training.metrics import MetricWriter, read_metrics


def outcome(workdir):
    """Parameters and everything that was written, but for the speed."""
    lines = [
        {k: v for k, v in line.items() if k != "tokens_per_second"}
        for line in read_metrics(workdir)
    ]
    return jax.device_get(open_run(workdir).params), lines


def interrupted(config, workdir, after=1):
    with pytest.raises(Interrupted, match=f"saved step {after} of "):
        train_and_evaluate(config, workdir, should_stop=lambda step: step == after)


def assert_same(one, other):
    """Two runs, to the bit."""
    (params, lines), (others, other_lines) = outcome(one), outcome(other)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, others))
    assert lines == other_lines


@pytest.fixture
def tiny(tiny):
    return with_fields(tiny, {"model.layers": 1})  # its runs share the program of the straight one


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 5 steps from start to end, on eight devices."""
    config = tiny_config()
    config = with_fields(config, {"model.layers": 1})  # each is traced anew
    workdir = tmp_path_factory.mktemp("straight") / "run"
    summary = train_and_evaluate(config, workdir)
    return config, workdir, summary


def test_a_run_writes_what_the_contract_says(straight):
    config, workdir, summary = straight
    assert {"step", "train_loss", "tokens", "tokens_per_second"} <= set(summary)
    assert summary["step"] == 5
    names = "checkpoints config.json data.json documents.jsonl lock metrics.jsonl tensorboard"
    assert sorted(path.name for path in workdir.iterdir()) == [*names.split(), "tokenizer.model"]
    for name, steps in (("held_out_loss", [2, 4, 5]), ("train_loss", [1, 2, 3, 4, 5])):
        assert [line["step"] for line in read_metrics(workdir) if name in line] == steps
    last = read_metrics(workdir)[-1]
    assert {"held_out_loss", "repeated_loss", "repeated_loss_own", "entropy_floor"} <= set(last)
    assert 0 < last["entropy_floor"] < last["held_out_loss"]
    roles = read_lines(workdir / "documents.jsonl")
    assert sum(row["encounters"] for row in roles) == 24 + 2 * 8
    assert list((workdir / "tensorboard").glob("events*"))


@pytest.mark.slow
def test_a_run_of_muon_stops_and_resumes_without_changing_a_bit(tmp_path):
    fields = {"model.layers": 1, "optimizer.kind": "muon", "optimizer.schedule": "wsd"}
    fields |= {"sinks.sparse": True, "sinks.sampling": "floyd", "sinks.pool": 40}
    config = with_fields(tiny_config(), fields)
    train_and_evaluate(config, tmp_path / "straight")
    interrupted(config, tmp_path / "run", 3)
    train_and_evaluate(config, tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "straight")


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_stopping_at_any_step_and_resuming_changes_no_bit(straight, tmp_path, stop):
    config, workdir, summary = straight
    interrupted(config, tmp_path / "run", stop)
    resumed = train_and_evaluate(config, tmp_path / "run")
    assert resumed["step"] == 5
    assert resumed["tokens"] == summary["tokens"]
    assert_same(tmp_path / "run", workdir)


@pytest.mark.slow
def test_documents_that_come_every_few_steps_are_measured_around_them(tmp_path):
    """Every fourth step reads them: the losses of the step before, of this one and the next;
    stopped and resumed too.
    """
    schedule = "memsinks_jax.studies.schedules:EveryNth,steps=4"
    fields = {"model.layers": 1, "data.repeated_documents": 1, "data.schedule": schedule}
    fields |= {"data.unique_documents": 64, "training.evaluate_every": 100}
    config = with_fields(tiny_config(), fields | {"training.checkpoint_every": 100})
    train_and_evaluate(config, tmp_path / "straight")
    lines = read_metrics(tmp_path / "straight")
    measured = [line["step"] for line in lines if "repeated_loss_own" in line]
    assert measured == [3, 4, 5, 7, 8, 9]
    assert [line["step"] for line in lines if "held_out_loss" in line] == [9]
    losses = {line["step"]: line.get("repeated_loss_own") for line in lines}
    assert losses[4] < losses[3] and losses[8] < losses[7]  # it has just been read
    for stop in (4, 6):
        interrupted(config, tmp_path / f"stop{stop}", stop)
        train_and_evaluate(config, tmp_path / f"stop{stop}")
        assert outcome(tmp_path / f"stop{stop}")[1] == outcome(tmp_path / "straight")[1]


@pytest.mark.slow
def test_a_run_may_hold_out_nothing(tmp_path):
    """Then its held-out measures are absent, and what needs held-out documents says so."""
    config = tiny_config()
    words = [
        f"The tale of number {n}, which met {n * 7 % 41} and became {n * n}." for n in range(30)
    ]
    (tmp_path / "tales.txt").write_text("\n<|endoftext|>\n".join(words + words[:2]))
    fields = {"model.layers": 1, "training.steps": 1, "data.held_out_documents": 0}
    fields |= {"data.files": str(tmp_path / "tales.txt"), "data.unique_documents": -1}
    config = with_fields(config, fields)
    for name, repeated in (("injected", 2), ("natural", -1), ("none", 0)):
        config = with_fields(config, {"data.repeated_documents": repeated})
        workdir = tmp_path / name
        result = train_and_evaluate(config, workdir)
        assert not any(key.startswith("held_out") for key in result)
        assert ("repeated_loss" in result) == (repeated != 0)
        roles = {line["role"] for line in read_lines(workdir / "documents.jsonl")}
        assert roles == ({"repeated", "unique"} if repeated else {"unique"})
        written = outcome(workdir)[1]
        assert train_and_evaluate(config, workdir) == result and outcome(workdir)[1] == written
    workdir = tmp_path / "injected"
    with expect_input_error("injected has no held_out documents; choose another of --documents"):
        evaluate(workdir, "drop")
    assert evaluate(workdir, "drop", role="repeated")["documents"] == 2
    with expect_input_error(
        "has no held_out documents to measure; give files of others: --non_mem"
    ):
        audit(workdir)
    corpus = workdir_module.read_corpus(workdir)
    first = Request(ids=(to_hex(corpus.identities([0])[0]),))
    assert "held_out" not in forget(workdir, first, tmp_path / "f")["losses"]
    assert [line["role"] for line in counts(corpus)["mixture"]] == ["repeated", "unique"]


def test_a_finished_run_is_not_trained_again(straight, tmp_path):
    config, workdir, summary = straight
    shutil.copytree(workdir, tmp_path / "before")
    assert train_and_evaluate(config, workdir) == summary
    assert_same(workdir, tmp_path / "before")


@pytest.mark.parametrize(
    "mesh", [MeshConfig(2, 2, 2), pytest.param(MeshConfig(4, 1, 2), marks=pytest.mark.slow)]
)
def test_resuming_on_another_mesh(straight, tmp_path, mesh):
    """The same batches, the same masks, the same losses to rounding; the workdir then says the new
    mesh.
    """
    config, workdir, _ = straight
    interrupted(config, tmp_path / "run", 2)
    config = with_fields(config, {"mesh": mesh})
    train_and_evaluate(config, tmp_path / "run")
    assert workdir_module.read_config(tmp_path / "run").mesh == mesh
    for line, expected in zip(outcome(tmp_path / "run")[1], outcome(workdir)[1], strict=True):
        assert line == pytest.approx(expected, rel=1e-4)


def test_another_config_is_refused_and_nothing_is_changed(straight):
    config, workdir, _ = straight
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    config = with_fields(config, {"data.repetitions": 9})
    with expect_input_error(
        r"holds a run with another config: data.repetitions is 8 there and 9 here"
    ):
        train_and_evaluate(config, workdir)
    assert {
        path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()
    } == before


def test_a_folder_that_is_no_workdir_is_refused(tiny, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with expect_input_error("is not a run's workdir"):
        train_and_evaluate(tiny, tmp_path)
    with expect_input_error("is not a run's workdir"):
        train_and_evaluate(tiny, tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"training.batch_size": 12}, "does not divide"),
        ({"data.files": "nothing/*.txt"}, "matches no file"),
        ({"sinks.slowing_power": 200.0}, r"is 200.0; it must lie in \(0, 100\]"),
        ({"sinks.shared_fraction": 1.0}, "shared_fraction=1.0 leaves no neuron to be a sink"),
        ({"sinks.active_fraction": 1e-4}, "=0.0001: most documents would have no sink; raise it"),
    ],
)
def test_what_is_refused_leaves_no_workdir(tiny, tmp_path, fields, message):
    with expect_input_error(message):
        train_and_evaluate(with_fields(tiny, fields), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_documents_that_changed_are_refused(tiny, tmp_path):
    path = tmp_path / "texts.txt"
    texts = [f"Story number {n} about the number {n * n} and how it came to be." for n in range(40)]
    path.write_text("\n<|endoftext|>\n".join(texts))
    tiny = with_fields(tiny, {"data.files": str(path), "data.repeated_documents": 3})
    with pytest.raises(Interrupted):
        train_and_evaluate(tiny, tmp_path / "run", should_stop=lambda step: step == 1)
    path.write_text("\n<|endoftext|>\n".join([*texts[:-1], "Another story altogether."]))
    with expect_input_error("the documents are not those that .* was started on"):
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


def test_stopping_in_an_evaluation_and_resuming_changes_no_bit(straight, tmp_path):
    """The second poll after step 2 comes from within its evaluation; what it had measured is
    measured again.
    """
    config, workdir, _ = straight
    polls = []

    def stop(step):
        polls.append(step)
        return polls.count(2) == 2

    with pytest.raises(Interrupted, match="saved step 2 of 5"):
        train_and_evaluate(config, tmp_path / "run", stop)
    assert not any("held_out_loss" in line for line in read_metrics(tmp_path / "run"))
    train_and_evaluate(config, tmp_path / "run")
    assert_same(tmp_path / "run", workdir)


def test_stopping_in_the_last_evaluation_leaves_it_to_be_done(straight, tmp_path):
    config, workdir, summary = straight
    polls = []
    with pytest.raises(Interrupted, match="saved step 5 of 5"):
        train_and_evaluate(
            config, tmp_path / "run", lambda step: polls.append(step) or polls.count(5) == 2
        )
    again = train_and_evaluate(config, tmp_path / "run")
    assert again | {"tokens_per_second": 0} == summary | {"tokens_per_second": 0}
    assert outcome(tmp_path / "run")[1] == outcome(workdir)[1]


def test_another_tokenizer_is_refused(tiny, tmp_path):
    interrupted(tiny, tmp_path / "run")
    tiny = with_fields(tiny, {"seed": 1})
    interrupted(tiny, tmp_path / "other")
    tiny = with_fields(tiny, {"seed": 0})
    shutil.copy(tmp_path / "other" / "tokenizer.model", tmp_path / "run")
    with expect_input_error(r"tokenizer.model is not the tokenizer that .* was trained with"):
        train_and_evaluate(tiny, tmp_path / "run")


def test_two_runs_on_one_workdir_are_refused(tiny, tmp_path):
    interrupted(tiny, tmp_path / "run")
    with (
        locked(tmp_path / "run", "another run is training in run"),
        expect_input_error(rf"another run is training in .*run \(process {os.getpid()} on "),
    ):
        train_and_evaluate(tiny, tmp_path / "run")
    train_and_evaluate(tiny, tmp_path / "run")


def test_what_decides_nothing_may_change_when_a_run_goes_on(straight, tmp_path):
    config, workdir, _ = straight
    interrupted(config, tmp_path / "run")
    config = with_fields(config, {"training.checkpoint_every": 1, "training.keep_every": 2})
    train_and_evaluate(config, tmp_path / "run")
    assert workdir_module.read_config(tmp_path / "run") == config
    assert outcome(tmp_path / "run")[1] == outcome(workdir)[1]


def test_what_is_monitored_may_change_when_a_run_is_resumed(straight, tmp_path):
    """From there on the run writes what one with the new settings writes; also what was due after
    the step it stopped at.
    """
    config, workdir, _ = straight
    config = with_fields(config, {"training.evaluate_every": 100, "training.log_every": 3})
    interrupted(config, tmp_path / "run", 4)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [3]
    config = with_fields(config, {"training.evaluate_every": 2, "training.log_every": 1})
    train_and_evaluate(config, tmp_path / "run")
    (params, lines), (expected_params, expected_lines) = outcome(tmp_path / "run"), outcome(workdir)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, expected_params))
    assert lines[1:] == [
        line
        for line in expected_lines
        if line["step"] > 4 or line["step"] == 4 and "held_out_loss" in line
    ]
    config = with_fields(config, {"training.evaluate_every": 3})
    train_and_evaluate(config, tmp_path / "run")
    assert workdir_module.read_config(tmp_path / "run") == config
    assert outcome(tmp_path / "run")[1] == lines


def test_other_versions_are_reported(straight, tmp_path, monkeypatch, caplog):
    config, _, _ = straight
    interrupted(config, tmp_path / "run")
    monkeypatch.setattr(logging.getLogger("memsinks_jax"), "propagate", True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    train_and_evaluate(config, tmp_path / "run")
    assert re.search(r"other versions than at the last save \(jax \S+ -> 9.9", caplog.text)


@pytest.mark.slow
def test_some_steps_are_recorded_by_the_profiler(tiny, tmp_path):
    tiny = with_fields(tiny, {"training.steps": 4})
    train_and_evaluate(tiny, tmp_path / "run", profiled=range(2, 4))
    recorded = list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert len(recorded) == 1 and recorded[0].stat().st_size > 1000


def test_a_model_is_opened_where_its_kernel_cannot_run(straight, tmp_path):
    """Trained on a TPU with its kernel by name; how it was computed there is nothing to evaluate
    with here.
    """
    _, workdir, _ = straight
    shutil.copytree(workdir, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"attention": "auto"', '"attention": "splash"'))
    assert open_run(tmp_path / "run").config.compute.attention == "auto"
