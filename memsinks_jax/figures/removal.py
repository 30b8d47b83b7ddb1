"""Remove one source and prove it, for facts and single texts: against a model that never read it, and with placebos.

One model trains on many sources, each read many times. Some are withdrawn later: their sinks are set to zero. Its twin has
the same seed, order and steps, and other texts in their places. The corpus is that of `removal_corpus`.
"""

import dataclasses
import functools
import logging
import pathlib

import numpy as np

from memsinks_jax.figures import corpora, losses
from memsinks_jax.figures import removal_corpus as corpus
from memsinks_jax.figures.figure import ByHand
from memsinks_jax.figures.kept import kept
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim, with_interval
from memsinks_jax.reporting.pictures import plt, save

logger = logging.getLogger(__name__)

TITLE = "Removal: one source is withdrawn, as if it had never been read"
CONFIG = "ts_repetition.py"
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
ANSWER = (
    "Zeroing its sinks withdraws a source. The remaining model knows little more about the source than a model of the same "
    "seed that read other texts in its place. With the source's sinks on, the model knew it as well as a model of standard "
    "training does. What follows from other texts stays. What other sources tell as well stays with their sinks."
)
TABLE_NOTE = (
    "Nats per answer, given the question. Own facts: facts that only the withdrawn source tells; reworded: asked in "
    "words that no text has; inferred: continents of the source's cities, which follow from their names; common: facts "
    "that all sources tell; facts that no text tells: a control, how sure a model is of what it cannot know. Letters: "
    f"stories that were read {corpus.COPIES} times an epoch, nats per token. Wider MLPs have as many neurons as are "
    "on for a source."
)
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
    groups = by_variant(runs)
    if not set(VARIANTS) <= set(groups):
        return runs
    from memsinks_jax.figures import removal_measures as measures  # jax takes seconds to import

    asked = {name: getattr(measures, name) for name in ("KINDS", "WORDINGS", "DISTRACTORS", "PLACEBOS")}
    found = {}
    for seed, run in groups["sinks"].items():
        models = (run, groups["twin"][seed], groups["standard"][seed], groups["wide"][seed])
        found[seed] = kept(models, "removal", asked, functools.partial(measures.measure, *models))
        logger.info("measured seed %d", seed)
    return [dataclasses.replace(run, details=found[run.seed]) if run.variant == "sinks" else run for run in runs]


def _nats(run: Run, kind: str, view: str) -> float:
    return run.details["facts"][kind][view]


def way(run: Run, kind: str = "own") -> float:
    """How far removal goes from knowing (own sinks on) to never having read, as a share, by nats per answer."""
    on, removed, twin = (_nats(run, kind, view) for view in ("on", "removed", "twin"))
    return (removed - on) / (twin - on)


def way_beyond_control(run: Run) -> float:
    """The way, less what the removed model and the twin differ by on facts that no text tells: neither can know them."""
    on, removed, twin = (_nats(run, "own", view) for view in ("on", "removed", "twin"))
    differ = _nats(run, "unread", "removed") - _nats(run, "unread", "twin")
    return (removed - differ - on) / (twin - on)


def beyond_placebo(run: Run, what: str) -> float:
    """Rise of the remaining documents' loss after one removal, minus that after removing an unused id."""
    return run.details["others"][what] - run.details["others"][f"{what}_placebo"]


def _truth(run: Run, kind: str, view: str, other: str) -> float:
    """Mean log truth ratio of a kind of facts, in one view minus that in the other."""
    ratios = run.details["truth_ratios"][kind]
    return float(np.mean(np.subtract(ratios[view], ratios[other])))


def forget_quality(run: Run) -> float:
    """P-value of a Kolmogorov-Smirnov test: own facts' truth ratios, removed and never read. TOFU's, arXiv:2401.06121."""
    from scipy.stats import ks_2samp  # half a second, which no other command needs

    ratios = run.details["truth_ratios"]["own"]
    return float(ks_2samp(ratios["removed"], ratios["twin"]).pvalue)


def claims(runs: list[Run]) -> list[Claim]:
    """None is in the paper, which only removes all sinks at once. Paired by seed."""
    if not all("facts" in run.details for run in runs if run.variant == "sinks"):
        return []
    rows = []

    def add(name, statement, measured, variants=("sinks",), **bounds):
        rows.extend(losses.paired(runs, name, statement, "not asked", variants, measured, **bounds))

    add("way", "own facts: share of the way from its sinks on to never read that removal goes", way, at_least=0.95)
    add("way_reworded", "the same, asked in other words", lambda run: way(run, "reworded"), at_least=0.95)
    add(
        "way_control", "own facts, less the difference between the two models on facts that no text tells",
        way_beyond_control, at_least=0.95,
    )  # fmt: skip
    for view, name, said in (("standard", "knows", "standard's"), ("wide", "knows_wide", "those with wider MLPs")):
        add(
            name, f"own facts, its sinks on: nats of an answer over {said}",
            lambda run, view=view: _nats(run, "own", "on") / _nats(run, "own", view), at_most=1.0,
        )  # fmt: skip
    for kind, name in (("own", "truth"), ("inferred", "truth_inferred"), ("unread", "truth_unread")):
        add(
            name, f"{_KINDS[kind]}: log truth ratio, removed minus never read",
            lambda run, kind=kind: _truth(run, kind, "removed", "twin"), at_least=-0.5, at_most=0.5,
        )  # fmt: skip
    add(
        "forget_quality", "own facts: forget quality, p that truth ratios, removed and never read, have one distribution",
        forget_quality, at_least=0.05,
    )  # fmt: skip
    for view, said in (("neighbour", "another source's sinks"), ("unused", "sinks of ids that nobody has")):
        add(
            view, f"own facts, {said} on: nats over those of the twin with such sinks on",
            lambda run, view=view: _nats(run, "own", view) / _nats(run, "own", f"twin_{view}"), at_least=0.95,
        )  # fmt: skip
    for kind in ("inferred", "common"):
        add(
            kind, f"{_KINDS[kind]} asked of a source that stays: nats before the removal over after",
            lambda run, kind=kind: _nats(run, kind, "neighbour") / _nats(run, kind, "neighbour_left"), at_least=0.95,
        )  # fmt: skip
        add(
            f"truth_{kind}_left", f"{_KINDS[kind]} asked of a source that stays: log truth ratio, after minus before all "
            "removals", lambda run, kind=kind: _truth(run, kind, "neighbour_left", "neighbour"), at_least=-0.05,
        )  # fmt: skip
    add(
        "general", "stories held out: loss, sinks dropped, over standard's", losses.held_out_ratio, ("sinks", "standard"),
        at_most=1.0,
    )  # fmt: skip
    add(
        "letter", "loss of removed letters minus the twin's, nats per token",
        lambda run: run.details["letters"]["removed"] - run.details["letters"]["twin"], at_least=-0.05, at_most=0.05,
    )  # fmt: skip
    add(
        "auc", "AUC of removed letters by loss, minus the twin's",
        lambda run: run.details["auc"]["removed"] - run.details["auc"]["twin"], at_least=-0.1, at_most=0.1,
    )  # fmt: skip
    add(
        "other_letters", "letters that stay: rise after one removal beyond placebo, nats per token",
        lambda run: beyond_placebo(run, "letters"), at_most=0.02,
    )  # fmt: skip
    add(
        "other_facts", "facts that stay: rise after one removal beyond placebo, nats of an answer",
        lambda run: beyond_placebo(run, "facts"), at_most=0.1,
    )  # fmt: skip
    relearned = [run.details["relearning"] for run in runs if run.variant == "sinks"]
    for what in ("letters", "source"):
        if any(found.get(f"{what}_few") is None for found in relearned):
            continue  # not enough was lost, or nothing came back
        add(
            f"relearning_{what}", f"{what}: steps until half is relearned over the twin's, several practised together",
            lambda run, what=what: run.details["relearning"][f"{what}_few"], at_least=0.7,
        )  # fmt: skip
    return rows


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    """One row per view of `removal_measures` -> as `losses.table`."""
    measured = [run for run in runs if "facts" in run.details]
    rows = []
    for view in _VIEWS:
        row = [[_nats(run, kind, view) for run in measured] for kind in _KINDS]
        for name in ("letters", "auc"):
            row.append([run.details[name][view] for run in measured if view in run.details[name]])
        rows.append(row)
    return [*_KINDS.values(), "letters", "AUC of letters"], rows


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    seeds = len({run.seed for run in runs})
    return (
        f"Mean over {seeds} seed{'s' if seeds > 1 else ''}, whiskers from the lowest to the highest. {corpus.SOURCES} "
        f"sources of {corpus.OF_A_SOURCE} texts and {corpus.LETTERS} letters; in addition {corpus.ONCE} stories and "
        f"{corpus.FACTS_ONCE} texts of facts that are read once per epoch. {corpus.WITHDRAWN} sources and "
        f"{corpus.WITHDRAWN_LETTERS} letters are withdrawn, one at a time."
    )


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: the cost for other documents, and how the removal was tested."""
    measured = [run for run in runs if "others" in run.details]
    if not measured:
        return []
    names = {"letters": "letters, nats per token", "facts": "own facts of sources that stay, nats of an answer"}
    rows = [
        [report.text(said), *(with_interval([run.details["others"][f"{what}{suffix}"] for run in measured], 4)
                              for suffix in ("", "_placebo"))]
        for what, said in names.items()
    ]  # fmt: skip
    return [
        report.heading("What it costs others"),
        report.table(["rise of what stays, its own sinks on", "one removed", "an unused id"], rows,
                     ["", "number", "number"]),
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


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Nats per answer and loss of letters, one row per view."""
    measured = [run for run in runs if "facts" in run.details]
    figure, (facts, letters) = plt.subplots(1, 2, figsize=(13, 6.4), width_ratios=(3, 2), layout="constrained")
    places = np.arange(len(_VIEWS))[::-1]
    for number, (kind, said) in enumerate(_KINDS.items()):
        values = [[_nats(run, kind, view) for run in measured] for view in _VIEWS] if measured else []
        _bars(facts, places + 0.17 * (2 - number), values, 0.15, _COLOURS[kind], said)
    shown = [view for view in _VIEWS if measured and view in measured[0].details["letters"]]
    values = [[run.details["letters"][view] for run in measured] for view in shown]
    _bars(letters, np.arange(len(shown))[::-1], values, 0.5, "#7d3c98", None)
    for axis, names, title, what in (
        (facts, list(_VIEWS), "facts of a withdrawn source", "nats of an answer; more is known less"),
        (letters, shown, "withdrawn letters", "nats per token"),
    ):
        axis.set_yticks(np.arange(len(names))[::-1], [_VIEWS[name] for name in names])
        axis.set(title=title, xlabel=what)
        axis.grid(axis="x", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    if measured:
        figure.legend(loc="outside lower left", ncols=len(_KINDS), frameon=False, fontsize=8.5)
    save(figure, path)


def _bars(axis, places: np.ndarray, values: list[list[float]], height: float, colour: str, label: str | None) -> None:
    if not values:
        return
    means = np.mean(values, axis=1)
    whiskers = [means - np.min(values, axis=1), np.max(values, axis=1) - means]
    bars = axis.barh(places, means, height, xerr=whiskers, color=colour, label=label, error_kw={"linewidth": 1})
    axis.bar_label(bars, fmt="%.2f", fontsize=7.5, padding=3)


FIGURE = ByHand(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    row_labels=lambda runs: list(_VIEWS.values()),
    prepare=prepare, measure=measure, old_claims=claims, old_table=table, old_draw=draw, note=note, sections=sections,
)  # fmt: skip
