"""The runs behind figures: which are shared, what a command line may set, what is trained again."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import expect_input_error, seal_of

from memsinks_jax.config import InputError
from memsinks_jax.studies.figures import runs
from memsinks_jax.studies.figures.runs import Variation, make_jobs
from memsinks_jax.variants import CONFIGS

FILE = CONFIGS / "ts_repetition.py"


def jobs(out, chosen, overrides=(), workdirs=None, seeds=(0,)):
    shared = {} if workdirs is None else workdirs
    return make_jobs(FILE, "laptop", chosen, list(seeds), list(overrides), out, shared)


def test_a_variation_sets_its_fields_and_those_of_the_command_line(tmp_path):
    chosen = {
        "few": Variation("sinks", {"sinks.active_fraction": 0.1}),
        "small": Variation("standard,half"),
    }
    few, small = jobs(tmp_path, chosen, ["--config.model.layers=2"], seeds=[3])
    assert (few.config.sinks.active_fraction, few.config.model.layers) == (0.1, 2)
    assert few.config.seed == 3
    assert (small.config.model.d_model, small.config.model.hidden) == (64, 256)
    assert small.config.sinks.kind == "none"
    assert few.workdir == tmp_path / "runs" / "few-seed3"
    with expect_input_error("--config.sinks.active_fraction is what is varied here"):
        jobs(tmp_path, chosen, ["--config.sinks.active_fraction=0.2"])
    words = "ts_repetition.py has no 'sink'; choose one of: sinks, context"
    with expect_input_error(words):
        jobs(tmp_path, {"one": Variation("sink")})


def test_a_variation_may_have_a_config_file_of_its_own(tmp_path):
    canary = Variation("standard", {}, "ts_canary.py")
    here, there = jobs(tmp_path, {"here": Variation("standard"), "there": canary})
    assert (here.config.canaries.documents, there.config.canaries.documents) == (0, 10)
    assert there.flags[0] == f"--config={CONFIGS / 'ts_canary.py'}:standard,laptop"


def test_runs_of_the_same_config_have_one_workdir(tmp_path):
    shared = {}
    (one,) = jobs(tmp_path / "a", {"sinks": Variation("sinks")}, workdirs=shared)
    varied = {f"active_{p}": Variation("sinks", {"sinks.active_fraction": p}) for p in (0.3, 0.5)}
    same, other = jobs(tmp_path / "b", varied, workdirs=shared)
    assert same.workdir == one.workdir
    assert other.workdir == tmp_path / "b" / "runs" / "active_0.5-seed0"


@pytest.fixture
def started(monkeypatch):
    """Variants and workdirs of the runs that were started, in the place of training."""
    names = []

    def start(job, cores):
        names.append((job.variant, job.workdir.name))
        job.workdir.mkdir(parents=True, exist_ok=True)
        job.log.write_text("")
        seal_of(job.workdir, str(len(names)))
        (job.workdir / "metrics.jsonl").write_text('{"step": 1, "held_out_loss": 2.0}\n')
        return subprocess.Popen([sys.executable, "-S", "-c", ""])

    monkeypatch.setattr(runs, "_start", start)
    return names


def test_what_is_finished_is_not_started_again(tmp_path, started):
    chosen = {"one": Variation("sinks"), "the same": Variation("sinks")}
    planned = jobs(tmp_path, chosen | {"other": Variation("standard")})
    found = runs.train_all(planned, 2)
    assert started == [("one", "one-seed0"), ("other", "other-seed0")]
    assert [run.variant for run in found] == ["one", "the same", "other"]
    assert found[1].metrics["held_out_loss"] == 2.0
    runs.train_all(planned, 2)
    assert len(started) == 2
    # left behind by a run of another config
    planned[2].mark.write_text(planned[0].mark.read_text())
    runs.train_all(planned, 2)
    assert started[2:] == [("other", "other-seed0")]
    shutil.rmtree(planned[2].workdir / "checkpoints")
    seal_of(planned[2].workdir, "half")  # trained by hand since, and perhaps not to the end
    runs.train_all(planned, 2)
    assert started[3:] == [("other", "other-seed0")]
    (planned[2].workdir / "checkpoints" / "1" / "seal.json").write_text("{")
    assert not planned[2].finished


def test_a_run_on_other_files_is_not_reused(tmp_path, started, monkeypatch):
    read = []
    monkeypatch.setattr(runs.workdirs, "read_corpus", read.append)
    runs._check_data.cache_clear()
    flags = ["--config.data.files=a.txt"]
    (job,) = make_jobs(CONFIGS / "smoke.py", "", {"sinks": Variation("")}, [0], flags, tmp_path, {})
    for _ in range(3):
        runs.train_all([job], 1)
    assert (len(started), read) == (1, [job.workdir])

    def changed(workdir):
        raise InputError(f"the documents are not those that {workdir} was started on")

    monkeypatch.setattr(runs.workdirs, "read_corpus", changed)
    runs._check_data.cache_clear()
    with expect_input_error("the documents are not those that"):
        runs.train_all([job], 1)


@pytest.mark.parametrize(
    ("several", "given", "expected"), [(False, "", ""), (True, "", "false"), (True, "true", "true")]
)
def test_runs_at_once_share_the_memory_of_an_accelerator(
    several, given, expected, tmp_path, monkeypatch
):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "preallocate: $XLA_PYTHON_CLIENT_PREALLOCATE"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    if given:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", given)
    (job,) = jobs(tmp_path, {"sinks": Variation("sinks")})
    assert runs._start(job, os.sched_getaffinity(0) if several else None).wait() == 0
    assert job.log.read_text() == f"preallocate: {expected}\n"
