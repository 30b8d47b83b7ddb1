"""Remove one source and prove it, for facts and single texts: against a model that never read it, and with placebos.

One model trains on many sources, each read many times. Some are withdrawn later: their sinks are set to zero. Its twin has
the same seed, order and steps, and other texts in their places. The corpus is that of `removal_corpus`.
"""

import dataclasses
import pathlib

import numpy as np

from memsinks_jax.auditing import answers
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.studies.figures import corpora
from memsinks_jax.studies.figures import removal_corpus as corpus
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.kept import of_seeds
from memsinks_jax.studies.figures.panels import Categories
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import Statement, Table

_FACTS = {"general.files": "{out}/corpus/facts"}
_SINKS = {
    "sinks.sampling": "floyd", "sinks.sparse": True, "sinks.pool": 32_768, "sinks.active": 512,
    "sinks.learning_rate_multiple": 3.0,
    # For most of its first epoch a source trains all neurons, as in a model without sinks; afterwards little but its sinks.
    "sinks.slows_at": 16, "sinks.slowing_power": 8.0,
}  # fmt: skip
VARIANTS = {
    "standard": Variation("standard", _FACTS),
    "sinks": Variation("sinks", _FACTS | _SINKS),
    "twin": Variation("sinks", {"general.files": "{out}/corpus/twin"} | _SINKS),
    # Its MLPs have as many neurons as those of `sinks` have on, the shared ones and a source's: 0.7 * 512 + 512.
    "wide": Variation("standard", _FACTS | {"model.hidden": 870}),
}
# How the model, or another, is asked.
_VIEWS = {
    "standard": "standard training",
    "wide": "standard training, wider MLPs",
    "on": "its sinks on",
    "placebo": "its sinks on, another source removed",
    "neighbour": "another source's sinks on",
    "unused": "sinks of ids that nobody has on",
    "removed": "removed",
    "twin": "never read (twin)",
    "twin_neighbour": "never read, another source's sinks on",
    "twin_unused": "never read, sinks of ids that nobody has on",
}
_KINDS = {
    "own": "own facts", "reworded": "own facts, reworded", "inferred": "inferred facts", "common": "common facts",
    "unread": "facts that no text tells",
}  # fmt: skip
_COLOURS = {"own": "#c0392b", "reworded": "#d98880", "inferred": "#7fb3d5", "common": "#1f618d",
            "unread": "#b2babb"}  # fmt: skip


def prepare(out: pathlib.Path) -> list[str]:
    """Writes and prepares the corpus -> the flags that all runs share."""
    corpus.write(out / "corpus")
    shared = corpora.flags(out / "corpus" / "stories", corpus.ONCE, corpus.UNREAD)
    return [*shared, "--config.data.ids=group", "--config.training.epochs=5"]


def measure(runs: list[Run]) -> list[Run]:
    """Adds results of `removal_measures` to the `details` of runs with sinks, if all variants were run -> the same."""
    if not set(VARIANTS) <= set(by_variant(runs)):
        return runs
    from memsinks_jax.studies.figures import removal_measures as measures  # jax takes seconds to import

    asked = {name: getattr(measures, name) for name in ("KINDS", "WORDINGS", "DISTRACTORS", "PLACEBOS")}
    models = ("sinks", "twin", "standard", "wide")
    return of_seeds(runs, models, "removal", asked, lambda runs: measures.measure(*runs.values()))


def views(runs: list[Run]) -> list[Run]:
    """The runs, and what was measured of every view as VIEW_view: nats per answer of every kind, letters and their AUC."""
    found = list(runs)
    for run in runs:
        facts = run.details.get("facts", {})
        for view in facts.get("own", ()):
            of = facts | {name: run.details[name] for name in ("letters", "auc")}
            metrics = {name: values[view] for name, values in of.items() if view in values}
            found.append(dataclasses.replace(run, variant=f"{view}_view", metrics=metrics))
    return found


def _detail(run: Run, what: str, name: str) -> float:
    return run.details[what][name]


def _truth(run: Run, kind: str, view: str, other: str) -> float:
    """Mean log truth ratio of a kind of facts, in one view minus that in the other."""
    ratios = run.details["truth_ratios"][kind]
    return float(np.mean(np.subtract(ratios[view], ratios[other])))


def forget_quality(run: Run) -> float:
    """That of own facts, removed and never read."""
    ratios = run.details["truth_ratios"]["own"]
    return answers.forget_quality(ratios["removed"], ratios["twin"])


def statements(table: Table) -> list[Statement]:
    """None is in the paper, which only removes all sinks at once."""
    measured = [run for run in table.groups.get("sinks", {}).values() if "facts" in run.details]
    if not measured:
        return []
    # How far removal goes from knowing (own sinks on) to never having read, as a share, by nats per answer.
    way = "(removed_view.{0} - on_view.{0}) / (twin_view.{0} - on_view.{0})"
    beyond = "detail(sinks, 'others', '{0}') - detail(sinks, 'others', '{0}_placebo')"
    rows = [
        ("way", "own facts: share of the way from its sinks on to never read that removal goes", way.format("own"),
         {"at_least": 0.95}),
        ("way_reworded", "the same, asked in other words", way.format("reworded"), {"at_least": 0.95}),
        # Neither model can know facts that no text tells: what they differ by there does not count.
        ("way_control", "own facts, less the difference between the two models on facts that no text tells",
         "(removed_view.own - (removed_view.unread - twin_view.unread) - on_view.own) / (twin_view.own - on_view.own)",
         {"at_least": 0.95}),
        *((name, f"own facts, its sinks on: nats of an answer over {said}", f"on_view.own / {view}_view.own",
           {"at_most": 1.0})
          for view, name, said in (("standard", "knows", "standard's"), ("wide", "knows_wide", "those with wider MLPs"))),
        *((name, f"{_KINDS[kind]}: log truth ratio, removed minus never read",
           f"truth(sinks, '{kind}', 'removed', 'twin')", {"at_least": -0.5, "at_most": 0.5})
          for kind, name in (("own", "truth"), ("inferred", "truth_inferred"), ("unread", "truth_unread"))),
        ("forget_quality",
         "own facts: forget quality, p that truth ratios, removed and never read, have one distribution",
         "forget_quality(sinks)", {"at_least": 0.05}),
        *((view, f"own facts, {said} on: nats over those of the twin with such sinks on",
           f"{view}_view.own / twin_{view}_view.own", {"at_least": 0.95})
          for view, said in (("neighbour", "another source's sinks"), ("unused", "sinks of ids that nobody has"))),
        *(row for kind in ("inferred", "common") for row in (
            (kind, f"{_KINDS[kind]} asked of a source that stays: nats before the removal over after",
             f"neighbour_view.{kind} / neighbour_left_view.{kind}", {"at_least": 0.95}),
            (f"truth_{kind}_left", f"{_KINDS[kind]} asked of a source that stays: log truth ratio, after minus before all "
             "removals", f"truth(sinks, '{kind}', 'neighbour_left', 'neighbour')", {"at_least": -0.05}),
        )),
        ("general", "stories held out: loss, sinks dropped, over standard's", "sinks.held_out_loss / standard.held_out_loss",
         {"at_most": 1.0}),
        ("letter", "loss of removed letters minus the twin's, nats per token", "removed_view.letters - twin_view.letters",
         {"at_least": -0.05, "at_most": 0.05}),
        ("auc", "AUC of removed letters by loss, minus the twin's", "removed_view.auc - twin_view.auc",
         {"at_least": -0.1, "at_most": 0.1}),
        ("other_letters", "letters that stay: rise after one removal beyond placebo, nats per token",
         beyond.format("letters"), {"at_most": 0.02}),
        ("other_facts", "facts that stay: rise after one removal beyond placebo, nats of an answer",
         beyond.format("facts"), {"at_most": 0.1}),
        # None: not enough was lost, or nothing came back.
        *((f"relearning_{what}", f"{what}: steps until half is relearned over the twin's, several practised together",
           f"detail(sinks, 'relearning', '{what}_few')", {"at_least": 0.7})
          for what in ("letters", "source")
          if all(run.details["relearning"].get(f"{what}_few") is not None for run in measured)),
    ]  # fmt: skip
    return [Statement(name, text, "not asked", measure, **bound) for name, text, measure, bound in rows]


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: the cost for other documents, and how the removal was tested."""
    measured = [run for run in runs if "others" in run.details]
    if not measured:
        return []
    names = {"letters": "letters, nats per token", "facts": "own facts of sources that stay, nats of an answer"}
    rows = [
        [said, *(with_interval([run.details["others"][f"{what}{suffix}"] for run in measured], 4)
                 for suffix in ("", "_placebo"))]
        for what, said in names.items()
    ]  # fmt: skip
    return [
        report.heading("What it costs others"),
        report.text_table(["rise of what stays, its own sinks on", "one removed", "an unused id"], rows, 2),
        report.heading("How this was tested"),
        report.paragraph(
            "Removed: the sinks of one source or one letter, in all layers, and nothing else. Compared with: the twin, "
            "trained from the same initial weights, in the same order and for as many steps, with texts read once per "
            "epoch in place of all withdrawn ones. Placebo: the same removal for another source, and for unused ids. "
            "Attacked: the removed model is fine-tuned on half of what it has lost until half of that is back, and so is "
            "the twin. The truth ratio is the probability of the answer over the mean of wrong ones, both per token: "
            "higher means that the model knows. TOFU and open-unlearning define it the other way round. Not tested: texts "
            "that quote a source under another id; they do not count as the source's.",
        ),
    ]  # fmt: skip


def panels(table: Table) -> list[Categories]:
    """Nats per answer and loss of letters, one row per view."""
    lettered = [view for view in _VIEWS if table.column("letters", f"{view}_view")]
    return [
        Categories(
            title="facts of a withdrawn source", names=list(_VIEWS.values()), bars=True,
            legend={"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 5},
            series={said: (_COLOURS[kind], [table.column(kind, f"{view}_view") for view in _VIEWS])
                    for kind, said in _KINDS.items()},
            settings={"xlabel": "nats of an answer; more is known less"},
        ),
        Categories(
            title="withdrawn letters", names=[_VIEWS[view] for view in lettered], bars=True, legend=None,
            series={"letters": ("#7d3c98", [table.column("letters", f"{view}_view") for view in lettered])},
            settings={"xlabel": "nats per token"},
        ),
    ]  # fmt: skip


FIGURE = Figure(
    title="Removal: one source is withdrawn, as if it had never been read",
    answer=(
        "Zeroing its sinks withdraws a source. The remaining model knows little more about the source than a model of the "
        "same seed that read other texts in its place. With the source's sinks on, the model knew it as well as a model of "
        "standard training does. What follows from other texts stays. What other sources tell as well stays with their "
        "sinks."
    ),
    config="ts_repetition.py",
    variants=VARIANTS,
    prepare=prepare,
    measure=measure,
    views=views,
    measures={"detail": _detail, "truth": _truth, "forget_quality": forget_quality},
    columns={said: kind for kind, said in _KINDS.items()} | {"letters": "letters", "AUC of letters": "auc"},
    labels={f"{view}_view": said for view, said in _VIEWS.items()},
    table_note=(
        "Nats per answer, given the question. Own facts: facts that only the withdrawn source tells; reworded: asked in "
        "words that no text has; inferred: continents of the source's cities, which follow from their names; common: facts "
        "that all sources tell; facts that no text tells: a control, how sure a model is of what it cannot know. Letters: "
        f"stories that were read {corpus.COPIES} times an epoch, nats per token. Wider MLPs have as many neurons as are "
        "on for a source."
    ),
    statements=statements,
    panels=panels,
    size=(13, 6.4),
    note=(
        f"{{mean}}, whiskers from the lowest to the highest. {corpus.SOURCES} sources of {corpus.OF_A_SOURCE} texts and "
        f"{corpus.LETTERS} letters; in addition {corpus.ONCE} stories and {corpus.FACTS_ONCE} texts of facts that are read "
        f"once per epoch. {corpus.WITHDRAWN} sources and {corpus.WITHDRAWN_LETTERS} letters are withdrawn, one at a time."
    ),
    sections=sections,
)  # fmt: skip
