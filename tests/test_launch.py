"""What the README promises a newcomer, from a fresh clone with an environment of its own. Needs the package index."""

import json
import re
import subprocess

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def test_quickstart_shows_the_main_result(clone):
    """One seed of the laptop preset: the numbers of the README, within what seeds vary."""
    done = subprocess.run(["./launch/quickstart.sh", "--json"], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "report: runs/quickstart/index.html" in done.stderr
    assert (clone / "runs/quickstart/index.html").exists()
    claims = {claim["id"]: claim for claim in json.loads(done.stdout.splitlines()[-1])["claims"]}
    for name in ("memorizes", "gap_closed", "recovery", "held_out_standard", "held_out_no_repeat"):
        assert claims[name]["holds"], claims[name]


def test_the_tests_set_themselves_up(clone):
    done = subprocess.run(["./launch/test.sh", "tests/test_config.py"], cwd=clone, capture_output=True, text=True)
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
            command += " --config.training.steps=4 --config.model.layers=1 --config.data.row_length=32"
            command += " --config.data.unique_documents=40 --config.data.vocabulary_size=400"
        if "--seeds=0,1,2" in command:
            command = command.replace("--seeds=0,1,2", "--seeds=0")
        done = subprocess.run(
            f"source .venv/bin/activate && {command}", shell=True, executable="/bin/bash", cwd=clone,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
