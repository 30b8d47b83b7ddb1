"""Chooses the files and cuts them into pieces, before the first document and independent of the
number of workers.
"""

import collections
import dataclasses
import json
import logging
import pathlib

import pyarrow
import pyarrow.parquet

from memsinks_jax.config import InputError
from memsinks_jax.data.documents import some
from memsinks_jax.data.files import (
    END,
    READABLE,
    Segment,
    Source,
    kind_of,
    matching,
    open_source,
    shortest_paths,
)
from memsinks_jax.data.reading import Fields, Record, read_segment
from memsinks_jax.preparing import hub

logger = logging.getLogger("memsinks_jax.prepare")

# Each piece of the input makes one shard. The number of pieces is about the same for any corpus,
# within limits: enough for all workers, few enough to open all at once when finding
# near-duplicates, small enough to lose little if one is killed.
_PIECES = 256
_SMALLEST, _LARGEST = 4, 256  # MiB
_OF_ANSWERS = ("prompt_field", "messages_field")  # settings without which all of a document counts


@dataclasses.dataclass(frozen=True)
class Plan:
    settings: dict
    sources: list[Source]
    pieces: list[list[Segment]]  # piece i becomes shard i
    copies: list[str]  # files that were named twice, if these are skipped

    def bytes_of_segments(self) -> list[list[int]]:
        """Size on disk for every piece. If a file is read in parts, counts equal parts of it.

        At least 1. Parts from the hub have no known size and count as much as the largest.
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
      patterns: files, folders (all readable files in them), globs, `hf://dataset[:split]`.
      settings: of the command; reads `on_error`, `shard_mib` and the fields that .txt files do not
        have.
    Raises:
      InputError: no such file, an unknown kind of file, a path named twice, or no file that could
      have groups.
    """
    if "" in patterns:
        raise InputError(
            "--input is empty; give a file, a folder, a quoted glob or hf://dataset[:split]"
        )
    found = [
        path
        for pattern in patterns
        for path in ([pattern] if pattern.startswith(hub.PREFIX) else _files(pattern))
    ]
    sources, copies, taken, shortest = [], [], set(), shortest_paths(found)
    for path in found:
        if path.startswith(hub.PREFIX):
            sources.append(Source(path, "hub", revision=hub.revision(path)))
        elif shortest[path] == path and path not in taken:
            sources.append(open_source(path))
            taken.add(path)
        elif shortest[path] == path and settings["on_error"] == "skip":
            copies.append(path)
        elif shortest[path] == path:
            raise InputError(
                f"{path} is named twice; name every file once, or give --on_error=skip"
            )
    if links := [path for path in shortest if shortest[path] != path]:
        logger.warning(
            "%s further paths to the same files are left out: %s", f"{len(links):,}", some(links)
        )
    plain = next((source.path for source in sources if source.kind == "txt"), None)
    for option in ("group_field", *_OF_ANSWERS):
        if plain and settings.get(option):
            raise InputError(
                f"{plain}: a .txt file has no field {settings[option]!r}; omit --{option}"
            )
    return Plan(settings, sources, _cut(sources, settings["shard_mib"]), copies)


def check_unchanged(stored: Plan, found: Plan, folder: pathlib.Path) -> None:
    """Raises InputError if `found` differs from what the folder was started with."""
    for name, value in found.settings.items():
        before = stored.settings.get(name)
        # nothing has been skipped so far
        if before == value or (name == "on_error" and value == "skip"):
            continue
        if name == "tokenizer_sha256":
            raise InputError(
                f"{folder} was started with another tokenizer; give that one, or another --out"
            )
        if name == "vocabulary_size" and before is None:
            raise InputError(f"{folder} was started with a --tokenizer; give it, or another --out")
        if before is None:
            raise InputError(
                f"{folder} was started without --{name}; leave it out, or give another --out"
            )
        if name in ("chat_sha256", "closes"):
            raise InputError(
                f"{folder} was started with another chat template; restore it, or give another "
                "--out"
            )
        raise InputError(
            f"{folder} was started with --{name}={before}, not {value}; give that, or another --out"
        )
    for name in _OF_ANSWERS:
        if name in stored.settings and name not in found.settings:
            raise InputError(
                f"{folder} was started with --{name}={stored.settings[name]}; give it, or "
                "another --out"
            )
    old, new = ({source.path: source for source in plan.sources} for plan in (stored, found))
    for path in sorted(old.keys() | new.keys()):
        what = "is new" if path not in old else "is gone" if path not in new else "has changed"
        if old.get(path) != new.get(path):
            raise InputError(
                f"{path} {what} since {folder} was started; restore it, or give another --out"
            )
    if stored.sources != found.sources or stored.pieces != found.pieces:
        raise InputError(
            f"{folder} was started with the input in another order; give that, or another --out"
        )


def check_source(source: Source) -> None:
    """Raises InputError if a file has changed since it was found."""
    if source.kind != "hub" and open_source(source.path) != source:
        raise InputError(
            f"{source.path} changed while it was read; run again into a new --out when it is final"
        )


def fields_of(settings: dict) -> Fields:
    """The fields of a record that a command's settings name."""
    about = settings["group_field"], settings["max_document_mib"] << 20
    return Fields(
        settings["text_field"],
        *about,
        settings.get("prompt_field", ""),
        settings.get("messages_field", ""),
    )


def records(source: Source, segment: Segment, fields: Fields) -> collections.abc.Iterator[Record]:
    """Records of a part of the input, file or hub."""
    return (hub.records if source.kind == "hub" else read_segment)(source, segment, fields)


def _files(pattern: str) -> list[str]:
    path = pathlib.Path(pattern)
    if path.is_dir():
        # A .json in a folder is more likely metadata than data. It is read if it is named.
        kinds = {str(file): kind_of(file.name) for file in path.rglob("*") if file.is_file()}
        found = sorted(file for file, kind in kinds.items() if kind and kind[0] != "json")
        if not found:
            raise InputError(f"{pattern} holds no file that can be read: {READABLE}")
        if others := sorted(kinds.keys() - set(found)):
            logger.info(
                "%s files are of other kinds, and not read: %s", f"{len(others):,}", some(others)
            )
        return found
    return matching(pattern)


def _cut(sources: list[Source], shard_mib: int) -> list[list[Segment]]:
    """Splits sources into segments in order, and gathers them until a piece is full."""
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
    """(start, stop, bytes on disk) of the parts that can be read independently of the rest of the
    file.
    """
    if source.kind == "hub":
        parts = hub.parts(source.path, source.revision)
        return [(part, parts, 0) for part in range(parts)]
    if source.is_text and not source.compression:
        return [
            (at, min(at + full, source.bytes), min(full, source.bytes - at))
            for at in range(0, source.bytes, full)
        ] or [(0, 0, 0)]
    if source.kind == "parquet":
        try:
            groups = pyarrow.parquet.read_metadata(source.path).num_row_groups
        except (OSError, pyarrow.ArrowException):
            groups = 1  # reading it will report the problem
        return [(group, group + 1, source.bytes // groups) for group in range(groups)] or [
            (0, 0, 0)
        ]
    return [(0, END, source.bytes)]
