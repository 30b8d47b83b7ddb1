"""Figure 4c: sinks against post-hoc methods, in the plane of forgetting and degradation.

The paper's claims about sinks are tested on its own sinks; those that open on return are beside them. For sinks and for
the model without repeats, "before" is the standard model (as in the paper's caption).
"""

import pathlib

from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.studies.figures import post_hoc
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Statement, Table

# Largest rise of the held-out loss, in nats, at which forgetting still counts.
WORST = 0.5

_COLOURS = {
    "hard_concrete": "#c0392b", "integrated_gradients": "#6c3483", "slimming": "#d68910", "zero_out": "#117a65",
    "activation": "#2e86c1", "random": "#99a3a4",
}  # fmt: skip
_POINTS = {
    "sinks_paper": ("sinks as in the paper, dropped", "#5dade2", "*", 230),
    "sinks": ("sinks that open on return, dropped", "#1f618d", "*", 230),
    "no_repeat": ("no repeats, same epochs", "#1c2833", "D", 55),
}


def measure(runs: list[Run]) -> list[Run]:
    """Adds the results of every method to the `details` of standard runs -> the same runs."""
    return post_hoc.measured(runs, lambda run: run.variant == "standard", post_hoc.METHODS)


def moved(run: Run, standard: Run):
    """How much a model has forgotten compared with the standard one, and at what cost -> removal.Point."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    from memsinks_jax.studies.baselines.removal import point

    before, after = ([r.metrics["repeated_loss"], r.metrics["held_out_loss"]] for r in (standard, run))
    return point(before, after)


def share_of_box(points: list, enough: float) -> float:
    """Area dominated by the points, over the box of forgetting up to `enough` and a rise up to WORST.

    Above 1 if the held-out loss falls; 0 if there is nothing to forget.
    """
    from memsinks_jax.studies.baselines.removal import hypervolume

    return hypervolume(points, WORST, enough) / (WORST * enough) if enough > 0 else 0.0


def _share(run: Run, standard: Run, no_repeat: Run, method: str = "") -> float:
    """Share of a model, or of a post-hoc method. Forgetting is enough if it is as if the repeats had never been seen."""
    points = post_hoc.curve(standard, method) if method else [moved(run, standard)]
    return share_of_box(points, moved(no_repeat, standard).forgetting)


def _over_methods(sinks: Run, standard: Run, no_repeat: Run) -> float:
    of_methods = [_share(standard, standard, no_repeat, method) for method in standard.details]
    return _share(sinks, standard, no_repeat) - max(of_methods)


def _less(method: str, sinks: Run, standard: Run) -> float:
    """How much less the held-out loss rises by sinks than by a method that forgets as much, in nats."""
    point = moved(sinks, standard)
    return post_hoc.cost_at(standard, [method], point.forgetting) - point.delta_val


MEASURES = {"share_over_methods": _over_methods, "rise_less": _less}


def statements(table: Table) -> list[Statement]:
    """Omits methods that were not measured."""
    methods = next(iter(table.groups["standard"].values())).details if "standard" in table.groups else {}
    return [
        *(Statement(
            f"dominates_{method}", "rise of the held-out loss at the forgetting of sinks dropped: "
            f"{post_hoc.LABELS[method]} less sinks (nats)",
            "sinks dominate (4c)" if method in post_hoc.OF_THE_PAPER else "not run in the paper",
            f"rise_less('{method}', sinks_paper, standard)", at_least=0.0,
        ) for method in methods),
        *(Statement(
            f"hypervolume{suffix}", f"hypervolume: {of} less the best method that looks afterwards (share of the box)",
            "sinks dominate (4c)", f"share_over_methods({sinks}, standard, no_repeat)", at_least=0.0,
        ) for sinks, suffix, of in (("sinks_paper", "", "sinks"), ("sinks", "_on_return", "sinks that open on return"))
          if methods and "sinks_paper" in table.groups),
    ]  # fmt: skip


def sections(table: Table, out: pathlib.Path) -> list[str]:
    """Plot, table and settings. Writes figure_4c.png."""
    heading = report.heading("4c: the trade-off, beside methods that look for memorization in the finished model")
    standard = list(table.groups.get("standard", {}).values())
    if not any(run.details for run in standard):
        return [heading, report.paragraph("It takes minutes: only with all variants of the figure.", "note")]
    draw(table, out / "figure_4c.png")
    rows = []
    sinks = {name: _POINTS[name][0] for name in ("sinks_paper", "sinks") if name in table.groups}
    for name, label in (sinks | post_hoc.LABELS).items():
        forgotten, costs, shares = [], [], []
        for run in standard:
            model = table.run(name if name in sinks else "sinks_paper", run.seed)
            point = moved(model, run)
            points = [point] if name in sinks else post_hoc.curve(run, name)
            forgotten.append(max(p.forgetting for p in points))
            costs.append(point.delta_val if name in sinks else post_hoc.cost_at(run, [name], point.forgetting))
            shares.append(_share(model, run, table.run("no_repeat", run.seed), "" if name in sinks else name))
        rows.append([label, *map(with_interval, (forgotten, costs, shares))])
    columns = ["", "most forgetting", "rise of the held-out loss at the paper's sinks' forgetting", "hypervolume"]
    return [
        heading,
        report.picture(
            out / "figure_4c.png", "One dot per method: how much of the gap it closes, at what price on held-out text."
        ),
        report.paragraph(
            f"{shared.mean_over_seeds(standard)}, each seed faint. Up and to the right is better. "
            "Before means the standard model, also for sinks and the model without repeats.", "note",
        ),
        report.text_table(columns, rows, 3),
        report.paragraph(
            "Nats per token. If a method never forgets as much as the paper's sinks, the rise is the one at its most "
            "forgetting. Hypervolume: the area that a method dominates, as a share of the box up to the forgetting of the "
            f"model without repeats and to a rise of {WORST:g} nats; over 1 if the held-out loss falls.", "note",
        ),
        *post_hoc.how(standard, post_hoc.METHODS),
    ]  # fmt: skip


def draw(table: Table, path: pathlib.Path) -> None:
    """The curves of all methods, and points of sinks and of the model without repeats, up to a rise of 1 nat."""
    standard = table.groups["standard"]
    figure, axis = plt.subplots(figsize=(9.5, 5), layout="constrained")
    for method in post_hoc.METHODS:
        post_hoc.draw(axis, list(standard.values()), method, post_hoc.LABELS[method], _COLOURS[method])
    places = {}
    for variant in [name for name in _POINTS if name in table.groups]:
        label, colour, marker, size = _POINTS[variant]
        points = [moved(run, standard[seed]) for seed, run in table.groups[variant].items()]
        places[variant] = [p.forgetting for p in points]
        axis.scatter(
            places[variant], [-p.delta_val for p in points], size, colour, marker=marker, label=label, zorder=3,
            edgecolors="white", linewidths=0.7,
        )  # fmt: skip
    post_hoc.finish(axis, "4c: what is forgotten, and what that costs")
    axis.set(
        ylabel="degradation (nats; higher is better)", xlim=(-0.05, 1.15 * max(places["no_repeat"])), ylim=(-1, 0.15)
    )
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)
