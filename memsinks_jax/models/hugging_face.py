"""Weights as Hugging Face stores them: a table of names for each family (dialects.py) serves both
directions.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from memsinks_jax.config import (
    Config,
    InputError,
    ModelConfig,
)
from memsinks_jax.data.documents import some
from memsinks_jax.model.decoder import Decoder
from memsinks_jax.models.dialects import DIALECTS, Entry

# Constants in older files besides the parameters: causal masks and rotary frequencies, which follow
# from the sizes.
CONSTANTS = (
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
)


class Tensor(NamedTuple):
    """A tensor of theirs: its name, its shape, its entry in the table, its layer (None: outside the
    layers).
    """

    name: str
    shape: tuple[int, ...]
    entry: Entry
    layer: int | None


def shapes(config: Config, hidden: int) -> dict[str, tuple[int, ...]]:
    """Our parameters of a config and the width of its MLPs -> {path: shape}."""
    return _shapes(config.model, hidden, config.data.vocabulary_size, config.data.row_length)


@functools.lru_cache(maxsize=64)
def _shapes(
    model: ModelConfig, hidden: int, vocabulary: int, context: int
) -> dict[str, tuple[int, ...]]:
    decoder = Decoder(model, hidden, vocabulary, context)
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(decoder.init, jax.random.key(0)))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves
    }


def tensors(config: Config, hidden: int) -> list[Tensor]:
    """Their tensors in the order of the model: embeddings, layer after layer, norm and head."""
    ours, found = shapes(config, hidden), []
    for entry in DIALECTS[config.model.family].entries:
        if entry.ours[0] not in ours:
            continue  # no biases, no separate head
        stacked = "{}" in entry.theirs
        parts = [ours[name][1:] if stacked else ours[name] for name in entry.ours]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        shape = shape[::-1] if entry.transposed else shape
        for layer in range(config.model.layers) if stacked else [None]:
            found.append(Tensor(entry.theirs.format(layer), shape, entry, layer))
    embeddings, last = ("token_embedding", "position_embedding"), config.model.layers

    def place(tensor: Tensor) -> int:
        if tensor.layer is not None:
            return tensor.layer
        return -1 if tensor.entry.ours[0] in embeddings else last

    return sorted(found, key=place)  # stable: the table's order within a layer


def theirs(
    config: Config, tensor: Tensor, read: Callable[[str, int | None], np.ndarray]
) -> np.ndarray:
    """Their tensor from our parameters; `read(path, layer)` returns a parameter, or a layer's slice
    of it.
    """
    parts = [read(name, tensor.layer) for name in tensor.entry.ours]
    if tensor.entry.by_head:
        by_head = [part.reshape(*part.shape[:-1], config.model.heads, -1) for part in parts]
        parts = [np.concatenate(by_head, axis=-1).reshape(*parts[0].shape[:-1], -1)]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(joined.T if tensor.entry.transposed else joined)


def ours(config: Config, hidden: int, read: Callable[[str], np.ndarray]) -> dict:
    """Our parameters, float32, from their tensors; `read(name)` returns a tensor."""
    flat = {name: np.empty(shape, np.float32) for name, shape in shapes(config, hidden).items()}
    for tensor in tensors(config, hidden):
        content = read(tensor.name)
        content = content.T if tensor.entry.transposed else content
        parts = [
            flat[name] if tensor.layer is None else flat[name][tensor.layer]
            for name in tensor.entry.ours
        ]
        if tensor.entry.by_head:
            content = content.reshape(*content.shape[:-1], config.model.heads, -1)
            # views
            parts = [part.reshape(*part.shape[:-1], config.model.heads, -1) for part in parts]
        start = 0
        for part in parts:
            part[...] = content[..., start : start + part.shape[-1]]
            start += part.shape[-1]
    params = {}
    for name, array in flat.items():
        *folders, last = name.split("/")
        place = params
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = array
    return params


def tied(family: str) -> tuple[str, str]:
    """The names of two tensors that are equal if the head is tied."""
    entries = DIALECTS[family].entries
    return entries[0].theirs, entries[-1].theirs


def compare(found: dict[str, tuple], config: Config, hidden: int, where: str) -> None:
    """Raises InputError unless a folder's tensors, {name: shape}, are exactly those of its
    config.json.
    """
    wanted = {tensor.name: tensor.shape for tensor in tensors(config, hidden)}
    found = {name: tuple(shape) for name, shape in found.items() if not name.endswith(CONSTANTS)}
    if config.model.tied_head:
        found.pop(tied(config.model.family)[1], None)  # some files contain the embedding twice
    parts = []
    if missing := sorted(wanted.keys() - found.keys()):
        parts.append(f"lacks {some(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        parts.append(f"has besides {some(extra)}")
    wrong = [name for name in sorted(wanted.keys() & found.keys()) if found[name] != wanted[name]]
    if wrong:
        parts.append(
            f"has {wrong[0]} of {list(found[wrong[0]])} instead of {list(wanted[wrong[0]])}"
        )
    if parts:
        raise InputError(
            f"{where}: the weights are not those of its config.json: it {'; '.join(parts)}"
        )


def parameters(config: Config, hidden: int) -> int:
    """The number of parameters of a model of this config and width."""
    return sum(math.prod(shape) for shape in shapes(config, hidden).values())
