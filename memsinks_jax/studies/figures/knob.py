"""Figures and studies that vary one setting, and compare models with sinks with the standard
one.
"""

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
TABLE_NOTE = """Losses in nats per token, sinks dropped unless stated otherwise. Gap closed: share
    of standard's gap between held-out and repeated loss that is gone."""
NOTE = """{mean}, band from the lowest to the highest; every model reads the same rows in as many
    steps. {floor} Every loss is measured on documents that stand alone in their context."""


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
    of_paper = {setting: f"sinks_paper_{setting}" for setting in places}
    shown = {at: of for of, at in places.items() if of_paper[of] in table.groups}
    papers = {place: of_paper[setting] for place, setting in shown.items()}
    standards = {place: standard_of(setting) for place, setting in shown.items()}
    ends = [
        Line(of, f"{name}_loss", f"{name.replace('_', '-')}, {which}", colour, style)
        for name, colour in (("held_out", HELD_OUT), ("repeated", REPEATED))
        for of, which, style in ((papers, "dropped", "o-"), (standards, "standard", "--"))
    ]
    ends.append(Line(papers, "repeated_loss_own", "repeated, own sinks on", REPEATED, ":"))
    closed = []
    kinds = (("sinks_paper", "the paper's", COLOURS["sinks"]), ("sinks", "open on return", GREEN))
    for kind, label, colour in kinds:
        for (name, line), style in zip(
            (further or {"": places}).items(), ("o-", "s--"), strict=False
        ):
            of = {place: f"{kind}_{setting}" for setting, place in line.items()}
            closed.append(Line(of, "closed", ", ".join(filter(None, (label, name))), colour, style))
    colours, most = plt.colormaps["viridis"], max(len(shown) - 1, 1)
    training = [
        Line(variant, "repeated_loss", f"{place:.3g}", colours(0.9 * number / most))
        for number, (place, variant) in enumerate(papers.items())
    ]
    ticks = {place: f"{place:.3g}" for place in shown} if log else {}
    axis = {"x": what, "log": log, "ticks": ticks}
    over_training = "repeated documents, dropped, over training"
    return [
        Panel(title="losses at the end", y="loss (nats per token)", floor=True, lines=ends, **axis),
        Panel(
            title="share of the gap closed",
            lines=closed,
            levels={0: GREY, 1: GREY},
            settings={"ylim": (-0.1, 1.1)},
            legend={"loc": "lower left"},
            **axis,
        ),
        Panel(title=over_training, lines=training, floor=True, legend={"title": what}),
    ]


def varied(settings: dict[str, tuple[str, dict]], **of_figure) -> Figure:
    """A figure of {setting: (label, fields)}, for both kinds of sinks, with one standard model."""
    variants, labels = {"standard": Variation("standard")}, {}
    for kind, suffix in KINDS.items():
        for name, (label, fields) in settings.items():
            variants[f"{kind}_{name}"] = Variation(kind, fields)
            labels[f"{kind}_{name}"] = f"sinks, {label}{suffix}"
    shared = {"columns": COLUMNS, "table_note": TABLE_NOTE, "note": NOTE}
    return Figure(variants=variants, labels=labels, **shared, **of_figure)
