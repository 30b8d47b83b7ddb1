"""Any number of processes: every step reads the same tokens and has the same loss."""

import json
import os
import socket
import subprocess
import sys

import pytest
from conftest import ROOT
from test_step import single, train

from memsinks_jax.config import with_fields
from memsinks_jax.data.corpus import load_corpus

pytestmark = pytest.mark.long

# Every axis within a process, every one across them, and devices that take turns between the
# processes, so that the rows of one are no run of the batch. One process: test_step.py.
MESHES = {2: [[4, 1, 2, 1], [8, 1, 1, 2]], 4: [[1, 8, 1, 1], [1, 2, 4, 1], [2, 2, 2, 2]]}


LAYER = {"model.layers": 1}  # most of the time is compiling


def train_together(processes, meshes, fields=LAYER):
    """What each process saw: for every mesh, (tokens, loss) of each step."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        coordinator = f"localhost:{found.getsockname()[1]}"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / path) for path in ("", "tests", "tests/training"))
    }
    started = [
        subprocess.Popen(
            [
                sys.executable,
                ROOT / "tests/training/every_mesh.py",
                coordinator,
                str(processes),
                str(process),
                json.dumps(meshes),
                json.dumps(fields),
            ],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for process in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * processes
    return [json.loads(text.splitlines()[-1]) for text in outputs]


def assert_same(found, expected):
    assert [tokens for tokens, _ in found] == [line["tokens"] for line in expected]
    assert [loss for _, loss in found] == pytest.approx(
        [line["train_loss"] for line in expected], rel=1e-5
    )


def test_processes_that_share_rows_read_the_same(tiny):
    """A process a device, as launch/slurm.sh starts them."""
    tiny = with_fields(tiny, LAYER)
    _, expected = train(tiny, single(tiny), count=2)
    for meshes in train_together(2, [[1, 1, 2, 1]]):
        assert_same(meshes[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("processes", MESHES)
def test_meshes_over_processes_train_the_same(tiny, processes):
    tiny = with_fields(tiny, LAYER)
    _, expected = train(tiny, single(tiny), count=2)
    for meshes in train_together(processes, MESHES[processes]):
        for found in meshes:
            assert_same(found, expected)


@pytest.mark.slow
def test_the_table_of_contexts_over_processes_trains_the_same(tiny):
    """Its rows are sharded along fsdp, over both processes."""
    fields = LAYER | {"sinks.kind": "by_context"}
    config = load_corpus(with_fields(tiny, fields)).config
    _, expected = train(config, single(config), count=2)
    fields |= {"contexts.rows": config.contexts.rows}
    for meshes in train_together(2, [[1, 8, 1, 1], [2, 2, 2, 2]], fields):
        for found in meshes:
            assert_same(found, expected)
