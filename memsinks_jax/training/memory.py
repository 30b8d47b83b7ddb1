"""Estimates the memory of a training step by arithmetic, and refuses too large a model before
anything is allocated.
"""

import functools
import math
import os

import jax
from jax.sharding import Mesh

from memsinks_jax.config import Config, InputError, validate
from memsinks_jax.families import FAMILIES
from memsinks_jax.sinks.kinds import is_sparse, number_on, partition
from memsinks_jax.training.flops import GIB, in_tables, parameters

# Bytes per parameter: the parameter and two moments in float32, and the gradient.
STATE, GRADIENT = 12, 4
# On a CPU: bytes per parameter of XLA's copies, bytes of Python, jax and compiled code.
_COPIES, _PROGRAM = 2, 0.4 * GIB
_TABLE = "the table of contexts"
# The compiler reuses buffers, so a step may need less than is counted here, but never less than the
# state.
_MARGIN = 2


def needed(config: Config, chips: int, platform: str | None = None) -> dict[str, float]:
    """Bytes per chip by purpose. Counts the arrays of model/decoder.py; the compiler's buffers come
    on top.

    On a `platform` "cpu" also what was measured there: XLA's copies of parameters and moments while
    it updates them, and the program itself.
    """
    model, width = config.model, 4 if config.model.dtype == "float32" else 2
    parts = partition(model, config.sinks)
    hidden = parts.shared + (
        number_on(config.sinks, parts.sinks) if is_sparse(config.sinks) else parts.sinks
    )
    family = FAMILIES[model.family]
    products = (
        model.d_model
        + model.attention_width
        + 2 * model.key_width
        + hidden * (2 if family.gated else 1)
    )
    # Norms, residual stream, heads, activation, gated.
    everything = products + 4 * model.d_model + model.attention_width + 2 * hidden
    stored = {
        "none": everything,
        "products": products + 2 * model.d_model,
        "attention": 2 * model.d_model,
        "full": model.d_model,
    }[config.compute.remat]
    tokens = config.training.batch_size * config.data.row_length / config.compute.accumulate / chips
    contexts = config.contexts.rows * model.d_model if config.sinks.traits.by_context else 0
    count = _parameters(config) - contexts
    embeddings = config.data.vocabulary_size * model.d_model * (1 if model.tied_head else 2)
    embeddings += config.data.row_length * model.d_model if not family.rotary else 0
    frozen = not config.optimizer.base_multiple
    tables, of_base = (in_tables(config) - contexts, width) if frozen else (0, STATE + GRADIENT)
    layers = of_base * (count - embeddings - tables) + (STATE + GRADIENT) * tables
    copied = _COPIES * (tables if frozen else count)
    on_host = (
        {"copies during the update": copied, "the program": _PROGRAM} if platform == "cpu" else {}
    )
    return on_host | {
        "embeddings, their gradients and moments": of_base * embeddings / fsdp(config, chips),
        "layers, their gradients and moments": layers / fsdp(config, chips),
        # A step has gradients of the rows that it reads alone, and they have no moments.
        **({_TABLE: 4 * contexts / fsdp(config, chips)} if contexts else {}),
        # During its backward pass a layer has all of its activations.
        "activations": tokens * width * (stored * model.layers + everything),
        "logits": tokens * config.data.vocabulary_size / config.compute.loss_chunks * (4 + width),
    }


def fsdp(config: Config, chips: int) -> int:
    """How many chips share the parameters."""
    return chips // config.mesh.tensor if config.mesh.fsdp == -1 else min(config.mesh.fsdp, chips)


@functools.lru_cache(maxsize=64)
def _parameters(config: Config) -> int:
    return parameters(config)


def check_memory(config: Config, mesh: Mesh) -> None:
    """Raises InputError if a run does not fit on a device of the mesh, and names what takes most;
    or if it is not valid.
    """
    # what it inherits from its initial model is new
    parts, room = needed(validate(config), mesh.size), _room(mesh)
    state = (
        sum(size for name, size in parts.items() if "moments" in name) * STATE / (STATE + GRADIENT)
    )
    state += parts.get(_TABLE, 0)
    if state <= room and sum(parts.values()) <= _MARGIN * room:
        return
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    raise InputError(
        f"a device has {room / GIB:,.1f} GiB of memory and this run needs some "
        f"{sum(parts.values()) / GIB:,.1f}: "
        f"{'; '.join(f'{name} {size / GIB:,.1f}' for name, size in largest)}; lower what they "
        "come from in config.model, "
        "config.data.row_length, config.data.vocabulary_size or config.training.batch_size, or "
        "raise config.mesh.fsdp, "
        "config.compute.accumulate or config.compute.loss_chunks"
    )


def summary(config: Config, mesh: Mesh) -> str:
    """The device memory of a run, in words."""
    parts = needed(config, mesh.size, mesh.devices.flat[0].platform)
    state = sum(size for name, size in parts.items() if "moments" in name)
    return (
        f"parameters with gradients and moments some {readable(state)}, everything else "
        f"{readable(sum(parts.values()) - state)}, of {readable(_room(mesh))} on each"
    )


def readable(count: float) -> str:
    """'1.5 GiB' or '20.0 MiB'."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / 2**20:,.1f} MiB"


def _room(mesh: Mesh) -> float:
    """The memory of a device in bytes. CPU devices share their host's memory."""
    return limit(mesh.local_devices) or of_host() / len(mesh.local_devices)


def limit(devices: list[jax.Device]) -> int | None:
    """The least memory of some devices in bytes; None for those that use their host's."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return None if None in limits else min(limits)


def of_host() -> int:
    """The memory of this host in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def on_a_device(placed) -> int:
    """Bytes on one device of a tree of arrays or shapes with shardings."""
    return sum(
        math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize
        for a in jax.tree.leaves(placed)
    )
