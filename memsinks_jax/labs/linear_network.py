"""Memorization Sinks' theorems: python -m memsinks_jax.labs.linear_network --theorem=all
--out=runs/linear_network

Measures each theorem as stated and as corrected. Writes results.json, theorem_NAME.png and
index.html once everything is done.
"""

import shlex
import sys

from absl import flags

from memsinks_jax.runs import command_line
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.linear_network.theorems import THEOREMS, measure

TITLE = "The theorems of Memorization Sinks, as stated and as corrected"


def main() -> None:
    theorem = flags.DEFINE_enum(
        "theorem", None, [*THEOREMS, "all"], "Theorem of the paper.", required=True
    )
    out_flag = flags.DEFINE_string(
        "out", None, "Folder for results.json, the pictures and index.html.", required=True
    )
    seeds_flag = flags.DEFINE_list(
        "seeds", ["0", "1", "2"], "Whole numbers; three or more give intervals."
    )

    def run() -> dict:
        seeds = command_line.seeds(seeds_flag.value)
        about = {"theorem": theorem.value, "preset": "laptop", "seeds": list(seeds)}
        command = ["python -m memsinks_jax.labs.linear_network", *map(shlex.quote, sys.argv[1:])]
        with shared.folder(out_flag.value) as out:
            studies = measure(list(THEOREMS) if theorem.value == "all" else [theorem.value], seeds)
            return shared.write(out, about, TITLE, studies, " ".join(command))

    command_line.run(run)


if __name__ == "__main__":
    main()
