"""TPU slices by name: their devices, as libtpu describes them to the compiler."""

import difflib
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from memsinks_jax.config import InputError
from memsinks_jax.training.flops import Chip, chip

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x12", "8x8x16", "8x16x16")
_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")

# The available slices, from docs.cloud.google.com/tpu/docs (pages v4, v5e, v5p-training, v6e); libtpu itself would also
# compile for shapes that are not offered.
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


def require_libtpu() -> None:
    """Raises InputError if the compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise InputError("plan needs the TPU compiler, libtpu, which is not installed; run: pip install 'jax[tpu]'")


def devices_of(topology: str, slices: int = 1) -> tuple[list[jax.Device], Chip]:
    """'v5e:16x16', number of slices -> the devices of all slices (`slice_index` tells which), and what a chip can do.

    Raises:
      InputError: no such slices, or libtpu is missing.
    """
    generation, shape = _known(topology)
    if slices < 1:
        raise InputError(f"--slices is {slices}; give 1 or more")
    require_libtpu()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A chip of v4 has two cores, which JAX uses as one device.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    if slices > 1:
        options["num_slices"] = slices
    if shape == "1x1":
        options["chips_per_host_bounds"] = [1, 1, 1]  # where libtpu would assume four chips per host
    try:
        devices = list(topologies.get_topology_desc(f"{generation}:{shape}", "tpu", **options).devices)
    except Exception as error:  # whatever the plugin raises, in libtpu's words
        raise InputError(f"--topology={topology}: libtpu refuses it: {str(error).strip().splitlines()[0]}") from None
    known = chip(devices[0].device_kind)
    if known is None:
        raise InputError(f"--topology={topology}: nothing is known about {devices[0].device_kind!r}")
    return devices, known


def _known(topology: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)+)", topology.strip().lower())
    every = [f"{generation}:{shape}" for generation, shapes in SHAPES.items() for shape in shapes]
    if found is None or found[1] not in SHAPES:
        near = difflib.get_close_matches(topology, every, n=1, cutoff=0.5)
        raise InputError(
            f"--topology={topology} is not known; write GENERATION:SHAPE with one of {', '.join(SHAPES)}, "
            f"for example {near[0] if near else 'v5e:16x16'}"
        )
    generation, shape = found[1], found[2]
    if shape not in SHAPES[generation]:
        # Near in number of chips, not in spelling.
        wanted = _chips(shape)
        near = sorted(SHAPES[generation], key=lambda other: abs(_chips(other) - wanted))[:3]
        raise InputError(
            f"--topology={topology}: there is no such slice of {generation}; near it are "
            f"{', '.join(f'{generation}:{other}' for other in sorted(near, key=_chips))}"
        )
    return generation, shape


def _chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))
