"""How a command on a CPU uses the host's memory: glibc keeps freed blocks, in large pages."""

import ctypes
import functools
import os
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_MOST_FREED = 2**30  # bytes
_one_arena = False
_resident_before = 0  # when freed memory was last returned to the kernel


def use_one_arena() -> None:
    """Makes glibc give all threads one heap, for `keep_freed_memory`. That runs after jax has found
    its devices, and jax's threads would have heaps of their own by then. Does nothing without
    glibc.
    """
    global _one_arena
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        _one_arena = library.mallopt(_ARENA_MAX, 1) == 1


@functools.cache
def keep_freed_memory() -> None:
    """In a command on a CPU, makes glibc keep large freed blocks instead of returning them to the
    kernel, and use large pages for them; and makes jax run one program at a time. Asks jax for its
    devices, and has to be the first to.

    XLA's CPU backend allocates all temporaries of a step anew. Without this, the kernel spends a
    third of a small model's time on clearing the same pages again. With an accelerator the
    temporaries are not in the host's memory, which would only stay at its peak. Does nothing in a
    process that is not one of our commands, or without glibc.
    """
    import jax

    if not _one_arena:
        return
    # A program that runs in the background frees its temporaries after its results are there. If
    # the next one begins before that, the heap grows by as much again, and stays: a step of
    # SmolLM2-135M took 3.9 GiB, or 5.3, or 6.7, by chance.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.default_backend() != "cpu":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, -1)  # never
    # The future heap, reserved but not touched: MADV_HUGEPAGE covers the range that it grows into.
    large_pages, page = 14, os.sysconf("SC_PAGE_SIZE")
    size = os.sysconf("SC_PHYS_PAGES") // 2 * page
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if block := library.malloc(size):
        library.madvise(-(-block // page) * page, size - page, large_pages)
        library.free(block)


def give_back() -> None:
    """Returns freed memory to the kernel where `keep_freed_memory` keeps it: before a save or an
    evaluation, which need blocks of other sizes than a step.
    """
    global _resident_before
    if _one_arena:
        ctypes.CDLL(None).malloc_trim(0)
        _resident_before = _resident()


def bound_freed_memory() -> None:
    """`give_back` if the process has grown by a GiB since the last time. To be called before each
    program that reads.

    What a reader retains lies between the blocks that a program frees, and splits them. So the next
    program takes new memory, where blocks are large: of a vocabulary of 49,152 tokens, 100 MB a
    second.
    """
    if _one_arena and _resident() > _resident_before + _MOST_FREED:
        give_back()


def _resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
