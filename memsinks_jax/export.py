"""Exports a model to PyTorch: python -m memsinks_jax.export --workdir=runs/sinks --out=models/sinks
--sinks=drop

--sinks=drop removes the sink neurons from the weights: the result is a plain, smaller model of the
same family, which `transformers` loads like any other. --sinks=keep keeps all sinks, all on: by
document for study, by context for use, with a PyTorch class that turns them off. Such a folder can
be exported further, like a run. --sinks=ID, an id of documents.jsonl, keeps the MLP sinks that are
on for this document or group: a plain model that knows it. --sources=DIR, instead of --out, writes
a file for each source, the sinks that a group of documents has for itself: see
memsinks_jax.sources. A few layers are in memory at a time; with --sources also all sinks.
"""

import dataclasses
import logging
import pathlib
import sys

from memsinks_jax.config import InputError
from memsinks_jax.models.exporting import export, export_sources
from memsinks_jax.models.folder import DTYPES
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option

logger = logging.getLogger("memsinks_jax.export")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    workdir: pathlib.Path = option(
        REQUIRED, "Folder of a training run, or of a model exported with its sinks."
    )
    out: pathlib.Path | None = option(None, "Folder to write; it must not exist.")
    sinks: str = option(
        "drop",
        "drop: remove the sinks from the weights | keep: keep all | ID: keep those of this "
        "document.",
    )
    sources: str = option(
        "",
        "Folder to write instead of --out: the model without sinks, and a file for each source.",
    )
    dtype: str | None = option(
        None,
        "Data type of the weights; by default float32, and bfloat16 of source files.",
        choices=sorted(DTYPES),
    )


def main(options: Options) -> dict:
    sinks = options.sinks
    if options.sources:
        if options.out or sinks != "drop":
            raise InputError(
                "--sources=DIR names the folder and drops the sinks; leave out --out and --sinks"
            )
        result = export_sources(options.workdir, pathlib.Path(options.sources), options.dtype)
        number = len(result["sources"])
        size = result["bytes_of_sources"] / number / 2**20
        logger.info("%s: %d sources, %.2f MiB each", options.sources, number, size)
        return result
    command_line.require(options, "out")
    knows = "" if sinks in ("drop", "keep") else sinks
    dtype = options.dtype or "float32"
    result = export(options.workdir, options.out, sinks != "keep", dtype, knows)
    rows = []
    for name, side in (("before", result["before"]), (f"after, sinks {sinks}", result)):
        speed = side["tokens_per_second"]
        cells = f"{side['parameters']:,}", f"{side['bytes'] / 2**20:,.1f}"
        rows.append([name, *cells, "not measured" if speed is None else f"{speed:,.0f}"])
    print(report.plain_table(["", "parameters", "MiB", "tokens/s here"], rows), file=sys.stderr)
    logger.info(
        "%s: %s", options.out, ", ".join(sorted(path.name for path in options.out.iterdir()))
    )
    return result


if __name__ == "__main__":
    command_line.run(main, Options)
