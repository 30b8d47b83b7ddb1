"""Remove one source and prove it, for facts and single texts: against a model that never read it,
and with placebos.

One model trains on many sources, each read many times. Some are withdrawn later: their sinks are
set to zero. Its twin has the same seed, order and steps, and other texts in their places. The
corpus is that of `removal_corpus`.
"""

import pathlib

import numpy as np

from memsinks_jax.measures import answers
from memsinks_jax.reporting import report
from memsinks_jax.studies.figures import corpora
from memsinks_jax.studies.figures import removal_corpus as corpus
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.cached import of_seeds
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Categories
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import Table

_FACTS = {"general.files": "{out}/corpus/facts"}
_SINKS = {
    "sinks.sampling": "floyd",
    "sinks.sparse": True,
    "sinks.pool": 32_768,
    "sinks.active": 512,
    "sinks.learning_rate_multiple": 3.0,
    # For most of its first epoch a source trains all neurons, as in a model without sinks;
    # afterwards little but its sinks.
    "sinks.slows_at": 16,
    "sinks.slowing_power": 8.0,
}
VARIANTS = {
    "standard": Variation("standard", _FACTS),
    "sinks": Variation("sinks", _FACTS | _SINKS),
    "twin": Variation("sinks", {"general.files": "{out}/corpus/twin"} | _SINKS),
    # Its MLPs have as many neurons as those of `sinks` have on, the shared ones and a source's: 0.7
    # * 512 + 512.
    "wide": Variation("standard", _FACTS | {"model.hidden": 870}),
}
# How the model, or another, is asked.
_VIEWS = {
    "standard": "standard training",
    "wide": "standard training, wider MLPs",
    "on": "its sinks on",
    "placebo": "its sinks on, another source removed",
    "neighbour": "another source's sinks on",
    "unused": "sinks of unused ids on",
    "removed": "removed",
    "twin": "never read (twin)",
    "twin_neighbour": "never read, another source's sinks on",
    "twin_unused": "never read, sinks of unused ids on",
}
_KINDS = {
    "own": "own facts",
    "reworded": "own facts, reworded",
    "inferred": "inferred facts",
    "common": "common facts",
    "unread": "facts in no text",
}
_RELEARNED = {"letters": "repeated stories", "source": "texts of a source"}
_COLOURS = ("#c0392b", "#d98880", "#7fb3d5", "#1f618d", "#b2babb")  # of the kinds


def prepare(out: pathlib.Path) -> list[str]:
    """Writes and prepares the corpus -> the flags that all runs share."""
    corpus.write(out / "corpus")
    flags = corpora.flags(out / "corpus" / "stories", corpus.ONCE, corpus.UNREAD)
    return [*flags, "--config.data.ids=group", "--config.training.epochs=5"]


def measure(runs: list[Run]) -> list[Run]:
    """Adds results of `removal_measures` to the `details` of `sinks`, if all were run."""
    if not set(VARIANTS) <= set(by_variant(runs)):
        return runs
    # jax takes seconds to import
    from memsinks_jax.studies.figures import removal_measures as measures

    names = ("KINDS", "WORDINGS", "DISTRACTORS", "PLACEBOS")
    asked = {name: getattr(measures, name) for name in names}
    models = ("sinks", "twin", "standard", "wide")
    return of_seeds(runs, models, "removal", asked, lambda runs: measures.measure(*runs.values()))


def views(run: Run) -> dict[str, dict[str, float]]:
    """What was measured of every view as VIEW_view: nats of answers and stories, AUC."""
    of = dict(run.details.get("facts", {}))
    of |= {name: run.details[name] for name in ("letters", "auc") if name in run.details}
    return {
        f"{view}_view": {name: values[view] for name, values in of.items() if view in values}
        for view in of.get("own", ())
    }


def _truth(run: Run, kind: str, view: str, other: str) -> float:
    """Mean log truth ratio of a kind of facts, in one view minus that in the other."""
    ratios = run.details["truth_ratios"][kind]
    return float(np.mean(np.subtract(ratios[view], ratios[other])))


def forget_quality(run: Run, view: str) -> float:
    """That of own facts, in a view and never read."""
    ratios = run.details["truth_ratios"]["own"]
    return answers.forget_quality(ratios[view], ratios["twin"])


def statements() -> str:
    """None is in the paper, which only removes all sinks at once."""
    # Of the difference between own sinks on and never read, in nats per answer, the fraction that
    # removal recovers.
    recovered = "(removed_view.{0} - on_view.{0}) / (twin_view.{0} - on_view.{0})"
    beyond = "detail(sinks, 'others', '{0}') - detail(sinks, 'others', '{0}_placebo')"
    return (
        f"""
recovered | own facts: recovered fraction (0: as with its sinks on, 1: as never read)
    | {recovered.format("own")} >= 0.95
recovered_reworded | the same, reworded | {recovered.format("reworded")} >= 0.95
recovered_control | own facts: recovered fraction, with the two models' difference on facts in no
    text subtracted
    | (removed_view.own - (removed_view.unread - twin_view.unread) - on_view.own) / (twin_view.own -
    on_view.own) >= 0.95
knows | own facts, its sinks on: nats of an answer over standard's
    | on_view.own / standard_view.own <= 1
knows_wide | own facts, its sinks on: nats of an answer over those with wider MLPs
    | on_view.own / wide_view.own <= 1
truth | own facts: log truth ratio, removed minus never read
    | -0.5 <= truth(sinks, 'own', 'removed', 'twin') <= 0.5
truth_inferred | inferred facts: log truth ratio, removed minus never read
    | -0.5 <= truth(sinks, 'inferred', 'removed', 'twin') <= 0.5
truth_unread | facts in no text: log truth ratio, removed minus never read
    | -0.5 <= truth(sinks, 'unread', 'removed', 'twin') <= 0.5
forget_quality | own facts: forget quality, p that truth ratios, removed and never read, have one
    distribution; if it is less than .05 with its sinks on
    | if_seen(forget_quality(sinks, 'removed'), forget_quality(sinks, 'on') < 0.05) >= 0.05
neighbour | own facts, another source's sinks on: nats over those of the twin with such sinks on
    | neighbour_view.own / twin_neighbour_view.own >= 0.95
unused | own facts, sinks of unused ids on: nats over those of the twin with such sinks on
    | unused_view.own / twin_unused_view.own >= 0.95"""
        + "".join(
            f"""
{kind} | {_KINDS[kind]} of a withdrawn source, sinks of one that stays on: nats before its removal
    over after | neighbour_view.{kind} / neighbour_left_view.{kind} >= 0.95
truth_{kind}_left | the same: log truth ratio, after all removals minus before
    | truth(sinks, '{kind}', 'neighbour_left', 'neighbour') >= -0.05"""
            for kind in ("inferred", "common")
        )
        + f"""
general | stories held out: loss, sinks dropped, over standard's
    | sinks.held_out_loss / standard.held_out_loss <= 1
repeated | loss of removed repeated stories minus the twin's, nats per token
    | -0.05 <= removed_view.letters - twin_view.letters <= 0.05
auc | AUC of removed repeated stories by loss, minus the twin's
    | -0.1 <= removed_view.auc - twin_view.auc <= 0.1
other_repeated | repeated stories that stay: rise after one removal beyond placebo, nats per token
    | {beyond.format("letters")} <= 0.02
other_facts | facts that stay: rise after one removal beyond placebo, nats of an answer
    | {beyond.format("facts")} <= 0.1
together | own facts of sources that stay, all sinks on that remain: nats of an answer over those
    with its own on
    | detail(sinks, 'together', 'facts') / detail(sinks, 'together', 'facts_own') <= 1.2
together_stories | stories held out, all sinks on that remain: loss over that with none
    | detail(sinks, 'together', 'stories') / detail(sinks, 'together', 'stories_dropped') <= 1.01"""
        + "".join(
            f"""
relearning_{of} | {_RELEARNED[of]}: steps until half is relearned over the twin's, several practised
    together | detail(sinks, 'relearning', '{of}_few') >= 0.7"""
            for of in _RELEARNED
        )
    )


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: the cost for other documents, and how the removal was
    tested.
    """
    measured = [run.details["others"] for run in runs if "others" in run.details]
    if not measured:
        return []
    rows = {
        label: [[others[name] for others in measured] for name in (of, f"{of}_placebo")]
        for of, label in (
            ("letters", "repeated stories, nats per token"),
            ("facts", "own facts of sources that stay, nats of an answer"),
        )
    }
    columns, of_what = ["one removed", "an unused id"], "rise of what stays, its own sinks on"
    return [
        report.heading("What it costs others"),
        shared.with_intervals(columns, rows, 4, of_what),
        report.heading("How this was tested"),
        report.paragraph("""Removed: the sinks of one source or one repeated story, in all layers,
            and nothing else. Compared with: the twin, trained from the same initial weights, in the
            same order and for as many steps, with texts read once per epoch in place of all
            withdrawn ones. Placebo: the same removal for another source, and for unused ids.
            Attacked: the removed model is fine-tuned on half of what it has lost until half of that
            is back, and so is the twin. The truth ratio is the probability of the answer over the
            mean of wrong ones, both per token: higher means that the model knows. TOFU and
            open-unlearning define it the other way round. Not tested: texts that quote a source
            under another id; they do not count as the source's."""),
    ]


def panels(table: Table) -> list[Categories]:
    """Nats per answer and loss of repeated stories, one row per view."""
    known = {
        label: (colour, [table.column(kind, f"{view}_view") for view in _VIEWS])
        for (kind, label), colour in zip(_KINDS.items(), _COLOURS, strict=True)
    }
    letters = {title: table.column("letters", f"{view}_view") for view, title in _VIEWS.items()}
    letters = {title: losses for title, losses in letters.items() if losses}
    return [
        Categories(
            title="facts of a withdrawn source",
            names=list(_VIEWS.values()),
            bars=True,
            legend={"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 5},
            series=known,
            x="nats of an answer (lower: better known)",
        ),
        Categories(
            title="withdrawn repeated stories",
            names=list(letters),
            bars=True,
            legend=None,
            series={"repeated stories": ("#7d3c98", list(letters.values()))},
            x="nats per token",
        ),
    ]


FIGURE = Figure(
    title="Removal: one source is withdrawn, as if it had never been read",
    answer="""Zeroing its sinks withdraws a source. The remaining model knows little more about the
        source than a model of the same seed that read other texts in its place. With the source's
        sinks on, the model knew it as well as a model of standard training does. What follows from
        other texts stays. Facts that other sources share stay with their sinks.""",
    variants=VARIANTS,
    prepare=prepare,
    measure=measure,
    views=views,
    seen=[f"{view}_view" for view in (*_VIEWS, "neighbour_left")],
    metrics=[*_KINDS, "letters", "auc"],
    measures={"truth": _truth, "forget_quality": forget_quality},
    columns={label: kind for kind, label in _KINDS.items()}
    | {"repeated stories": "letters", "AUC of repeated stories": "auc"},
    labels={f"{view}_view": label for view, label in _VIEWS.items()},
    table_note=f"""Nats per answer, given the question. Own facts: facts in the withdrawn source
        alone; reworded: asked in words that no text has; inferred: continents of the source's
        cities, which follow from their names; common: facts in all sources; facts in no text: a
        control, how sure a model is of what it cannot know. Repeated stories were read
        {corpus.COPIES} times an epoch, nats per token. Wider MLPs have as many neurons as are on
        for a source.""",
    statements=statements(),
    paper="not asked",
    panels=panels,
    size=(13, 6.4),
    note=f"""{{mean}}, whiskers from the lowest to the highest. {corpus.SOURCES} sources of
        {corpus.OF_A_SOURCE} texts and {corpus.REPEATED_STORIES} repeated stories; in addition
        {corpus.ONCE} stories and {corpus.FACTS_ONCE} texts of facts that are read once per epoch.
        {corpus.WITHDRAWN} sources and {corpus.WITHDRAWN_STORIES} repeated stories are withdrawn,
        one at a time.""",
    sections=sections,
)
