"""Memorization Sinks' theorems: python -m memsinks_jax.labs.linear_network --theorem=all
--out=runs/linear_network

Measures each theorem as stated and as corrected. Writes results.json, theorem_NAME.png and
index.html once everything is done.
"""

import dataclasses

from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import option
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.linear_network.theorems import THEOREMS, measure

TITLE = "The theorems of Memorization Sinks, as stated and as corrected"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    theorem: str = option(None, "Theorem of the paper.", choices=[*THEOREMS, "all"], required=True)
    out: str = option(None, "Folder for results.json, the pictures and index.html.", required=True)
    seeds: tuple[str, ...] = option(("0", "1", "2"), "Whole numbers; three or more give intervals.")


def main(options: Options) -> dict:
    seeds = command_line.seeds(options.seeds)
    names = list(THEOREMS) if options.theorem == "all" else [options.theorem]
    about = {"theorem": options.theorem, "preset": "laptop", "seeds": list(seeds)}
    with shared.folder(options.out) as path:
        studies, command = measure(names, seeds), command_line.command("labs.linear_network")
        return shared.write(path, about, TITLE, studies, command)


if __name__ == "__main__":
    command_line.run(main, Options)
