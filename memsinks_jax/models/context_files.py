"""Sinks by context in a Hugging Face folder: beside the plain model the table with its keys, and a
PyTorch class.

`contexts.safetensors` has the contexts of all texts. A file of `sources/` has those that stand in
the texts of one group alone; whoever deletes it withdraws them. Readers put the files together.
"""

import pathlib
from collections.abc import Iterator

import numpy as np
import safetensors
import tqdm

from memsinks_jax.config import Config, InputError
from memsinks_jax.data import contexts
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models import sources
from memsinks_jax.models.dialects import DIALECTS
from memsinks_jax.models.sources import KEYS, source_text, write_class
from memsinks_jax.models.weights import packed
from memsinks_jax.sinks.kinds import NONE

TABLE = "contexts.safetensors"
_LETTERS = "letters"
_MANY = -2  # no one group's


def write(folder: pathlib.Path, config: Config, found: Contexts, table: np.ndarray) -> dict:
    """Writes the contexts and their table, (M, D), in its type -> entries for config.json."""
    arrays = {CONTEXTS: np.ascontiguousarray(table)}
    arrays |= {KEYS: np.asarray(found.keys), _LETTERS: found.letters}
    (folder / TABLE).write_bytes(packed(arrays, {}))
    code = (  # so that it finds what we find
        contexts.window,
        contexts.mixed,
        contexts.begins,
        contexts._where,
        contexts.lanes,
        contexts.keys_of,
        contexts.rows_of,
    )
    values = {
        "architecture": DIALECTS[config.model.family].architecture,
        "length": config.contexts.length,
        "table": TABLE,
        "sources": sources.FOLDER,
        "keys": KEYS,
        "letters": _LETTERS,
        "name": CONTEXTS,
        "none": NONE,
        "seeds": _listed(contexts.SEEDS),
        "longest": contexts.LONGEST,
        "bits": (contexts._HAS_LETTERS, contexts._OPENS, contexts._CLOSES),
        "lookup": source_text(*code),
    }
    return write_class(folder, "modeling_contexts", "ModelWithContexts", values)


def _listed(numbers: tuple[np.uint32, ...]) -> str:
    return f"({', '.join(f'np.uint32({number})' for number in numbers)})"


def owners(found: Contexts, corpus: Corpus) -> np.ndarray:
    """The group in whose texts alone each context stands, by its number in the table of documents
    -> int64 (M,), negative for none. A pass over all that the run reads.
    """
    table, plan = corpus.table, corpus.mixture
    owner = np.full(len(found), -1)
    for start, stop, _ in tqdm.tqdm(table.runs.tolist(), desc="texts", disable=None, leave=False):
        records = np.arange(start, stop)
        firsts = table.first_copies(records)
        groups = table.groups[records]
        # A copy in the same group has no other contexts.
        wanted = (firsts == records) | (groups != table.groups[firsts])
        wanted &= plan.reads(records) | plan.is_repeated(firsts)
        for record, group in zip(records[wanted].tolist(), groups[wanted].tolist(), strict=True):
            tokens, around = table.tokens(record), table.around(record)
            opening = around[0] if around else corpus.tokenizer.begin_of_text
            rows = found.rows(tokens, 0, len(tokens) + 1, opening)
            rows = rows[rows != NONE]
            owner[rows] = np.where((owner[rows] == -1) | (owner[rows] == group), group, _MANY)
    return owner


def _files(folder: pathlib.Path, more: sources.Sources | None) -> Iterator[pathlib.Path]:
    yield folder / TABLE
    yield from (source.path for source in more.checked()) if more else ()


def _read(path: pathlib.Path, name: str) -> np.ndarray:
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            return opened.get_tensor(name)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is missing or damaged ({error}); export the model anew") from None


def read(folder: pathlib.Path, length: int, more: sources.Sources | None) -> Contexts:
    """The contexts of a folder and of its sources.

    Raises:
      InputError: a file is missing or damaged, or of another model; two have one context.
    """
    keys = np.concatenate([_read(path, KEYS) for path in _files(folder, more)])
    letters, found = _read(folder / TABLE, _LETTERS), np.sort(keys)
    if keys.dtype != np.uint64 or letters.shape[1:] != (7,) or (found[1:] == found[:-1]).any():
        raise InputError(f"{folder} has no contexts, or some twice; export the model anew")
    return Contexts(found, length, letters)


def read_table(folder: pathlib.Path, config: Config, more: sources.Sources | None) -> np.ndarray:
    """The table that belongs to `read`, float32 (M, D). Raises InputError likewise."""
    keys, rows = (
        np.concatenate([_read(path, name) for path in _files(folder, more)])
        for name in (KEYS, CONTEXTS)
    )
    wanted = len(keys), config.model.d_model
    if rows.shape != wanted:
        raise InputError(
            f"{folder / TABLE} has a table of {rows.shape}, and {folder} needs one of {wanted}; "
            "use its own"
        )
    return rows[np.argsort(keys)].astype(np.float32)
