"""Removes documents: python -m memsinks_jax.forget --workdir=runs/sinks
--documents='withdrawn/*.txt' --out=models/rest

Zeroes the sinks of these documents and keeps all others. By default a document that was read once
has none. Name documents by their text (runs with ids by content), by --ids=HEX,HEX (ids of the
run's documents.jsonl), or by --group=NAME (runs with ids by group). With sinks by context, those of
contexts go that stand in no other text that was read, and --text=FILE removes a text wherever it
stands. Of a folder with source files --group=NAME deletes one file in a copy, and --documents names
the group's texts, to be measured. Writes a Hugging Face folder and a receipt: which neurons were
removed, and how the loss changed on these documents, on other repeated ones, and on held-out text.
"""

import logging
import pathlib
import sys

from absl import flags

from memsinks_jax.forgetting import receipt as receipts
from memsinks_jax.forgetting.removal import forget
from memsinks_jax.forgetting.request import Request
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line

logger = logging.getLogger("memsinks_jax.forget")


def main() -> None:
    workdir_flag = flags.DEFINE_string(
        "workdir", None, "Training run, or a folder with sinks, by forget or export."
    )
    documents_flag = flags.DEFINE_string(
        "documents", "", "Path or glob of files with the documents to remove."
    )
    ids_flag = flags.DEFINE_list(
        "ids", [], "Ids of the documents to remove, from the run's documents.jsonl."
    )
    group_flag = flags.DEFINE_string(
        "group", "", "Group to remove, for runs with ids by group and folders of sources."
    )
    text_flag = flags.DEFINE_string(
        "text", "", "With sinks by context: a file, or the text itself, to remove."
    )
    others_flag = flags.DEFINE_string(
        "others", "", "Glob of other learned documents; empty: the run's repeated ones."
    )
    held_out_flag = flags.DEFINE_string(
        "held_out", "", "Glob of documents never read; empty: the run's held-out ones."
    )
    spare_flag = flags.DEFINE_integer(
        "spare",
        None,
        "Do not zero sinks that more than this many other documents use; default: zero all.",
        lower_bound=0,
    )
    shared_flag = flags.DEFINE_bool(
        "shared",
        False,
        "With sinks by context: also remove those of contexts that stand in other texts.",
    )
    evidence_flag = flags.DEFINE_string(
        "evidence",
        "",
        "Folder of reproduce --figure=removal; the receipt cites its claims as evidence.",
    )
    out_flag = flags.DEFINE_string("out", None, "Folder to write; it must not exist.")

    def run() -> dict:
        command_line.require(workdir_flag, out_flag)
        asked = Request(
            documents_flag.value, tuple(ids_flag.value), group_flag.value, text_flag.value
        )
        out = pathlib.Path(out_flag.value)
        workdir = pathlib.Path(workdir_flag.value)
        evidence = pathlib.Path(evidence_flag.value) if evidence_flag.value else None
        about = (
            others_flag.value,
            held_out_flag.value,
            spare_flag.value,
            evidence,
            shared_flag.value,
        )
        receipt = forget(workdir, asked, out, *about)
        print(report.plain_table(*receipts.loss_table(receipt)), file=sys.stderr)
        logger.info(
            "%s %s %s",
            receipts.removed_text(receipt),
            receipts.selectivity_text(receipt),
            out / "index.html",
        )
        return receipt

    command_line.run(run)


if __name__ == "__main__":
    main()
