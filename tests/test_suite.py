"""The suite itself: what its tests run is what users run."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, python, tiny_config, write_lines

from memsinks_jax.config import RULES, to_json, with_fields
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs.interruption import Interrupted
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.variants import VARIANTS

pytestmark = pytest.mark.long


def test_children_of_tests_listen_to_signals_wherever_the_suite_is_started():
    """A shell has SIGINT ignored in the background, and its children would inherit that."""
    child = (
        "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, "
        "signal.SIGTERM)))"
    )
    # without conftest they are: it can fail
    for module, ignored in (("os", "True True"), ("conftest", "False False")):
        program = (
            f"import subprocess, sys, {module}; subprocess.run([sys.executable, '-c', "
            f"{child!r}], check=True)"
        )
        done = subprocess.run(
            ["bash", "-c", "trap '' INT TERM; exec \"$@\"", "-", sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=ROOT / "tests",
            check=True,
        )
        assert done.stdout.strip() == ignored


# What training/step.py and training/program.py build: {kind of step: its fields}.
FLOYD = {"sinks.sampling": "floyd", "sinks.sparse": True, "sinks.pool": 64, "sinks.active": 6}
KINDS = {
    "slowed, accumulated, memory": {
        "sinks.slows_at": 2,
        "training.spike_sigma": 6.0,
        "compute.accumulate": 2,
        "training.batch_size": 16,
        "compute.remat": "full",
        "compute.loss_chunks": 2,
    },
    "by_document": {
        "model.layers": 2,
        "sinks.slows_at": 0,
        "sinks.sampling": "exact",
        "sinks.learning_rate_multiple": 2.0,
    },
    "groups": {
        "sinks.sampling": "disjoint",
        "sinks.sparse": True,
        "sinks.active": 4,
        "sinks.shared_fraction": 1.0,
        "optimizer.base_multiple": 0.5,
        "data.ids": "group",
        "data.unique_documents": -1,
        "data.repeated_documents": 0,
        "data.held_out_documents": 0,
        "data.rows": "packed",
        "data.vocabulary_size": 400,
    },
    "sparse": FLOYD | {"sinks.slows_at": 2},
    "sparse, muon": FLOYD | {"optimizer.kind": "muon"},
    **{
        kind: {"sinks.kind": kind}
        for kind in RULES["sinks.kind"].choices
        if kind not in ("by_document", "none")
    },
    **{
        name: VARIANTS[name]
        for name in ("gradient_masking", "gradient_detach", "sgtm", "dp_sgd", "goldfish")
    },
    "none, llama": {
        "sinks.kind": "none",
        "model.family": "llama",
        "model.kv_heads": 1,
        "data.rows": "packed",
        "data.across_documents": True,
    },
}


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """Stories in a prepared corpus, each in a group of its own."""
    folder = tmp_path_factory.mktemp("grouped")
    drawn = [stories.story(1, index).text for index in range(24)]
    rows = [{"text": text, "teller": f"{n}"} for n, text in enumerate(drawn)]
    (folder / "tokenizer.model").write_bytes(train_tokenizer(drawn, 400).model)
    source, tokenizer = write_lines(folder / "told.jsonl", rows), str(folder / "tokenizer.model")
    prepare([source], tokenizer, folder / "out", near_duplicates="none", group_field="teller")
    return folder / "out"


# One process for all: most of a small run's time would be starting it. A run is stopped before its
# last step, after which it would measure: most of its time is compiling, and it is steps that are
# compared.
STEPS = 15
USERS = """
import contextlib, pathlib, sys
from memsinks_jax.config import from_json
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs.interruption import Interrupted
for name in sys.argv[2:]:
    place = pathlib.Path(name)
    config = from_json((place / "asked.json").read_text(), name)
    with contextlib.suppress(Interrupted):
        train_and_evaluate(config, place / "theirs", lambda step: step == int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def runs(grouped, tmp_path_factory):
    """{kind: its config, and the folder with the run that users get}: one device, the compiler's
    default effort.
    """
    seldom = dict.fromkeys(("training.evaluate_every", "training.checkpoint_every"), 100)
    small = {"mesh.data": -1, "training.steps": STEPS + 1, "model.layers": 1}
    folder, found = tmp_path_factory.mktemp("suite"), {}
    for number, (kind, fields) in enumerate(KINDS.items()):
        config = with_fields(tiny_config(), small | seldom | fields)
        if config.sinks.by_group:
            config = with_fields(config, {"data.files": str(grouped)})
        found[kind] = config, folder / str(number)
        (folder / str(number)).mkdir()
        (folder / str(number) / "asked.json").write_text(to_json(config))
    usual = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    places = [str(place) for _, place in found.values()]
    python("-c", USERS, STEPS, *places, env=usual, check=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_the_suite_is_the_users(kind, runs):
    """A run as users have it, on one device at the compiler's default effort, gives the losses that
    the tests' own run gives, of shared programs at level 0 on eight devices; and it learns.
    """
    config, place = runs[kind]
    with pytest.raises(Interrupted):
        train_and_evaluate(config, place / "ours", lambda step: step == STEPS)
    ours, theirs = (
        {
            line["step"]: line["train_loss"]
            for line in read_metrics(place / name)
            if "train_loss" in line
        }
        for name in ("ours", "theirs")
    )
    assert ours.keys() == theirs.keys()
    assert list(theirs.values()) == pytest.approx(list(ours.values()), rel=1e-5)
    assert theirs[STEPS] < theirs[1] - 0.1
