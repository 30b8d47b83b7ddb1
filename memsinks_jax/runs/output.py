"""Places that a command is to write: refused before the work if they cannot be."""

import os
import pathlib
import tempfile

from memsinks_jax.config import InputError


def check_free(place: pathlib.Path, flag: str = "out") -> None:
    """Raises InputError if something exists at `place`, OSError if nothing can be written there.
    Call it before the work.
    """
    if os.path.lexists(place):
        raise InputError(f"{place} exists; use another --{flag}, or remove it first")
    check_writable(place)


def check_writable(place: pathlib.Path) -> None:
    """Raises OSError if nothing can be written at `place`."""
    folder = next(path for path in place.absolute().parents if os.path.lexists(path))
    tempfile.TemporaryDirectory(dir=folder, prefix=f".{place.name}.").cleanup()
