"""Memory files: safetensors with keys, deltas, bounds and layers. The header identifies the
model.
"""

import hashlib
import json
import pathlib
from collections.abc import Sequence

import jax
import numpy as np
import safetensors

from memsinks_jax.atomic import atomic_file
from memsinks_jax.config import Config, InputError
from memsinks_jax.editing.memory import DISTANCES, PLACES, RULES, SITES, Memory
from memsinks_jax.models.weights import packed
from memsinks_jax.sinks.kinds import partition

FORMAT = "memsinks_jax memory 1"
_ARRAYS = ("keys", "deltas", "bounds", "layers")
_DAMAGE = (safetensors.SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError)


def fingerprint(params: dict) -> str:
    """Hash of the token embedding. It identifies a model, exported or not."""
    embedding = np.ascontiguousarray(jax.device_get(params["token_embedding"]), np.float32)
    return hashlib.sha256(repr(embedding.shape).encode() + embedding.tobytes()).hexdigest()[:32]


def save(path: pathlib.Path, memory: Memory, model: str, about: list[dict]) -> None:
    """Writes the file atomically.

    Args:
      model: fingerprint of the model.
      about: {"prompt", "target", "step", ...} of each memory, for readers of the header.
    """
    names = ("site", "distance", "rule", "places", "height")
    settings = json.dumps({name: getattr(memory, name) for name in names})
    header = {"format": FORMAT, "model": model, "settings": settings, "about": json.dumps(about)}
    arrays = {name: np.asarray(getattr(memory, name)) for name in _ARRAYS}
    with atomic_file(path) as scratch:
        scratch.write_bytes(packed(arrays, header))


def load(path: pathlib.Path, config: Config, params: dict) -> Memory:
    """Reads a memory file of this model.

    Raises:
      InputError: the file does not exist, is not a memory, or belongs to another model.
    """
    if not path.is_file():
        raise InputError(f"--memory={path}: there is no such file; give one that edit wrote")
    try:
        with safetensors.safe_open(path, "np") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise InputError(
                    f"{path} is not a memory, or one of another version; give one that edit wrote"
                )
            settings, model = json.loads(header["settings"]), header["model"]
            memory = Memory(*(file.get_tensor(name) for name in _ARRAYS), **settings)
        known = (("site", SITES), ("distance", DISTANCES), ("rule", RULES), ("places", PLACES))
        for name, choices in known:
            if getattr(memory, name) not in choices:
                raise ValueError(f"invalid {name}")
        shape = (len(memory.bounds), *memory.keys.shape[1:])
        if {memory.keys.shape, memory.deltas.shape} != {shape} or len(shape) != 2:
            raise ValueError("invalid arrays")
        if len(memory.layers) != len(memory.bounds):
            raise ValueError("invalid layers")
    except _DAMAGE as error:
        raise InputError(
            f"{path} is damaged: {str(error).splitlines()[0]}; make it again with edit"
        ) from None
    if model != fingerprint(params):
        raise InputError(f"{path} is a memory of another model; make one of this model with edit")
    shared = partition(config.model, config.sinks).shared
    width = config.model.attention_width if memory.site == "attention" else shared
    if memory.keys.shape[1] != width or memory.layers.max() >= config.model.layers:
        raise InputError(
            f"{path} is of a model with another shape: layer {memory.layers.max()} and width "
            f"{memory.keys.shape[1]} there, {config.model.layers} layers and width {width} here; "
            "make one of this model with edit"
        )
    return memory


def load_all(paths: Sequence[str], config: Config, params: dict) -> tuple[Memory, ...]:
    """Reads several files, as `load` does."""
    return tuple(load(pathlib.Path(path), config, params) for path in paths)
