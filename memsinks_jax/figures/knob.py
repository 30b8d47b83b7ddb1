"""Shared by figures 5a, 5b and 5c, which vary one setting and compare models with sinks with the standard one."""

import pathlib
from collections.abc import Callable

import numpy as np

from memsinks_jax.figures import losses, on_return
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.runs import Run, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.pictures import plt, save

TABLE_NOTE = (
    "Losses in nats per token, sinks dropped unless it says otherwise. Gap closed: share of standard's gap between "
    "held-out and repeated loss that is gone."
)
_BLUE, _RED, _GREY, _GREEN = "#1f618d", "#c0392b", "#7f8c8d", "#1e8449"


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    return (
        f"{shared.mean_over_seeds(runs)}, band from the lowest to the highest; every model reads the same "
        f"rows in as many steps. {shared.floor_sentence(runs)} Every loss is measured on documents that stand alone in "
        "their context."
    )


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page."""
    return [report.heading("Choices"), shared.open_choices(runs)]


def draw(
    runs: list[Run], path: pathlib.Path, places: dict[str, float], standard_of: Callable[[str], str], what: str,
    log: bool = False, label: str | None = None, other: dict[str, float] | None = None, other_label: str | None = None,
) -> None:  # fmt: skip
    """Final losses and gap closed against the varied setting; the repeated loss over training.

    Args:
      places: {variant with sinks: its place on the axis}.
      standard_of: the standard model to compare a variant with.
      what: the label of the axis. `log`: a log axis.
      label, other, other_label: places of further variants, only for the gap, and the labels of the two lines.
    """
    groups = by_variant(runs)
    shown = [variant for variant in places if variant in groups]
    compared = all(standard_of(variant) in groups for variant in shown)
    x = [places[variant] for variant in shown]
    figure, (ends, closed, training) = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")

    def at_end(of: Callable[[str], str], measure: Callable[[Run], float]) -> np.ndarray:
        return np.array([[measure(run) for run in groups[of(variant)].values()] for variant in shown]).T

    lines = (("held_out_loss", "held-out", _BLUE), ("repeated_loss", "repeated", _RED))
    for name, of, colour in lines if shown else ():
        losses.band(ends, x, at_end(str, lambda run, n=name: run.metrics[n]), f"{of}, dropped", colour, "o-")
        if compared:
            standard = at_end(standard_of, lambda run, n=name: run.metrics[n])
            losses.band(ends, x, standard, f"{of}, standard", colour, "--")
    if shown:
        own = at_end(str, lambda run: run.metrics["repeated_loss_own"])
        losses.band(ends, x, own, "repeated, own sinks on", _RED, ":")
    losses.finish(ends, runs, "losses at the end", what)
    ends.set_ylabel("loss (nats per token)")
    lines = ((places, "o-", label), (other or {}, "s--", other_label))
    for suffix, said, colour in (("", "the paper's", _BLUE), (on_return.SUFFIX, "open on return", _GREEN)):
        for line, style, name in lines:
            here = {variant + suffix: place for variant, place in line.items() if variant + suffix in groups}
            here = {variant: place for variant, place in here.items() if standard_of(variant) in groups}
            values = [
                [losses.gap_closed(run, groups[standard_of(v)][seed]) for seed, run in groups[v].items()] for v in here
            ]
            if here:
                told = ", ".join(filter(None, (said, name)))
                losses.band(closed, list(here.values()), np.array(values).T, told, colour, style)
    if closed.get_legend_handles_labels()[0]:
        closed.legend(frameon=False, fontsize=8.5, loc="lower left")
    closed.axhline(0, color=_GREY, linewidth=1)
    closed.axhline(1, color=_GREY, linewidth=1)
    losses.finish(closed, [], "share of the gap closed", what)
    closed.set_ylim(-0.1, 1.1)
    for place, variant in enumerate(shown):
        colour = plt.colormaps["viridis"](0.9 * place / max(len(shown) - 1, 1))
        losses.curve(training, list(groups[variant].values()), "repeated_loss", f"{places[variant]:.3g}", colour)
    losses.finish(training, runs, "repeated documents, dropped, over training", "step")
    if log:
        for axis in (ends, closed):
            axis.set_xscale("log")
            axis.set_xticks(x, [f"{place:.3g}" for place in x])
            axis.minorticks_off()
    ends.legend(frameon=False, fontsize=8.5)
    training.legend(frameon=False, fontsize=8.5, title=what)
    save(figure, path)
