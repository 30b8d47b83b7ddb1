"""Source files are added to a folder and removed from it, one at a time."""

import os
import pathlib
import shutil

from memsinks_jax.config import InputError
from memsinks_jax.models import sources
from memsinks_jax.models.sources import Source
from memsinks_jax.runs.interruption import atomic_folder


def add(folder: pathlib.Path, path: pathlib.Path) -> Source:
    """Copies a source file into a folder. It gets its name there once it is complete.

    Raises:
      InputError: it is no source file; of another base, model or number of sinks; its group is
      there already.
    """
    there, source, config = (
        sources.files_of(folder),
        sources.read_source(path),
        sources.config_of(folder),
    )
    if source.name in {other.name for other in there}:
        raise InputError(f"{folder} has the source {source.name!r} already; remove that one first")
    sources.check_sink_number(source, config, folder)
    sources.read_rows(source, config)
    sources.check_base([source], sources.base_of(folder, config), folder)
    place = folder / sources.FOLDER / sources.file_name(source.name)
    with atomic_folder(place) as scratch:
        if place.exists():
            raise InputError(f"{place} is there, and holds another source; rename that file")
        shutil.copyfile(path, scratch / place.name)
        os.replace(scratch / place.name, place)
    return sources.read_source(place)


def remove(folder: pathlib.Path, name: str) -> Source:
    """Deletes the file of a source, and nothing else. Raises InputError if there is none."""
    source = sources.find(folder, name)
    source.path.unlink()
    return source
