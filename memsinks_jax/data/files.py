"""Files with documents: the kinds that can be read, found by a glob, and their properties on
disk.
"""

import dataclasses
import glob
import os
import pathlib
from collections.abc import Iterable

from memsinks_jax.config import InputError

KINDS = {
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}  # of .txt and .jsonl
READABLE = ".txt and .jsonl (both also .gz or .zst), .json, .csv, .parquet, .arrow"
_TEXT_OF_A_BYTE = {"gzip": 4, "zstd": 4, "parquet": 3}  # of such a file, about
END = 2**62  # beyond the text of any compressed file, whose length is unknown


@dataclasses.dataclass(frozen=True)
class Source:
    """One input file as it was found, or a data set of the Hugging Face hub (`revision` is then its
    commit).
    """

    path: str
    kind: str  # txt | jsonl | json (an array) | csv | parquet | arrow | hub
    compression: str = ""  # gzip | zstd
    bytes: int = 0
    modified: int = 0  # nanoseconds
    revision: str = ""

    @property
    def is_text(self) -> bool:
        return self.kind in ("txt", "jsonl")


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a source: bytes [start, stop) of text files, row groups of parquet, part `start` of
    `stop` of the hub's.
    """

    source: int
    start: int
    stop: int


def matching(pattern: str) -> list[str]:
    """Files that match a path or a glob, sorted. Raises InputError if there is none, or one of an
    unknown kind.
    """
    found = sorted(
        file for file in glob.glob(pattern, recursive=True) if pathlib.Path(file).is_file()
    )
    if not found:
        missing = "is no file" if os.path.lexists(pattern) else "does not exist"
        what = "matches no file" if glob.has_magic(pattern) else missing
        advice = "give the path of a file, or a quoted glob such as 'texts/*.txt'"
        if os.path.isfile(pattern):
            advice = f"as a path it is there: write '{glob.escape(pattern)}'"
        raise InputError(f"{pattern} {what}; {advice}")
    for file in found:
        if not kind_of(file):
            raise InputError(f"{file}: files of this kind cannot be read; use {READABLE}")
    return found


def shortest_paths(found: list[str]) -> dict[str, str]:
    """{path: the shortest of all paths to the same file}: a file that links lead to is there once,
    under its own name.
    """
    best, real = {}, {path: os.path.realpath(path) for path in found}
    for path in sorted(found, key=lambda path: (path.count(os.sep), os.path.islink(path), path)):
        best.setdefault(real[path], path)
    return {path: best[real[path]] for path in found}


def kind_of(name: str) -> tuple[str, str] | None:
    """(kind, compression) by the name's end, in any case; None for others."""
    stem, last = os.path.splitext(name.lower())
    if last in COMPRESSIONS:
        kind = KINDS.get(os.path.splitext(stem)[1])
        return (kind, COMPRESSIONS[last]) if kind in ("txt", "jsonl") else None
    return (KINDS[last], "") if last in KINDS else None


def open_source(path: str) -> Source:
    """A file as it is now. Raises InputError if it cannot be opened."""
    try:
        status = os.stat(path)
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; fix or remove it") from None
    return Source(path, *kind_of(path), status.st_size, status.st_mtime_ns)


def text_bytes(sources: Iterable[Source]) -> int:
    """The text of files, about: compressed ones hold more than their size."""
    return sum(
        source.bytes * _TEXT_OF_A_BYTE.get(source.compression or source.kind, 1)
        for source in sources
    )
