"""Memorization Sinks' theorems: python -m memsinks_jax.labs.linear_network --theorem=all
--out=runs/linear_network

Measures each theorem as stated and as corrected. Writes results.json, theorem_NAME.png and
index.html once everything is done.
"""

from absl import flags

from memsinks_jax.runs import command_line
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.linear_network.theorems import THEOREMS, measure

TITLE = "The theorems of Memorization Sinks, as stated and as corrected"


def main() -> None:
    theorem = flags.DEFINE_enum(
        "theorem", None, [*THEOREMS, "all"], "Theorem of the paper.", required=True
    )
    out, seeds_flag = shared.out_flag(), shared.seeds_flag()

    def run() -> dict:
        seeds = command_line.seeds(seeds_flag.value)
        names = list(THEOREMS) if theorem.value == "all" else [theorem.value]
        about = {"theorem": theorem.value, "preset": "laptop", "seeds": list(seeds)}
        with shared.folder(out.value) as path:
            studies = measure(names, seeds)
            return shared.write(path, about, TITLE, studies, shared.command("linear_network"))

    command_line.run(run)


if __name__ == "__main__":
    main()
