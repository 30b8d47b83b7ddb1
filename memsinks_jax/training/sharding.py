"""Sharding: a mesh of devices, and an ordered table from parameter paths to its axes
(placement.AXES).
"""

import math

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import InputError, MeshConfig
from memsinks_jax.model.placement import AXES
from memsinks_jax.model.placement import BATCH as BATCH_AXES
from memsinks_jax.training.optimizer import TABLE
from memsinks_jax.training.paths import first_match, path_name

# Ordered (regex over the path, partition); the first match wins, an uncovered parameter is an
# error. Optimizer moments end with their parameter's path, so one table serves both. Axis 0 of
# everything in layers/ is L.
RULES = (
    (r"layers/(query|key|value|gate|up)_kernel$", P(None, "fsdp", "tensor")),
    (r"layers/(query|key|value|gate|up)_bias$", P(None, "tensor")),
    (r"layers/(attention_output|down)_kernel$", P(None, "tensor", "fsdp")),
    (r"layers/(attention_output|down)_bias$", P()),
    (r"(^|/)token_embedding$", P("tensor", "fsdp")),
    (r"(^|/)position_embedding$", P(None, "fsdp")),
    (r"(^|/)head_kernel$", P("fsdp", "tensor")),
    (r"_norm/(scale|bias)$", P()),
    (TABLE, P("fsdp")),
    (r"(^|/)(count|step|ns_coeffs)$", P()),
    (r"^guard/", P()),
)

BATCH = P(BATCH_AXES)


def make_mesh(
    config: MeshConfig, devices: list[jax.Device] | None = None, slice_of: str = "slice_index"
) -> Mesh:
    """A mesh of AXES over the devices (default: all). One device is a mesh of one.

    Several TPU slices, or nodes of GPUs, lie along `data`, the axis with the least communication.
    The attribute `slice_of` of a device distinguishes them ("slice_index" or "process_index"): jax
    gives every node of GPUs an index.

    Raises:
      InputError: the product of the axes is not the number of devices, or the slices do not divide
      `data`.
    """
    devices = jax.devices() if devices is None else devices
    slices = len({getattr(device, slice_of, 0) for device in devices})
    data, fsdp, tensor = config.data, config.fsdp, config.tensor
    if fsdp == -1:
        fsdp = len(devices) // (tensor * max(data, slices))
    if data == -1:
        data = len(devices) // max(fsdp * tensor, 1)
    if data * fsdp * tensor != len(devices):
        raise InputError(
            f"config.mesh (data {config.data}, fsdp {config.fsdp}, tensor {config.tensor}) does "
            "not cover the "
            f"{len(devices)} devices; choose axes that multiply to {len(devices)}, or data=-1 "
            "and a divisor"
        )
    if data % slices:
        raise InputError(
            f"config.mesh.data is {data}, and there are {slices} slices or nodes, which must "
            "divide it"
        )
    # Auto: XLA propagates shardings. make_mesh would take Explicit by default. It supports one
    # slice only.
    if slices == 1:
        return jax.make_mesh(
            (data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices
        )
    laid_out = mesh_utils.create_hybrid_device_mesh(
        (data // slices, fsdp, tensor),
        (slices, 1, 1),
        devices,
        process_is_granule=slice_of == "process_index",
    )
    return Mesh(laid_out, AXES, axis_types=(AxisType.Auto,) * 3)


def shards_of_batch(mesh: Mesh) -> int:
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batch(batch_size: int, mesh: Mesh, microbatches: int = 1) -> None:
    """Raises InputError if the mesh and the number of microbatches do not divide the batch."""
    parts = microbatches * shards_of_batch(mesh)
    by = f" ({microbatches} microbatches by config.compute.accumulate)" if microbatches > 1 else ""
    if batch_size % parts:
        raise InputError(
            f"config.training.batch_size is {batch_size}, which the mesh does not divide into "
            f"{parts} equal parts{by}; "
            f"choose a multiple of {parts}, for example {math.ceil(batch_size / parts) * parts}"
        )


def shardings(tree, mesh: Mesh):
    """The NamedSharding of every leaf of a tree of arrays or shapes, by RULES.

    If `fsdp` does not divide an axis, it goes to another axis of the leaf; if it divides none, it
    does not split the leaf.

    Raises:
      InputError: no rule covers a leaf, or `tensor` does not divide its axis.
    """

    def of_leaf(path: tuple, leaf) -> NamedSharding:
        spec = first_match(RULES, path_name(path))
        spec = [*spec, *[None] * (len(leaf.shape) - len(spec))]
        for place, axis in enumerate(spec):
            if axis == "tensor" and leaf.shape[place] % mesh.shape[axis]:
                raise InputError(
                    f"parameter {path_name(path)} of shape {tuple(leaf.shape)}: "
                    f"{leaf.shape[place]} does not divide by "
                    f"config.mesh.tensor={mesh.shape[axis]}; choose another mesh or another size"
                )
        if "fsdp" in spec and leaf.shape[spec.index("fsdp")] % mesh.shape["fsdp"]:
            spec[spec.index("fsdp")] = None
            for place in reversed(range(len(spec))):
                taken = mesh.shape["tensor"] if spec[place] else 1
                if leaf.shape[place] % (mesh.shape["fsdp"] * taken) == 0:
                    spec[place] = (spec[place], "fsdp") if spec[place] else "fsdp"
                    break
        while spec and spec[-1] is None:
            spec.pop()
        return NamedSharding(mesh, P(*spec))

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def placed(shapes, mesh: Mesh):
    """A tree of shapes -> the same with `shardings`, for jit and checkpoints."""
    return jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
        shapes,
        shardings(shapes, mesh),
    )


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def own_rows(batch_size: int, mesh: Mesh) -> np.ndarray:
    """The rows of a global batch that this host's devices hold -> int (K,), ascending.

    Hosts may hold the same rows, for example if `tensor` spans them. A host's rows need not be
    adjacent.
    """
    shards = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,)).values()
    return np.unique([np.arange(batch_size)[rows] for (rows,) in shards])


def put_batch(batch: dict, shapes: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """This host's rows, as `own_rows` gives them -> global arrays of these shapes and shardings
    (`Program.batch`).
    """
    of_batch = shapes["inputs"]
    own = own_rows(len(of_batch), of_batch.sharding.mesh)

    def put(rows: np.ndarray, whole: jax.ShapeDtypeStruct) -> jax.Array:
        assert rows.shape == (len(own), *whole.shape[1:]), (rows.shape, len(own), whole.shape)

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            first, last, _ = index[0].indices(len(whole))
            return rows[slice(*np.searchsorted(own, (first, last)))]

        return jax.make_array_from_callback(whole.shape, whole.sharding, shard)

    return {name: put(rows, shapes[name]) for name, rows in batch.items()}


def put_whole_batch(batch: dict, mesh: Mesh) -> dict[str, jax.Array]:
    """The same if every host has all rows, as in an evaluation."""
    sharding = NamedSharding(mesh, BATCH)
    return {
        n: jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
        for n, rows in batch.items()
    }


def fetch(array: jax.Array) -> np.ndarray:
    """A whole global array, on every host."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)
