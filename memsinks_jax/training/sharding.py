"""Where every array lives: a mesh of devices and an ordered table from parameter paths to its axes.

Mesh axes: `data` splits the batch, `fsdp` splits the batch and the parameters, `tensor` splits heads and hidden neurons.
"""

import math

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import InputError, MeshConfig
from memsinks_jax.training.optimizer import first_match, path_name

AXES = ("data", "fsdp", "tensor")

# Ordered (regex over the path, partition); the first match wins, an uncovered parameter is an error. Optimizer moments
# have their parameter's path at the end of theirs, so one table serves both. Axis 0 of everything in layers/ is L.
RULES = (
    (r"layers/(query|key|value|gate|up)_kernel$", P(None, "fsdp", "tensor")),
    (r"layers/(query|key|value|gate|up)_bias$", P(None, "tensor")),
    (r"layers/(attention_output|down)_kernel$", P(None, "tensor", "fsdp")),
    (r"layers/(attention_output|down)_bias$", P()),
    (r"(^|/)token_embedding$", P("tensor", "fsdp")),
    (r"(^|/)position_embedding$", P(None, "fsdp")),
    (r"(^|/)head_kernel$", P("fsdp", "tensor")),
    (r"_norm/(scale|bias)$", P()),
    (r"(^|/)(count|step)$", P()),
    (r"^guard/", P()),
)

BATCH = P(("data", "fsdp"))


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh of AXES over the devices (default: all). One device is a mesh of one.

    Raises:
      InputError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    others = config.fsdp * config.tensor
    data = len(devices) // others if config.data == -1 else config.data
    shape = (data, config.fsdp, config.tensor)
    if math.prod(shape) != len(devices):
        raise InputError(
            f"config.mesh (data {config.data}, fsdp {config.fsdp}, tensor {config.tensor}) does not cover the "
            f"{len(devices)} devices; choose axes that multiply to {len(devices)}, or data=-1 and a divisor"
        )
    # Auto: XLA propagates shardings. make_mesh would take Explicit by default.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def check_batch(batch_size: int, mesh: Mesh, name: str = "config.training.batch_size") -> None:
    """Raises InputError when the mesh and the hosts do not divide the batch."""
    parts = math.lcm(mesh.shape["data"] * mesh.shape["fsdp"], jax.process_count())
    if batch_size % parts:
        raise InputError(
            f"{name} is {batch_size}, which the mesh does not divide into {parts} equal parts; "
            f"choose a multiple of {parts}, for example {math.ceil(batch_size / parts) * parts}"
        )


def shardings(tree, mesh: Mesh):
    """The NamedSharding of every leaf of a tree of arrays or shapes, by RULES.

    Raises:
      InputError: a leaf that no rule covers, or one whose axis the mesh does not divide.
    """

    def of_leaf(path: tuple, leaf) -> NamedSharding:
        spec = first_match(RULES, path_name(path))
        for size, axis in zip(leaf.shape, spec, strict=False):
            if axis and size % mesh.shape[axis]:
                raise InputError(
                    f"parameter {path_name(path)} of shape {tuple(leaf.shape)}: {size} does not divide by config.mesh."
                    f"{axis}={mesh.shape[axis]}; choose another mesh or another size"
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def put_batch(batch: dict, mesh: Mesh) -> dict[str, jax.Array]:
    """This host's rows -> global arrays, split over the mesh along the batch axis."""
    sharding = NamedSharding(mesh, BATCH)
    return {name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()}


def put_whole_batch(batch: dict, mesh: Mesh) -> dict[str, jax.Array]:
    """The same, where every host has all rows, as in an evaluation."""
    sharding = NamedSharding(mesh, BATCH)
    return {n: jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__) for n, rows in batch.items()}


def fetch(array: jax.Array) -> np.ndarray:
    """All of a global array, on every host."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)
