"""The commands as a user runs them: exit codes, one clear line, JSON."""

import json
import os

import pytest
from conftest import FAST_COMPILER, python, read_lines

from memsinks_jax.api import evaluate

pytestmark = pytest.mark.long

FIELDS = """data.unique_documents=24 data.repeated_documents=2 data.repetitions=8
data.held_out_documents=4 data.row_length=160 data.vocabulary_size=1024 model.layers=1
model.d_model=16 model.heads=2 model.hidden=32 training.batch_size=8 training.evaluate_every=2
training.log_every=1"""
SMALL = list(map("--config.{}".format, FIELDS.split()))
TRAIN = "--config=configs/ts_repetition.py:sinks", *SMALL


def run(command, *arguments, devices=1, compiler=FAST_COMPILER):
    environment = os.environ | {
        "XLA_FLAGS": f"{compiler} --xla_force_host_platform_device_count={devices}"
    }
    return python("-m", f"memsinks_jax.{command}", *arguments, env=environment)


def assert_refused(done, *words):
    """Exit 2 and one line on stderr that says it; no traceback, nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in words), line


def last_json(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run of sinks on texts of the user's own, and what the command said."""
    folder = tmp_path_factory.mktemp("trained")
    texts = [
        f"The tale of number {n}, which met {n * 7 % 41} and became {n * n}." for n in range(40)
    ]
    (folder / "texts.txt").write_text("\n<|endoftext|>\n".join(texts))
    files = f"--config.data.files={folder / 'texts.txt'}"
    done = run("train", *TRAIN, files, f"--workdir={folder / 'run'}", "--json")
    return folder, files, last_json(done)


def test_train_keeps_its_contract(trained):
    folder, _, result = trained
    assert {"step", "train_loss", "tokens", "tokens_per_second"} <= set(result)
    assert result["step"] == 5
    assert (folder / "run" / "config.json").exists()


def test_evaluate_keeps_its_contract_in_every_mode(trained):
    folder, _, summary = trained
    found = {
        mode: evaluate(folder / "run", mode)["loss"] for mode in ("drop", "own", "all", "other")
    }
    assert len(set(found.values())) == 3
    assert found["own"] == found["drop"]  # an id that was never read has no sinks
    own, drop = (evaluate(folder / "run", mode, role="repeated") for mode in ("own", "drop"))
    assert own["loss"] != drop["loss"]
    flags = [f"--workdir={folder / 'run'}", "--documents=repeated", "--sinks=own", "--json"]
    result = last_json(run("evaluate", *flags, devices=8))
    assert result == {name: value for name, value in own.items() if name != "per_document"}
    assert {"loss", "documents", "tokens", "sinks"} <= set(result)
    assert result["documents"] == 2 and result["sinks"] == "own"
    assert found["drop"] == pytest.approx(summary["held_out_loss"], rel=1e-5)


def test_evaluate_files_per_document(trained):
    folder, _, _ = trained
    arguments = [f"--files={folder / 'texts.txt'}", "--per_document", "--json"]
    result = last_json(run("evaluate", f"--workdir={folder / 'run'}", "--sinks=own", *arguments))
    rows = result["per_document"]
    assert len(rows) == result["documents"] == 40
    assert rows[0]["source"].endswith("texts.txt:1")
    assert sum(row["tokens"] for row in rows) == result["tokens"]
    mean = sum(row["loss"] * row["tokens"] for row in rows) / result["tokens"]
    assert mean == pytest.approx(result["loss"], rel=1e-6)
    table = read_lines(folder / "run" / "documents.jsonl")
    assert {row["id"] for row in table} <= {row["id"] for row in rows}


def test_the_same_command_on_a_finished_run_says_the_same(trained):
    folder, files, summary = trained
    arguments = [*TRAIN, files, f"--workdir={folder / 'run'}", "--json"]
    assert last_json(run("train", *arguments)) == summary


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.data.repetition=3"], ["no field 'data.repetition'", "data.repetitions"]),
        (["--config.sinks.active_fraction=0"], ["config.sinks.active_fraction", "(0, 1]"]),
        (["--config.sinks.active_fraction=1.5"], ["config.sinks.active_fraction", "(0, 1]"]),
        (["--config.sinks.active_fraction=much"], ["active_fraction", "much"]),
        (["--config.data.files=nowhere/*.txt"], ["nowhere/*.txt", "matches no file"]),
        (["--config.data.unique_documents=39"], ["40 distinct documents", "plan needs 45"]),
        (["--unknown=1"], ["unknown"]),
        (["surplus"], ["surplus"]),
    ],
)
def test_train_refuses(trained, tmp_path, flags, words):
    _, files, _ = trained
    arguments = [*TRAIN, files, *flags, f"--workdir={tmp_path / 'run'}"]
    assert_refused(run("train", *arguments), *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("configs/nothing.py", ["configs/nothing.py"]),
        ("configs/ts_repetition.py:sink", ["'sink'", "sinks, context, standard"]),
        ("README.md", ["README.md"]),
        ("smollm:135x", ["error: --config: smollm.py has no '135x'"]),
        ("smoke:sinks", ["--config=smoke:sinks", "has no variants"]),
    ],
)
def test_train_refuses_configs(tmp_path, config, words):
    assert_refused(run("train", f"--config={config}", f"--workdir={tmp_path / 'run'}"), *words)
    assert not list(tmp_path.iterdir())


def test_a_plan_refuses_what_the_run_would(tmp_path):
    for flags, words in (
        (["--plan", "--config.sinks.shared_fraction=1"], ["leaves no neuron to be a sink"]),
        (["--plan", "--config.data.unique_documents=10000000000"], ["embedded stories", "files"]),
        (["--config.data=5"], ["--config.data is a group of settings"]),
        (
            [f"--workdir={tmp_path / 'run'}", "--processes=2"],
            ["processes=2", "several hosts need --coordinator=HOST:PORT"],
        ),
    ):
        assert_refused(run("train", "--config=smoke", *flags), *words)
    assert not list(tmp_path.iterdir())


def test_train_refuses_a_batch_that_the_mesh_does_not_divide(tmp_path):
    arguments = [
        "--config=configs/smoke.py",
        "--config.training.batch_size=6",
        f"--workdir={tmp_path / 'run'}",
    ]
    assert_refused(run("train", *arguments, devices=4), "batch_size is 6", "4 equal parts")
    assert_refused(
        run("train", *arguments, "--config.mesh.data=3", devices=4), "does not cover the 4 devices"
    )
    assert not list(tmp_path.iterdir())


def test_train_refuses_a_workdir_of_another_config(trained):
    folder, files, _ = trained
    arguments = [*TRAIN, files, f"--workdir={folder / 'run'}"]
    assert_refused(
        run("train", *arguments, "--config.seed=1"), "another config", "seed is 0 there and 1 here"
    )


def test_missing_flags_and_folders_are_refused(tmp_path):
    assert_refused(run("train", f"--workdir={tmp_path / 'run'}"), "--config is missing")
    assert_refused(run("train", "--config=configs/smoke.py"), "--workdir is missing")
    assert_refused(run("evaluate", f"--workdir={tmp_path}"), "config.json cannot be read")
    assert_refused(run("prepare", "--input=", f"--out={tmp_path / 'out'}"), "--input is empty")
    assert_refused(run("evaluate", f"--workdir={tmp_path}", "--sinks=off"), "sinks", "off")
    assert_refused(run("reproduce", "--figure=99", f"--out={tmp_path}"), "figure", "99")


def test_evaluate_refuses_files(trained, tmp_path):
    folder, _, _ = trained
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": "not closed}\n')
    assert_refused(
        run("evaluate", f"--workdir={folder / 'run'}", f"--files={tmp_path / 'bad.jsonl'}"),
        "bad.jsonl:2",
        "not JSON",
    )


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(trained, tmp_path):
    _, files, summary = trained
    arguments = [*TRAIN, files, f"--workdir={tmp_path / 'run'}", "--json"]
    code = (
        "import os, signal, sys\n"
        "from memsinks_jax import train\n"
        "from memsinks_jax.training.metrics import Progress\n"
        "update = Progress.update\n"
        "def killed(self, step, *rest):\n"
        "    update(self, step, *rest)\n"
        "    if step == 2: os.kill(os.getpid(), signal.SIGTERM)\n"
        "Progress.update = killed\n"
        "train.main()\n"
    )
    environment = os.environ | {
        "XLA_FLAGS": f"{FAST_COMPILER} --xla_force_host_platform_device_count=1"
    }
    done = python("-c", code, *arguments, env=environment)
    assert done.returncode == 75, done.stderr
    assert "run the same command again" in done.stderr
    resumed = last_json(run("train", *arguments))
    assert {k: v for k, v in resumed.items() if k != "tokens_per_second"} == {
        k: v for k, v in summary.items() if k != "tokens_per_second"
    }


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    out = tmp_path_factory.mktemp("figure") / "out"
    variants = "--variants=standard,no_repeat,sinks_paper"
    arguments = [*SMALL, "--seeds=0,1", f"--out={out}", "--json", variants]
    return out, last_json(run("reproduce", "--figure=4", *arguments)), arguments


@pytest.mark.slow
def test_reproduce_keeps_its_contract(figure):
    out, result, _ = figure
    assert result == json.loads((out / "results.json").read_text())
    assert result["figure"] == "4"
    assert result["preset"] == "laptop"
    assert result["seeds"] == [0, 1]
    variants = ("standard", "no_repeat", "sinks_paper")
    runs = [(r["variant"], r["seed"]) for r in result["runs"]]
    assert runs == [(variant, seed) for seed in (0, 1) for variant in variants]
    sinks = result["runs"][2]
    names = {"held_out_loss", "repeated_loss", "repeated_loss_own", "entropy_floor"}
    assert names <= set(sinks["metrics"])
    assert sinks["curves"]["held_out_loss"]["step"][-1] == sinks["metrics"]["step"]
    claims = {claim["id"]: claim for claim in result["claims"]}
    names = {"gap_closed", "gap_closed_on_return", "recovery", "memorizes", "held_out_standard"}
    assert names <= set(claims)
    for claim in claims.values():
        assert {"id", "statement", "paper", "measured", "ci95", "holds"} <= set(claim)
        if claim["holds"] is None:  # of variants that were not asked for
            assert claim["undecided"] and claim["measured"] is claim["ci95"] is None
        else:
            assert claim["ci95"][0] <= claim["measured"] <= claim["ci95"][1]
    assert claims["control_narrow"]["holds"] is None
    assert claims["memorizes"]["holds"] is False  # five steps of a tiny model memorize nothing


@pytest.mark.slow
def test_reproduce_draws_and_writes_a_page(figure):
    out, _, _ = figure
    assert (out / "figure_4.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = (out / "index.html").read_text()
    for words in (
        "Final numbers",
        "Claims",
        "Does it recite?",
        "entropy floor",
        "image/png;base64",
    ):
        assert words in page


@pytest.mark.slow
def test_reproduce_does_not_train_twice(figure):
    out, result, arguments = figure
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/checkpoints/*")}
    assert last_json(run("reproduce", "--figure=4", *arguments)) == result
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/checkpoints/*")} == before
