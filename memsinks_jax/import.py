"""Imports a Hugging Face model: python -m memsinks_jax.import --hf=models/SmolLM2-135M
--out=runs/smollm

Converts a folder or a GGUF file to a workdir with a checkpoint. docs/pytorch.md lists the families
that can be read. A model of the hub is downloaded: --hf=hf://HuggingFaceTB/SmolLM2-135M. generate,
evaluate and export open the workdir, and a run can start from it:
--config.model.initial=runs/smollm. --pool=4096 --active=32 adds sparse sinks, of which 32 are on
for a document; the model computes the same. --added_sinks=512 adds sinks that are all computed and
then masked; --shared_fraction=0.7 turns the last 30% of its neurons into sinks.
"""

import dataclasses
import logging
import pathlib

from absl import flags

from memsinks_jax.config import InputError, SinksConfig
from memsinks_jax.models.hub import folder_of
from memsinks_jax.models.importing import import_model
from memsinks_jax.runs import command_line, output
from memsinks_jax.runs.command_line import REQUIRED, option

logger = logging.getLogger("memsinks_jax.import")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    hf: str = option(
        REQUIRED,
        "Folder of a Hugging Face model, hf://organisation/name of the hub, or a GGUF file.",
    )
    out: str = option(REQUIRED, "Workdir to write; it must not exist.")
    shared_fraction: float = option(
        0.0,
        "Fraction of every MLP's neurons that stay shared; the last become sinks. 0: no neuron "
        "does.",
    )
    active_fraction: float = option(
        SinksConfig().active_fraction,
        "Fraction of the sinks that are on for a document, without --pool.",
    )
    pool: int = option(0, "Number of new sparse sinks of every MLP: more hardly slow a step.", 0)
    active: int = option(32, "Number of sinks that are on for a document, with --pool.", 1)
    added_sinks: int = option(0, "Number of new sinks to add to every MLP.", 0)


def main(options: Options) -> dict:
    if sum(map(bool, (options.shared_fraction, options.added_sinks, options.pool))) > 1:
        raise InputError(
            "--shared_fraction, --added_sinks and --pool exclude each other: old neurons "
            "become sinks, or new ones"
        )
    if flags.FLAGS["active"].present and not options.pool:
        raise InputError(
            "--active is for the sinks of --pool; give --pool, or --active_fraction for other sinks"
        )
    if flags.FLAGS["active_fraction"].present and not (
        options.shared_fraction or options.added_sinks
    ):
        raise InputError(
            "--active_fraction needs --shared_fraction or --added_sinks; for sinks of --pool "
            "give --active"
        )
    sinks = None
    if options.pool:
        new = {"pool": options.pool, "active": options.active}
        sinks = SinksConfig(shared_fraction=1.0, sampling="floyd", sparse=True, **new)
    elif options.shared_fraction or options.added_sinks:
        sinks = SinksConfig(
            shared_fraction=options.shared_fraction, active_fraction=options.active_fraction
        )
    out = pathlib.Path(options.out)
    output.check_free(out)  # before a download
    result = import_model(folder_of(options.hf), out, sinks, options.added_sinks, options.hf)
    logger.info(
        "%s: %s parameters, %d shared neurons and %d sinks in every MLP",
        options.out,
        f"{result['parameters']:,}",
        result["shared"],
        result["sinks"],
    )
    return result


if __name__ == "__main__":
    command_line.run(main, Options)
