"""Audits the quickstart's models: what leaks when sinks are dropped, compared with a standard model
and an oracle.

Two settings: 20 stories repeated 128 times, and a ladder of stories with canaries that are read 1
to 128 times. Models with other shares of shared neurons and of active sinks test whether less
leaks.
"""

import dataclasses
import logging
import pathlib

import numpy as np

from memsinks_jax.measures.audit import ALL, OFTEN
from memsinks_jax.measures.subjects import MODES, ORACLE, STANDARD
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import rank_correlation, with_interval
from memsinks_jax.studies.figures import forgetting_capacity
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Categories, Line, Panel
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import KINDS, Table, detail

logger = logging.getLogger(__name__)

_COMPARED = ("standard", "no_repeat")
_LADDER = "ladder_"
# Of the paper's sinks, with labels.
_ACTIVE, _SHARED = {"sinks.active_fraction": 0.1}, {"sinks.shared_fraction": 0.5}
_SETTINGS = {
    "active_0.1": (_ACTIVE, "active 0.1"),
    "active_0.7": ({"sinks.active_fraction": 0.7}, "active 0.7"),
    "shared_0.5": (_SHARED, "shared 0.5"),
    "shared_0.5_active_0.1": (_SHARED | _ACTIVE, "shared 0.5, active 0.1"),
}
VARIANTS = {
    f"{prefix}{name}": Variation(name, config=config)
    for models in (("standard", "sinks_paper", "no_repeat"), ("sinks",))
    for prefix, config in (("", ""), (_LADDER, "repeat_ladder.py"))
    for name in models
}
VARIANTS |= {
    f"sinks_paper_{name}": Variation("sinks_paper", of) for name, (of, _) in _SETTINGS.items()
}
DROPPED = MODES["drop"]
# Of an audit: {name in expressions, after that of the audited variant: (subject, colour)}.
SUBJECTS = {
    "dropped": (DROPPED, "#1f618d"),
    "own": (MODES["own"], "#1e8449"),
    "all": (MODES["all"], "#d68910"),
    "standard": (STANDARD, "#c0392b"),
    "oracle": (ORACLE, "#7f8c8d"),
}
_GIVEN = 50


def measure(runs: list[Run]) -> list[Run]:
    """Adds audits to the `details` of runs with sinks, all attacks for the default settings."""
    groups, found = by_variant(runs), {}
    for run in runs:
        prefix = _LADDER if run.variant.startswith(_LADDER) else ""
        others = {name: groups.get(f"{prefix}{name}", {}).get(run.seed) for name in _COMPARED}
        if "sinks" in VARIANTS[run.variant].choice:
            found[run.workdir] = dataclasses.replace(run, details=_audited(run, others))
    return [found.get(run.workdir, run) for run in runs]


def _audited(run: Run, others: dict[str, Run | None]) -> dict:
    """{"audit": of `audit.audit`; "attacks": of `attacks.attack_run`, for the default settings;
    "documents_per_sink", "capacity": not for the ladder}. Takes minutes."""
    from memsinks_jax.measures.audit import audit  # jax takes seconds to import
    from memsinks_jax.studies.attacks.attacks import attack_run

    # Compares every model with the oracle, and with the standard model if data are the same.
    # Attacks only the default.
    names = ("no_repeat",) if VARIANTS[run.variant].settings else _COMPARED
    compared = {name: others[name] for name in names if others[name]}
    places = {name: other.workdir for name, other in compared.items()}
    attacked = run.variant in KINDS
    asked = {} if attacked else {"prefixes": (_GIVEN,), "samples": 0}

    def measure() -> dict:
        logger.info("auditing %s, seed %d", run.variant, run.seed)
        models = run.workdir, places.get("standard"), places.get("no_repeat")
        details = {"audit": audit(models[0], standard=models[1], oracle=models[2], **asked)}
        details |= {"attacks": attack_run(*models)} if attacked else {}
        if not run.variant.startswith(_LADDER):
            details |= forgetting_capacity.measure([run])[0].details
        return details

    return cached([run, *compared.values()], "audit", asked | {"attacked": attacked}, measure)


def views(run: Run) -> dict[str, dict[str, float]]:
    """Every model of the audit as VARIANT.SUBJECT, with its measures as metrics."""
    subjects = run.details["audit"]["subjects"] if "audit" in run.details else {}
    return {
        f"{run.variant}.{name}": _metrics(subjects[of])
        for name, (of, _) in SUBJECTS.items()
        if of in subjects
    }


def _metrics(groups: dict[str, dict[str, dict]]) -> dict[str, float]:
    """The measures of one model: of all documents; _often, of those that are read often."""
    every = groups[ALL]
    aucs = [one for name, one in every.items() if name.startswith("auc_")]
    return {
        **{name: one["value"] for name, one in every.items()},
        **{f"{name}_often": one["value"] for name, one in groups.get(OFTEN, {}).items()},
        "auc_best": max(one["value"] for one in aucs),
        # Share of the membership scores whose interval over documents contains .5.
        "share_at_half": float(np.mean([one["ci95"][0] <= 0.5 <= one["ci95"][1] for one in aucs])),
    }


def _by_rung(run: Run) -> tuple[list[int], list[float]]:
    """Of a view: numbers of reads, and the exposure of the canaries that were read so often."""
    audit = run.details["audit"]
    subject, _ = SUBJECTS[run.variant.rpartition(".")[2]]
    rungs = sorted(map(int, audit["encounters"] or ()))
    return rungs, [audit["subjects"][subject][str(rung)]["exposure"]["value"] for rung in rungs]


def _relearning(run: Run, kind: str, name: str, of: str = "members") -> float:
    """Raises NotMeasured if both models reached no document: no number can stand for that."""
    return detail(run, "attacks", "relearning", of, kind, name)


def _benign(run: Run) -> float:
    """How much further the members' loss falls than the oracle's, each relative to other text."""
    found = run.details["attacks"]["benign"]
    fall = {
        name: found[name]["non_members"]["value"] - found[name]["members"]["value"]
        for name in (DROPPED, ORACLE)
    }
    return fall[DROPPED] - fall[ORACLE]


def _brought_back(run: Run, bits: str) -> float:
    found = run.details["attacks"]["quantization"][DROPPED]
    rise = {side: found[bits][side] - found["float"][side] for side in ("members", "non_members")}
    return rise["non_members"] - rise["members"]


def _recovered(run: Run, attack: str) -> float:
    return run.details["attacks"]["reactivation"][attack]["recovered"]


def _steps(run: Run, kind: str) -> list[float]:
    """Of a view: steps until half is relearned, if any."""
    steps = run.details["attacks"]["relearning"]["members"][kind]["steps"]
    subject, _ = SUBJECTS[run.variant.rpartition(".")[2]]
    return [steps[subject]["value"]] if subject in steps else []


# None is in the paper, which leaves these questions open. Both models that an audit compares with
# are needed.
_LADDERS = "| not in the paper | ladder_standard ladder_no_repeat"
_BOTH = "| not in the paper | standard no_repeat"
STATEMENTS = f"""
sees_often | the audit sees: AUC, loss, of the standard model's documents read 8 times or more
    | ladder_{{sinks}}.standard.auc_loss_often >= 0.9 {_LADDERS}
oracle_at_half | the oracle knows nothing: share of its AUCs with .5 in their interval, if not all
    of standard's have it
    | if_seen({{sinks}}.oracle.share_at_half, {{sinks}}.standard.share_at_half < 1) >= 1 {_BOTH}
oracle_at_half_ladder | the same, ladder
    | if_seen(ladder_{{sinks}}.oracle.share_at_half, ladder_{{sinks}}.standard.share_at_half < 1) >=
    1 {_LADDERS}
exposure_rises | exposure of the standard model's canaries rises with repetitions: rank correlation
    | exposure_rises(ladder_{{sinks}}.standard) >= 0.8 {_LADDERS}
not_recited | share of repeated documents recited, sinks dropped, minus the oracle's
    | {{sinks}}.dropped.exact_{_GIVEN} - {{sinks}}.oracle.exact_{_GIVEN} <= 0.02 {_BOTH}
not_distinguished | AUC, loss, sinks dropped, minus the oracle's: what was read cannot be detected
    | -0.05 <= {{sinks}}.dropped.auc_loss - {{sinks}}.oracle.auc_loss <= 0.05 {_BOTH}
less_distinguished | AUC, loss, of documents read 8 times or more: sinks dropped minus standard
    | ladder_{{sinks}}.dropped.auc_loss_often - ladder_{{sinks}}.standard.auc_loss_often <= -0.05
    {_LADDERS}
not_exposed | exposure of canaries read 8 times or more, sinks dropped, minus the oracle's (bits)
    | ladder_{{sinks}}.dropped.exposure_often - ladder_{{sinks}}.oracle.exposure_often <= 0.5
    {_LADDERS}
relearnt_one | steps until half is back over the oracle's, one document alone
    | relearning({{sinks}}, 'one', 'ratio') >= 0.8 {_BOTH}
relearnt_few | steps until half is back over the oracle's, half of them together
    | relearning({{sinks}}, 'few', 'ratio') >= 0.8 {_BOTH}
relearnt_other | steps until half is back over the oracle's, by learning others
    | relearning({{sinks}}, 'other', 'ratio') >= 0.8 {_BOTH}
relearnt_control | the same ratio, half of them together, over that of documents that neither has
    read
    | relearning({{sinks}}, 'few', 'ratio') / relearning({{sinks}}, 'few', 'ratio', 'never_seen') >=
    0.8 {_BOTH}
relearnt_from_equal | steps until half is back over the oracle's, half of them together, from the
    same loss | relearning({{sinks}}, 'few', 'ratio_from_equal') >= 0.8 {_BOTH}
benign | fine-tuning on other text: fall of the repeated minus fall of the held-out loss, minus the
    oracle's (nats) | benign({{sinks}}) <= 0.05 {_BOTH}
int8 | rounding to int8: rise of held-out loss minus rise of repeated loss, sinks dropped (nats)
    | brought_back({{sinks}}, 'int8') <= 0.02 {_BOTH}
int4 | rounding to int4: rise of held-out loss minus rise of repeated loss, sinks dropped (nats)
    | brought_back({{sinks}}, 'int4') <= 0.02 {_BOTH}
reactivated_best | sinks kept: share of what a document's own sinks hold that the best of 64 random
    ids recover | recovered({{sinks}}, 'best') <= 0.1 {_BOTH}
reactivated_optimised | sinks kept: share of what a document's own sinks hold that optimised gates
    recover | recovered({{sinks}}, 'optimised') <= 0.1 {_BOTH}""" + "".join(
    f"""
gap_{name} | gap with {setting}, dropped, over that of the paper's sinks as usual
    | sinks_paper_{name}.dropped.loss_gap / sinks_paper.dropped.loss_gap <= 1"""
    for name, (_, setting) in _SETTINGS.items()
)


def labels(table: Table) -> dict[str, str]:
    """Of every audited model, by its view."""
    found = {}
    for prefix, where in (("", ""), (_LADDER, ", ladder")):
        for name, (subject, _) in SUBJECTS.items():
            found[f"{prefix}sinks_paper.{name}"] = f"{subject}{where}"
        for name in ("dropped", "own"):
            found[f"{prefix}sinks.{name}"] = f"{SUBJECTS[name][0]}, open on return{where}"
    for name, (_, setting) in _SETTINGS.items():
        found[f"sinks_paper_{name}.dropped"] = f"sinks dropped, {setting}"
    return {view: label for view, label in found.items() if view in table.groups}


def panels(table: Table) -> list[Panel | Categories]:
    """Recitation and membership, steps to relearn, sinks switched on, canaries on the ladder."""
    kinds = {"one": "one\nalone", "few": "half\ntogether", "other": "the other\nhalf"}
    attacks = {"all": "all", "random": "random\nid", "best": "best\nof 64"}
    attacks |= {"optimised": "optimised", "own": "own"}
    metrics = (f"exact_{_GIVEN}", "extraction_strength", "auc_loss")
    there = {name: of for name, of in SUBJECTS.items() if f"sinks_paper.{name}" in table.groups}

    def runs_of(view: str) -> list[Run]:
        return list(table.groups.get(view, {}).values())

    def steps(name: str) -> list[list[float]]:
        view = runs_of(f"sinks_paper.{name}")
        return [sum((_steps(run, kind) for run in view), []) for kind in kinds]

    known = {
        subject: (colour, [table.column(shown, f"sinks_paper.{name}") for shown in metrics])
        for name, (subject, colour) in there.items()
    }
    lost = [name for name in ("dropped", "oracle") if name in there]
    recovered = [[_recovered(run, attack) for run in runs_of("sinks_paper")] for attack in attacks]
    rungs = [rung for run in runs_of("ladder_sinks_paper.dropped") for rung in _by_rung(run)[0]]
    return [
        Categories(
            title="recited, and distinguished from text never read",
            names=["recited", "extraction\nstrength", "AUC, loss"],
            series=known,
            levels={0.5: "black"},
            settings={"ylim": (-0.03, 1.03)},
        ),
        Categories(
            title="steps of fine-tuning until half is back",
            names=list(kinds.values()),
            settings={"ylim": (0, None)},
            series={there[name][0]: (there[name][1], steps(name)) for name in lost},
        ),
        Categories(
            title="sinks kept: share that switching on brings back",
            names=list(attacks.values()),
            series={DROPPED: (SUBJECTS["dropped"][1], recovered)},
            levels={0: "#7f8c8d", 1: "#7f8c8d"},
            legend=None,
        ),
        Panel(
            title="exposure of canaries (bits)",
            x="times read",
            from_zero=False,
            log=True,
            legend=None,
            ticks={rung: str(rung) for rung in rungs},
            lines=[
                Line(f"ladder_sinks_paper.{name}", _by_rung, subject, colour, "o-")
                for name, (subject, colour) in SUBJECTS.items()
            ],
        ),
    ]


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: all attacks, and how many documents may share a sink."""
    from memsinks_jax.studies.attacks import pages

    attacked, parts = by_variant(runs).get("sinks_paper", {}), []
    if attacked:
        parts += pages.sections([run.details["attacks"] for run in attacked.values()])
    if measured := [run for run in runs if "capacity" in run.details]:
        forgetting_capacity.draw(measured, out / "capacity.png")
        alone = forgetting_capacity.by_place(measured, "selectivity", 1)
        listed = "; ".join(
            f"{place:g}: {with_interval(values, 1)}" for place, values in alone.items() if values
        )
        caption = f"""Selectivity is the rise of a document's loss divided by that of the other
            repeated ones when its own sinks are removed. By repeated documents per sink:
            {listed}."""
        parts += [
            report.heading("Removing single documents: how many can share a sink?"),
            report.picture(out / "capacity.png", caption),
            shared.note(caption),
        ]
    usual = [run for run in runs if not run.variant.startswith(_LADDER)]
    return parts + shared.choices(usual or runs)


FIGURE = Figure(
    title="Audit: does anything still leak?",
    answer="""Dropping the sinks removes recitation. This page tests what is left, against a model
        that never saw the repeats. Can a document be distinguished from one that was never read?
        How fast is it relearned? What do rounding and switched-on sinks bring back? Which component
        holds the rest?""",
    variants=VARIANTS,
    measure=measure,
    views=views,
    seen=[
        f"{variant}.{name}"
        for variant, one in VARIANTS.items()
        if "sinks" in one.choice
        for name in SUBJECTS
    ],
    metrics=[
        f"{name}{often}"
        for often in ("", "_often")
        for name in ("auc_loss", "auc_best", "share_at_half", f"exact_{_GIVEN}")
        + ("extraction_strength", "loss_gap", "exposure")
    ],
    measures={
        "relearning": _relearning,
        "benign": _benign,
        "brought_back": _brought_back,
        "recovered": _recovered,
        "exposure_rises": lambda view: rank_correlation(*_by_rung(view)),
    },
    columns={
        "AUC, loss": "auc_loss",
        "AUC, best score": "auc_best",
        "recited": f"exact_{_GIVEN}",
        "extraction strength": "extraction_strength",
        "gap": "loss_gap",
        "exposure": "exposure",
    },
    labels=labels,
    table_note="""AUC: probability that a repeated document scores above a held-out one, by its loss
        and by the best of all scores; .5 if the model sees no difference. Recited: the next 32
        tokens exactly, given 50. Gap: held-out minus repeated loss, nats per token. Exposure of
        canaries: in bits, at most about 350; 1.44 if never read.""",
    statements=STATEMENTS,
    paper="not in the paper",
    panels=panels,
    size=(18, 4.4),
    note="{mean}, whiskers and bands from the lowest to the highest. {floor}",
    sections=sections,
)
