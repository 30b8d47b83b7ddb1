"""Scaling laws for associative memories: python -m memsinks_jax.labs.associative_memory --figure=laws --out=runs/laws

Writes results.json, figure_NAME.png and index.html once everything is done.
"""

import functools
import pathlib

from absl import flags

from memsinks_jax.config import InputError
from memsinks_jax.runs import command_line, host_memory
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.associative_memory import figure_laws, figure_sinks, schemes, training
from memsinks_jax.studies.labs.associative_memory.study import Settings
from memsinks_jax.studies.labs.study import Study

FIGURES = dict(sorted((schemes.FIGURES | training.FIGURES).items())) | figure_laws.FIGURES | figure_sinks.FIGURES


def settings_of(figure: str, seed: int, chosen: dict, lenient: bool = False) -> Settings:
    """The figure's defaults, overridden by the flags on the command line.

    Args:
      chosen: {flag: value} of the flags that were given.
      lenient: ignore flags that the figure does not use, instead of refusing them.
    Raises:
      InputError: a value is out of range, or the figure does not use a flag.
    """
    defaults = FIGURES[figure].defaults
    for flag in chosen:
        if flag not in defaults and not lenient:
            raise InputError(
                f"--{flag}: figure {figure} has no use for it; leave it out (it has {', '.join(defaults)})"
            )
    mine = {flag: value for flag, value in chosen.items() if flag in defaults}
    return Settings(seed=seed, **{**defaults, **mine}).check(figure)


def measure(settings: dict[str, Settings]) -> list[Study]:
    """Makes every figure of `settings`."""
    host_memory.keep_freed_memory()
    return shared.measure(
        "figure", {name: functools.partial(FIGURES[name].study, mine) for name, mine in settings.items()}
    )


def write(out: pathlib.Path, figure: str, studies: list[Study], command: str) -> dict:
    """Writes everything -> the content of results.json."""
    seeds = sorted({run["seed"] for study in studies for run in study.runs})
    about = {"figure": figure, "preset": "laptop", "seeds": seeds}
    return shared.write(out, about, "Scaling laws for associative memories, and for sinks", studies, command)


def main() -> None:
    figure_flag = flags.DEFINE_enum("figure", None, [*FIGURES, "all"], "Figure of the paper, or study.", required=True)
    out_flag = flags.DEFINE_string("out", None, "Folder for results.json, the pictures and index.html.", required=True)
    seed_flag = flags.DEFINE_integer("seed", 0, "Random seed.")
    choices = {
        "runs": flags.DEFINE_integer("runs", None, "Draws of data and embeddings; default: the figure's."),
        "alpha": flags.DEFINE_float("alpha", None, "Exponent of Zipf's law."),
        "n": flags.DEFINE_integer("n", None, "Inputs, the paper's N; documents in the study of sinks."),
        "m": flags.DEFINE_integer("m", None, "Outputs, the paper's M."),
        "d": flags.DEFINE_list("d", None, "Dimensions of the embeddings; numbers of sinks in the study of sinks."),
        "p": flags.DEFINE_integer("p", None, "Inputs a thresholded scheme stores, the paper's P (figures 1 and 3)."),
    }

    def run() -> dict:
        chosen = {name: flag.value for name, flag in choices.items() if flag.value is not None}
        if "d" in chosen:
            chosen["d"] = command_line.whole_numbers("d", chosen["d"], "32,64,128")
        figure = figure_flag.value
        names = list(FIGURES) if figure == "all" else [figure]
        settings = {name: settings_of(name, seed_flag.value, chosen, lenient=figure == "all") for name in names}
        out = shared.folder(out_flag.value)
        studies = measure(settings)
        command = f"python -m memsinks_jax.labs.associative_memory --figure={figure} --seed={seed_flag.value}"
        for name, value in chosen.items():
            command += f" --{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        return write(out, figure, studies, f"{command} --out={out}")

    command_line.run(run)


if __name__ == "__main__":
    main()
