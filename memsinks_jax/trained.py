"""A trained model, opened for use: a run of ours or a Hugging Face folder."""

import dataclasses
import pathlib

import jax

from memsinks_jax import workdir as workdirs
from memsinks_jax.config import ComputeConfig, Config, MeshConfig
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.interop.folder import is_folder, open_folder
from memsinks_jax.training import sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import init_state


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model without its optimizer; `step` counts its finished updates, 0 for one that was imported."""

    config: Config
    tokenizer: AnyTokenizer
    params: dict
    step: int


def open_run(workdir: pathlib.Path) -> Trained:
    """Reads a workdir, on whatever mesh it was trained, or a Hugging Face folder, onto the first local device.

    Raises:
      InputError: it is neither, or damaged.
    """
    mesh = sharding.make_mesh(MeshConfig(), jax.local_devices()[:1])
    if is_folder(workdir):
        config, tokenizer, params = open_folder(workdir)
        return Trained(config, tokenizer, jax.device_put(params, sharding.shardings(params, mesh)), 0)
    config = workdirs.read_config(workdir)
    config.compute = ComputeConfig()  # it may have been trained on another machine
    tokenizer = workdirs.read_tokenizer(workdir)
    shapes = jax.eval_shape(lambda: init_state(config, steps=1)).params
    checkpoints = Checkpoints(workdir)
    params = checkpoints.restore_params(sharding.placed(shapes, mesh))
    step = checkpoints.newest()
    checkpoints.close()
    return Trained(config, tokenizer, params, step)
