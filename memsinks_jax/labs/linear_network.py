"""Memorization Sinks' theorems: python -m memsinks_jax.labs.linear_network --theorem=all --out=runs/linear_network

Measures each theorem as stated and as corrected. Writes results.json, theorem_NAME.png and index.html once everything is
done.
"""

import pathlib

from absl import flags

from memsinks_jax.runs import command_line
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.linear_network.theorems import THEOREMS, measure
from memsinks_jax.studies.labs.study import Study


def write(out: pathlib.Path, theorem: str, seeds: tuple[int, ...], studies: list[Study], command: str) -> dict:
    """Writes everything -> the content of results.json."""
    about = {"theorem": theorem, "preset": "laptop", "seeds": list(seeds)}
    return shared.write(out, about, "The theorems of Memorization Sinks, as stated and as corrected", studies, command)


def main() -> None:
    theorem_flag = flags.DEFINE_enum("theorem", None, [*THEOREMS, "all"], "Theorem of the paper.", required=True)
    out_flag = flags.DEFINE_string("out", None, "Folder for results.json, the pictures and index.html.", required=True)
    seeds_flag = flags.DEFINE_list("seeds", ["0", "1", "2"], "Whole numbers; three or more give intervals.")

    def run() -> dict:
        seeds, out, theorem = command_line.seeds(seeds_flag.value), shared.folder(out_flag.value), theorem_flag.value
        studies = measure(list(THEOREMS) if theorem == "all" else [theorem], seeds)
        command = f"python -m memsinks_jax.labs.linear_network --theorem={theorem}"
        return write(out, theorem, seeds, studies, f"{command} --seeds={','.join(map(str, seeds))} --out={out}")

    command_line.run(run)


if __name__ == "__main__":
    main()
