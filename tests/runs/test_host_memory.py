"""What a command retains of freed memory."""

import ctypes

import pytest

from memsinks_jax.model import placement
from memsinks_jax.runs import host_memory

GIB = 2**30


@pytest.fixture
def trimmed(monkeypatch) -> list[int]:
    """The sizes at which freed memory was returned, of a process that grows by .3 GiB before each size is asked."""
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


def test_no_other_process_returns_any(trimmed, monkeypatch):
    monkeypatch.setattr(host_memory, "_one_arena", False)
    for _ in range(9):
        host_memory.bound_freed_memory()
    assert not trimmed


def test_the_size_is_the_systems():
    before = host_memory._resident()
    block = bytearray(2**28)
    assert 2**27 < host_memory._resident() - before < 2**29 and block
