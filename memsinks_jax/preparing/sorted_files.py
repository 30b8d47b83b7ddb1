"""Files of hashes in ascending order, by which one stage reads what another found. A task reads its
part of every file.

A folder has RANK.keys.npy, uint64 (n,), ascending, and RANK.values.npy, with a row for each key.
"""

import pathlib
from collections.abc import Iterator

import numpy as np

from memsinks_jax.data.table import is_in

_TASK_BYTES = 2**26  # of input per range of hashes: its n-grams take about 0.2 GiB, of C source


def tasks(bytes_of_pieces: list[int]) -> int:
    """The number of ranges of hashes. The size of a dataset of the hub is not known, so there is
    one per piece at least.
    """
    return max(-(-sum(bytes_of_pieces) // _TASK_BYTES), len(bytes_of_pieces))


def save(folder: pathlib.Path, rank: int, keys: np.ndarray, values: np.ndarray) -> None:
    order = np.argsort(keys, kind="stable")
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{rank:05d}.keys.npy", keys[order])
    np.save(folder / f"{rank:05d}.values.npy", values[order])


def load(folder: pathlib.Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(keys, values) of a file of `save`, memory-mapped."""
    return tuple(
        np.load(folder / f"{number:05d}.{part}.npy", mmap_mode="r") for part in ("keys", "values")
    )


def read_shards(
    folder: pathlib.Path, files: int, rank: int, world_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(keys, values) of a task's part of each file of `save`."""
    for number in range(files):
        keys, values = load(folder, number)
        there = part_of(keys, rank, world_size)
        yield keys[there], values[there]


def read_repeated(
    folder: pathlib.Path, files: int, rank: int, world_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `read_shards`, without the keys that come once in all files: of n-grams these are most."""
    found = [keys for keys, _ in read_shards(folder, files, rank, world_size)]
    found = np.sort(np.concatenate(found))
    again = np.unique(found[1:][found[1:] == found[:-1]])
    for keys, values in read_shards(folder, files, rank, world_size):
        where = np.flatnonzero(is_in(keys, again))
        yield keys[where], values[where]


def read_range(
    folder: pathlib.Path, files: int, rank: int, world_size: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """(keys, values) of a task's part of all files of `save`, whose values have so many columns."""
    nothing = np.zeros(0, np.uint64), np.zeros((0, columns), np.uint64)
    keys, values = zip(nothing, *read_shards(folder, files, rank, world_size), strict=True)
    return np.concatenate(keys), np.concatenate(values)


def part_of(ascending: np.ndarray, rank: int, world_size: int) -> slice:
    """Where in ascending hashes a task's part of them is: task r of w has those from r / w to (r +
    1) / w of all.
    """
    first, last = (rank << 64) // world_size, ((rank + 1 << 64) // world_size) - 1
    return slice(
        int(np.searchsorted(ascending, np.uint64(first))),
        int(np.searchsorted(ascending, np.uint64(last), "right")),
    )
