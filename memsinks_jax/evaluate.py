"""Measures a trained model: python -m memsinks_jax.evaluate --workdir=runs/sinks --sinks=drop
[--files='texts/*.txt']

Reports the loss in nats per token, end of text included, of documents that stand alone in their
context. Without --files these are the run's own: --documents=held_out, repeated or unique. Where
each group has sinks of its own (config.sinks.sampling=disjoint), with --sinks=own a text of --files
has those of --group, or else of the group that it is about.
"""

import logging
import pathlib

from absl import flags

from memsinks_jax import sinks
from memsinks_jax.api import ROLES, evaluate
from memsinks_jax.data.documents import in_words
from memsinks_jax.runs import command_line

logger = logging.getLogger("memsinks_jax.evaluate")


def main() -> None:
    workdir_flag = flags.DEFINE_string(
        "workdir", None, "Training run, Hugging Face folder or GGUF file."
    )
    sinks_flag = flags.DEFINE_enum(
        "sinks",
        "drop",
        sinks.MODES,
        "Which sinks are on: none (drop), the document's own, those of another id, or all.",
    )
    files_flag = flags.DEFINE_string(
        "files", "", "Path or glob of files, or a prepared folder; empty: the run's own documents."
    )
    group_flag = flags.DEFINE_string("group", "", "Group that the files are of, for ids by group.")
    documents_flag = flags.DEFINE_enum(
        "documents", "held_out", ROLES, "Which of the run's own documents."
    )
    memory_flag = flags.DEFINE_list(
        "memory", [], "Files of memories, written by edit, to add to the model."
    )
    per_document_flag = flags.DEFINE_bool(
        "per_document", False, "Also report the loss of every document."
    )

    def run() -> dict:
        command_line.require(workdir_flag)
        workdir = pathlib.Path(workdir_flag.value)
        files, memories = files_flag.value, tuple(memory_flag.value)
        result = evaluate(
            workdir, sinks_flag.value, files, documents_flag.value, memories, group_flag.value
        )
        if not per_document_flag.value:
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

    command_line.run(run)


if __name__ == "__main__":
    main()
