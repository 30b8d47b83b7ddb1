"""Membership: the number of times a story is read is random, and an auditor tries to infer it from
the model.

The reference is a twin with the same seed and steps that reads other stories in their places. The
corpus is that of `membership_corpus`. Variants differ only in sinks and ids.
"""

import importlib.util
import logging
import pathlib
from collections.abc import Callable

import numpy as np

from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import corpora
from memsinks_jax.studies.figures import membership_corpus as corpus
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.cached import of_seeds
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Categories, Line, Matrix, Panel, draw
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import Table

logger = logging.getLogger(__name__)

_READ = {"general.files": "{out}/corpus/ladder", "data.ids": "near_duplicate"}
_POOL = {"sinks.sampling": "floyd", "sinks.sparse": True, "sinks.pool": 16_384}
_SINKS = _READ | _POOL | {"sinks.active": 256, "sinks.slows_at": 4}
VARIANTS = {
    "standard": Variation("standard", _READ),
    "sinks_paper": Variation("sinks_paper", _READ),
    "sinks": Variation("sinks", _SINKS),
    "content": Variation("sinks", _SINKS | {"data.ids": "content"}),
    "twin": Variation("sinks", _SINKS | {"general.files": "{out}/corpus/twin"}),
}
_VIEWS = {
    "standard": "standard training",
    "on": "sinks on",
    "paper": "sinks as published, dropped",
    "content": "ids by content, dropped",
    "dropped": "sinks dropped",
    "twin": "never read (twin)",
}
_COLOURS = ("#c0392b", "#1e8449", "#d68910", "#7d3c98", "#1f618d", "#7f8c8d")  # of the views
_MODES = {
    "own": "own, as in training",
    "dropped": "dropped",
    "nearest": "those of the nearest other story",
    "unused": "those of an unused id",
    "scaled_published": "dropped, the rest times (g + p) / g",
    "scaled_width": "dropped, the rest times (g + (1 - g) p) / g",
}


def prepare(out: pathlib.Path) -> list[str]:
    """Writes and prepares the corpus -> the flags that all runs share."""
    corpus.write(out / "corpus")
    return corpora.flags(out / "corpus" / "stories", corpus.ONCE, corpus.UNREAD)


def measure(runs: list[Run]) -> list[Run]:
    """Adds results of `membership_measures` to the `details` of `sinks`, if all were run."""
    if not set(VARIANTS) <= set(by_variant(runs)):
        return runs
    # jax takes seconds to import
    from memsinks_jax.studies.figures import membership_measures as measures

    names = ("OFTEN", "SUFFIX", "PREFIXES", "OFFSETS", "PLACES", "SIGNIFICANCE")
    asked = {name: getattr(measures, name) for name in names}
    asked["bound"] = importlib.util.find_spec("jax_privacy") is not None
    if not asked["bound"]:
        logger.warning("epsilon is not measured without jax-privacy: pip install '.[privacy]'")
    models = ("sinks", *(variant for variant in VARIANTS if variant != "sinks"))
    return of_seeds(runs, models, "membership", asked, lambda runs: measures.measure(runs))


def _times() -> list[int]:
    """The numbers of reads, without 0."""
    return [bucket for bucket in corpus.BUCKETS if bucket]


def views(run: Run) -> dict[str, dict[str, float]]:
    """What was measured of every view as VIEW_view, with its numbers as metrics."""
    return {f"{view}_view": _metrics(run, view) for view in _VIEWS if "ladder" in run.details}


def _metrics(run: Run, view: str) -> dict[str, float]:
    ladder, bound, grid = (run.details[name].get(view) for name in ("ladder", "bound", "grid"))
    found = {
        f"{name}_{bucket}": ladder[of][str(bucket)]["value"]
        for name, of in (("auc", "auc"), ("reference", "auc_reference"))
        for bucket in _times()
    }
    found |= {"epsilon": bound["epsilon"]} if bound else {}
    return found | ({"recited": max(grid["recited"])} if grid else {})


def _known(run: Run, view: str, losses_of: dict, key: str) -> float:
    """How far a view is below the twin, beyond the same on unread stories, in nats per token."""
    unread = (run.details["ladder"][one]["loss"]["0"] for one in ("twin", view))
    return float(np.subtract(losses_of["twin"][key], losses_of[view][key]) - np.subtract(*unread))


def learned(run: Run, view: str, level: float) -> float:
    """What was learned of stories from copies edited so much, in nats per token."""
    return _known(run, view, run.details["near_copies"], str(level))


def worth(run: Run, view: str, level: float) -> float:
    """Exact copies from which standard training learns what a view does from an edited one."""
    losses_of = {one: found["loss"] for one, found in run.details["ladder"].items()}
    known = [_known(run, "standard", losses_of, str(bucket)) for bucket in corpus.BUCKETS]
    reads, ladder = np.log1p(list(corpus.BUCKETS)), np.maximum.accumulate(known)
    return float(np.expm1(np.interp(learned(run, view, level), ladder, reads)) / corpus.COPIES)


def closed(run: Run, level: float) -> float:
    """Share removed of what standard training learned from edited copies, ids by cluster."""
    return 1 - learned(run, "dropped", level) / learned(run, "standard", level)


def _largest_difference(run: Run) -> float:
    """Of the AUCs over the grid, sinks dropped minus the twin's."""
    aucs = (run.details["grid"][view]["auc"] for view in ("dropped", "twin"))
    return float(np.max(np.subtract(*aucs)))


def _statements() -> str:
    """None is in the paper, which does not choose documents at random."""
    read = {times: f"stories read {times} time{'s' if times > 1 else ''}" for times in _times()}
    by_times = "".join(
        f"""
auc_{times} | AUC of {stories}: sinks dropped minus the twin's
    | -0.1 <= dropped_view.auc_{times} - twin_view.auc_{times} <= 0.1
reference_{times} | AUC of {stories} against the twin as reference: sinks dropped
    | 0.4 <= dropped_view.reference_{times} <= 0.6"""
        for times, stories in read.items()
    )
    return f"""
test_sees | standard: AUC of stories read {max(read)} times (the test can see)
    | standard_view.auc_{max(read)} >= 0.95
{by_times}
epsilon_sees | standard: lower bound of epsilon | standard_view.epsilon >= 1
epsilon | sinks dropped: lower bound of epsilon minus the twin's, if standard's is more than that
    above it
    | if_seen(dropped_view.epsilon - twin_view.epsilon, standard_view.epsilon - twin_view.epsilon >
    0.5) <= 0.5
recited | highest recitation over the grid: sinks dropped minus the twin's
    | dropped_view.recited - twin_view.recited <= 0.02
grid_auc | AUC over the grid, sinks dropped minus the twin's: largest difference
    | largest_difference(sinks) <= 0.1
near_copies | stories known from copies with 10% of the words replaced: share removed, over exact
    copies' | share_removed(sinks, 0.1) / share_removed(sinks, 0.0) >= 0.9
general | held-out stories: loss, sinks dropped, over standard's
    | sinks.held_out_loss / standard.held_out_loss <= 1"""


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: the auditor's grid, edited copies, and other ways to set
    sinks.
    """
    measured = [run for run in runs if "ladder" in run.details]
    if not measured:
        return []
    _draw_grid(measured, out / "grid.png")
    table = FIGURE.of(runs)
    copies = {
        title: [[worth(run, view, level) for run in measured] for level in corpus.LEVELS]
        for view, title in _VIEWS.items()
    }
    aucs = {
        title: [table.column(f"reference_{bucket}", f"{view}_view") for bucket in _times()]
        for view, title in _VIEWS.items()
        if view != "twin"
    }
    names = {"held_out": "held-out", "often": "read often", "auc": "AUC", "recited": "recited"}
    ways = {}
    for variant, title in (("paper", "as published"), ("sinks", "open on return")):
        for way, mode in _MODES.items():
            found = [run.details["modes"][variant][way] for run in measured]
            ways[f"{title}: {mode}"] = [[of[name] for of in found] for name in names]
    times = [f"read {bucket}" for bucket in _times()]
    edited = [f"{level:.0%} edited" for level in corpus.LEVELS]
    caption = "Share of stories that are recited, by tokens given, one panel per model."
    return [
        report.heading("An auditor who has the twin"),
        shared.with_intervals(times, aucs, 2, "AUC, loss below the twin's"),
        shared.note("""A reference model that has read none of the stories removes the difficulty of
            each story. It is the strongest of these attacks, for an auditor who can train such a
            model."""),
        report.heading("Every starting point of an auditor"),
        report.picture(out / "grid.png", caption),
        shared.note("""Share of the often-read stories whose next tokens a model generates exactly,
            by the tokens given, the tokens of the story before those, and whether other text
            precedes them in the context."""),
        report.heading("Edited copies, their original never read"),
        shared.with_intervals(edited, copies, 2, "exact copies that one copy is worth"),
        shared.note(f"""{corpus.COPIES} copies each of {corpus.ORIGINALS} stories per level, each
            edited separately, ids by near-duplicate cluster (or by content where stated). Worth:
            the number of exact copies from which the standard model learns as much."""),
        report.heading("Ways to set the sinks"),
        shared.with_intervals(list(names.values()), ways, of="sinks, and how they are set"),
        shared.note("""Nats per token of held-out and of often-read stories; AUC of the latter
            against stories never read. g: the shared fraction of the neurons, p: the fraction of
            the sinks that is on for a document."""),
    ]


def panels(table: Table) -> list[Panel | Categories]:
    """AUC by number of reads, the bound of epsilon, what is learned from edited copies."""
    bounds = [
        run.details["bound"]["dropped"] for run in table.groups.get("dropped_view", {}).values()
    ]

    def aucs(run: Run) -> tuple[list[int], list[float]]:
        return _times(), [run.metrics[f"auc_{bucket}"] for bucket in _times()]

    def by_level(run: Run) -> tuple[list[float], list[float]]:
        view = run.variant.removesuffix("_view")
        of_levels = [learned(run, view, level) for level in corpus.LEVELS]
        return [100 * level for level in corpus.LEVELS], of_levels

    def lines(shown: Callable) -> list[Line]:
        return [
            Line(f"{view}_view", shown, label, colour, "o-")
            for (view, label), colour in zip(_VIEWS.items(), _COLOURS, strict=True)
        ]

    epsilons = [table.column("epsilon", f"{view}_view") for view in _VIEWS]
    return [
        Panel(
            title="distinguished from stories never read",
            x="times read",
            y="AUC, by loss",
            log=True,
            legend=None,
            lines=lines(aucs),
            levels={0.5: "black"},
            ticks={bucket: str(bucket) for bucket in _times()},
            settings={"ylim": (0.4, 1.02)},
        ),
        Categories(
            title="lower bound of epsilon",
            names=list(_VIEWS.values()),
            bars=True,
            legend=None,
            series={"epsilon": (list(_COLOURS), epsilons)},
            levels={bound["ceiling"]: "black" for bound in bounds[:1] if bound},
            x="epsilon; dotted: all that the test could show",
        ),
        Panel(
            title="learned of a story from edited copies",
            x="words exchanged, %",
            from_zero=False,
            y="nats per token, beyond unread stories",
            levels={0: "black"},
            lines=lines(by_level)[:-1],  # the twin's is 0
        ),
    ]


def _draw_grid(measured: list[Run], path: pathlib.Path) -> None:
    """Draws the recitation, one panel per view and place."""
    from memsinks_jax.studies.figures import membership_measures as measures

    cells = len(measures.PLACES), len(measures.PREFIXES), len(measures.OFFSETS)
    axes = {"rows": measures.PREFIXES, "columns": measures.OFFSETS, "origin": "lower", "highest": 1}
    panels = []
    for row, place in enumerate(measures.PLACES):
        for view in measures.GRID:
            recited = [run.details["grid"][view]["recited"] for run in measured]
            about = {"x": "offset", "y": f"{place}\ntokens given"}
            about |= {"title": "" if row else _VIEWS[view]}
            values = np.mean(recited, axis=0).reshape(cells)[row]
            panels.append(Matrix(values=values, **about, **axes))
    draw(FIGURE.of(measured), panels, path, size=(12, 5.4), rows=len(measures.PLACES))


FIGURE = Figure(
    title="Membership: can an auditor detect what was read?",
    answer="""Chance decided which stories were read. The standard model distinguishes them from
        unread ones. With the sinks dropped, only first encounters show, because they train the
        shared neurons. An auditor with a model that has not read the stories sees as much of those
        read four times as after standard training, and next to nothing of those read 64 times.
        Nothing is recited, wherever in the story and in the context an auditor begins.""",
    variants=VARIANTS,
    prepare=prepare,
    measure=measure,
    views=views,
    seen=[f"{view}_view" for view in _VIEWS],
    metrics=["epsilon", "recited"]
    + [f"{name}_{bucket}" for name in ("auc", "reference") for bucket in _times()],
    measures={"largest_difference": _largest_difference, "share_removed": closed},
    columns={f"read {bucket}": f"auc_{bucket}" for bucket in _times()}
    | {"epsilon": "epsilon", "recited": "recited"},
    labels={f"{view}_view": title for view, title in _VIEWS.items()},
    table_note=f"""AUC by loss, of stories with this number of reads against stories never read; .5
        if they cannot be distinguished. Epsilon: lower bound with 95% confidence from
        {corpus.CANARIES} stories, of which a random half was read {corpus.READ} times; the dotted
        line is the most that this number of stories can show. Recited: the most over an auditor's
        grid.""",
    statements=_statements(),
    paper="not asked",
    panels=panels,
    note=f"""{{mean}}, bands and whiskers from the lowest to the highest. One draw for all seeds
        decided:
        {", ".join(f"{count} read {times} times" for times, count in corpus.BUCKETS.items())}; in
        addition, {corpus.ONCE} stories are read once.""",
    sections=sections,
)
