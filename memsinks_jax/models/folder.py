"""Writes a model as a complete Hugging Face folder, or nothing."""

import json
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from memsinks_jax.config import InputError, to_json, with_fields
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.opened import write_ids
from memsinks_jax.data.tokenizer import Tokenizer, listed, read_object
from memsinks_jax.model import sparse_sinks
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models import config_json, context_files, hugging_face, sources, weights
from memsinks_jax.models.dialects import DIALECTS
from memsinks_jax.models.origin import UNCHANGED, copy
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.tokenizer_files import write_tokenizer
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.kinds import has_sinks, is_sparse, partition

logger = logging.getLogger(__name__)

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def write_folder(
    folder: pathlib.Path,
    model: Stored | Trained,
    card: str,
    drop: bool,
    dtype: str = "float32",
    remaining: Sequence[int] = (),
    contexts: tuple[Contexts, np.ndarray] | None = None,
) -> dict:
    """Writes a model; the folder gets its name once it is complete. All that training did not
    change of the small files that the model came with stays as it is there.

    Args:
      card: the model card, markdown.
      drop: cut the sinks out of the weights; else they are all on, and the folder includes our
        config.
      remaining: sinks of the MLPs, the same in all layers, that stay despite `drop`.
      contexts: those to write, and their rows; None: all of the model.
    Returns:
      {"parameters", "files": [names], "bytes"}.
    Raises:
      InputError: the folder exists; Hugging Face has no such model.
    """
    config, tokenizer, source = model.config, model.tokenizer, model.origin
    if folder.exists():
        raise InputError(f"{folder} exists; use another --out, or remove it first")
    if not drop and has_sinks(config) and config.sinks.traits.owned and config.sinks.opens_at > 1:
        logger.warning(
            "sinks that open on return were never on together: with all of them on, as "
            "transformers will have them, this is no model to use; memsinks_jax.export "
            "--sinks=drop cuts them out"
        )
    parts = partition(config.model, config.sinks)
    remaining = np.asarray(remaining if drop else range(parts.sinks), int)
    hidden = parts.shared + len(remaining)
    theirs = read_object(source / "config.json") if source else {}
    content = config_json.write_config(config, hidden, tokenizer, dtype, theirs)
    scratch = folder.with_name(folder.name + ".new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        files = weights.write(scratch, _pieces(model, remaining, DTYPES[dtype]))
        if model.contexts is not None and not drop:
            found, table = contexts or (model.contexts, model.read(CONTEXTS))
            table = table[: len(found)].astype(DTYPES[dtype], copy=False)
            config = with_fields(config, {"contexts.rows": len(found)})
            content |= context_files.write(scratch, config, found, table)
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
            write_ids(scratch, model.opened.ids)
        write_tokenizer(tokenizer, scratch, content[DIALECTS[config.model.family].context], source)
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
    model: Stored | Trained, remaining: np.ndarray, dtype: np.dtype
) -> Iterator[list[tuple[str, np.ndarray]]]:
    """Embeddings, layer after layer, norm and head; from every MLP the shared neurons and the
    `remaining` sinks.
    """
    config, read = model.config, model.read
    shared = partition(config.model, config.sinks).shared
    neurons, tables = np.concatenate([np.arange(shared), shared + remaining]), {}
    if is_sparse(config.sinks) and len(remaining):
        tables = {name: read(name)[remaining] for name in sparse_sinks.tables_of(config.model)}

    def cut(path: str, layer: int | None) -> np.ndarray:
        array = read(path, layer)
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


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
