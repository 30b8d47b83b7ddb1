"""How many documents may share a sink before none can be removed alone? Selectivity against documents per sink."""

import dataclasses
import pathlib

import numpy as np

from memsinks_jax.reporting.pictures import plt, save, tidy
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures.runs import Run

SIZES = (1, 2, 4, 8)  # documents removed at once


def measure(runs: list[Run]) -> list[Run]:
    """Adds "documents_per_sink" and "capacity" to `details` -> the runs whose sinks are tied to documents."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax import sinks
    from memsinks_jax.auditing.subjects import of_role
    from memsinks_jax.forgetting.neurons import capacity
    from memsinks_jax.runs.trained import open_run

    found = []
    for run in runs:
        config = workdirs.read_config(run.workdir)
        if config.sinks.traits.owned and sinks.has_sinks(config):
            repeated = of_role(workdirs.read_corpus(run.workdir), config, "repeated", str(run.workdir))
            parts = sinks.partition(config.model, config.sinks)
            details = {
                "documents_per_sink": sinks.share_on(config.sinks, parts.sinks) * len(repeated.tokens),
                "capacity": capacity(open_run(run.workdir), repeated, SIZES),
            }
            found.append(dataclasses.replace(run, details=run.details | details))
    return found


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Selectivity of measured runs, and the two rises whose ratio it is, against documents per sink."""
    figure, (ratio, rises) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for place, size in enumerate(SIZES):
        by_place: dict[float, list[dict]] = {}
        for run in runs:
            for row in run.details["capacity"]:
                if row["removed"] == size:
                    by_place.setdefault(run.details["documents_per_sink"], []).append(row)
        colour = plt.colormaps["viridis"](0.9 * place / (len(SIZES) - 1))
        x = sorted(by_place)
        for axis, name, style in (
            (ratio, "selectivity", "o-"),
            (rises, "target_rise", "o-"),
            (rises, "others_rise", "s--"),
        ):
            # not `losses.band`: a seed has no point where no sink would be left
            values = [[row[name] for row in by_place[at]] for at in x]
            axis.plot(x, list(map(np.mean, values)), style, color=colour, label=f"{size}", linewidth=1.8)
            axis.fill_between(x, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.18, linewidth=0)
    ratio.axhline(1, color="#7f8c8d", linewidth=1)
    ratio.set(title="selectivity: rise of what was removed over rise of the others", ylim=(0, None))
    rises.set(title="rise of the loss (nats per token); dashed: of the others")
    for axis in (ratio, rises):
        axis.set_xlabel("repeated documents per sink")
        tidy(axis)
    ratio.legend(frameon=False, fontsize=8.5, title="removed at once")
    save(figure, path)
