"""Complete Hugging Face folders: written atomically, opened like a workdir."""

import json
import logging
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np

from memsinks_jax.config import Config, InputError, SinksConfig, from_json, to_json, with_fields
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.gguf_file import SUFFIX
from memsinks_jax.data.opened import Opened, write_ids
from memsinks_jax.data.tokenizer import Tokenizer, listed, open_tokenizer, read_object
from memsinks_jax.model import sparse_sinks
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models import context_files, hugging_face, sources, weights
from memsinks_jax.models.gguf_model import GgufModel
from memsinks_jax.models.origin import UNCHANGED, copy
from memsinks_jax.models.tokenizer_files import write_tokenizer
from memsinks_jax.sinks import has_sinks, is_sparse, partition, partitions

logger = logging.getLogger(__name__)

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

_WANTED = "the folder of a Hugging Face model"


def is_folder(path: pathlib.Path) -> bool:
    """Whether a place is a Hugging Face model, or a GGUF file, rather than a workdir of ours."""
    if path.suffix == SUFFIX and path.is_file():
        return True
    try:
        return "model_type" in json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return False


def write_folder(
    folder: pathlib.Path,
    config: Config,
    tokenizer: Tokenizer,
    read: Callable[[str, int | None], np.ndarray],
    drop: bool,
    dtype: str,
    card: str,
    remaining: Sequence[int],
    opened: Opened,
    source: pathlib.Path | None = None,
    contexts: Contexts | None = None,
) -> dict:
    """Writes a model; the folder gets its name once it is complete.

    Args:
      read: returns a parameter by its path, or one layer's slice of it, so that few are in memory
      at a time.
      drop: cut the sinks out of the weights; else they are all on, and the folder includes our
        config. Hugging Face has no heads of different sizes, so the weights that read sinks of
        attention are set to 0.
      card: the model card, markdown.
      remaining: sinks of the MLPs, the same in all layers, that stay despite `drop`.
      opened: whose own sinks are on.
      contexts: those that have sinks, of a model with sinks by context.
      source: what the model came from, as in `origin.source_of`: all that training did not change
      stays as it is there.
    Returns:
      {"parameters", "files": [names], "bytes"}.
    Raises:
      InputError: the folder exists; Hugging Face has no such model.
    """
    if folder.exists():
        raise InputError(f"{folder} exists; use another --out, or remove it first")
    if not drop and has_sinks(config) and config.sinks.traits.owned and config.sinks.opens_at > 1:
        logger.warning(
            "sinks that open on return were never on together: with all of them on, as "
            "transformers will have them, this is "
            "no model to use; memsinks_jax.export --sinks=drop cuts them out"
        )
    parts = partition(config.model, config.sinks)
    remaining = np.asarray(remaining if drop else range(parts.sinks), int)
    hidden = parts.shared + len(remaining)
    theirs = read_object(source / "config.json") if source else {}
    content = hugging_face.write_config(config, hidden, tokenizer, dtype, theirs)
    scratch = folder.with_name(folder.name + ".new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        files = weights.write(scratch, _pieces(config, remaining, drop, read, DTYPES[dtype]))
        if contexts is not None and not drop:
            table = read(CONTEXTS, None).astype(DTYPES[dtype], copy=False)
            content |= context_files.write(scratch, config, contexts, table)
        _write_json(scratch / "config.json", content)
        if source:
            copy(source, scratch, UNCHANGED)
            _write_stops(scratch, tokenizer)
        else:
            tokens = {name: content[name] for name in ("bos_token_id", "eos_token_id")}
            _write_json(
                scratch / "generation_config.json", tokens | {"do_sample": True, "temperature": 1.0}
            )
        if has_sinks(config) and not drop:
            of_matrices = with_fields(config, {"sinks.sparse": False})
            _write_json(scratch / sources.CONFIG, json.loads(to_json(of_matrices)))
            write_ids(scratch, opened.ids)
        write_tokenizer(
            tokenizer, scratch, content[hugging_face.DIALECTS[config.model.family].context], source
        )
        (scratch / "README.md").write_text(card)
        os.replace(scratch, folder)
    except OSError as error:
        # a full disk's names no file
        raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".safetensors")
    return {"parameters": hugging_face.parameters(config, hidden), "files": files, "bytes": size}


def _write_stops(folder: pathlib.Path, tokenizer: Tokenizer) -> None:
    """Makes generation stop in transformers at every token at which it stops here. The files are
    those of the initial model; conversations that it was trained on may end with another token."""
    files = (folder / f"{name}.json" for name in ("generation_config", "config"))
    paths = [path for path in files if path.is_file()]
    known = listed(read_object(paths[0]).get("eos_token_id"))  # transformers asks this file alone
    if not set(tokenizer.stops) <= set(known):
        for path in paths:
            _write_json(path, read_object(path) | {"eos_token_id": list(tokenizer.stops)})


def _pieces(
    config: Config, remaining: np.ndarray, drop: bool, read, dtype: np.dtype
) -> Iterator[list[tuple[str, np.ndarray]]]:
    """Embeddings, layer after layer, norm and head; from every MLP the shared neurons and the
    `remaining` sinks.
    """
    attention, mlp = partitions(config)["attention"], partition(config.model, config.sinks)
    neurons, tables = np.concatenate([np.arange(mlp.shared), mlp.shared + remaining]), {}
    if is_sparse(config.sinks) and len(remaining):
        tables = {
            name: read(name, None)[remaining] for name in sparse_sinks.tables_of(config.model)
        }

    def cut(path: str, layer: int | None) -> np.ndarray:
        array = read(path, layer)
        if path == "layers/attention_output_kernel" and drop and attention.sinks:
            return np.where(np.arange(sum(attention))[:, None] < attention.shared, array, 0)
        if tables:
            return sparse_sinks.merged(
                path, array, {name: rows[:, layer] for name, rows in tables.items()}
            )
        if is_sparse(config.sinks):
            return array
        if path == "layers/down_kernel":
            return array[neurons]
        return array[..., neurons] if path.startswith(("layers/up_", "layers/gate_")) else array

    piece, of = [], None
    for tensor in hugging_face.tensors(config, len(neurons)):
        if piece and tensor.layer != of:
            yield piece
        of = tensor.layer
        piece.append(
            (tensor.name, hugging_face.theirs(config, tensor, cut).astype(dtype, copy=False))
        )
    yield piece


def open_folder(folder: pathlib.Path) -> tuple[Config, Tokenizer, dict]:
    """A Hugging Face folder or a GGUF file -> (config, tokenizer, parameters). Sinks in its weights
    or in files of sources are sinks again.

    Raises:
      InputError: an unknown architecture; weights that do not match its config.json exactly; a
        tokenizer with more tokens than the model; source files that do not fit; unreadable files.
    """
    config, found = _theirs(folder), _weights(folder)
    hugging_face.compare(found.shapes, config, config.model.hidden, str(folder))
    tokenizer = open_tokenizer(folder)
    if tokenizer.vocabulary_size > config.data.vocabulary_size:
        raise InputError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary_size} tokens and the model "
            f"{config.data.vocabulary_size}; "
            "they are not of one model"
        )
    params, config = hugging_face.ours(config, config.model.hidden, found.read), read_config(folder)
    if is_sparse(config.sinks):
        params |= sources.read_tables(folder, config)
    if config.sinks.traits.by_context:
        params[CONTEXTS] = context_files.read_table(folder, config)
    return config, tokenizer, params


def reader(params: dict) -> Callable[[str, int | None], np.ndarray]:
    """Parameters in memory, as `write_folder` reads them."""

    def read(path: str, layer: int | None) -> np.ndarray:
        array = params
        for name in path.split("/"):
            array = array[name]
        return np.asarray(array if layer is None else array[layer])

    return read


def read_config(folder: pathlib.Path) -> Config:
    """Our config of a Hugging Face folder, with the sinks in its weights, or with those of its
    source files.
    """
    if config := sources.config_of(folder):
        found = len(sources.sources_of(folder))
        return (
            with_fields(config, {"sinks.pool": found * config.sinks.active})
            if found
            else _theirs(folder)
        )
    if folder.is_dir() and (folder / sources.CONFIG).exists():
        return from_json((folder / sources.CONFIG).read_text(), str(folder / sources.CONFIG))
    return _theirs(folder)


def _theirs(folder: pathlib.Path) -> Config:
    """Our config of a folder, without sinks."""
    if folder.suffix == SUFFIX and folder.is_file():
        return hugging_face.read_config(GgufModel(folder).content, str(folder))
    where = folder / "config.json"
    try:
        content = json.loads(where.read_text())
        if not isinstance(content, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            _advice(folder) or f"{where} cannot be read ({error}); give {_WANTED}"
        ) from None
    config = hugging_face.read_config(content, str(where))
    if config.model.tied_head:
        # As transformers 5: a head of its own in the file is used, whatever is in the config.
        found, both = weights.Weights(folder), hugging_face.tied(config.model.family)
        tied = not set(both) <= found.shapes.keys() or np.array_equal(*map(found.read, both))
        config = with_fields(config, {"model.tied_head": tied})
    return config


def _weights(place: pathlib.Path) -> weights.Weights | GgufModel:
    return GgufModel(place) if place.suffix == SUFFIX else weights.Weights(place)


def _advice(place: pathlib.Path) -> str:
    """What to do with a place that looks like a model of another form; empty if it does not."""
    if gguf := next(iter(sorted(place.glob(f"*{SUFFIX}"))), None):
        return f"{place} holds a GGUF file; give the file: {gguf}"
    if (place / "adapter_config.json").exists():
        return (
            f"{place} is an adapter (LoRA); merge it into its base model first "
            f"(merge_and_unload), then give {_WANTED}"
        )
    if not place.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(place)):
        return f"{place} is no folder; give {_WANTED}, or for a model of the hub: hf://{place}"
    return ""


def with_sinks(
    config: Config, params: dict, sinks: SinksConfig, added: int, seed: int
) -> tuple[Config, dict]:
    """Gives a model sinks. With all of them on, it computes the same as before.

    Args:
      sinks: the settings. With `added`, the shared fraction is set so that all old neurons are
        shared. Sparse sinks are new ones, in addition to the neurons.
      added: number of new neurons in every MLP, which become the sinks: random input weights,
        output weights of 0. 0: the last of the old neurons become sinks.
    """
    config = with_fields(config, {"sinks": sinks})
    if is_sparse(sinks):
        params = params | sparse_sinks.new_tables(config.model, params["layers"], sinks.pool, seed)
    if added:
        there, hidden = config.model.hidden, config.model.hidden + added
        # Half a neuron more than the quotient: the partition rounds down.
        config = with_fields(
            config, {"model.hidden": hidden, "sinks.shared_fraction": (there + 0.5) / hidden}
        )
        random, layers = np.random.default_rng(seed), params["layers"]
        for name in ("up", "gate"):
            if f"{name}_kernel" in layers:
                kernel = layers[f"{name}_kernel"]
                new = random.normal(0, kernel.std(), (*kernel.shape[:-1], added)).astype(
                    kernel.dtype
                )
                layers[f"{name}_kernel"] = np.concatenate([kernel, new], axis=-1)
            if f"{name}_bias" in layers:
                layers[f"{name}_bias"] = np.pad(layers[f"{name}_bias"], ((0, 0), (0, added)))
        layers["down_kernel"] = np.pad(layers["down_kernel"], ((0, 0), (0, added), (0, 0)))
    return config, params


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
