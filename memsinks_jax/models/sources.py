"""Sources as files: a Hugging Face folder of a base model, and in `sources/` a file for each group
with sinks of its own.

Deleting a file withdraws its group: no other file, and nothing of the base, depends on it. A file
is safetensors, with k rows of each table of sparse sinks (`model/sparse_sinks.py`), or with the
contexts of the group alone and their rows (`models/context_files.py`). Its metadata has the format,
the group's name, k (`sinks`), and the weights that it was trained with (`base`). `memsinks.json` is
our config. Groups are numbered in the order of their names. Finding a file needs no jax.
"""

import concurrent.futures
import copy
import functools
import hashlib
import importlib.resources
import inspect
import os
import pathlib
import shutil
import string
import textwrap
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from memsinks_jax.config import Config, InputError, from_json, shown, with_fields
from memsinks_jax.data import ids, nearest
from memsinks_jax.data.documents import some
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.models.dialects import DIALECTS
from memsinks_jax.models.weights import Weights, packed
from memsinks_jax.runs.interruption import atomic_folder

# our config of a folder with sinks; Hugging Face's config.json has no place for it
CONFIG = "memsinks.json"
FOLDER = "sources"
_SUFFIX = ".safetensors"
_FORMAT = "memsinks source 1"
WORDS = "words"  # of the group, see data/nearest.py; no part of the model
KEYS = "keys"  # of its contexts
_LONGEST = 200  # characters of a file's name; file systems allow 255 bytes


class Source(NamedTuple):
    """A file of sinks: the group's name, k, the hash of its base, and how large it is."""

    path: pathlib.Path
    name: str
    sinks: int
    base: str
    bytes: int


class Sources:
    """The source files of a folder.

    Attributes:
      config: ours of the folder, with as many sinks as its sources have.
      files: {name: source}, in the order of their names, whether or not they fit the folder.
    Raises:
      InputError: a file that is none, or damaged; two of one name.
    """

    def __init__(self, folder: pathlib.Path, config: Config):
        self.folder, self.files = folder, {}
        found = map(read_source, (folder / FOLDER).glob(f"*{_SUFFIX}"))
        for one in sorted(found, key=lambda source: source.name):
            if other := self.files.get(one.name):
                raise InputError(
                    f"{other.path} and {one.path} are both the source {one.name!r}; delete one of "
                    "them"
                )
            self.files[one.name] = one
        self._config = config

    @property
    def config(self) -> Config:
        count = sum(source.sinks for source in self.files.values())
        pool = {"sinks.pool": count}
        if self._config.sinks.traits.by_context:
            pool = {"contexts.rows": self._config.contexts.rows + count}
        return with_fields(self._config, pool)

    @functools.cached_property
    def base(self) -> str:
        return base_of(self.folder, self._config)

    def find(self, name: str) -> Source:
        """The file of a source. Raises InputError if there is none."""
        if name not in self.files:
            raise InputError(
                f"{self.folder} has no source {shown(name)}; it has "
                f"{some(list(map(shown, self.files))) or 'none'}"
            )
        return self.files[name]

    def only(self, names: Collection[str]) -> "Sources":
        """The same folder as if it had these sources alone. Raises InputError as `find`."""
        some_of = copy.copy(self)
        some_of.files = {name: self.find(name) for name in sorted(set(names))}
        return some_of

    def fitting(self) -> list[Source]:
        """All sources by their numbers. Raises InputError for another number of sinks."""
        for source in self.files.values():
            self._check_sinks(source)
        return list(self.files.values())

    def checked(self) -> list[Source]:
        """As `fitting`; also raises InputError for sources of another base."""
        for source in self.fitting():
            self._check_base(source)
        return list(self.files.values())

    def tables(self) -> dict[str, np.ndarray]:
        """The tables of sparse sinks, float32: row n k + i is sink i of the n-th source.

        Raises:
          InputError: another number of sinks; arrays of other shapes; another base.
        """
        tables = {}
        for number, source in enumerate(self.checked()):
            for name, rows in read_rows(source, self.config).items():
                shape = self.config.sinks.pool, *rows.shape[1:]
                table = tables.setdefault(name, np.empty(shape, np.float32))
                table[number * source.sinks : (number + 1) * source.sinks] = rows
        return tables

    def add(self, path: pathlib.Path) -> Source:
        """Copies a source file into the folder. It gets its name there once it is complete.

        Raises:
          InputError: it is no source file; of another base, model or number of sinks; its group is
          there already.
        """
        source = read_source(path)
        if source.name in self.files:
            raise InputError(
                f"{self.folder} has the source {source.name!r} already; remove that one first"
            )
        self._check_sinks(source)
        read_rows(source, self.config)
        self._check_base(source)
        place = self.folder / FOLDER / file_name(source.name)
        with atomic_folder(place) as scratch:
            if place.exists():
                raise InputError(f"{place} is there, and holds another source; rename that file")
            shutil.copyfile(path, scratch / place.name)
            os.replace(scratch / place.name, place)
        return read_source(place)

    def remove(self, name: str) -> Source:
        """Deletes the file of a source, and nothing else. Raises InputError if there is none."""
        source = self.find(name)
        source.path.unlink()
        return source

    def _check_base(self, source: Source) -> None:
        if source.base != self.base:
            raise InputError(
                f"{source.path} was trained with another base than the weights of {self.folder}; "
                "use it with its own"
            )

    def _check_sinks(self, source: Source) -> None:
        if self.config.sinks.sparse and source.sinks != self.config.sinks.active:
            raise InputError(
                f"{source.path} has {source.sinks} sinks, and a source of {self.folder} has "
                f"{self.config.sinks.active}; use it with sources that have as many"
            )


def in_folder(folder: pathlib.Path) -> Sources | None:
    """The sources of a folder with a file for each; None for any other place. Raises InputError as
    `Sources`.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    config = from_json(path.read_text(errors="replace"), str(path))
    if config.sinks.traits.by_context:
        return Sources(folder, config) if (folder / FOLDER).is_dir() else None
    # Sinks that are not sparse are in the weights.
    return Sources(folder, config) if config.sinks.sparse else None


def open_sources(folder: pathlib.Path) -> Sources:
    """The same, where the command needs some. Raises InputError for any other place."""
    if (found := in_folder(folder)) is None:
        raise InputError(
            f"{folder} is no folder with source files; memsinks_jax.export --sources=DIR writes one"
        )
    return found


def read_source(path: pathlib.Path) -> Source:
    """The metadata of a file. Raises InputError if it is no source file, or truncated."""
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            header = opened.metadata() or {}
        if header.get("format") != _FORMAT:
            raise ValueError(f"its metadata does not have {_FORMAT!r}")
        return Source(
            path, header["name"], int(header["sinks"]), header["base"], path.stat().st_size
        )
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: not a source file, or damaged ({str(error).strip()}); delete or replace it"
        ) from None


def read_words(source: Source) -> np.ndarray:
    """The words of the group, see data/nearest.py -> uint64 (n,)."""
    found = _arrays(source, lambda name: name == WORDS)
    if not found:
        raise InputError(f"{source.path}: cannot be read (it has no words); delete or replace it")
    return found[WORDS]


def _arrays(source: Source, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(source.path, framework="np") as opened:
            return {name: opened.get_tensor(name) for name in filter(wanted, opened.keys())}
    # the last: a type that NumPy has not
    except (safetensors.SafetensorError, OSError, AttributeError) as error:
        raise InputError(
            f"{source.path}: cannot be read ({str(error).strip()}); delete or replace it"
        ) from None


def write_source(
    folder: pathlib.Path, name: str, arrays: Mapping[str, np.ndarray], base: str
) -> pathlib.Path:
    """Writes the file of a group -> its place.

    Args:
      arrays: first (k, L, D) or (k, L) of each table, then its words; or (k, D) and the keys.

    Raises:
      InputError: another group's name leads to the same file, as two that differ in case do on some
      file systems.
    """
    path = folder / file_name(name)
    if path.exists():
        raise InputError(f"{path}: a second source would have this file; rename the group {name!r}")
    header = {
        "format": _FORMAT,
        "name": name,
        "sinks": str(len(next(iter(arrays.values())))),
        "base": base,
    }
    rows = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    path.write_bytes(packed(rows, header))
    return path


def file_name(name: str) -> str:
    """The file of a group: its name, percent-encoded; of a long one the beginning, and a hash."""
    quoted = urllib.parse.quote(name, safe=" ")
    if len(quoted) > _LONGEST:
        quoted = f"{quoted[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted + _SUFFIX


def read_rows(source: Source, config: Config) -> dict[str, np.ndarray]:
    """{name of a table: its rows}, in the file's type. Raises InputError unless they are those of
    the config's model.
    """
    rows = _arrays(source, lambda name: name != WORDS)
    shapes, wanted = {name: array.shape for name, array in rows.items()}, _shapes(config, source)
    if shapes != wanted:
        different = min(
            name for name in shapes.keys() | wanted if shapes.get(name) != wanted.get(name)
        )
        raise InputError(
            f"{source.path}: {different} is {shapes.get(different)}, and this model needs "
            f"{wanted.get(different)}; it is of another model"
        )
    if broken := [name for name, array in rows.items() if not np.isfinite(array).all()]:
        raise InputError(f"{source.path}: {broken[0]} holds nan or inf; delete or replace it")
    return rows


def _shapes(config: Config, source: Source) -> dict[str, tuple[int, ...]]:
    from memsinks_jax.model.decoder import CONTEXTS  # brings jax
    from memsinks_jax.model.sparse_sinks import tables_of

    if config.sinks.traits.by_context:
        return {KEYS: (source.sinks,), CONTEXTS: (source.sinks, config.model.d_model)}
    shape = config.sinks.active, config.model.layers, config.model.d_model
    return {name: shape[: 2 if name.endswith("bias") else 3] for name in tables_of(config.model)}


def base_of(folder: pathlib.Path, config: Config) -> str:
    """A hash of the weights of a folder, 64 hexadecimal digits. `config` is that of its model.

    It stays the same if the folder is copied, if the weights are cut into files in another way, and
    if they are rounded to bfloat16: the tensors' names, shapes and values in bfloat16 are hashed,
    of each alone and then together.
    """
    from memsinks_jax.models.hugging_face import tensors  # brings jax

    weights = Weights(folder)

    def digest(name: str) -> bytes:
        values = np.ascontiguousarray(weights.read(name).astype(ml_dtypes.bfloat16))
        return hashlib.sha256(f"{name} {values.shape} ".encode() + values.tobytes()).digest()

    names = sorted(tensor.name for tensor in tensors(config, config.model.hidden))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(digest, names))).hexdigest()


def write_code(folder: pathlib.Path, config: Config, base: str, tokenizer: AnyTokenizer) -> dict:
    """Writes the PyTorch class that reads the sources of a folder -> its entries in config.json."""
    code = (ids.ngram_hashes, nearest.words_of, nearest.shares)  # so that it chooses as we do
    values = {
        "architecture": DIALECTS[config.model.family].architecture,
        "base": base,
        "at_least": nearest.AT_LEAST,
        "special": textwrap.fill(f"{list(tokenizer.special)}", 98, break_long_words=False),
        "nearest": source_text(*code),
    }
    return write_class(folder, "modeling_memsinks", "ModelWithSources", values)


def source_text(*functions: Callable) -> str:
    """Python functions as text, for a class that computes what we do."""
    return "\n\n\n".join(inspect.getsource(each).strip() for each in functions)


def write_class(folder: pathlib.Path, module: str, name: str, values: Mapping[str, object]) -> dict:
    """Writes a PyTorch class of a template, which transformers loads -> its entries in
    config.json.
    """
    template = importlib.resources.files("memsinks_jax.models") / f"{module}.template"
    text = string.Template(template.read_text(encoding="utf-8")).substitute(values)
    (folder / f"{module}.py").write_text(text)
    return {"auto_map": {"AutoModelForCausalLM": f"{module}.{name}"}}
