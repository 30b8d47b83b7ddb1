"""The seal of a checkpoint: digests that detect and name later damage.

`seal.json` holds the size of every file and the hash of every file, except large ones of arrays.
Orbax stores zarr chunks in OCDBT, which has checksums of its index but not of the chunks. Reading
them back for a hash would take as long as writing them, so the arrays have digests instead. The
devices compute them before the save, and every reader computes them again.
"""

import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore
from jax.sharding import NamedSharding

from memsinks_jax.data.order import mix32
from memsinks_jax.training.paths import path_name
from memsinks_jax.training.sharding import replicated

ITEMS = ("params", "optimizer", "progress")
PROGRESS = "progress/data.json"  # what a checkpoint stores besides its arrays
_SEAL = "seal.json"
# Orbax writes these two last, after the seal. They hold no state.
_UNSEALED = (_SEAL, "_CHECKPOINT_METADATA", "commit_success.txt")
_HASHED_BYTES = 2**20  # files of arrays up to this size are hashed: reading one back is cheap
_BLOCK = 2**15  # elements digested at a time, which fit into a core's cache
_THREADS = 8  # slices in memory at a time
_INDEX_CACHE_BYTES = 10**8  # of OCDBT, as in Orbax


def is_stacked(name: str) -> bool:
    """Whether axis 0 of an array is the layers. Such arrays are stored, read and digested layer by
    layer.
    """
    return "layers/" in name


def needs_digests(items: dict) -> bool:
    """Whether some file of these arrays may be too large to be hashed."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(items)) > _HASHED_BYTES


def digests(items: dict) -> dict[str, list[int]]:
    """{'params/layers/up_kernel': [one for each layer], 'params/token_embedding': [one], ...}: 32
    bits each.

    Computed on the devices, in one pass over their memory. The same for any sharding. Collective.

    Args:
      items: {name of the item: a tree of jax arrays}.
    """
    arrays = {path_name(path): array for path, array in jax.tree_util.tree_leaves_with_path(items)}
    sharding = next(iter(arrays.values())).sharding
    if isinstance(sharding, NamedSharding):
        sharding = replicated(sharding.mesh)  # replicated, so that every host can read them
    computed = jax.device_get(jax.jit(_digests_on_devices, out_shardings=sharding)(arrays))
    return {name: found.tolist() for name, found in computed.items()}


def _digests_on_devices(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    def of_array(name: str, array: jax.Array) -> jax.Array:
        first = int(is_stacked(name))
        bits = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}").astype(
            jnp.uint32
        )
        index = jnp.zeros(array.shape, jnp.uint32)
        for axis in range(first, array.ndim):
            stride = np.uint32(math.prod(array.shape[axis + 1 :]) % 2**32)
            index += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * stride
        return jnp.sum(_mixed(bits, index), range(first, array.ndim), dtype=jnp.uint32).reshape(-1)

    return {name: of_array(name, array) for name, array in arrays.items()}


def digest(array: np.ndarray) -> int:
    """The same digest for a layer, or for an array without layers, on the host."""
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    places, total = np.arange(_BLOCK, dtype=np.uint32), 0
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK].astype(np.uint32, copy=False)
        index = places[: block.size] + np.uint32(start % 2**32)
        total += int(_mixed(block, index).sum(dtype=np.uint32))
    return total % 2**32


def _mixed(bits, index):
    """A hash of elements, uint32, and their places: any change to one changes the sum of all,
    whatever the sharding.
    """
    return mix32(bits ^ (index * np.uint32(0x9E3779B1)))


def array_opener(item: pathlib.Path) -> Callable[[str], tensorstore.TensorStore]:
    """-> a function that opens an array of a checkpoint's item by its name, as 'layers/up_kernel'.
    All share an index.
    """
    context = tensorstore.Context({"cache_pool#index": {"total_bytes_limit": _INDEX_CACHE_BYTES}})

    @cache
    def open_array(name: str) -> tensorstore.TensorStore:
        store = {"driver": "ocdbt", "base": f"file://{item}/", "path": name.replace("/", ".") + "/"}
        store["cache_pool"] = "cache_pool#index"
        return tensorstore.open({"driver": "zarr", "kvstore": store}, context=context).result()

    return open_array


def write_seal(folder: pathlib.Path) -> None:
    """Writes the size of every file under a folder, and its hash unless digests of arrays cover it."""
    hashed_bytes = _HASHED_BYTES if _digests_in(folder) else math.inf

    def sealed(path: pathlib.Path) -> list:
        size, of_arrays = path.stat().st_size, path.parent.name == "d"  # OCDBT's name of the folder
        return [size, None if of_arrays and size > hashed_bytes else _hash(path)]

    content = {"files": {name: sealed(path) for name, path in _files(folder).items()}}
    with (folder / _SEAL).open("w") as file:
        json.dump(content, file, indent=0)
        file.flush()
        os.fsync(file.fileno())


def find_damage(
    folder: pathlib.Path, items: tuple = ITEMS, share: tuple[int, int] = (0, 1), arrays: bool = True
) -> str | None:
    """The difference between a checkpoint's files and its seal, in words; None if there is none.

    Args:
      items: the items to check; no byte of the others is read.
      share: (part of the work to do, number of parts).
      arrays: whether to read arrays with digests. If not, compare the digests when they are
      restored.
    """
    part, parts = share
    others = set(ITEMS) - set(items)
    try:
        reading = "_CHECKPOINT_METADATA"
        json.loads((folder / reading).read_text())
        reading = _SEAL
        sealed = json.loads((folder / reading).read_text())["files"]
        sealed = {
            name: of_file
            for name, of_file in sorted(sealed.items())
            if name.split("/")[0] not in others
        }
        for name in _UNSEALED:
            if not (folder / name).is_file():
                return f"{name} is missing"
        if part == 0:
            for name in sorted(_files(folder).keys() - sealed.keys()):
                if name.split("/")[0] not in others:
                    return f"{name} was added later"
        checks = [
            partial(_damage_of_file, folder, name, size, hashed)
            for name, (size, hashed) in sealed.items()
        ]
        if arrays:
            reading = PROGRESS
            expected = _digests_in(folder)
            checks += [
                check for item in items for check in _checks_of_arrays(folder, item, expected)
            ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{reading} cannot be read ({error})"
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return next(filter(None, pool.map(lambda check: check(), checks[part::parts])), None)


def _damage_of_file(folder: pathlib.Path, name: str, size: int, hashed: str | None) -> str | None:
    path = folder / name
    try:
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        return f"{name} was changed" if hashed is not None and _hash(path) != hashed else None
    except OSError as error:
        return f"{name} cannot be read ({error})"


def _checks_of_arrays(
    folder: pathlib.Path, item: str, expected: dict[str, list[int]]
) -> Iterator[Callable]:
    open_array = array_opener(folder / item)
    for name in sorted(expected):
        if name.startswith(f"{item}/"):
            for place, of_slice in enumerate(expected[name]):
                layer = place if is_stacked(name) else None
                yield partial(_damage_of_slice, folder, name, layer, of_slice, open_array)


def _damage_of_slice(
    folder: pathlib.Path, name: str, layer: int | None, expected: int, open_array: Callable
) -> str | None:
    item, array = name.split("/", 1)
    try:
        store = open_array(array)
        if (
            digest(np.asarray((store if layer is None else store[layer]).read().result()))
            == expected
        ):
            return None
        problem = "was changed"
    except (ValueError, OSError) as error:  # of whatever is damaged, tensorstore makes a ValueError
        problem = f"cannot be read ({str(error).splitlines()[0]})"
    try:
        files = [f"{item}/{file}" for file in _files_of_slice(folder / item, array, layer)]
    # the index itself is damaged; the error above names its file
    except (ValueError, OSError, LookupError):
        files = []
    what = name if layer is None else f"layer {layer} of {name}"
    return f"{what} {problem}{', which is in ' if files else ''}{' and '.join(files)}"


def _files_of_slice(item: pathlib.Path, array: str, layer: int | None) -> list[str]:
    """Names of the files that hold the chunks of a slice."""
    base = tensorstore.KvStore.open(f"file://{item}/").result()
    found = set()

    def walk(node: str, prefix: str) -> None:
        for entry in tensorstore.ocdbt.dump(base, node=node).result()["entries"]:
            if "location" in entry:
                walk(entry["location"], prefix + entry.get("subtree_common_prefix", b"").decode())
            elif "indirect_value" in entry:  # value:FOLDER:FILE:OFFSET:LENGTH
                name, _, chunk = (prefix + entry["key"].decode()).rpartition("/")
                if name == array.replace("/", ".") and (
                    layer is None or chunk.split(".")[0] == str(layer)
                ):
                    found.add("".join(entry["indirect_value"].split(":")[1:3]))

    walk(tensorstore.ocdbt.dump(base).result()["versions"][-1]["root"]["location"], "")
    return sorted(found)


def _digests_in(folder: pathlib.Path) -> dict[str, list[int]]:
    """The digests of a checkpoint. Empty for small states, of which all files have hashes."""
    return json.loads((folder / PROGRESS).read_text()).get("digests", {})


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in paths.items() if name not in _UNSEALED}


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
