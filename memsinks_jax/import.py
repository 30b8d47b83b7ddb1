"""Imports a Hugging Face model: python -m memsinks_jax.import --hf=models/SmolLM2-135M
--out=runs/smollm

Converts a folder or a GGUF file to a workdir with a checkpoint. docs/pytorch.md lists the families
that can be read. A model of the hub is downloaded: --hf=hf://HuggingFaceTB/SmolLM2-135M. generate,
evaluate and export open the workdir, and a run can start from it:
--config.model.initial=runs/smollm. --pool=4096 --active=32 adds sparse sinks, of which 32 are on
for a document; the model computes the same. --added_sinks=512 adds sinks that are all computed and
then masked; --shared_fraction=0.7 turns the last 30% of its neurons into sinks.
"""

import logging
import pathlib

from absl import flags

from memsinks_jax.config import InputError, SinksConfig
from memsinks_jax.models.hub import folder_of
from memsinks_jax.models.importing import import_model
from memsinks_jax.runs import command_line, output

logger = logging.getLogger("memsinks_jax.import")


def main() -> None:
    hf_flag = flags.DEFINE_string(
        "hf",
        None,
        "Folder of a Hugging Face model, hf://organisation/name of the hub, or a GGUF file.",
    )
    out_flag = flags.DEFINE_string("out", None, "Workdir to write; it must not exist.")
    shared_flag = flags.DEFINE_float(
        "shared_fraction",
        0.0,
        "Fraction of every MLP's neurons that stay shared; the last become sinks. 0: no neuron "
        "does.",
    )
    active_flag = flags.DEFINE_float(
        "active_fraction",
        SinksConfig().active_fraction,
        "Fraction of the sinks that are on for a document, without --pool.",
    )
    pool_flag = flags.DEFINE_integer(
        "pool",
        0,
        "Number of new sparse sinks of every MLP: more hardly slow a step.",
        lower_bound=0,
    )
    on_flag = flags.DEFINE_integer(
        "active", 32, "Number of sinks that are on for a document, with --pool.", lower_bound=1
    )
    added_flag = flags.DEFINE_integer(
        "added_sinks", 0, "Number of new sinks to add to every MLP.", lower_bound=0
    )

    def run() -> dict:
        command_line.require(hf_flag, out_flag)
        if sum(map(bool, (shared_flag.value, added_flag.value, pool_flag.value))) > 1:
            raise InputError(
                "--shared_fraction, --added_sinks and --pool exclude each other: old neurons "
                "become sinks, or new ones"
            )
        if on_flag.present and not pool_flag.value:
            raise InputError(
                "--active is for the sinks of --pool; give --pool, or --active_fraction for "
                "other sinks"
            )
        if active_flag.present and not (shared_flag.value or added_flag.value):
            raise InputError(
                "--active_fraction needs --shared_fraction or --added_sinks; for sinks of --pool "
                "give --active"
            )
        sinks = None
        if pool_flag.value:
            sinks = SinksConfig(
                shared_fraction=1.0,
                pool=pool_flag.value,
                active=on_flag.value,
                sampling="floyd",
                sparse=True,
            )
        elif shared_flag.value or added_flag.value:
            sinks = SinksConfig(
                shared_fraction=shared_flag.value, active_fraction=active_flag.value
            )
        out = pathlib.Path(out_flag.value)
        output.check_free(out)  # before a download
        result = import_model(folder_of(hf_flag.value), out, sinks, added_flag.value, hf_flag.value)
        logger.info(
            "%s: %s parameters, %d shared neurons and %d sinks in every MLP",
            out_flag.value,
            f"{result['parameters']:,}",
            result["shared"],
            result["sinks"],
        )
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
