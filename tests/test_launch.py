"""What the README promises a newcomer, from a fresh clone with an environment of its own. Needs the package index."""

import json
import os
import re
import subprocess

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


def run(command, folder):
    """In a shell that knows nothing of the devices and the compiler that conftest.py sets."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, env=environment | {"JAX_PLATFORMS": "cpu"}
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    done = run("source launch/environment.sh", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_quickstart_shows_the_main_result(clone):
    """One seed of the laptop preset: the numbers of the README, within what seeds vary."""
    done = run("./launch/quickstart.sh --json", clone)
    assert done.returncode == 0, done.stderr
    assert "report: runs/quickstart/index.html" in done.stderr
    assert (clone / "runs/quickstart/index.html").exists()
    claims = {claim["id"]: claim for claim in json.loads(done.stdout.splitlines()[-1])["claims"]}
    for name in ("memorizes", "recovery", "held_out_standard", "held_out_no_repeat"):
        assert claims[name]["holds"], claims[name]
    # One seed is some points off the mean of several, on which our own bound is judged; the paper's is for any.
    assert claims["gap_closed"]["measured"] >= 0.5


def test_the_tests_set_themselves_up(clone):
    done = run("./launch/test.sh tests/test_config.py", clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_every_command_of_the_readme_runs(clone, tmp_path):
    """On the user's own text and at a small size, as they stand there."""
    texts = [f"The tale of number {n}, which met number {n * 7 % 41} and became {n * n}." for n in range(200)]
    for folder in ("texts", "other"):
        (clone / folder).mkdir(exist_ok=True)
        (clone / folder / "tales.txt").write_text("\n<|endoftext|>\n".join(texts))
    readme = (ROOT / "README.md").read_text().replace(" \\\n", " ")
    commands = re.findall(r"^    (python -m memsinks_jax\.\S+ .*)$", readme, flags=re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        if "train" in command or "reproduce" in command:
            command += " --config.training.steps=4 --config.model.layers=1 --config.data.row_length=96"
            command += " --config.data.vocabulary_size=400"
            command += "" if "unique_documents" in command else " --config.data.unique_documents=40"
        if "--seeds=0,1,2" in command:
            command = command.replace("--seeds=0,1,2", "--seeds=0")
        if "induction_head" in command:
            command += " --seeds=0 --steps=20 --d=16 --batch=4"
        done = run(f"source .venv/bin/activate && {command}", clone)
        if "memsinks_jax.plan" in command:  # its line before it installs the TPU compiler, which the clone has not
            assert done.returncode == 2 and "pip install 'jax[tpu]'" in done.stderr, done.stderr
            continue
        assert done.returncode == 0, f"{command}\n{done.stderr}"
