"""A trained run, opened for use: its config, tokenizer and parameters."""

import dataclasses
import pathlib

import jax

from memsinks_jax import workdir as workdirs
from memsinks_jax.config import Config, MeshConfig
from memsinks_jax.data.tokenizer import Tokenizer
from memsinks_jax.training import sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import init_state


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a workdir's newest checkpoint holds, without the optimizer; `step` counts its finished updates."""

    config: Config
    tokenizer: Tokenizer
    params: dict
    step: int


def open_run(workdir: pathlib.Path) -> Trained:
    """Reads a run onto the first local device, on whatever mesh it was trained. Raises InputError if it is none."""
    config = workdirs.read_config(workdir)
    tokenizer = workdirs.read_tokenizer(workdir)
    shapes = jax.eval_shape(lambda: init_state(config, steps=1)).params
    mesh = sharding.make_mesh(MeshConfig(), jax.local_devices()[:1])
    checkpoints = Checkpoints(workdir)
    params = checkpoints.restore_params(shapes, sharding.shardings(shapes, mesh))
    step = checkpoints.newest()
    checkpoints.close()
    return Trained(config, tokenizer, params, step)
