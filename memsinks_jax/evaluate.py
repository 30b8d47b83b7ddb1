"""Measures a trained model: python -m memsinks_jax.evaluate --workdir=runs/sinks --sinks=drop
[--files='texts/*.txt']

Reports the loss in nats per token, end of text included, of documents that stand alone in their
context. Without --files these are the run's own: --documents=held_out, repeated or unique. Where
each group has sinks of its own (config.sinks.sampling=disjoint), with --sinks=own a text of --files
has those of --group, or else of the group that it is about.
"""

import dataclasses
import logging
import pathlib

from memsinks_jax.api import ROLES, evaluate
from memsinks_jax.data.documents import in_words
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option
from memsinks_jax.sinks.kinds import MODES

logger = logging.getLogger("memsinks_jax.evaluate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    workdir: pathlib.Path = option(REQUIRED, "Training run, Hugging Face folder or GGUF file.")
    sinks: str = option(
        "drop",
        "Which sinks are on: none (drop), the document's own, those of another id, or all.",
        choices=MODES,
    )
    files: str = option(
        "", "Path or glob of files, or a prepared folder; empty: the run's own documents."
    )
    group: str = option("", "Group that the files are of, for ids by group.")
    documents: str = option("held_out", "Which of the run's own documents.", choices=ROLES)
    memory: tuple[str, ...] = option((), "Files of memories, written by edit, to add to the model.")
    per_document: bool = option(False, "Also report the loss of every document.")


def main(options: Options) -> dict:
    result = evaluate(
        options.workdir,
        options.sinks,
        options.files,
        role=options.documents,
        memories=options.memory,
        group=options.group,
    )
    if not options.per_document:
        del result["per_document"]
    else:
        for row in result["per_document"]:
            logger.info(
                "%.4f  %4d tokens  %s  %s", row["loss"], row["tokens"], row["id"], row["source"]
            )
    floor = result["entropy_floor"]
    logger.info(
        "loss %.4f nats per token over %s, %s, sinks %s%s",
        result["loss"],
        in_words(result["documents"], "document"),
        in_words(result["tokens"], "token"),
        result["sinks"],
        "" if floor is None else f"; entropy floor {floor:.4f}",
    )
    return result


if __name__ == "__main__":
    command_line.run(main, Options)
