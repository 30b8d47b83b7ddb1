"""Converts a Hugging Face folder or a GGUF file to a workdir with a checkpoint."""

import pathlib

import jax
import numpy as np

from memsinks_jax.config import (
    Config,
    InputError,
    SinksConfig,
    TrainingConfig,
    to_json,
    validate,
    with_fields,
)
from memsinks_jax.data.opened import nobody
from memsinks_jax.model import sparse_sinks
from memsinks_jax.models.origin import keep
from memsinks_jax.models.stored import Stored
from memsinks_jax.runs import output
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import atomic_folder
from memsinks_jax.sinks.kinds import is_sparse, partition
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import TrainState


def import_model(
    source: pathlib.Path, out: pathlib.Path, sinks: SinksConfig | None, added: int, named: str = ""
) -> dict:
    """Writes a workdir with the model's config, tokenizer and parameters; it gets its name when it
    is complete.

    Args:
      sinks: given to the model, with `added` new neurons; None: no sinks.
      named: the source as the user calls it, such as hf://organisation/name; by default its path.
    Returns:
      {"parameters", "shared", "sinks"}: of all, and neurons of every MLP.
    Raises:
      InputError: a folder that cannot be read exactly; `out` exists.
    """
    output.check_free(out)
    stored = Stored(source)
    if stored.is_run:
        raise InputError(f"{source} is the workdir of a run, which needs no import")
    config, params, groups = stored.config, stored.read_params(), stored.groups
    if groups and sinks is not None:
        raise InputError(
            f"{source} has sinks of {len(groups)} groups; leave out --pool and other new sinks"
        )
    if sinks is not None:
        config, params = with_sinks(config, params, sinks, added, config.seed)
    validate(config)
    if sinks is not None and not partition(config.model, config.sinks).sinks:
        raise InputError(
            f"--shared_fraction={sinks.shared_fraction} leaves no sinks among "
            f"{config.model.hidden} neurons; lower it, or give --added_sinks"
        )
    with atomic_folder(out) as scratch:
        (scratch / "config.json").write_text(to_json(config))
        for name, content in stored.tokenizer.files.items():
            (scratch / name).write_bytes(content)
        keep(stored.origin, scratch, named or str(source))
        if groups:
            workdirs.write_groups(scratch, groups, stored.nearest)
        checkpoints = Checkpoints(scratch, TrainingConfig())
        arrays = jax.tree.map(jax.numpy.asarray, params)
        known = stored.opened.ids if groups else nobody()
        checkpoints.save(0, TrainState(jax.numpy.int32(0), arrays, None, None), 0, known)
        checkpoints.close()
        scratch.rename(out)
    parts = partition(config.model, config.sinks)
    count = sum(array.size for array in jax.tree.leaves(params))
    return {"parameters": count, "shared": parts.shared, "sinks": parts.sinks}


def with_sinks(
    config: Config, params: dict, sinks: SinksConfig, added: int, seed: int
) -> tuple[Config, dict]:
    """Gives a model sinks. With all of them on, it computes the same as before.

    Args:
      sinks: the settings. With `added`, the shared fraction is set so that all old neurons are
        shared. Sparse sinks are new ones, in addition to the neurons.
      added: number of new neurons in every MLP, which become the sinks: random input weights,
        output weights of 0. 0: the last of the old neurons become sinks.
    """
    config = with_fields(config, {"sinks": sinks})
    if is_sparse(sinks):
        params = params | sparse_sinks.new_tables(config.model, params["layers"], sinks.pool, seed)
    if added:
        there, hidden = config.model.hidden, config.model.hidden + added
        # Half a neuron more than the quotient: the partition rounds down.
        config = with_fields(
            config, {"model.hidden": hidden, "sinks.shared_fraction": (there + 0.5) / hidden}
        )
        random, layers = np.random.default_rng(seed), params["layers"]
        for name in ("up", "gate"):
            if f"{name}_kernel" in layers:
                kernel = layers[f"{name}_kernel"]
                new = random.normal(0, kernel.std(), (*kernel.shape[:-1], added)).astype(
                    kernel.dtype
                )
                layers[f"{name}_kernel"] = np.concatenate([kernel, new], axis=-1)
            if f"{name}_bias" in layers:
                layers[f"{name}_bias"] = np.pad(layers[f"{name}_bias"], ((0, 0), (0, added)))
        layers["down_kernel"] = np.pad(layers["down_kernel"], ((0, 0), (0, added), (0, 0)))
    return config, params
