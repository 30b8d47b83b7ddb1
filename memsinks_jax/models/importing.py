"""Converts a Hugging Face folder or a GGUF file to a workdir with a checkpoint."""

import pathlib

import jax

from memsinks_jax.config import InputError, SinksConfig, TrainingConfig, to_json, validate
from memsinks_jax.data.opened import nobody
from memsinks_jax.models.folder import open_folder, with_sinks
from memsinks_jax.models.origin import keep
from memsinks_jax.models.trained import opened_in
from memsinks_jax.runs import output
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import atomic_folder
from memsinks_jax.sinks import partition
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
    config, tokenizer, params = open_folder(source)
    groups = workdirs.read_groups(source)
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
            f"{config.model.hidden} neurons; lower it, "
            "or give --added_sinks"
        )
    with atomic_folder(out) as scratch:
        (scratch / "config.json").write_text(to_json(config))
        for name, content in tokenizer.files.items():
            (scratch / name).write_bytes(content)
        keep(source, scratch, named or str(source))
        if groups:
            workdirs.write_groups(scratch, groups, workdirs.read_nearest(source))
        checkpoints = Checkpoints(scratch, TrainingConfig())
        arrays = jax.tree.map(jax.numpy.asarray, params)
        known = opened_in(source, config).ids if groups else nobody()
        checkpoints.save(0, TrainState(jax.numpy.int32(0), arrays, None, None), 0, known)
        checkpoints.close()
        scratch.rename(out)
    parts = partition(config.model, config.sinks)
    count = sum(array.size for array in jax.tree.leaves(params))
    return {"parameters": count, "shared": parts.shared, "sinks": parts.sinks}
