"""The notebook: its cells run in order and show what they should. They are plain Python, so no
kernel is needed.
"""

import json
import os

import pytest
from conftest import ROOT, python

pytestmark = pytest.mark.long

NOTEBOOK = ROOT / "docs" / "first_steps.ipynb"


def cells():
    content = json.loads(NOTEBOOK.read_text())
    assert all(not cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code")
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def test_the_cells_are_python():
    for number, source in enumerate(cells()):
        assert compile(source, f"cell {number}", "exec").co_code, number


@pytest.mark.slow
def test_the_notebook_runs_and_shows_the_token_view(tmp_path):
    *before, last = cells()
    shows = f"pathlib.Path('shown.html').write_text(({last.splitlines()[-1]})._repr_html_())"
    code = "\n".join([*before, *last.splitlines()[:-1], shows])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))} | {
        "JAX_PLATFORMS": "cpu"
    }
    done = python("-c", code, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    losses = {
        line.rpartition(":")[0]: float(line.rpartition(":")[2])
        for line in done.stdout.splitlines()
        if ": " in line
    }
    assert losses["repeated, sinks, own on"] < 0.5 * losses["repeated, sinks dropped"]
    assert losses["held out, sinks, own on"] == losses["held out, sinks dropped"]
    shown = (tmp_path / "shown.html").read_text()
    assert shown.startswith("<iframe") and "sinks, own on" in shown
