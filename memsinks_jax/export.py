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

import logging
import pathlib
import sys

from absl import flags

from memsinks_jax.config import InputError
from memsinks_jax.models.exporting import export, export_sources
from memsinks_jax.models.folder import DTYPES
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line

logger = logging.getLogger("memsinks_jax.export")


def main() -> None:
    workdir_flag = flags.DEFINE_string(
        "workdir", None, "Folder of a training run, or of a model exported with its sinks."
    )
    out_flag = flags.DEFINE_string("out", None, "Folder to write; it must not exist.")
    sinks_flag = flags.DEFINE_string(
        "sinks",
        "drop",
        "drop: remove the sinks from the weights | keep: keep all | ID: keep those of this "
        "document.",
    )
    sources_flag = flags.DEFINE_string(
        "sources",
        "",
        "Folder to write instead of --out: the model without sinks, and a file for each source.",
    )
    dtype_flag = flags.DEFINE_enum(
        "dtype",
        None,
        sorted(DTYPES),
        "Data type of the weights; by default float32, and bfloat16 of source files.",
    )

    def run() -> dict:
        command_line.require(workdir_flag)
        if sources_flag.value:
            if out_flag.value or sinks_flag.value != "drop":
                raise InputError(
                    "--sources=DIR names the folder and drops the sinks; leave out --out and "
                    "--sinks"
                )
            result = export_sources(
                pathlib.Path(workdir_flag.value), pathlib.Path(sources_flag.value), dtype_flag.value
            )
            size = result["bytes_of_sources"] / len(result["sources"]) / 2**20
            logger.info(
                "%s: %d sources, %.2f MiB each", sources_flag.value, len(result["sources"]), size
            )
            return result
        command_line.require(out_flag)
        out = pathlib.Path(out_flag.value)
        sinks = sinks_flag.value
        knows = "" if sinks in ("drop", "keep") else sinks
        dtype = dtype_flag.value or "float32"
        result = export(pathlib.Path(workdir_flag.value), out, sinks != "keep", dtype, knows)
        rows = []
        for name, side in (("before", result["before"]), (f"after, sinks {sinks}", result)):
            speed = side["tokens_per_second"]
            cells = f"{side['parameters']:,}", f"{side['bytes'] / 2**20:,.1f}"
            rows.append([name, *cells, "not measured" if speed is None else f"{speed:,.0f}"])
        print(report.plain_table(["", "parameters", "MiB", "tokens/s here"], rows), file=sys.stderr)
        logger.info("%s: %s", out, ", ".join(sorted(path.name for path in out.iterdir())))
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
