"""safetensors, written piece by piece, or at once with metadata, and read one tensor at a time."""

import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping

import numpy as np
import safetensors
import safetensors.numpy

from memsinks_jax.config import InputError

# Pieces share a file up to this size, so a small model is one file, and a large layer is a file of
# its own.
SHARD_BYTES = 2**28
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
# What safetensors raises for a damaged file, and for a type that NumPy does not have.
_UNREADABLE = (
    safetensors.SafetensorError,
    OSError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def write(folder: pathlib.Path, pieces: Iterable[list[tuple[str, np.ndarray]]]) -> list[str]:
    """Writes pieces of a model, [(name, array), ...], in order -> names of the files.

    At most one file's tensors are in memory at a time; the lists are emptied.
    """
    shards: list[dict[str, list]] = []  # tensors of each file: shape and type
    waiting: dict[str, np.ndarray] = {}

    def flush() -> None:
        path = folder / f"shard-{len(shards)}"
        path.touch()
        # permissions by the umask; safetensors would allow only the owner to read
        mode = path.stat().st_mode
        try:
            safetensors.numpy.save_file(waiting, path, metadata={"format": "pt"})
        # also errors of the file system, with their number in the text
        except safetensors.SafetensorError as error:
            if not (number := re.search(r"os error (\d+)", str(error))):
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
        path.chmod(mode)
        shards.append({name: array.nbytes for name, array in waiting.items()})
        waiting.clear()

    for piece in pieces:
        waiting.update(piece)
        piece.clear()  # else it would stay in memory while the next is read
        if sum(array.nbytes for array in waiting.values()) >= SHARD_BYTES:
            flush()
    if waiting:
        flush()
    names = [_WHOLE]
    if len(shards) > 1:
        parts = range(1, len(shards) + 1)
        names = [f"model-{part:05}-of-{len(shards):05}.safetensors" for part in parts]
        index = {
            "metadata": {"total_size": sum(sum(shard.values()) for shard in shards)},
            "weight_map": {
                tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard
            },
        }
        (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n")
    for number, name in enumerate(names):
        (folder / f"shard-{number}").rename(folder / name)
    return names


def packed(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file: the same bytes for the same content. safetensors orders metadata at
    random.
    """
    content = safetensors.numpy.save(dict(tensors), dict(metadata))
    stop = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:stop]) | {"__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    return len(text).to_bytes(8, "little") + text + content[stop:]


class Weights:
    """The tensors of a Hugging Face folder, read one at a time.

    Raises InputError for unreadable files, and for values that are not finite numbers.

    Attributes:
      shapes: {name: shape}. GPT-2 files without the leading "transformer." get it.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._places: dict[str, tuple] = {}  # name: (open file, name in it)
        self.shapes: dict[str, tuple] = {}
        for path in _files(folder):
            self._open(path)

    def _open(self, path: pathlib.Path) -> None:
        try:
            opened = safetensors.safe_open(path, framework="np")
            names = list(opened.keys())
            found = {name: tuple(opened.get_slice(name).get_shape()) for name in names}
        except _UNREADABLE as error:
            raise InputError(f"{path}: cannot be read as weights ({str(error).strip()})") from None
        for name, shape in found.items():
            short = name.startswith(("wte.", "wpe.", "h.", "ln_f."))
            whole = f"transformer.{name}" if short else name
            if whole in self._places:
                raise InputError(f"{path}: {name} is there twice")
            self._places[whole], self.shapes[whole] = (opened, name), shape

    def read(self, name: str) -> np.ndarray:
        """-> the tensor in its own type, with ml_dtypes' bfloat16."""
        opened, inner = self._places[name]
        kind = opened.get_slice(inner).get_dtype()
        if kind not in _FLOATS:  # of 8 or 4 bits, which mean nothing without their scales
            raise InputError(
                f"{self._folder}: tensor {name} is of type {kind}, no float of 16, 32 or 64 bits; "
                "dequantize the model to bfloat16, or take one that is not quantized"
            )
        try:
            tensor = opened.get_tensor(inner)
        except _UNREADABLE as error:
            raise InputError(
                f"{self._folder}: tensor {name} cannot be read ({str(error).strip()})"
            ) from None
        if not np.isfinite(tensor).all():
            raise InputError(
                f"{self._folder}: tensor {name} holds nan or inf; this model is broken, take "
                "another"
            )
        return tensor


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    index, whole = folder / _INDEX, folder / _WHOLE
    if index.exists():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
            names = sorted(map(pathlib.PurePath, names))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{index}: not an index of weights ({error})") from None
        if outside := [part for part in names if part.name != str(part)]:
            raise InputError(f"{index} names {outside[0]}, which is not a file of its folder")
        if missing := [part for part in names if not (folder / part).is_file()]:
            raise InputError(f"{folder / missing[0]} is missing, which {index.name} names")
        return [folder / part for part in names]
    if whole.is_file():
        return [whole]
    if parts := sorted(path.name for path in folder.glob("*-of-*.safetensors")):
        raise InputError(
            f"{folder} holds {parts[0]}, a part of a model, and no {_INDEX}; copy that from "
            "where the parts are from"
        )
    # A .bin file is a pickle, which runs code of whoever wrote it.
    raise InputError(
        f"{folder} holds no {_WHOLE}, whole or in parts; if it holds a pytorch_model.bin, "
        "convert it: "
        "transformers' from_pretrained, then save_pretrained(NEW_FOLDER, safe_serialization=True)"
    )
