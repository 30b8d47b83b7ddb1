"""Whose own sinks are on: the ids of the documents whose sinks opened in training.

A trained model knows them, and nobody else decides it. They lie in `opened.npy`, in every
checkpoint and in every folder that was exported with its sinks: sorted, memory-mapped, 8 bytes for
each document that came back. All other ids have no
sinks: their draw belongs to others.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from memsinks_jax.config import InputError, SinksConfig
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.prepared import numbered_ids
from memsinks_jax.data.table import is_in

FILE = "opened.npy"


class Opened:
    """Answers for ids, uint32 (..., 2), whether the sinks of each opened in training -> bool (...).

    Args:
      sinks: with `opens_at=1` those of every document are open, also if it was never read: so the
        paper uses its models. Masked ones are on for all. Those of groups by number are open if a
        document of the group was read.
      read: returns the ids, uint64 (n,), ascending. Called when the first id is asked for.
    """

    def __init__(self, sinks: SinksConfig, read: Callable[[], np.ndarray]):
        always = sinks.opens_at == 1 and not sinks.by_group
        self._read, self.everybody = read, always or sinks.traits.on_for_all

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """uint64 (n,), ascending; empty if those of everybody are open."""
        return nobody() if self.everybody else self._read()

    def __call__(self, identities: np.ndarray) -> np.ndarray:
        identities = np.asarray(identities)
        shape = identities.shape[:-1]
        if self.everybody:
            return np.ones(shape, bool)
        return is_in(as_numbers(identities.reshape(-1, 2)), self.ids).reshape(shape)


def of_groups(names: Sequence[str]) -> np.ndarray:
    """The ids of groups by number, as `Opened` reads them."""
    return np.sort(as_numbers(numbered_ids(names)))


def nobody() -> np.ndarray:
    return np.zeros(0, np.uint64)


def read_ids(folder: pathlib.Path) -> np.ndarray:
    """The ids in a checkpoint or folder, memory-mapped. Raises InputError if the file cannot be
    read.
    """
    path = folder / FILE
    try:  # not mapped if empty, which a file system cannot do
        found = np.load(path, mmap_mode="r" if path.stat().st_size > 2**12 else None)
        if found.ndim != 1 or found.dtype != np.uint64:
            raise ValueError("it holds no ids")
        return found
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); put a copy in its place") from None


def write_ids(folder: pathlib.Path, numbers: np.ndarray) -> None:
    np.save(folder / FILE, numbers)
