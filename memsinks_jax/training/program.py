"""The train step as a program: `train` runs it, `plan` compiles it for other machines."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from memsinks_jax.config import Config, flatten, with_fields
from memsinks_jax.training import sharding
from memsinks_jax.training.method import method_of
from memsinks_jax.training.step import TrainState, init_state, make_train_step

# XLA on TPUs would pass parts of a weight around while it multiplies by them. Such loops over
# narrow slices take twice the time of gathering the weight first. Above this size, in MiB, they are
# allowed.
_TPU_OPTIONS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}

# What of these sections enters the program; of all others, everything.
_ENTERS = {
    "variant": (),
    "data": ("row_length", "across_documents", "vocabulary_size"),
    "general": (),
    "canaries": (),
    "training": ("method", "batch_size", "spike_sigma"),
}


class Program(NamedTuple):
    """A train step for a mesh, and its inputs as shapes with shardings. Trace and call it within
    `jax.set_mesh`.
    """

    # () -> a fresh state; (parameters, which are donated) -> a state that begins with them
    init: jax.stages.Wrapped
    step: jax.stages.Wrapped  # (state, batch, seed) -> (state, metrics); the state is donated
    state: TrainState
    batch: dict[str, jax.ShapeDtypeStruct]
    seed: jax.ShapeDtypeStruct


def train_program(config: Config, steps: int, mesh: Mesh, documents_per_row: int) -> Program:
    """The program of a run of `steps` steps, whose rows hold at most `documents_per_row` documents.

    Raises:
      InputError: the mesh does not divide the batch or a parameter, or the attention kernel cannot
      run there.
    """
    sharding.check_batch(config.training.batch_size, mesh, microbatches=config.compute.accumulate)
    shapes = jax.eval_shape(lambda: init_state(config, steps))
    state = sharding.placed(shapes, mesh)
    rows = NamedSharding(mesh, sharding.BATCH)
    whole = sharding.replicated(mesh)
    size, length = config.training.batch_size, config.data.row_length
    kinds = dict.fromkeys(("inputs", "targets", "segments", "positions"), np.int32) | {
        "weights": np.float32
    }
    if config.sinks.traits.by_context:
        kinds["contexts"] = np.int32
    batch = {
        name: jax.ShapeDtypeStruct((size, length), kind, sharding=rows)
        for name, kind in kinds.items()
    }
    batch["identities"] = jax.ShapeDtypeStruct(
        (size, documents_per_row, 2), np.uint32, sharding=rows
    )
    shardings = jax.tree.map(lambda shape: shape.sharding, state)
    platform = mesh.devices.flat[0].platform
    for name, kind in {"repeated": np.bool_, "seen": np.int32}.items():
        batch[name] = jax.ShapeDtypeStruct((size, documents_per_row), kind, sharding=rows)
    batch["epoch"] = jax.ShapeDtypeStruct((size,), np.int32, sharding=rows)
    step = jax.jit(
        make_train_step(config, steps, platform),
        in_shardings=(shardings, rows, whole),
        out_shardings=(shardings, whole),
        donate_argnums=0,
        compiler_options=_TPU_OPTIONS if platform == "tpu" else None,
    )
    init = jax.jit(
        lambda *params: init_state(config, steps, *params),
        out_shardings=shardings,
        donate_argnums=0,
    )
    return Program(init, step, state, batch, jax.ShapeDtypeStruct((), np.uint32, sharding=whole))


def enters(name: str) -> bool:
    """Whether a field of the config enters the program."""
    section, _, field = name.partition(".")
    return name != "model.initial" and field in _ENTERS.get(section, (field,))


def compiled(config: Config) -> Config:
    """What of a config enters the program: all else is the default."""
    fixed = {name: value for name, value in flatten(Config()).items() if not enters(name)}
    return with_fields(config, fixed)


@functools.lru_cache(maxsize=4)
def _of_this_process(method: type, *given) -> Program:
    return train_program(*given)


def shared_program(config: Config, steps: int, mesh: Mesh, documents_per_row: int) -> Program:
    """`train_program`, traced and compiled once for the runs of a process that differ in their data
    or in when they measure alone.
    """
    # Of a method its code too: a notebook may load it anew.
    method = type(method_of(config))
    return _of_this_process(method, compiled(config), steps, mesh, documents_per_row)
