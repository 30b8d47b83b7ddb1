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

import dataclasses
import logging
import pathlib
import sys

from memsinks_jax.forgetting import receipt as receipts
from memsinks_jax.forgetting.removal import forget
from memsinks_jax.forgetting.request import Request
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option

logger = logging.getLogger("memsinks_jax.forget")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    workdir: pathlib.Path = option(
        REQUIRED, "Training run, or a folder with sinks, by forget or export."
    )
    asked: Request
    others: str = option("", "Glob of other learned documents; empty: the run's repeated ones.")
    held_out: str = option("", "Glob of documents never read; empty: the run's held-out ones.")
    spare: int | None = option(
        None,
        "Do not zero sinks that more than this many other documents use; default: zero all.",
        0,
    )
    shared: bool = option(
        False, "With sinks by context: also remove those of contexts that stand in other texts."
    )
    evidence: pathlib.Path | None = option(
        None, "Folder of reproduce --figure=removal; the receipt cites its claims as evidence."
    )
    out: pathlib.Path = option(REQUIRED, "Folder to write; it must not exist.")


def main(options: Options) -> dict:
    receipt = forget(
        options.workdir,
        options.asked,
        options.out,
        others=options.others,
        held_out=options.held_out,
        spare=options.spare,
        evidence=options.evidence,
        shared=options.shared,
    )
    print(report.plain_table(*receipts.loss_table(receipt)), file=sys.stderr)
    logger.info(
        "%s %s %s",
        receipts.removed_text(receipt),
        receipts.selectivity_text(receipt),
        options.out / "index.html",
    )
    return receipt


if __name__ == "__main__":
    command_line.run(main, Options)
