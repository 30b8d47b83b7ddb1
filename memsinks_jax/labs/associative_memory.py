"""Scaling laws for associative memories: python -m memsinks_jax.labs.associative_memory
--figure=laws --out=runs/laws

Writes results.json, figure_NAME.png and index.html once everything is done.
"""

import dataclasses
import functools

from memsinks_jax.config import InputError
from memsinks_jax.model import host_memory
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import option
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    figure: str = option(
        None, "Figure of the paper, or study.", choices=[*FIGURES, "all"], required=True
    )
    seed: int = option(0, "Random seed.")
    runs: int | None = option(None, "Draws of data and embeddings; default: the figure's.")
    alpha: float | None = option(None, "Exponent of Zipf's law.")
    n: int | None = option(None, "Inputs, the paper's N; documents in the study of sinks.")
    m: int | None = option(None, "Outputs, the paper's M.")
    d: tuple[str, ...] | None = option(
        None, "Dimensions of the embeddings; numbers of sinks in the study of sinks."
    )
    p: int | None = option(
        None, "Inputs a thresholded scheme stores, the paper's P (figures 1 and 3)."
    )
    out: str = option(None, "Folder for results.json, the pictures and index.html.", required=True)


def main(options: Options) -> dict:
    given = {name: getattr(options, name) for name in ("runs", "alpha", "n", "m", "d", "p")}
    chosen = {name: value for name, value in given.items() if value is not None}
    if "d" in chosen:
        chosen["d"] = command_line.whole_numbers("d", chosen["d"], "32,64,128")
    every = options.figure == "all"
    names = FIGURES if every else [options.figure]
    settings = {name: settings_of(name, options.seed, chosen, lenient=every) for name in names}
    with shared.folder(options.out) as path:
        studies = measure(settings)
        seeds = sorted({run["seed"] for study in studies for run in study.runs})
        about = {"figure": options.figure, "preset": "laptop", "seeds": seeds}
        command = command_line.command("labs.associative_memory")
        return shared.write(path, about, TITLE, studies, command)


if __name__ == "__main__":
    command_line.run(main, Options)
