"""How many documents may share a sink before none can be removed alone?"""

import dataclasses
import pathlib

import numpy as np

from memsinks_jax.reporting.pictures import plt
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import panels
from memsinks_jax.studies.figures.panels import GREY, Line, Panel
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Table

SIZES = (1, 2, 4, 8)  # documents removed at once


def measure(runs: list[Run]) -> list[Run]:
    """Adds "documents_per_sink" and "capacity" to `details` -> the runs with sinks by document."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.forgetting.neurons import capacity
    from memsinks_jax.measures.subjects import of_role
    from memsinks_jax.models.trained import open_run
    from memsinks_jax.sinks.kinds import has_sinks, partition, share_on

    found = []
    for run in runs:
        config = workdirs.read_config(run.workdir)
        if config.sinks.traits.owned and has_sinks(config):
            corpus = workdirs.read_corpus(run.workdir)
            repeated = of_role(corpus, "repeated", str(run.workdir))
            share = share_on(config.sinks, partition(config.model, config.sinks).sinks)
            details = {
                "documents_per_sink": share * len(repeated.tokens),
                "capacity": capacity(open_run(run.workdir), repeated, SIZES),
            }
            found.append(dataclasses.replace(run, details=run.details | details))
    return found


def by_place(runs: list[Run], name: str, size: int) -> dict[float, list[float]]:
    """{documents per sink: values, so many documents removed at once}, if a sink would be left."""
    found: dict[float, list[float]] = {}
    for run in sorted(runs, key=lambda run: run.details["documents_per_sink"]):
        values = [row[name] for row in run.details["capacity"] if row["removed"] == size]
        found.setdefault(run.details["documents_per_sink"], []).extend(values)
    return found


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Selectivity, and the two rises whose ratio it is, against documents per sink."""

    def lines(name: str, style: str) -> list[Line]:
        colours = plt.colormaps["viridis"](0.9 * np.linspace(0, 1, len(SIZES)))
        return [
            Line(by_place(runs, name, size), name, str(size), colour, style)
            for size, colour in zip(SIZES, colours, strict=True)
        ]

    selectivity = Panel(
        title="selectivity: rise of what was removed over rise of the others",
        x="repeated documents per sink",
        lines=lines("selectivity", "o-"),
        levels={1: GREY},
        legend={"title": "removed at once"},
    )
    rises = Panel(
        title="rise of the loss (nats per token); dashed: of the others",
        x="repeated documents per sink",
        legend=None,
        lines=lines("target_rise", "o-") + lines("others_rise", "s--"),
        from_zero=False,
    )
    panels.draw(Table(runs), [selectivity, rises], path, size=(11, 4.2))
