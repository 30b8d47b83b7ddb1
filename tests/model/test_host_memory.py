"""What a command retains of freed memory."""

import ctypes
import os
import sys

import numpy as np
import pytest
from conftest import python, tiny_config

from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.model import host_memory, placement

GIB = 2**30


@pytest.fixture
def trimmed(monkeypatch) -> list[int]:
    """The sizes at which freed memory was returned, of a process that grows by .3 GiB before each
    size is asked.
    """
    sizes = iter(number * 3 * GIB // 10 for number in range(1, 100))
    last, found = [0], []

    def resident() -> int:
        last[0] = next(sizes)
        return last[0]

    class Library:
        malloc_trim = staticmethod(lambda pad: found.append(last[0]))

    monkeypatch.setattr(host_memory, "_resident", resident)
    monkeypatch.setattr(host_memory, "_resident_before", 0)
    monkeypatch.setattr(host_memory, "_one_arena", True)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    return found


def test_programs_that_read_return_freed_memory_once_a_gib_more_is_resident(trimmed):
    program = placement.jit(lambda x: x + 1)
    for _ in range(3):
        program(1.0)
    assert not trimmed
    program(1.0)
    assert trimmed == [4 * 3 * GIB // 10]
    for _ in range(3):  # at 1.5 GiB it starts anew
        program(1.0)
    assert len(trimmed) == 1
    program(1.0)
    assert len(trimmed) == 2


def test_document_losses_return_it_too(trimmed):
    loss = DocumentLoss(tiny_config(), fetch=lambda result: np.ones(1))
    loss._compiled = lambda *given, **mode: (0, 0)
    batches = [{"document": np.array([0])}] * 4
    loss({}, batches, "drop")
    assert len(trimmed) == 1


def test_no_other_process_returns_any(trimmed, monkeypatch):
    monkeypatch.setattr(host_memory, "_one_arena", False)
    for _ in range(9):
        host_memory.bound_freed_memory()
    assert not trimmed


def test_the_size_is_the_systems():
    before = host_memory._resident()
    block = bytearray(2**28)
    assert 2**27 < host_memory._resident() - before < 2**29 and block


@pytest.mark.skipif(sys.platform != "linux", reason="sets glibc, and reads /proc")
@pytest.mark.parametrize(
    ("platform", "command"), [("cpu", True), ("cpu", False), ("gpu", True), ("tpu", True)]
)
def test_freed_memory_is_kept_by_commands_on_cpus_alone(platform, command):
    """64 blocks of a MiB, which glibc gives back unless set otherwise."""
    code = f"""
import ctypes, os, pathlib
from memsinks_jax.model import host_memory
if {command}:
    host_memory.use_one_arena()
import jax
jax.block_until_ready(jax.jit(lambda: jax.numpy.ones(1000))())
jax.default_backend = lambda: "{platform}"
host_memory.keep_freed_memory()
resident = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
before = resident()
blocks = [ctypes.create_string_buffer(b"x" * 2**20) for _ in range(64)]
full = resident()
del blocks
print(before, full, resident())
"""
    done = python("-c", code, check=True)
    before, full, after = map(int, done.stdout.split())
    assert full - before > 50
    assert (after > full - 10) if (platform, command) == ("cpu", True) else (after < before + 10)


@pytest.mark.parametrize("command", [True, False])
def test_steps_of_commands_free_their_temporaries_before_the_next_begins(command, tmp_path):
    """A program in the background is not ready when its call returns."""
    code = f"""
import pathlib
import jax
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model import host_memory
from memsinks_jax.variants import open_config

def first_step():
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 5000, lambda _, x: x @ x / 300, x))
    x = jax.numpy.ones((300, 300))
    jax.block_until_ready(slow(x))
    print(slow(x).is_ready())
    raise KeyboardInterrupt

if {command}:
    host_memory.use_one_arena()
try:
    config = open_config(pathlib.Path("configs/smoke.py")).get_config()
    train_and_evaluate(config, pathlib.Path({str(tmp_path / "run")!r}), on_first_step=first_step)
except KeyboardInterrupt:
    pass
"""
    one_device = os.environ | {"XLA_FLAGS": ""}
    done = python("-c", code, check=True, env=one_device)
    assert done.stdout.split() == [str(command)]
