"""Machines by name: TPU slices as libtpu describes them to the compiler, and nodes of GPUs
(cards).
"""

import importlib.util
import os

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from memsinks_jax.config import InputError, MeshConfig
from memsinks_jax.planning import cards
from memsinks_jax.training import sharding
from memsinks_jax.training.flops import Chip, chip

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x12", "8x8x16", "8x16x16")
_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")

# The available slices, from docs.cloud.google.com/tpu/docs (pages v4, v5e, v5p-training, v6e);
# libtpu itself would also compile for shapes that are not offered.
SHAPES = {
    "v4": (*_SMALL, *_CUBES),
    "v5e": _FLAT,
    "v5p": (*_SMALL, *_CUBES, "16x16x16", "16x16x24"),
    "v6e": _FLAT,
}

# Without this, libtpu asks the machine for its TPU. Several processes may each load libtpu.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def devices_of(topology: str, slices: int = 1, nodes: int = 1) -> tuple[list[jax.Device], Chip]:
    """'v5e:16x16' and a number of slices, or 'h100:8' and a number of nodes -> all their devices,
    and what a chip can do.

    Raises:
      InputError: no such slices or nodes, or their compiler is missing.
    """
    generation, shape = _known(topology)
    on_gpus = generation in cards.CARDS
    for flag, count, other in (("slices", slices, on_gpus), ("nodes", nodes, not on_gpus)):
        if count < 1:
            raise InputError(f"--{flag} is {count}; give 1 or more")
        if count > 1 and other:
            raise InputError(
                f"--{flag}={count}: {generation} has {'nodes' if on_gpus else 'slices'}, no {flag}"
            )
    if on_gpus:
        return cards.gpus(generation, int(shape), nodes)
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise InputError(
            "plan needs the TPU compiler, libtpu, which is not installed; run: pip install "
            "'jax[tpu]'"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A chip of v4 has two cores, which JAX uses as one device.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    if slices > 1:
        options["num_slices"] = slices
    if shape == "1x1":
        # where libtpu would assume four chips per host
        options["chips_per_host_bounds"] = [1, 1, 1]
    try:
        described = topologies.get_topology_desc(f"{generation}:{shape}", "tpu", **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # in libtpu's words
        raise InputError(
            f"--topology={topology}: libtpu refuses it: {str(error).strip().splitlines()[0]}"
        ) from None
    devices = list(described.devices)
    return devices, chip(devices[0].device_kind)


def mesh_of(config: MeshConfig, devices: list[jax.Device]) -> Mesh:
    """The mesh that `train` makes of these devices when they are attached."""
    # Of attached GPUs `slice_index` is the node. Of these it is always 0, and there is one process
    # per node.
    return sharding.make_mesh(
        config, devices, "process_index" if devices[0].platform == "gpu" else "slice_index"
    )


def _known(topology: str) -> tuple[str, str]:
    every = SHAPES | dict.fromkeys(cards.CARDS, tuple("12345678"))  # GPUs of an HGX or DGX node
    generation, _, shape = topology.strip().lower().partition(":")
    if shape in every.get(generation, ()):
        return generation, shape
    raise InputError(
        f"--topology={topology} is not known; of {generation} there are "
        f"{', '.join(every[generation])}"
        if generation in every
        else f"--topology={topology} is not known; write GENERATION:SHAPE, as v5e:16x16, or "
        f"CARD:NUMBER, as h100:8, of one of {', '.join(every)}"
    )
