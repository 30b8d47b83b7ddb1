"""Scaling laws for associative memories: python -m memsinks_jax.labs.associative_memory
--figure=laws --out=runs/laws

Writes results.json, figure_NAME.png and index.html once everything is done.
"""

import functools

from absl import flags

from memsinks_jax.config import InputError
from memsinks_jax.model import host_memory
from memsinks_jax.runs import command_line
from memsinks_jax.studies.labs import study as shared
from memsinks_jax.studies.labs.associative_memory import (
    figure_laws,
    figure_sinks,
    schemes,
    training,
)
from memsinks_jax.studies.labs.associative_memory.study import FigureSettings

FIGURES = (
    dict(sorted((schemes.FIGURES | training.FIGURES).items()))
    | figure_laws.FIGURES
    | figure_sinks.FIGURES
)
TITLE = "Scaling laws for associative memories, and for sinks"


def settings_of(figure: str, seed: int, chosen: dict, lenient: bool = False) -> FigureSettings:
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
            had = ", ".join(defaults)
            raise InputError(
                f"--{flag}: figure {figure} has no use for it; leave it out (it has {had})"
            )
    mine = {flag: value for flag, value in chosen.items() if flag in defaults}
    return FigureSettings(seed=seed, **{**defaults, **mine}).check(figure)


def measure(settings: dict[str, FigureSettings]) -> list[shared.Study]:
    """Makes every figure of `settings`."""
    host_memory.keep_freed_memory()
    makers = {name: functools.partial(FIGURES[name].study, mine) for name, mine in settings.items()}
    return shared.measure("figure", makers)


def main() -> None:
    figure = flags.DEFINE_enum(
        "figure", None, [*FIGURES, "all"], "Figure of the paper, or study.", required=True
    )
    out = shared.out_flag()
    seed = flags.DEFINE_integer("seed", 0, "Random seed.")
    choices = [
        flags.DEFINE_integer("runs", None, "Draws of data and embeddings; default: the figure's."),
        flags.DEFINE_float("alpha", None, "Exponent of Zipf's law."),
        flags.DEFINE_integer("n", None, "Inputs, the paper's N; documents in the study of sinks."),
        flags.DEFINE_integer("m", None, "Outputs, the paper's M."),
        flags.DEFINE_list(
            "d", None, "Dimensions of the embeddings; numbers of sinks in the study of sinks."
        ),
        flags.DEFINE_integer(
            "p", None, "Inputs a thresholded scheme stores, the paper's P (figures 1 and 3)."
        ),
    ]

    def run() -> dict:
        chosen = {flag.name: flag.value for flag in choices if flag.value is not None}
        if "d" in chosen:
            chosen["d"] = command_line.whole_numbers("d", chosen["d"], "32,64,128")
        every = figure.value == "all"
        names = FIGURES if every else [figure.value]
        settings = {name: settings_of(name, seed.value, chosen, lenient=every) for name in names}
        with shared.folder(out.value) as path:
            studies = measure(settings)
            seeds = sorted({run["seed"] for study in studies for run in study.runs})
            about = {"figure": figure.value, "preset": "laptop", "seeds": seeds}
            return shared.write(path, about, TITLE, studies, shared.command("associative_memory"))

    command_line.run(run)


if __name__ == "__main__":
    main()
