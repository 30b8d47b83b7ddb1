"""Files that are there whole or not at all. (Folders: `runs.interruption.atomic_folder`.)"""

import contextlib
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def atomic_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A place to write a file, of the same type; it gets its name when the block ends."""
    scratch = path.with_name(f".new.{path.name}")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
