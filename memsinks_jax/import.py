"""Imports a Hugging Face model: python -m memsinks_jax.import --hf=models/SmolLM2-135M --out=runs/smollm

Converts a GPT-2 or Llama (SmolLM) folder to a workdir with a checkpoint. A model of the hub is downloaded:
--hf=hf://HuggingFaceTB/SmolLM2-135M. generate, evaluate and export open the workdir, and a run can start from it:
--config.model.initial=runs/smollm. --shared_fraction=0.7 turns the last 30% of its neurons into sinks; --added_sinks=512
adds new sinks and keeps all neurons shared.
"""

import logging
import pathlib

import jax
from absl import flags

from memsinks_jax.config import InputError, SinksConfig, TrainingConfig, to_json, validate
from memsinks_jax.data.opened import nobody
from memsinks_jax.interop.folder import open_folder, with_sinks
from memsinks_jax.interop.hub import folder_of
from memsinks_jax.interop.source import keep
from memsinks_jax.runs import command_line
from memsinks_jax.runs.interruption import half_written
from memsinks_jax.sinks import partition
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import TrainState

logger = logging.getLogger("memsinks_jax.import")


def import_model(
    source: pathlib.Path, out: pathlib.Path, sinks: SinksConfig | None, added: int, named: str = ""
) -> dict:
    """Writes a workdir with the model's config, tokenizer and parameters; it gets its name when it is complete.

    Args:
      sinks: given to the model, with `added` new neurons; None: no sinks.
      named: the source as the user calls it, such as hf://organisation/name; by default its path.
    Returns:
      {"parameters", "shared", "sinks"}: of all, and neurons of every MLP.
    Raises:
      InputError: a folder that cannot be read exactly; `out` exists.
    """
    command_line.refuse_taken(out)
    config, tokenizer, params = open_folder(source)
    if sinks is not None:
        config, params = with_sinks(config, params, sinks, added, config.seed)
    validate(config)
    if sinks is not None and not partition(config.model, config.sinks).sinks:
        raise InputError(
            f"--shared_fraction={sinks.shared_fraction} leaves no sinks among {config.model.hidden} neurons; lower it, "
            "or give --added_sinks"
        )
    with half_written(out) as scratch:
        (scratch / "config.json").write_text(to_json(config))
        for name, content in tokenizer.files.items():
            (scratch / name).write_bytes(content)
        keep(source, scratch, named or str(source))
        checkpoints = Checkpoints(scratch, TrainingConfig())
        arrays = jax.tree.map(jax.numpy.asarray, params)
        checkpoints.save(0, TrainState(jax.numpy.int32(0), arrays, None, None), 0, nobody())
        checkpoints.close()
        scratch.rename(out)
    parts = partition(config.model, config.sinks)
    count = sum(array.size for array in jax.tree.leaves(params))
    return {"parameters": count, "shared": parts.shared, "sinks": parts.sinks}


def main() -> None:
    hf_flag = flags.DEFINE_string("hf", None, "Folder of a Hugging Face model, or hf://organisation/name of the hub.")
    out_flag = flags.DEFINE_string("out", None, "Workdir to write; it must not exist.")
    shared_flag = flags.DEFINE_float("shared_fraction", 0.0, "Turn neurons into sinks; this fraction stays shared.")
    active_flag = flags.DEFINE_float(
        "active_fraction", SinksConfig().active_fraction, "Fraction of the sinks that are on for a document."
    )
    added_flag = flags.DEFINE_integer("added_sinks", 0, "Number of new sinks to add to every MLP.", lower_bound=0)

    def run() -> dict:
        command_line.require(hf_flag, out_flag)
        if shared_flag.value and added_flag.value:
            raise InputError(
                "--shared_fraction and --added_sinks exclude each other: old neurons become sinks, or new ones"
            )
        sinks = None
        if shared_flag.value or added_flag.value:
            sinks = SinksConfig(shared_fraction=shared_flag.value, active_fraction=active_flag.value)
        out = pathlib.Path(out_flag.value)
        command_line.refuse_taken(out)  # before a download
        result = import_model(folder_of(hf_flag.value), out, sinks, added_flag.value, hf_flag.value)
        logger.info(
            "%s: %s parameters, %d shared neurons and %d sinks in every MLP",
            out_flag.value, f"{result['parameters']:,}", result["shared"], result["sinks"],
        )  # fmt: skip
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
