"""The seal of a checkpoint: checksums of its files, which detect and name later damage.

Orbax and tensorstore check their indexes, but no format that Orbax can write detects a changed byte
in an array: zarr 2 and 3 restore it, with zstd or without. So `seal.json` has the size and the
CRC-32 of every file. tensorstore's codec `crc32c` would detect it, but Orbax 0.12.8 has no option
for codecs.
"""

import concurrent.futures
import json
import os
import pathlib
import zlib

ITEMS = ("params", "optimizer", "progress")
PROGRESS = "progress/data.json"  # what a checkpoint stores besides its arrays
_SEAL = "seal.json"
# Orbax writes these two last, after the seal. They hold no state.
_UNSEALED = (_SEAL, "_CHECKPOINT_METADATA", "commit_success.txt")
_THREADS = 8  # files read at a time: storage on a network is fast only with several
_BLOCK_BYTES = 2**20  # read at a time, of each file


def write_seal(folder: pathlib.Path) -> None:
    """Writes size and checksum of every file under a folder.

    Reads all files once. Orbax calls it on host 0 alone, while training goes on, so that host reads
    what all hosts have written: 20 GB for 1.7 billion parameters with their moments.
    """
    content = {"files": checksums(folder, _files(folder))}
    with (folder / _SEAL).open("w") as file:
        json.dump(content, file, indent=0)
        file.flush()
        os.fsync(file.fileno())


def checksums(folder: pathlib.Path, names: list[str]) -> dict[str, list[int]]:
    """{name: [size in bytes, CRC-32]} of files in a folder."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda name: _size_and_checksum(folder / name), names)
        return dict(zip(names, found, strict=True))


def find_damage(
    folder: pathlib.Path, items: tuple = ITEMS, share: tuple[int, int] = (0, 1)
) -> str | None:
    """The difference between a checkpoint's files and its seal, in words; None if there is none.

    Args:
      items: the items to check; no byte of the others is read.
      share: (part of the files to check, number of parts). Of N hosts each reads an N-th of the
        files, so that all together read a checkpoint once, whatever the number of hosts that wrote
        it.
    """
    part, parts = share
    others = set(ITEMS) - set(items)
    for name in _UNSEALED:
        if not (folder / name).is_file():
            return f"{name} is missing"
    reading = "_CHECKPOINT_METADATA"
    try:
        json.loads((folder / reading).read_text())
        reading = _SEAL
        seal = json.loads((folder / reading).read_text())["files"]
        sealed = {
            name: (size, checksum)
            for name, (size, checksum) in sorted(seal.items())
            if name.split("/")[0] not in others
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{reading} cannot be read ({error})"

    def damage_of(name: str) -> str | None:
        try:
            size, checksum = sealed[name]
            if (found := (folder / name).stat().st_size) != size:
                return f"{name} has {found} bytes instead of {size}"
            changed = _size_and_checksum(folder / name) != [size, checksum]
            return f"{name} was changed" if changed else None
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error})"

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return next(filter(None, pool.map(damage_of, list(sealed)[part::parts])), None)


def _files(folder: pathlib.Path) -> list[str]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = (str(path.relative_to(folder)) for path in paths)
    return [name for name in names if name not in _UNSEALED]


def _size_and_checksum(path: pathlib.Path) -> list[int]:
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]
