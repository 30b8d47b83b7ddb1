"""Which files are read, and in which pieces: fixed before the first document, whatever the number of workers."""

import collections
import dataclasses
import glob
import json
import os
import pathlib

import pyarrow
import pyarrow.parquet

from memsinks_jax.config import InputError
from memsinks_jax.preparing import hub

KINDS = {
    ".txt": "txt", ".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}  # of .txt and .jsonl
_READABLE = ".txt and .jsonl (both also .gz or .zst), .json, .csv, .parquet, .arrow"

# A shard is what one piece of the input makes. About so many of them, whatever the size of the corpus, within bounds:
# a worker each, all of them open at once when near-duplicates are looked for, and little lost when one is killed.
_PIECES = 256
_SMALLEST, _LARGEST = 4, 256  # MiB
_END = 2**62  # beyond the text of any compressed file, whose length nobody knows


@dataclasses.dataclass(frozen=True)
class Source:
    """One input file as it was found, or a data set of the Hugging Face hub (`revision` is then its commit)."""

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
    """A part of a source: bytes [start, stop) of text files, row groups of parquet, part `start` of `stop` of the hub's."""

    source: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Plan:
    settings: dict
    sources: list[Source]
    pieces: list[list[Segment]]  # piece i becomes shard i
    copies: list[str]  # files that were named twice, if that is to be passed over

    def bytes_of_segments(self) -> list[list[int]]:
        """On disk, for every piece; of a file that is read in parts, even parts of it.

        At least 1, and of the hub, which tells none, as many as the largest has.
        """
        parts = collections.Counter(segment.source for piece in self.pieces for segment in piece)
        sizes = {number: max(self.sources[number].bytes // parts[number], 1) for number in parts}
        largest = max(sizes.values())
        sizes |= {number: largest for number in parts if self.sources[number].kind == "hub"}
        return [[sizes[segment.source] for segment in piece] for piece in self.pieces]

    def bytes_of_pieces(self) -> list[int]:
        return [sum(sizes) for sizes in self.bytes_of_segments()]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> "Plan":
        stored = json.loads(text)
        sources = [Source(**source) for source in stored["sources"]]
        pieces = [[Segment(**segment) for segment in piece] for piece in stored["pieces"]]
        return Plan(stored["settings"], sources, pieces, stored["copies"])


def make_plan(patterns: list[str], settings: dict) -> Plan:
    """Finds the input and cuts it into pieces.

    Args:
      patterns: files, folders (of which every readable file is taken), globs, `hf://dataset[:split]`.
      settings: what the command was asked for; `on_error`, `group_field` and `shard_mib` are read here.
    Raises:
      InputError: nothing there, another kind of file, a file named twice, nothing that could have a group.
    """
    sources, copies = [], []
    seen = {}
    for pattern in patterns:
        if pattern.startswith(hub.PREFIX):
            sources.append(Source(pattern, "hub", revision=hub.revision(pattern)))
            continue
        for path in _files(pattern):
            twin = seen.setdefault(os.path.realpath(path), path)
            if twin is path:
                sources.append(_source(path))
            elif settings["on_error"] == "skip":
                copies.append(path)
            else:
                same = "is named twice" if twin == path else f"is the same file as {twin}"
                raise InputError(f"{path} {same}; name every file once, or give --on_error=skip")
    if settings["group_field"] and (plain := next((s.path for s in sources if s.kind == "txt"), None)):
        raise InputError(f"{plain}: a .txt file has no field {settings['group_field']!r}; omit --group_field")
    return Plan(settings, sources, _cut(sources, settings["shard_mib"]), copies)


def check_unchanged(stored: Plan, found: Plan, folder: pathlib.Path) -> None:
    """Raises InputError where `found` is not what the folder was started with."""
    for name, value in found.settings.items():
        before = stored.settings.get(name)
        if before == value or (name == "on_error" and value == "skip"):  # nothing was skipped until now
            continue
        if name == "tokenizer_sha256":
            raise InputError(f"{folder} was started with another tokenizer; give that one, or another --out")
        if name == "vocabulary_size" and before is None:
            raise InputError(f"{folder} was started with a --tokenizer; give it, or another --out")
        raise InputError(f"{folder} was started with --{name}={before}, not {value}; give that, or another --out")
    old, new = ({source.path: source for source in plan.sources} for plan in (stored, found))
    for path in sorted(old.keys() | new.keys()):
        what = "is new" if path not in old else "is gone" if path not in new else "has changed"
        if old.get(path) != new.get(path):
            raise InputError(f"{path} {what} since {folder} was started; restore it, or give another --out")
    if stored.sources != found.sources or stored.pieces != found.pieces:
        raise InputError(f"{folder} was started with the input in another order; give that, or another --out")


def check_source(source: Source) -> None:
    """Raises InputError where a file is not as it was when it was found."""
    if source.kind != "hub" and _source(source.path) != source:
        raise InputError(f"{source.path} changed while it was read; run again into a new --out when it is final")


def _files(pattern: str) -> list[str]:
    path = pathlib.Path(pattern)
    if path.is_dir():
        # A .json in a folder is rather about the data than data: it is read where it is named.
        kinds = [(file, _kind(file.name)) for file in path.rglob("*") if file.is_file()]
        found = sorted(str(file) for file, kind in kinds if kind and kind[0] != "json")
        if not found:
            raise InputError(f"{pattern} holds no file that can be read: {_READABLE}")
        return found
    found = sorted(file for file in glob.glob(pattern, recursive=True) if pathlib.Path(file).is_file())
    if not found:
        kind = "matches no file" if glob.has_magic(pattern) else "does not exist"
        raise InputError(f"{pattern} {kind}; give a file, a folder, a quoted glob or hf://dataset:split")
    for file in found:
        if not _kind(file):
            raise InputError(f"{file}: files of this kind cannot be read; use {_READABLE}")
    return found


def _kind(name: str) -> tuple[str, str] | None:
    """(kind, compression) by the name's end; None for others."""
    stem, last = os.path.splitext(name)
    if last in COMPRESSIONS:
        kind = KINDS.get(os.path.splitext(stem)[1])
        return (kind, COMPRESSIONS[last]) if kind in ("txt", "jsonl") else None
    return (KINDS[last], "") if last in KINDS else None


def _source(path: str) -> Source:
    try:
        status = os.stat(path)
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; fix or remove it") from None
    return Source(path, *_kind(path), status.st_size, status.st_mtime_ns)


def _cut(sources: list[Source], shard_mib: int) -> list[list[Segment]]:
    """Segments in the order of the input, gathered until a piece is full."""
    total = sum(source.bytes for source in sources) >> 20
    full = (shard_mib or min(max(total // _PIECES, _SMALLEST), _LARGEST)) << 20
    pieces, size = [[]], 0
    for number, source in enumerate(sources):
        for start, stop, weight in _parts(source, full):
            if pieces[-1] and (size + weight > full or source.kind == "hub"):
                pieces.append([])
                size = 0
            pieces[-1].append(Segment(number, start, stop))
            size += full if source.kind == "hub" else weight
    return pieces


def _parts(source: Source, full: int) -> list[tuple[int, int, int]]:
    """(start, stop, bytes on disk) of what can be read apart from the rest of the file."""
    if source.kind == "hub":
        parts = hub.parts(source.path, source.revision)
        return [(part, parts, 0) for part in range(parts)]
    if source.is_text and not source.compression:
        return [
            (at, min(at + full, source.bytes), min(full, source.bytes - at)) for at in range(0, source.bytes, full)
        ] or [(0, 0, 0)]
    if source.kind == "parquet":
        try:
            groups = pyarrow.parquet.read_metadata(source.path).num_row_groups
        except (OSError, pyarrow.ArrowException):
            groups = 1  # whoever reads it will say what is wrong with it
        return [(group, group + 1, source.bytes // groups) for group in range(groups)] or [(0, 0, 0)]
    return [(0, _END, source.bytes)]
