"""Figures and studies that vary one setting, and compare models with sinks with the standard one."""

from collections.abc import Callable

from memsinks_jax.reporting.pictures import plt
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import (
    COLOURS,
    GREEN,
    GREY,
    HELD_OUT,
    REPEATED,
    Line,
    Panel,
)
from memsinks_jax.studies.figures.runs import Variation
from memsinks_jax.studies.figures.table import KINDS, LOSSES, Table

COLUMNS = LOSSES | {"steps": "step"}
TABLE_NOTE = """Losses in nats per token, sinks dropped unless stated otherwise. Gap closed: share of standard's gap between
    held-out and repeated loss that is gone."""
NOTE = """{mean}, band from the lowest to the highest; every model reads the same rows in as many steps. {floor} Every
    loss is measured on documents that stand alone in their context."""


def panels(
    table: Table,
    places: dict[str, float],
    what: str,
    standard_of: Callable[[str], str] = lambda setting: "standard",
    log: bool = False,
    further: dict[str, dict[str, float]] | None = None,
) -> list[Panel]:
    """Final losses and gap closed against the varied setting; the repeated loss over training.

    Args:
      places: {setting: its place on the axis}; the variants are named sinks_paper_SETTING and
      sinks_SETTING.
      what: the label of the axis. `log`: a log axis.
      standard_of: the standard model to compare a setting with.
      further: {name of a line: its places}, only for the gap closed; the first name is that of
      `places`.
    """
    shown = {
        place: setting
        for setting, place in places.items()
        if f"sinks_paper_{setting}" in table.groups
    }
    papers = {place: f"sinks_paper_{setting}" for place, setting in shown.items()}
    standards = {place: standard_of(setting) for place, setting in shown.items()}
    ends = [
        Line(of, f"{name}_loss", f"{role}, {which}", colour, style)
        for name, role, colour in (
            ("held_out", "held-out", HELD_OUT),
            ("repeated", "repeated", REPEATED),
        )
        for of, which, style in ((papers, "dropped", "o-"), (standards, "standard", "--"))
    ]
    closed = [
        Line(
            {place: f"{kind}_{setting}" for setting, place in line.items()},
            "closed",
            ", ".join(filter(None, (label, name))),
            colour,
            style,
        )
        for kind, label, colour in (
            ("sinks_paper", "the paper's", COLOURS["sinks"]),
            ("sinks", "open on return", GREEN),
        )
        for (name, line), style in zip(
            (further or {"": places}).items(), ("o-", "s--"), strict=False
        )
    ]
    colours = plt.colormaps["viridis"]
    training = [
        Line(
            variant, "repeated_loss", f"{place:.3g}", colours(0.9 * number / max(len(shown) - 1, 1))
        )
        for number, (place, variant) in enumerate(papers.items())
    ]
    ticks = {place: f"{place:.3g}" for place in shown} if log else {}
    return [
        Panel(
            title="losses at the end",
            x=what,
            y="loss (nats per token)",
            floor=True,
            ticks=ticks,
            log=log,
            lines=[
                *ends,
                Line(papers, "repeated_loss_own", "repeated, own sinks on", REPEATED, ":"),
            ],
        ),
        Panel(
            title="share of the gap closed",
            x=what,
            lines=closed,
            levels={0: GREY, 1: GREY},
            ticks=ticks,
            log=log,
            settings={"ylim": (-0.1, 1.1)},
            legend={"loc": "lower left"},
        ),
        Panel(
            title="repeated documents, dropped, over training",
            lines=training,
            floor=True,
            legend={"title": what},
        ),
    ]


def varied(settings: dict[str, tuple[str, dict]], **of_figure) -> Figure:
    """A figure of {setting: (label, fields)}, for both kinds of sinks, with one standard model."""
    return Figure(
        config="ts_repetition.py",
        columns=COLUMNS,
        table_note=TABLE_NOTE,
        note=NOTE,
        variants={"standard": Variation("standard")}
        | {
            f"{kind}_{name}": Variation(kind, fields)
            for kind in KINDS
            for name, (_, fields) in settings.items()
        },
        labels={
            f"{kind}_{name}": f"sinks, {label}{suffix}"
            for kind, suffix in KINDS.items()
            for name, (label, _) in settings.items()
        },
        **of_figure,
    )
