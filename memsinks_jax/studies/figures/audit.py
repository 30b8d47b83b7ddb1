"""Audits the quickstart's models: what leaks when sinks are dropped, compared with a standard model and an oracle.

Two settings: 20 stories repeated 128 times, and a ladder of stories with canaries that are read 1 to 128 times. Models with
other shares of shared neurons and of active sinks test whether less leaks.
"""

import dataclasses
import logging
import pathlib

import numpy as np

from memsinks_jax.auditing.measures import ALL, OFTEN
from memsinks_jax.auditing.subjects import MODES, ORACLE, STANDARD
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import rank_correlation, with_interval
from memsinks_jax.studies.figures import forgetting_capacity
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.kept import kept
from memsinks_jax.studies.figures.panels import Categories, Line, Panel
from memsinks_jax.studies.figures.runs import Run, Variation, by_variant
from memsinks_jax.studies.figures.table import KINDS, Statement, Table

logger = logging.getLogger(__name__)

_BESIDE = ("standard", "no_repeat")
_LADDER = "ladder_"
# Of the paper's sinks, and what is said of them.
_SETTINGS = {
    "active_0.1": ({"sinks.active_fraction": 0.1}, "active 0.1"),
    "active_0.7": ({"sinks.active_fraction": 0.7}, "active 0.7"),
    "shared_0.5": ({"sinks.shared_fraction": 0.5}, "shared 0.5"),
    "shared_0.5_active_0.1": (
        {"sinks.shared_fraction": 0.5, "sinks.active_fraction": 0.1}, "shared 0.5, active 0.1",
    ),
}  # fmt: skip
_MODELS = ("standard", "sinks_paper", "no_repeat")
VARIANTS = (
    {name: Variation(name) for name in _MODELS}
    | {f"{_LADDER}{name}": Variation(name, config="repeat_ladder.py") for name in _MODELS}
    | {"sinks": Variation("sinks"), f"{_LADDER}sinks": Variation("sinks", config="repeat_ladder.py")}
    | {f"sinks_paper_{name}": Variation("sinks_paper", settings) for name, (settings, _) in _SETTINGS.items()}
)
DROPPED = MODES["drop"]
# Of an audit: {name in expressions, after that of the audited variant: (subject, colour)}.
SUBJECTS = {
    "dropped": (DROPPED, "#1f618d"), "own": (MODES["own"], "#1e8449"), "all": (MODES["all"], "#d68910"),
    "standard": (STANDARD, "#c0392b"), "oracle": (ORACLE, "#7f8c8d"),
}  # fmt: skip
_GIVEN = 50
_OURS = "not in the paper"


def measure(runs: list[Run]) -> list[Run]:
    """Adds audits to the `details` of runs with sinks, with all attacks for the default settings -> the same runs."""
    groups = by_variant(runs)
    found = {}
    for run in runs:
        prefix = _LADDER if run.variant.startswith(_LADDER) else ""
        beside = {name: groups.get(f"{prefix}{name}", {}).get(run.seed) for name in _BESIDE}
        if "sinks" in VARIANTS[run.variant].choice:
            found[run.workdir] = dataclasses.replace(run, details=_audited(run, beside))
    return [found.get(run.workdir, run) for run in runs]


def _audited(run: Run, beside: dict[str, Run | None]) -> dict:
    """{"audit": of `audit.audit`; "documents_per_sink", "capacity": not for the ladder}. Takes minutes."""
    from memsinks_jax.auditing.audit import audit  # jax takes seconds to import

    # Compares every model with the oracle, and with the standard model if data are the same. Attacks only the default.
    other_settings = bool(VARIANTS[run.variant].settings)
    compared = {name: other for name, other in beside.items() if other and (name == "no_repeat" or not other_settings)}
    places = {name: other.workdir for name, other in compared.items()}
    asked = {} if run.variant in KINDS else {"prefixes": (_GIVEN,), "samples": 0, "attacks": ()}

    def measure() -> dict:
        logger.info("auditing %s, seed %d", run.variant, run.seed)
        details = {
            "audit": audit(run.workdir, standard=places.get("standard"), oracle=places.get("no_repeat"), **asked)
        }
        return details if run.variant.startswith(_LADDER) else details | forgetting_capacity.measure([run])[0].details

    return kept([run, *compared.values()], "audit", asked, measure)


def views(runs: list[Run]) -> list[Run]:
    """The runs, and every model of their audits as VARIANT.SUBJECT, with its measures as metrics."""
    found = list(runs)
    for run in runs:
        for name, (subject, _) in SUBJECTS.items() if "audit" in run.details else ():
            if subject in run.details["audit"]["subjects"]:
                metrics = _metrics(run.details["audit"]["subjects"][subject])
                found.append(dataclasses.replace(run, variant=f"{run.variant}.{name}", metrics=metrics))
    return found


def _metrics(groups: dict[str, dict[str, dict]]) -> dict[str, float]:
    """The measures of one model: of all documents by their names, of those read often with _often behind."""
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
    """NaN if both models reached no document: no number can stand for that."""
    value = run.details["audit"]["attacks"]["relearning"][of][kind][name]
    return float("nan") if value is None else value


def _benign(run: Run) -> float:
    """How much further the members' loss falls than the oracle's, each relative to other text."""
    found = run.details["audit"]["attacks"]["benign"]
    fall = {name: found[name]["non_members"]["value"] - found[name]["members"]["value"] for name in (DROPPED, ORACLE)}
    return fall[DROPPED] - fall[ORACLE]


def _brought_back(run: Run, bits: str) -> float:
    found = run.details["audit"]["attacks"]["quantization"][DROPPED]
    rise = {side: found[bits][side] - found["float"][side] for side in ("members", "non_members")}
    return rise["non_members"] - rise["members"]


def _recovered(run: Run, attack: str) -> float:
    return run.details["audit"]["attacks"]["reactivation"][attack]["recovered"]


def _steps(run: Run, kind: str) -> list[float]:
    """Of a view: steps until half is relearned, if any."""
    steps = run.details["audit"]["attacks"]["relearning"]["members"][kind]["steps"]
    subject, _ = SUBJECTS[run.variant.rpartition(".")[2]]
    return [steps[subject]["value"]] if subject in steps else []


def _needed(measure: str) -> list[str]:
    """The models that the audited one is compared with; none for settings of sinks that are compared with each other."""
    prefix = _LADDER if _LADDER in measure else ""
    return [f"{prefix}{name}" for name in _BESIDE] if "{sinks}" in measure else []


# None is in the paper, which leaves these questions open.
STATEMENTS = [
    Statement(name, text, _OURS, measure, needs=_needed(measure), **bound) for name, text, measure, bound in (
        ("sees_often", "the audit sees: AUC, loss, of the standard model's documents read 8 times or more",
         "ladder_{sinks}.standard.auc_loss_often", {"at_least": 0.9}),
        ("oracle_at_half", "the oracle knows nothing: share of its AUCs with .5 in their interval",
         "{sinks}.oracle.share_at_half", {"at_least": 1.0}),
        ("oracle_at_half_ladder", "the oracle knows nothing: share of its AUCs with .5 in their interval, ladder",
         "ladder_{sinks}.oracle.share_at_half", {"at_least": 1.0}),
        ("exposure_rises", "exposure of the standard model's canaries rises with repetitions: rank correlation",
         "exposure_rises(ladder_{sinks}.standard)", {"at_least": 0.8}),
        ("not_recited", "share of repeated documents recited, sinks dropped, minus the oracle's",
         f"{{sinks}}.dropped.exact_{_GIVEN} - {{sinks}}.oracle.exact_{_GIVEN}", {"at_most": 0.02}),
        ("not_told", "AUC, loss, sinks dropped, minus the oracle's: nobody can tell what was read",
         "{sinks}.dropped.auc_loss - {sinks}.oracle.auc_loss", {"at_most": 0.05}),
        ("less_told", "AUC, loss, of documents read 8 times or more: sinks dropped minus standard",
         "ladder_{sinks}.dropped.auc_loss_often - ladder_{sinks}.standard.auc_loss_often", {"at_most": -0.05}),
        ("not_exposed", "exposure of canaries read 8 times or more, sinks dropped, minus the oracle's (bits)",
         "ladder_{sinks}.dropped.exposure_often - ladder_{sinks}.oracle.exposure_often", {"at_most": 0.5}),
        *((f"relearnt_{kind}", f"steps until half is back over the oracle's, {said}",
           f"relearning({{sinks}}, '{kind}', 'ratio')", {"at_least": 0.8})
          for kind, said in (("one", "one document alone"), ("few", "half of them together"),
                             ("other", "by learning others"))),
        ("relearnt_control", "the same ratio, half of them together, over that of documents that neither has read",
         "relearning({sinks}, 'few', 'ratio') / relearning({sinks}, 'few', 'ratio', 'never_seen')",
         {"at_least": 0.8}),
        ("relearnt_from_equal", "the same, half of them together, both counted from the same loss",
         "relearning({sinks}, 'few', 'ratio_from_equal')", {"at_least": 0.8}),
        ("benign", "fine-tuning on other text: further fall of the repeated documents' loss than in the oracle (nats)",
         "benign({sinks})", {"at_most": 0.05}),
        *((bits, f"rounding to {bits}: rise of held-out loss minus rise of repeated loss, sinks dropped (nats)",
           f"brought_back({{sinks}}, '{bits}')", {"at_most": 0.02}) for bits in ("int8", "int4")),
        *((f"reactivated_{attack}", f"sinks kept: share of what a document's own sinks hold that {said} recover",
           f"recovered({{sinks}}, '{attack}')", {"at_most": 0.1})
          for attack, said in (("best", "the best of 64 random ids"), ("optimised", "optimised gates"))),
        *((f"gap_{name}", f"gap of {said}, dropped, over the default's",
           f"sinks_paper_{name}.dropped.loss_gap / sinks_paper.dropped.loss_gap", {"at_most": 1.0})
          for name, (_, said) in _SETTINGS.items()),
    )
]  # fmt: skip


def labels(table: Table) -> dict[str, str]:
    """Of every audited model, by its view."""
    found = {}
    for prefix, where in (("", ""), (_LADDER, ", ladder")):
        found |= {f"{prefix}sinks_paper.{name}": f"{subject}{where}" for name, (subject, _) in SUBJECTS.items()}
        found |= {f"{prefix}sinks.{name}": f"{SUBJECTS[name][0]}, open on return{where}" for name in ("dropped", "own")}
    found |= {f"sinks_paper_{name}.dropped": f"sinks dropped, {said}" for name, (_, said) in _SETTINGS.items()}
    return {view: label for view, label in found.items() if view in table.groups}


def panels(table: Table) -> list[Panel | Categories]:
    """Recitation and membership, steps to relearn, recovery by switching sinks on, and canaries on the ladder."""
    kinds = {"one": "one\nalone", "few": "half\ntogether", "other": "the other\nhalf"}
    attacks = {"all": "all", "random": "random\nid", "best": "best\nof 64", "optimised": "optimised", "own": "own"}
    told = (f"exact_{_GIVEN}", "extraction_strength", "auc_loss")
    there = {name: of for name, of in SUBJECTS.items() if f"sinks_paper.{name}" in table.groups}

    def each(view: str, of) -> list[float]:
        return [of(run) for run in table.groups.get(view, {}).values()]

    return [
        Categories(
            title="recited, and told from text never read", names=["recited", "extraction\nstrength", "AUC, loss"],
            series={subject: (colour, [table.column(shown, f"sinks_paper.{name}") for shown in told])
                    for name, (subject, colour) in there.items()},
            levels={0.5: "black"}, settings={"ylim": (-0.03, 1.03)},
        ),
        Categories(
            title="steps of fine-tuning until half is back", names=list(kinds.values()), settings={"ylim": (0, None)},
            series={subject: (colour, [sum(each(f"sinks_paper.{name}", lambda run, k=kind: _steps(run, k)), [])
                                       for kind in kinds])
                    for name, (subject, colour) in there.items() if name in ("dropped", "oracle")},
        ),
        Categories(
            title="sinks kept: share that switching on brings back", names=list(attacks.values()),
            series={DROPPED: (SUBJECTS["dropped"][1], [each("sinks_paper", lambda run, a=attack: _recovered(run, a))
                                                       for attack in attacks])},
            levels={0: "#7f8c8d", 1: "#7f8c8d"}, legend=None,
        ),
        Panel(
            title="exposure of canaries (bits)", x="times read", from_zero=False, log=True, legend=None,
            ticks={rung: str(rung) for run in table.groups.get("ladder_sinks_paper.dropped", {}).values()
                   for rung in _by_rung(run)[0]},
            lines=[Line(f"ladder_sinks_paper.{name}", _by_rung, subject, colour, "o-")
                   for name, (subject, colour) in SUBJECTS.items()],
        ),
    ]  # fmt: skip


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: all attacks, and how many documents may share a sink."""
    from memsinks_jax.auditing.audit import attack_sections

    attacked, parts = by_variant(runs).get("sinks_paper", {}), []
    if attacked:
        parts += attack_sections([run.details["audit"]["attacks"] for run in attacked.values()])
    measured = [run for run in runs if "capacity" in run.details]
    if measured:
        forgetting_capacity.draw(measured, out / "capacity.png")
        parts += [
            report.heading("Removing single documents: how many can share a sink?"),
            report.picture(out / "capacity.png", _capacity_sentence(measured)),
            report.paragraph(_capacity_sentence(measured), "note"),
        ]
    return parts + shared.choices([run for run in runs if not run.variant.startswith(_LADDER)] or runs)


def _capacity_sentence(measured: list[Run]) -> str:
    alone: dict[float, list[float]] = {}
    for run in measured:
        for row in run.details["capacity"]:
            if row["removed"] == 1:
                alone.setdefault(run.details["documents_per_sink"], []).append(row["selectivity"])
    said = "; ".join(f"{place:g}: {with_interval(alone[place], 1)}" for place in sorted(alone))
    return (
        "Selectivity is the rise of a document's loss divided by that of the other repeated ones when its own sinks are "
        f"removed. By repeated documents per sink: {said}."
    )


FIGURE = Figure(
    title="Audit: does anything still leak?",
    answer=(
        "Dropping the sinks removes recitation. This page tests what is left, against a model that never saw the repeats. "
        "Can a document be distinguished from one that was never read? How fast is it relearned? What do rounding and "
        "switched-on sinks bring back? Which component holds the rest?"
    ),
    config="ts_repetition.py",
    variants=VARIANTS,
    measure=measure,
    views=views,
    measures={
        "relearning": _relearning, "benign": _benign, "brought_back": _brought_back, "recovered": _recovered,
        "exposure_rises": lambda view: rank_correlation(*_by_rung(view)),
    },
    columns={
        "AUC, loss": "auc_loss", "AUC, best score": "auc_best", "recited": f"exact_{_GIVEN}",
        "extraction strength": "extraction_strength", "gap": "loss_gap", "exposure": "exposure",
    },
    labels=labels,
    table_note=(
        "AUC: probability that a repeated document scores above a held-out one, by its loss and by the best of all scores; "
        ".5 if the model sees no difference. Recited: the next 32 tokens exactly, given 50. Gap: held-out minus repeated "
        "loss, nats per token. Exposure of canaries: in bits, at most about 350; 1.44 if never read."
    ),
    statements=STATEMENTS,
    panels=panels,
    size=(18, 4.4),
    note="{mean}, whiskers and bands from the lowest to the highest. {floor}",
    sections=sections,
)  # fmt: skip
