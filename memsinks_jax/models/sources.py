"""Sources as files: a Hugging Face folder of a base model, and in `sources/` a file for each group
with sinks of its own.

Deleting a file withdraws its group: no other file, and nothing of the base, depends on it. A file
is safetensors, with k rows of each table of sparse sinks (`model/sparse_sinks.py`). Its metadata
has the format, the group's name, k (`sinks`), and the weights that it was trained with (`base`).
`memsinks.json` is our config. Groups are numbered in the order of their names. Finding a file needs
no jax.
"""

import concurrent.futures
import hashlib
import importlib.resources
import inspect
import itertools
import pathlib
import string
import textwrap
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from memsinks_jax.config import Config, InputError, from_json, shown
from memsinks_jax.data import ids, nearest
from memsinks_jax.data.documents import some
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.models.weights import Weights, packed

# our config of a folder with sinks; Hugging Face's config.json has no place for it
CONFIG = "memsinks.json"
FOLDER = "sources"
_SUFFIX = ".safetensors"
_FORMAT = "memsinks source 1"
_WORDS = "words"  # the name of the one array that is no table
_LONGEST = 200  # characters of a file's name; file systems allow 255 bytes


_CODE = "modeling_memsinks"


class Source(NamedTuple):
    """A file of sinks: the group's name, k, the hash of its base, and how large it is."""

    path: pathlib.Path
    name: str
    sinks: int
    base: str
    bytes: int


def config_of(folder: pathlib.Path) -> Config | None:
    """Our config of a folder with a file for each source; its pool is 0. None for any other place."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    config = from_json(path.read_text(errors="replace"), str(path))
    return config if config.sinks.sparse else None  # those of matrices are in the weights


def files_of(folder: pathlib.Path) -> list[Source]:
    """All source files of a folder, in the order of their names, whether or not they fit it.

    Raises:
      InputError: it has no sources; a file that is none, or damaged; two of one name.
    """
    if config_of(folder) is None:
        raise InputError(
            f"{folder} is no folder with source files; memsinks_jax.export --sources=DIR writes one"
        )
    found = sorted(
        map(read_source, (folder / FOLDER).glob(f"*{_SUFFIX}")), key=lambda source: source.name
    )
    for one, other in itertools.pairwise(found):
        if one.name == other.name:
            raise InputError(
                f"{one.path} and {other.path} are both the source {one.name!r}; delete one of them"
            )
    return found


def sources_of(folder: pathlib.Path) -> list[Source]:
    """The sources of a folder by their numbers. Raises InputError as `files_of`, and for another
    number of sinks.
    """
    found, config = files_of(folder), config_of(folder)
    for source in found:
        check_sink_number(source, config, folder)
    return found


def find(folder: pathlib.Path, name: str) -> Source:
    """The file of a source. Raises InputError if there is none."""
    found = {source.name: source for source in files_of(folder)}
    if name not in found:
        raise InputError(
            f"{folder} has no source {shown(name)}; it has "
            f"{some(list(map(shown, found))) or 'none'}"
        )
    return found[name]


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
    try:
        with safetensors.safe_open(source.path, framework="np") as opened:
            return opened.get_tensor(_WORDS)
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{source.path}: cannot be read ({error}); delete or replace it") from None


def write_source(
    folder: pathlib.Path, name: str, tables: Mapping[str, np.ndarray], base: str, words: np.ndarray
) -> pathlib.Path:
    """Writes the file of a group, (k, L, D) or (k, L) of each table, and its words -> its place.

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
        "sinks": str(len(next(iter(tables.values())))),
        "base": base,
    }
    rows = {table: np.ascontiguousarray(array) for table, array in tables.items()} | {_WORDS: words}
    path.write_bytes(packed(rows, header))
    return path


def file_name(name: str) -> str:
    """The file of a group: its name, percent-encoded; of a long one the beginning, and a hash."""
    quoted = urllib.parse.quote(name, safe=" ")
    if len(quoted) > _LONGEST:
        quoted = f"{quoted[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted + _SUFFIX


def read_tables(folder: pathlib.Path, config: Config) -> dict[str, np.ndarray]:
    """The tables of sparse sinks of a folder, float32: row n k + i is sink i of the n-th source.

    Args:
      config: with as many sinks as the folder has.
    Raises:
      InputError: as `sources_of`; arrays of other shapes; a base that is not the folder's.
    """
    found, wanted = sources_of(folder), _shapes(config)
    check_base(found, base_of(folder, config), folder)
    tables = {
        name: np.empty((config.sinks.pool, *shape[1:]), np.float32)
        for name, shape in wanted.items()
    }
    for number, source in enumerate(found):
        for name, rows in read_rows(source, config).items():
            tables[name][number * source.sinks : (number + 1) * source.sinks] = rows
    return tables


def read_rows(source: Source, config: Config) -> dict[str, np.ndarray]:
    """{name of a table: its rows}, in the file's type. Raises InputError unless they are those of
    the config's model.
    """
    try:
        with safetensors.safe_open(source.path, framework="np") as opened:
            rows = {name: opened.get_tensor(name) for name in opened.keys() if name != _WORDS}  # noqa: SIM118
    # the last: a type that NumPy has not
    except (safetensors.SafetensorError, OSError, AttributeError) as error:
        raise InputError(
            f"{source.path}: cannot be read ({str(error).strip()}); delete or replace it"
        ) from None
    shapes, wanted = {name: array.shape for name, array in rows.items()}, _shapes(config)
    if shapes != wanted:
        different = min(
            name for name in shapes.keys() | wanted if shapes.get(name) != wanted.get(name)
        )
        raise InputError(
            f"{source.path}: {different} is {shapes.get(different)}, and this model needs "
            f"{wanted.get(different)}; it is of "
            "another model"
        )
    if broken := [name for name, array in rows.items() if not np.isfinite(array).all()]:
        raise InputError(f"{source.path}: {broken[0]} holds nan or inf; delete or replace it")
    return rows


def _shapes(config: Config) -> dict[str, tuple[int, ...]]:
    from memsinks_jax.model.sparse_sinks import tables_of  # brings jax

    shape = config.sinks.active, config.model.layers, config.model.d_model
    return {name: shape[: 2 if name.endswith("bias") else 3] for name in tables_of(config.model)}


def base_of(folder: pathlib.Path, config: Config) -> str:
    """A hash of the weights of a folder, 64 hexadecimal digits. `config` is that of its model.

    It stays the same if the folder is copied, if the weights are cut into files in another way, and
    if they are rounded to
    bfloat16: the tensors' names, shapes and values in bfloat16 are hashed, of each alone and then
    together.
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
    from memsinks_jax.models.hugging_face import DIALECTS  # brings jax

    code = (ids.ngram_hashes, nearest.words_of, nearest.shares)  # so that it chooses as we do
    values = {
        "architecture": DIALECTS[config.model.family].architecture,
        "base": base,
        "at_least": nearest.AT_LEAST,
        "special": textwrap.fill(f"{list(tokenizer.special)}", 98, break_long_words=False),
        "nearest": "\n\n\n".join(inspect.getsource(each).strip() for each in code),
    }
    place = importlib.resources.files("memsinks_jax.models") / f"{_CODE}.template"
    text = string.Template(place.read_text(encoding="utf-8")).substitute(values)
    (folder / f"{_CODE}.py").write_text(text)
    return {"auto_map": {"AutoModelForCausalLM": f"{_CODE}.ModelWithSources"}}


def check_base(found: list[Source], base: str, folder: pathlib.Path) -> None:
    for source in found:
        if source.base != base:
            raise InputError(
                f"{source.path} was trained with another base than the weights of {folder}; use "
                "it with its own"
            )


def check_sink_number(source: Source, config: Config, folder: pathlib.Path) -> None:
    if source.sinks != config.sinks.active:
        raise InputError(
            f"{source.path} has {source.sinks} sinks, and a source of {folder} has "
            f"{config.sinks.active}; use it with "
            "sources that have as many"
        )
