"""The command: what it writes, what it refuses, how it stops and resumes."""

import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import ROOT, expect_input_error

from memsinks_jax.labs import induction_head as command
from memsinks_jax.studies.labs.induction_head import (
    bigrams,
    construction,
    experiments,
    measures,
    sinks,
    training,
)
from memsinks_jax.studies.labs.induction_head.presets import Preset
from memsinks_jax.studies.labs.study import write

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "0 different"),
        (b"aaaa", "1 different"),
        ("".join(map(chr, range(300, 2400))).encode(), "2 to 2048"),
        (b"\xff\xfe\x00abc", "in UTF-8"),
    ],
)
def test_texts_that_cannot_be_used(content, message, tmp_path):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with expect_input_error(message) as refusal:
        bigrams.read_text(tmp_path / "text")
    assert "\n" not in str(refusal.value) and "--text=" in str(refusal.value)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"k": 66}, "--k=66"),
        ({"k": 0}, "--k=0"),
        ({"seeds": (2**31,)}, "--seeds"),
        ({"d": 4}, "--d=4"),
        ({"d": 130}, "--d=130"),
        ({"batch": 0}, "--batch=0"),
        ({"batch": 100}, "--batch=100"),
        ({"steps": 1}, "--steps=1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(chosen, message):
    with expect_input_error(message):
        Preset("laptop", bigrams.bundled(), **chosen).check()


@pytest.mark.parametrize("name", command.EXPERIMENTS)
@pytest.mark.parametrize("size", ["laptop", "paper"])
def test_every_recipe_can_be_made(name, size):
    """Also for another text and number of triggers; the paper's sizes are the paper's."""
    for statistics in (
        bigrams.bundled(),
        bigrams.count("the quick brown fox jumps over the lazy dog. " * 9, "here"),
    ):
        preset = Preset(size, statistics, k=3).check()
        for recipe in command.EXPERIMENTS[name].recipes(preset).values():
            assert recipe.law.check(statistics).length == 256 or size == "laptop"
            assert recipe.batch <= training.AT_ONCE or recipe.batch % training.AT_ONCE == 0


def test_experiments_share_their_runs():
    preset = Preset("laptop", bigrams.bundled())
    recipes = {
        name: set(experiment.recipes(preset).values())
        for name, experiment in command.EXPERIMENTS.items()
    }
    assert recipes["E1"] == recipes["E8"]
    assert recipes["E3"] & recipes["E5"] and recipes["E6"] & recipes["E11"]


@pytest.mark.slow
def test_a_stopped_run_says_so_and_goes_on(tmp_path):
    flags = ["--experiment=E1", "--steps=4000", "--d=8", "--batch=4", "--seeds=5"]
    stopped = subprocess.Popen(
        [sys.executable, "-m", "memsinks_jax.labs.induction_head", f"--out={tmp_path}/out", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    runs, deadline = tmp_path / "out" / "runs", time.monotonic() + 120
    while not runs.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    stopped.send_signal(signal.SIGTERM)
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 75, errors
    assert b"run the same command again" in errors
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs"]
    (checkpoint,) = runs.iterdir()
    with np.load(checkpoint) as stored:
        assert 0 < int(stored["step"]) < 4000


CONSTRUCTED = {"acc_clean": 0.5, "acc_end": 0.5, "score_acc": 0.5, "wo1": 1.0, "wk1": 1.0}
CONSTRUCTED |= {"wk0": 1.0, "wk0_64": 1.0, "beta = infinity": 0.4, "W_O^2 alone": 0.1}
CONSTRUCTED |= {"W_O^2 and W_K^2": 0.2, "W_K^1 for t < 64": 0.4}


def made_up(recipe, statistics, seed):
    """A run that never was: its curves and rates are noise, with the names of a real one's."""
    rng = np.random.default_rng(seed)
    names = (
        "acc_tot acc_end acc_clean acc_second loss_head loss_bigram wo1 wk1 wk0 wk0_64 ff1 "
        "score_acc score2_acc"
    )
    names = [*names.split(), "score2_next_acc", "other_acc_clean", "other_acc_end"]
    curves = {name: rng.random(50) for name in names} | {
        "step": np.arange(1, 51) * recipe.steps // 50
    }
    if isinstance(recipe, sinks.World):
        both = [f"{who} {mode} " for who in ("fresh", "pool") for mode in sinks.MODES]
        curves |= {
            start + name: rng.random(50) for start in both for name in ("acc_clean", "loss_bigram")
        }
        names = [
            f"{name} {mode}" for name in ("accuracy", "global", "by heart") for mode in sinks.MODES
        ]
    weights = recipe.model.initial(
        jax.random.key(seed), len(statistics.characters), recipe.law.length
    )
    return training.Run(
        recipe, seed, curves, weights, {name: float(rng.random()) for name in names}
    )


QUICK = ("E1", "E2", "E8", "sinks")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in command.EXPERIMENTS
        if name != "construction"
    ],
)
def test_every_experiment_claims_and_draws(name, tmp_path, monkeypatch):
    monkeypatch.setattr(construction, "evaluate", lambda *_: CONSTRUCTED)
    monkeypatch.setattr(experiments, "BY_POSITION", 16)
    monkeypatch.setattr(measures, "SEQUENCES", 64)
    experiment = command.EXPERIMENTS[name]
    preset = Preset("laptop", bigrams.bundled(), seeds=(0, 1), d=8)
    runs = {
        label: [made_up(recipe, preset.statistics, seed) for seed in preset.seeds]
        for label, recipe in experiment.recipes(preset).items()
    }
    study = experiment.study(preset, runs)
    content = write(tmp_path, {"experiment": name}, command.TITLE, [study], "a command")
    assert study.claims and len({claim.id for claim in study.claims}) == len(study.claims)
    assert len(content["runs"]) >= len(runs) * 2
    assert (tmp_path / f"experiment_{name}.png").stat().st_size > 10_000
    json.dumps(content, allow_nan=False)


def test_the_constructions_page(tmp_path, monkeypatch):
    monkeypatch.setattr(construction, "evaluate", lambda *_: CONSTRUCTED)
    recalled = {"wo1": 0.2, "wk1": 0.9, "wk0": 0.1, "wk0_64": 0.2}
    monkeypatch.setattr(construction, "gradient_order", lambda *_: recalled)
    preset = Preset("laptop", bigrams.bundled())
    study = command.EXPERIMENTS["construction"].study(preset, {})
    about = {"experiment": "construction"}
    content = write(tmp_path, about, command.TITLE, [study, study], "a command")
    assert (tmp_path / "experiment_construction.png").exists()
    verdicts = {claim["id"]: claim["holds"] for claim in content["claims"]}
    assert verdicts["construction: probes: d=128"] and not verdicts["construction: accuracy: d=256"]


def test_sinks_are_compared_at_equal_width():
    recipes = command.EXPERIMENTS["sinks"].recipes(Preset("laptop", bigrams.bundled()))
    one, other = recipes.values()
    assert one.shared + one.sinks == other.shared + other.sinks and not one.sinks and other.sinks
    assert one.law == other.law and one.steps == other.steps
