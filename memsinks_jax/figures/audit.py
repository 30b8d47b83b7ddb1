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
from memsinks_jax.figures import forgetting_capacity, losses, on_return
from memsinks_jax.figures import sections as shared
from memsinks_jax.figures.figure import ByHand
from memsinks_jax.figures.kept import kept
from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim, rank_correlation, with_interval
from memsinks_jax.reporting.pictures import plt, save, tidy

logger = logging.getLogger(__name__)

TITLE = "Audit: does anything still leak?"
CONFIG = "ts_repetition.py"
_MODELS = {"standard": "standard", "sinks": "sinks_paper", "no_repeat": "no_repeat"}
_LADDER = "ladder_"
_SETTINGS = {
    "active_0.1": {"sinks.active_fraction": 0.1},
    "active_0.7": {"sinks.active_fraction": 0.7},
    "shared_0.5": {"sinks.shared_fraction": 0.5},
    "shared_0.5_active_0.1": {"sinks.shared_fraction": 0.5, "sinks.active_fraction": 0.1},
}
VARIANTS = on_return.both(
    {name: Variation(variant) for name, variant in _MODELS.items()}
    | {f"{_LADDER}{name}": Variation(variant, config="repeat_ladder.py") for name, variant in _MODELS.items()}
) | {name: Variation("sinks_paper", settings) for name, settings in _SETTINGS.items()}
ANSWER = (
    "Dropping the sinks removes recitation. This page tests what is left, against a model that never saw the repeats. Can "
    "a document be distinguished from one that was never read? How fast is it relearned? What do rounding and "
    "switched-on sinks bring back? Which component holds the rest?"
)
TABLE_NOTE = (
    "AUC: probability that a repeated document scores above a held-out one, by its loss and by the best of all scores; .5 "
    "if the model sees no difference. Recited: the next 32 tokens exactly, given 50. Gap: held-out minus repeated loss, "
    "nats per token. Exposure of canaries: in bits, at most about 350; 1.44 if never read."
)
DROPPED = MODES["drop"]
_COLOURS = {
    STANDARD: "#c0392b", ORACLE: "#7f8c8d", DROPPED: "#1f618d", MODES["own"]: "#1e8449", MODES["all"]: "#d68910",
}  # fmt: skip
_GIVEN = 50
_OURS = "not in the paper"


def measure(runs: list[Run]) -> list[Run]:
    """Adds audits to the `details` of runs with sinks, with all attacks for the default settings -> the same runs."""
    groups = by_variant(runs)
    found = {}
    for run in runs:
        prefix = _LADDER if run.variant.startswith(_LADDER) else ""
        beside = {name: groups.get(f"{prefix}{name}", {}).get(run.seed) for name in ("standard", "no_repeat")}
        if run.variant in _SETTINGS or on_return.published(run.variant).removeprefix(prefix) == "sinks":
            found[run.workdir] = dataclasses.replace(run, details=_audited(run, beside))
    return [found.get(run.workdir, run) for run in runs]


def _audited(run: Run, beside: dict[str, Run | None]) -> dict:
    """{"audit": of `audit.audit`; "documents_per_sink", "capacity": not for the ladder}. Takes minutes."""
    from memsinks_jax.audit import audit  # jax takes seconds to import

    # Compares every model with the oracle, and with the standard model if data are the same. Attacks only the default.
    compared = {n: other for n, other in beside.items() if other and (n == "no_repeat" or run.variant not in _SETTINGS)}
    places = {name: other.workdir for name, other in compared.items()}
    attacked = on_return.published(run.variant) == "sinks"
    asked = {} if attacked else {"prefixes": (_GIVEN,), "samples": 0, "attacks": ()}

    def measure() -> dict:
        logger.info("auditing %s, seed %d", run.variant, run.seed)
        details = {
            "audit": audit(run.workdir, standard=places.get("standard"), oracle=places.get("no_repeat"), **asked)
        }
        return details if run.variant.startswith(_LADDER) else details | forgetting_capacity.measure([run])[0].details

    return kept([run, *compared.values()], "audit", asked, measure)


def _value(run: Run, subject: str, measure: str, group: str = ALL) -> float:
    return run.details["audit"]["subjects"][subject][group][measure]["value"]


def _aucs(run: Run, subject: str, group: str = ALL) -> dict[str, dict]:
    found = run.details["audit"]["subjects"][subject][group]
    return {name: value for name, value in found.items() if name.startswith("auc_")}


def _highest_auc(run: Run, subject: str) -> float:
    return max(one["value"] for one in _aucs(run, subject).values())


def _share_at_half(run: Run) -> float:
    """Share of the oracle's membership scores whose interval over documents contains .5."""
    return float(np.mean([one["ci95"][0] <= 0.5 <= one["ci95"][1] for one in _aucs(run, ORACLE).values()]))


def _rungs(run: Run) -> list[int]:
    return sorted(map(int, run.details["audit"]["encounters"] or ()))


def _by_rung(run: Run, subject: str, measure: str) -> list[float]:
    return [_value(run, subject, measure, str(rung)) for rung in _rungs(run)]


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


def claims(runs: list[Run]) -> list[Claim]:
    """None is in the paper, which leaves these questions open. Omits claims about variants that were not run."""
    rows = _of_the_models(runs)
    for name in _SETTINGS:
        rows += losses.paired(
            runs, f"gap_{name}", f"gap of {_said(name)}, dropped, over the default's", _OURS, [name, "sinks"],
            lambda s, d: _value(s, DROPPED, "loss_gap") / _value(d, DROPPED, "loss_gap"), at_most=1.0,
        )  # fmt: skip
    # Omits measurements that no document of a seed could give.
    kept = [claim for claim in rows if not np.isnan(claim.values).any()]
    if len(kept) < len(rows):
        logger.warning("not defined in every seed: %s", ", ".join(c.id for c in rows if c not in kept))
    return kept


@on_return.beside
def _of_the_models(runs: list[Run]) -> list[Claim]:
    """Claims that compare the audited model with the standard one and the oracle."""
    rows = []

    def add(name, variants, statement, value, **bounds):
        rows.extend(losses.paired(runs, name, statement, _OURS, variants, value, **bounds))

    def of(subject, measure, group=ALL):
        return lambda s, *_: _value(s, subject, measure, group)

    def less(subject, other, measure, group=ALL):
        return lambda s, *_: _value(s, subject, measure, group) - _value(s, other, measure, group)

    main, ladder = (
        ["sinks", "no_repeat", "standard"],
        [f"{_LADDER}{name}" for name in ("sinks", "no_repeat", "standard")],
    )
    add("sees_often", ladder, "the audit sees: AUC, loss, of the standard model's documents read 8 times or more",
        of(STANDARD, "auc_loss", OFTEN), at_least=0.9)  # fmt: skip
    for name, variants in (("", main), (", ladder", ladder)):
        add(f"oracle_at_half{'_ladder' if name else ''}", variants,
            f"the oracle knows nothing: share of its AUCs with .5 in their interval{name}",
            lambda s, *_: _share_at_half(s), at_least=1.0)  # fmt: skip
    add("exposure_rises", ladder, "exposure of the standard model's canaries rises with repetitions: rank correlation",
        lambda s, *_: rank_correlation(_rungs(s), _by_rung(s, STANDARD, "exposure")), at_least=0.8)  # fmt: skip
    add("not_recited", main, "share of repeated documents recited, sinks dropped, minus the oracle's",
        less(DROPPED, ORACLE, f"exact_{_GIVEN}"), at_most=0.02)  # fmt: skip
    add("not_told", main, "AUC, loss, sinks dropped, minus the oracle's: nobody can tell what was read",
        less(DROPPED, ORACLE, "auc_loss"), at_most=0.05)  # fmt: skip
    add("less_told", ladder, "AUC, loss, of documents read 8 times or more: sinks dropped minus standard",
        less(DROPPED, STANDARD, "auc_loss", OFTEN), at_most=-0.05)  # fmt: skip
    add("not_exposed", ladder, "exposure of canaries read 8 times or more, sinks dropped, minus the oracle's (bits)",
        less(DROPPED, ORACLE, "exposure", OFTEN), at_most=0.5)  # fmt: skip
    for kind, said in (
        ("one", "one document alone"),
        ("few", "half of them together"),
        ("other", "by learning others"),
    ):
        add(f"relearnt_{kind}", main, f"steps until half is back over the oracle's, {said}",
            lambda s, *_, k=kind: _relearning(s, k, "ratio"), at_least=0.8)  # fmt: skip
    add("relearnt_control", main, "the same ratio, half of them together, over that of documents that neither has read",
        lambda s, *_: _relearning(s, "few", "ratio") / _relearning(s, "few", "ratio", "never_seen"),
        at_least=0.8)  # fmt: skip
    add("relearnt_from_equal", main, "the same, half of them together, both counted from the same loss",
        lambda s, *_: _relearning(s, "few", "ratio_from_equal"), at_least=0.8)  # fmt: skip
    add("benign", main, "fine-tuning on other text: further fall of the repeated documents' loss than in the oracle (nats)",
        lambda s, *_: _benign(s), at_most=0.05)  # fmt: skip
    for bits in ("int8", "int4"):
        add(bits, main, f"rounding to {bits}: rise of held-out loss minus rise of repeated loss, sinks dropped (nats)",
            lambda s, *_, b=bits: _brought_back(s, b), at_most=0.02)  # fmt: skip
    for attack, said in (("best", "the best of 64 random ids"), ("optimised", "optimised gates")):
        add(f"reactivated_{attack}", main, f"sinks kept: share of what a document's own sinks hold that {said} recover",
            lambda s, *_, a=attack: s.details["audit"]["attacks"]["reactivation"][a]["recovered"], at_most=0.1)  # fmt: skip
    return rows


def _said(variant: str) -> str:
    words = {"shared": "shared", "active": "active"}
    parts = variant.removeprefix(_LADDER).split("_")
    return ", ".join(f"{words[a]} {b}" for a, b in zip(parts[::2], parts[1::2], strict=True))


def _rows(runs: list[Run]) -> list[tuple[str, list[Run], str]]:
    """(label, runs with an audit, subject) of every row of the table."""
    groups, found = by_variant(runs), []
    for variant, where in (("sinks", ""), (f"{_LADDER}sinks", ", ladder")):
        audited = list(groups.get(variant, {}).values())
        subjects = audited[0].details["audit"]["subjects"] if audited else {}
        found += [(f"{subject}{where}", audited, subject) for subject in subjects]
        if opened := list(groups.get(variant + on_return.SUFFIX, {}).values()):
            found += [(f"{MODES[mode]}, open on return{where}", opened, MODES[mode]) for mode in ("drop", "own")]
    found += [
        (f"sinks dropped, {_said(name)}", list(groups[name].values()), DROPPED) for name in _SETTINGS if name in groups
    ]
    return found


def row_labels(runs: list[Run]) -> list[str]:
    """Labels of the rows of `table`."""
    return [label for label, _, _ in _rows(runs)]


def table(runs: list[Run]) -> tuple[list[str], list[list[list[float]]]]:
    """Numbers of every audited model -> (names of columns, one row per model; a cell holds one value per seed)."""
    columns = {"AUC, loss": "auc_loss", "recited": f"exact_{_GIVEN}", "extraction strength": "extraction_strength",
               "gap": "loss_gap", "exposure": "exposure"}  # fmt: skip
    rows = []
    for _, audited, subject in _rows(runs):
        cells = [
            [
                one[measure]["value"]
                for run in audited
                if measure in (one := run.details["audit"]["subjects"][subject][ALL])
            ]
            for measure in columns.values()
        ]
        rows.append([cells[0], [_highest_auc(run, subject) for run in audited], *cells[1:]])
    names = list(columns)
    return [names[0], "AUC, best score", *names[1:]], rows


def note(runs: list[Run]) -> str:
    """The text under the plot."""
    return (
        f"{shared.mean_over_seeds(runs)}, whiskers and bands from the lowest to the highest. "
        f"{shared.floor_sentence(runs)}"
    )


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Recitation and membership, steps to relearn, recovery by switching sinks on, and canaries on the ladder."""
    groups = by_variant(runs)
    main, ladder = (list(groups.get(name, {}).values()) for name in ("sinks", f"{_LADDER}sinks"))
    figure, axes = plt.subplots(1, 4, figsize=(18, 4.4), layout="constrained")
    told, back, on, exposed = axes
    subjects = list(main[0].details["audit"]["subjects"]) if main else []
    for place, subject in enumerate(subjects):
        for x, measure in enumerate((f"exact_{_GIVEN}", "extraction_strength", "auc_loss")):
            values = [_value(run, subject, measure) for run in main]
            _whisker(told, x + (place - 2) * 0.13, values, _COLOURS[subject], subject if x == 0 else None)
    told.axhline(0.5, color="black", linewidth=1, linestyle=":")
    told.set_xticks(range(3), ["recited", "extraction\nstrength", "AUC, loss"])
    told.set(title="recited, and told from text never read", ylim=(-0.03, 1.03))
    kinds = {"one": "one\nalone", "few": "half\ntogether", "other": "the other\nhalf"}
    for place, subject in enumerate((DROPPED, ORACLE) if main else ()):
        for x, kind in enumerate(kinds):
            found = [run.details["audit"]["attacks"]["relearning"]["members"][kind]["steps"] for run in main]
            values = [steps[subject]["value"] for steps in found if subject in steps]
            _whisker(back, x + (place - 0.5) * 0.2, values, _COLOURS[subject], subject if x == 0 else None)
    back.set_xticks(range(3), kinds.values())
    back.set(title="steps of fine-tuning until half is back", ylim=(0, None))
    attacks = {"all": "all", "random": "random\nid", "best": "best\nof 64", "optimised": "optimised", "own": "own"}
    for x, attack in enumerate(attacks if main else ()):
        values = [run.details["audit"]["attacks"]["reactivation"][attack]["recovered"] for run in main]
        _whisker(on, x, values, _COLOURS[DROPPED], None)
    on.axhline(0, color="#7f8c8d", linewidth=1)
    on.axhline(1, color="#7f8c8d", linewidth=1)
    on.set_xticks(range(len(attacks)), attacks.values())
    on.set(title="sinks kept: share that switching on brings back")
    for subject in subjects if ladder else ():
        values = np.array([_by_rung(run, subject, "exposure") for run in ladder])
        losses.band(exposed, _rungs(ladder[0]), values, subject, _COLOURS[subject], "o-")
    exposed.set(title="exposure of canaries (bits)", xlabel="times read", xscale="log")
    if ladder:
        exposed.set_xticks(_rungs(ladder[0]), _rungs(ladder[0]))
        exposed.minorticks_off()
    for axis in axes:
        tidy(axis)
    handles, labels = told.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(len(labels), 1), frameon=False)
    save(figure, path, dpi=130)


def _whisker(axis, x: float, values: list[float], colour: str, label: str | None) -> None:
    if values:
        mean = np.mean(values)
        reach = [[mean - min(values)], [max(values) - mean]]
        axis.errorbar([x], [mean], yerr=reach, fmt="o", color=colour, label=label, markersize=6)


def sections(runs: list[Run], out: pathlib.Path) -> list[str]:
    """Further sections of the page: all attacks, and how many documents may share a sink."""
    from memsinks_jax.audit import attack_sections

    groups, parts = by_variant(runs), []
    if "sinks" in groups:
        parts += attack_sections([run.details["audit"]["attacks"] for run in groups["sinks"].values()])
    measured = [run for run in runs if "capacity" in run.details]
    if measured:
        forgetting_capacity.draw(measured, out / "capacity.png")
        parts += [
            report.heading("Removing single documents: how many can share a sink?"),
            report.picture(out / "capacity.png", _capacity_sentence(measured)),
            report.paragraph(_capacity_sentence(measured), "note"),
        ]
    within = [run for run in runs if not run.variant.startswith(_LADDER)] or runs
    return [*parts, report.heading("Choices"), shared.open_choices(within)]


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


FIGURE = ByHand(
    title=TITLE, config=CONFIG, variants=VARIANTS, answer=ANSWER, table_note=TABLE_NOTE,
    measure=measure, old_claims=claims, old_table=table, row_labels=row_labels, old_draw=draw, note=note, sections=sections,
)  # fmt: skip
