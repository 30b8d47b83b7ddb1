"""Audits what a model still knows: python -m memsinks_jax.audit --workdir=runs/sinks
--standard=runs/standard \\
    --oracle=runs/no_repeat --out=audits/sinks [--members='read/*.txt' --non_members='unread/*.txt']

Measures extraction by prefix length, membership inference, canaries and loss: of the model with its
sinks dropped, with each document's own on, and with all on, compared with a standard model and an
oracle that never read the members. By default the members are the run's repeated documents and the
non-members its held-out ones. --workdir may be a Hugging Face folder. Also writes explore.html, a
page that shows documents token by token.
"""

import itertools
import logging
import os
import pathlib
import shlex
import sys

from absl import flags

from memsinks_jax.config import InputError
from memsinks_jax.measures import pages
from memsinks_jax.measures.audit import SAMPLES, audit
from memsinks_jax.measures.explore import explore
from memsinks_jax.measures.extraction import PREFIXES, SUFFIX
from memsinks_jax.reporting import report
from memsinks_jax.runs import command_line, output
from memsinks_jax.runs.interruption import atomic_folder

logger = logging.getLogger("memsinks_jax.audit")


def main() -> None:
    workdir_flag = flags.DEFINE_string(
        "workdir", None, "Training run, Hugging Face folder or GGUF file."
    )
    members_flag = flags.DEFINE_string(
        "members", "", "Documents the model has read; empty: the run's repeated ones."
    )
    others_flag = flags.DEFINE_string(
        "non_members", "", "Documents it has not read; empty: the run's held-out ones."
    )
    standard_flag = flags.DEFINE_string(
        "standard", None, "Model trained on the same documents without sinks."
    )
    oracle_flag = flags.DEFINE_string(
        "oracle", None, "Model trained on the same documents without the members."
    )
    prefixes_flag = flags.DEFINE_list(
        "prefixes", list(map(str, PREFIXES)), "Lengths of the prompts, in tokens."
    )
    suffix_flag = flags.DEFINE_integer(
        "suffix", SUFFIX, "Length of the continuation, in tokens.", lower_bound=1
    )
    samples_flag = flags.DEFINE_integer(
        "samples", SAMPLES, "Sampled continuations besides the greedy one.", lower_bound=0
    )
    outside_flag = flags.DEFINE_string(
        "open_unlearning", "", "Folder to write for open-unlearning: both models and the documents."
    )
    out_flag = flags.DEFINE_string("out", None, "Folder to write; it must not exist.")

    def run() -> dict:
        command_line.require(workdir_flag, out_flag)
        out = pathlib.Path(out_flag.value)
        outside = pathlib.Path(outside_flag.value) if outside_flag.value else None
        for name, place in (("out", out), ("open_unlearning", outside)):
            if place:
                output.check_free(place, name)
        if out == outside:
            raise InputError(f"--open_unlearning={outside} is --out; give another folder")
        places = [flag.value and pathlib.Path(flag.value) for flag in (standard_flag, oracle_flag)]
        asked = (
            pathlib.Path(workdir_flag.value),
            members_flag.value,
            others_flag.value,
            *places,
            command_line.whole_numbers("prefixes", prefixes_flag.value, "8,16,32", least=1),
            suffix_flag.value,
        )
        command = " ".join(["python -m memsinks_jax.audit", *map(shlex.quote, sys.argv[1:])])
        with atomic_folder(out) as scratch:
            result = audit(*asked, samples_flag.value, outside)
            pages.write(result, explore(*asked), scratch / out.name, command)
            os.replace(scratch / out.name, out)
        for columns, found in itertools.groupby(
            pages.tables(result), key=lambda table: table.columns
        ):
            print(
                report.plain_table(columns, [row for table in found for row in table.rows]),
                file=sys.stderr,
            )
        logger.info("%s\n%s", pages.answer(result), out / "index.html")
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
