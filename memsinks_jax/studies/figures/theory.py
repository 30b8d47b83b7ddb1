"""The theorems, as stated and as corrected: the lab of linear networks, no language model."""

import pathlib

from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.labs import study
from memsinks_jax.studies.labs.linear_network.theorems import THEOREMS, measure

TITLE = "The theorems of Memorization Sinks, as stated and as corrected"


def make(about: dict, out: pathlib.Path, command: str) -> dict:
    """Measures, draws, writes -> the content of results.json, which begins with `about`."""
    return study.write(out, about, TITLE, measure(list(THEOREMS), tuple(about["seeds"])), command)


FIGURE = Figure(
    title=TITLE,
    answer="What the paper proves, measured: which bounds hold, which are violated, and what holds "
    "instead.",
    make=make,
)
