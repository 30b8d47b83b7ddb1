"""Figure 4: sinks train as well as standard training with repeats, and do not recite once dropped.

4a and 4b: held-out and repeated loss for standard training, training without repeats, sinks as in
the paper, sinks that open when a document comes back, and memory by context. Two controls are not
in the paper: a standard model of the width that is left after dropping, and ordinary dropout of the
same neurons.
4c: sinks against post-hoc methods, in the plane of forgetting and degradation. For sinks and for
the model without repeats, "before" is the standard model (as in the paper's caption).
"""

import pathlib

import numpy as np

from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import post_hoc
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import COLOURS, Curve, Line, Panel, Scatter, draw
from memsinks_jax.studies.figures.runs import Run, by_variant
from memsinks_jax.studies.figures.table import LOSSES, Table

LABELS = {
    "standard": "standard",
    "no_repeat": "no repeats, same epochs",
    "sinks_paper": "sinks as in the paper, dropped",
    "sinks": "sinks that open on return, dropped",
    "context": "memory by context, off",
    "no_repeat_steps": "no repeats, same steps",
    "narrow": "control: narrow from the start",
    "dropout": "control: ordinary dropout, dropped",
}
SINKS = ("sinks_paper", "sinks", "context")
# the model that never read the repeated documents
_EPOCHS, _STEPS = ("no_repeat", "same epochs"), ("no_repeat_steps", "same steps")
_STYLES = {"narrow": "--", "dropout": "-."}  # they lie on the standard line, which shows through
# Of 4c: the largest rise of the held-out loss, in nats, at which forgetting still counts.
WORST = 0.5
METHODS = {"hard_concrete": "#c0392b", "integrated_gradients": "#6c3483", "slimming": "#d68910"}
METHODS |= {"zero_out": "#117a65", "activation": "#2e86c1", "random": "#99a3a4"}
_POINTS = {
    "sinks_paper": ("#5dade2", "*"),
    "sinks": ("#1f618d", "*"),
    "context": ("#8e44ad", "*"),
    "no_repeat": ("#1c2833", "D"),
}


def measure(runs: list[Run]) -> list[Run]:
    """Adds every method to the `details` of standard runs. Minutes: only the whole figure."""
    asked = "standard" if set(by_variant(runs)) == set(LABELS) else None
    return post_hoc.measured(runs, lambda run: run.variant == asked, post_hoc.METHODS)


def moved(run: Run, standard: Run):
    """What a model has forgotten compared with the standard one, at what cost -> Point."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.studies.baselines.removal import point

    names = ("repeated_loss", "held_out_loss")
    before, after = ([of.metrics[name] for name in names] for of in (standard, run))
    return point(before, after)


def share_of_box(points: list, enough: float) -> float:
    """Area dominated by the points, over the box of forgetting up to `enough` and a rise up to
    WORST.

    Above 1 if the held-out loss falls; 0 if there is nothing to forget.
    """
    from memsinks_jax.studies.baselines.removal import hypervolume

    return hypervolume(points, WORST, enough) / (WORST * enough) if enough > 0 else 0.0


def _share(run: Run, standard: Run, no_repeat: Run, method: str = "") -> float:
    """Share of a model, or of a method. It is enough to forget as if repeats were never seen."""
    points = post_hoc.curve(standard, method) if method else [moved(run, standard)]
    return share_of_box(points, moved(no_repeat, standard).forgetting)


def _over_methods(sinks: Run, standard: Run, no_repeat: Run) -> float:
    of_methods = [_share(standard, standard, no_repeat, method) for method in post_hoc.METHODS]
    return _share(sinks, standard, no_repeat) - max(of_methods)


def _less(method: str, sinks: Run, standard: Run) -> float:
    """How much less held-out loss rises by sinks than by a method that forgets as much (nats)."""
    point = moved(sinks, standard)
    return post_hoc.cost_at(standard, [method], point.forgetting) - point.delta_val


def _statements() -> str:
    """Claims about sinks have other bounds for the paper's than for those of this package."""
    of_sinks = [
        f"""
gap_closed{suffix} | share of standard's gap between held-out and repeated loss that is closed,{of}
    dropped | {sinks}.closed >= {closed} | >= 0.5 (section 1, at 360M and 1.7B)
recovery{suffix} | repeated loss,{of} dropped, over that of the model without repeats, {same}
    | {sinks}.repeated_loss / {twin}.repeated_loss >= 0.6 | about 0.66
held_out_standard{suffix} | held-out loss,{of} dropped, over standard's
    | {sinks}.held_out_ratio <= {held_out} | about equal
held_out_no_repeat{suffix} | held-out loss,{of} dropped, over that of the model without repeats,
    {same} | {sinks}.held_out_loss / {twin}.held_out_loss <= 1 | better"""
        for sinks, suffix, of, closed, held_out, twin, same in (
            ("sinks_paper", "", " the paper's sinks", 0.75, 1.01, *_EPOCHS),
            ("sinks", "_on_return", " sinks that open on return", 0.9, 1, *_EPOCHS),
            ("context", "_by_context", " memory by context", 0.9, 1, *_STEPS),
        )
    ]
    return "".join(
        [
            """
memorizes | standard training memorizes: repeated loss over held-out loss
    | standard.repeated_loss / standard.held_out_loss <= 0.25 | close to 0""",
            *of_sinks,
            """
known | repeated loss with memory by context on, over standard's
    | context.repeated_loss_own / standard.repeated_loss <= 1 | not in the paper
gap_left | gap that is left, sinks that open on return over the paper's
    | sinks.gap / sinks_paper.gap <= 0.5 | not in the paper
repeats_help | held-out loss of standard over no_repeat's, same epochs
    | standard.held_out_loss / no_repeat.held_out_loss <= 1 | repeats help (4a)
late_rise | rise of the repeated loss, the paper's sinks dropped, from its lowest point to the end
    (nats) | sinks_paper.repeated_loss - sinks_paper.lowest_repeated_loss >= 0.01
    | rises late in training
control_narrow | repeated loss, the paper's sinks dropped, over narrow from the start
    | sinks_paper.repeated_loss / narrow.repeated_loss >= 1.5 | not run in the paper
control_dropout | repeated loss, the paper's sinks dropped, over ordinary dropout dropped
    | sinks_paper.repeated_loss / dropout.repeated_loss >= 1.5 | not run in the paper""",
            against_methods(),
        ]
    )


def against_methods() -> str:
    """Those of 4c."""
    rows = [
        f"""
dominates_{method} | rise of the held-out loss at the forgetting of the paper's sinks:
    {post_hoc.LABELS[method]} minus these (nats) | rise_less('{method}', sinks_paper, standard) >= 0
    | {"sinks dominate (4c)" if method in post_hoc.OF_THE_PAPER else "not run in the paper"}"""
        for method in post_hoc.METHODS
    ]
    rows += [
        f"""
hypervolume{suffix} | hypervolume: {of} minus the best post hoc method (share of the box)
    | share_over_methods({sinks}, standard, no_repeat) >= 0 | sinks dominate (4c) | sinks_paper"""
        for sinks, suffix, of in (
            ("sinks_paper", "", "the paper's sinks"),
            ("sinks", "_on_return", "sinks that open on return"),
            ("context", "_by_context", "memory by context"),
        )
    ]
    return "".join(rows)


def _on(label: str) -> str:
    return label.replace("dropped", "own on").replace(", off", ", on")


def panels(table: Table) -> list[Panel]:
    """4a and 4b."""

    def lines(loss: str) -> list[Line]:
        return [
            Line(name, loss, LABELS[name], COLOURS[name], _STYLES.get(name, "-"))
            for name in table.groups
        ]

    own = [
        Line(kind, "repeated_loss_own", _on(label), COLOURS[kind], ":")
        for kind, label in LABELS.items()
        if kind in SINKS
    ]
    shown = (
        ("4a: held-out documents", "loss (nats per token)", lines("held_out_loss"), None),
        ("4b: repeated documents", "", lines("repeated_loss") + own, "lines"),
    )
    return [
        Panel(title=title, y=y, lines=of, legend=legend, floor=True, early=True)
        for title, y, of, legend in shown
    ]


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    return [
        *trade_off(FIGURE.of(runs), out),
        report.heading("Does it recite?"),
        *shared.continuations(runs),
        *shared.token_by_token(runs, out),
        shared.open_choices(runs),
    ]


def trade_off(table: Table, out: pathlib.Path) -> list[str]:
    """4c: plot, table and settings. Writes figure_4c.png."""
    title = "4c: the trade-off, compared with post hoc methods, applied to the trained model"
    standard = table.groups.get("standard", {})
    standards = list(standard.values())
    if not any(run.details for run in standards):
        why = shared.note("It takes minutes: only with all variants of the figure.")
        return [report.heading(title), why]
    curves = [
        post_hoc.traced(standards, name, post_hoc.LABELS[name], colour)
        for name, colour in METHODS.items()
    ]
    furthest = -np.inf
    for name, (colour, marker) in _POINTS.items():
        if name in table.groups:
            points = [moved(run, standard[seed]) for seed, run in table.groups[name].items()]
            forgetting = np.array([[point.forgetting for point in points]])
            rises = np.array([[-point.delta_val for point in points]])
            curves.append(Curve(LABELS[name], colour, marker, forgetting, rises))
            furthest = forgetting.max()  # of no_repeat, which is last
    panel = Scatter(
        title="4c: what is forgotten, and what that costs",
        curves=curves,
        settings={"xlim": (-0.05, 1.15 * furthest), "ylim": (-1, 0.15)},
        legend={"loc": "center left", "bbox_to_anchor": (1, 0.5)},
        **post_hoc.PLANE,
    )
    draw(table, [panel], out / "figure_4c.png", (9.5, 5))
    caption = (
        "Rise of the repeated loss against that of the held-out loss: a curve for each method."
    )
    cost = "rise of the held-out loss at the paper's sinks' forgetting"
    return [
        report.heading(title),
        report.picture(out / "figure_4c.png", caption),
        shared.note(f"""{shared.mean_over_seeds(standards)}, each seed faint. Up and to the right is
            better. Before means the standard model, also for sinks and the model without
            repeats."""),
        shared.with_intervals(["most forgetting", cost, "hypervolume"], _costs(table, standards)),
        shared.note(f"""Nats per token. If a method never forgets as much as the paper's sinks, the
            rise is the one at its most forgetting. Hypervolume: the area that a method dominates,
            as a share of the box up to the forgetting of the model without repeats and to a rise of
            {WORST:g} nats; over 1 if the held-out loss falls."""),
        *post_hoc.how(standards, post_hoc.METHODS),
    ]


def _costs(table: Table, standards: list[Run]) -> dict[str, zip]:
    """{label: most forgetting, rise of the held-out loss, share of the box} of sinks and
    methods.
    """
    rows = {}
    for kind in SINKS:
        if kind in table.groups:
            found = []
            for run in standards:
                model, no_repeat = table.run(kind, run.seed), table.run("no_repeat", run.seed)
                _, forgetting, rise, *_ = moved(model, run)
                found.append((forgetting, rise, _share(model, run, no_repeat)))
            rows[LABELS[kind]] = zip(*found, strict=True)
    for method, label in post_hoc.LABELS.items():
        found = []
        for run in standards:
            paper, no_repeat = table.run("sinks_paper", run.seed), table.run("no_repeat", run.seed)
            most = max(point.forgetting for point in post_hoc.curve(run, method))
            rise = post_hoc.cost_at(run, [method], moved(paper, run).forgetting)
            found.append((most, rise, _share(paper, run, no_repeat, method)))
        rows[label] = zip(*found, strict=True)
    return rows


FIGURE = Figure(
    title="Figure 4: memorization that can be switched off",
    answer="""A model trained with sinks learns as much as a model of standard training, including
        from repeats. Without its sinks it is a smaller, ordinary model that no longer recites the
        repeated documents.""",
    variants=tuple(LABELS),
    measure=measure,
    measures={
        "recovery": "repeated_loss / no_repeat.repeated_loss",
        "lowest_repeated_loss": lambda run: min(run.curve("repeated_loss")[1]),
        "share_over_methods": _over_methods,
        "rise_less": _less,
    },
    columns=LOSSES | {"recovery": "recovery", "steps": "step"},
    labels=LABELS,
    table_note="""Losses in nats per token. Gap closed: share of standard's gap between held-out and
        repeated loss that is gone. Recovery: repeated loss over that of the model without
        repeats.""",
    statements=_statements(),
    panels=panels,
    size=(11.5, 4.4),
    sharey=True,
    note="""{mean}, band from the lowest to the highest. {floor} Every loss is measured on documents
        that stand alone in their context, with the sinks dropped unless stated otherwise.""",
    sections=sections,
)
