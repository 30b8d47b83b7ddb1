"""Audits what a model still knows: python -m memsinks_jax.audit --workdir=runs/sinks
--standard=runs/standard \\
    --oracle=runs/no_repeat --out=audits/sinks [--members='read/*.txt' --non_members='unread/*.txt']

Measures extraction by prefix length, membership inference, canaries and loss: of the model with its
sinks dropped, with each document's own on, and with all on, compared with a standard model and an
oracle that never read the members. By default the members are the run's repeated documents and the
non-members its held-out ones. --workdir may be a Hugging Face folder. Also writes explore.html, a
page that shows documents token by token.
"""

import dataclasses
import itertools
import logging
import os
import pathlib
import sys

from memsinks_jax.config import InputError
from memsinks_jax.measures import pages
from memsinks_jax.measures.audit import SAMPLES, audit
from memsinks_jax.measures.explore import explore
from memsinks_jax.measures.extraction import PREFIXES, SUFFIX
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line, output
from memsinks_jax.runs.command_line import REQUIRED, option
from memsinks_jax.runs.interruption import atomic_folder

logger = logging.getLogger("memsinks_jax.audit")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    workdir: pathlib.Path = option(REQUIRED, "Training run, Hugging Face folder or GGUF file.")
    members: str = option("", "Documents the model has read; empty: the run's repeated ones.")
    non_members: str = option("", "Documents it has not read; empty: the run's held-out ones.")
    standard: pathlib.Path | None = option(
        None, "Model trained on the same documents without sinks."
    )
    oracle: pathlib.Path | None = option(
        None, "Model trained on the same documents without the members."
    )
    prefixes: tuple[str, ...] = option(
        tuple(map(str, PREFIXES)), "Lengths of the prompts, in tokens."
    )
    suffix: int = option(SUFFIX, "Length of the continuation, in tokens.", 1)
    samples: int = option(SAMPLES, "Sampled continuations besides the greedy one.", 0)
    open_unlearning: pathlib.Path | None = option(
        None, "Folder to write for open-unlearning: both models and the documents."
    )
    out: pathlib.Path = option(REQUIRED, "Folder to write; it must not exist.")


def main(options: Options) -> dict:
    out, outside = options.out, options.open_unlearning
    for name, place in (("out", out), ("open_unlearning", outside)):
        if place:
            output.check_free(place, name)
    if out == outside:
        raise InputError(f"--open_unlearning={outside} is --out; give another folder")
    asked = {
        "workdir": options.workdir,
        "members_files": options.members,
        "non_members_files": options.non_members,
        "standard": options.standard,
        "oracle": options.oracle,
        "prefixes": command_line.whole_numbers("prefixes", options.prefixes, "8,16,32", least=1),
        "suffix": options.suffix,
    }
    with atomic_folder(out) as scratch:
        more = {"samples": options.samples, "open_unlearning_files": outside}
        result, explored = audit(**asked, **more), explore(**asked)
        pages.write(result, explored, scratch / out.name, command_line.command("audit"))
        os.replace(scratch / out.name, out)
    for columns, found in itertools.groupby(pages.tables(result), key=lambda table: table.columns):
        print(
            report.plain_table(columns, [row for table in found for row in table.rows]),
            file=sys.stderr,
        )
    logger.info("%s\n%s", pages.answer(result), out / "index.html")
    return result


if __name__ == "__main__":
    command_line.run(main, Options)
