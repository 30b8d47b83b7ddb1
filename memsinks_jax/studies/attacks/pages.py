"""Results of the attacks as tables: of one audit, or of one per seed with intervals over seeds."""

import functools
import itertools
import operator
from collections.abc import Sequence

from memsinks_jax.measures.pages import PageTable, table_sections
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.studies.attacks.relearning import STEPS
from memsinks_jax.studies.attacks.residue import DAMAGE

_KINDS = {
    "one": "one document, practised alone",
    "few": "half of the documents, practised together",
    "other": "the other half, not practised",
}
_ATTACKS = {
    "dropped": "none (sinks dropped)",
    "own": "the document's own (upper bound)",
    "all": "all on",
    "random": "a random id's",
    "best": "the best of many random ids, by the first half",
    "optimised": "gates optimised on the first half",
}


def sections(found: Sequence[dict]) -> list[str]:
    """The tables, for a page."""
    return table_sections(tables(found))


def tables(found: Sequence[dict]) -> list[PageTable]:
    """Tables for results of `attacks.attack`, one per seed. Skips attacks that were not run."""
    makers = {
        "relearning": _relearning,
        "calibration": _calibration,
        "benign": _benign,
        "quantization": _quantization,
        "reactivation": _reactivation,
        "residue": _residue,
    }
    there = {name: [one.get(name) for one in found] for name in makers}
    return [makers[name](of) for name, of in there.items() if all(of)]


def _cell(found: Sequence[dict], *path: str, digits: int = 3) -> str:
    """What results have at a path, as a mean with its interval."""
    values = [functools.reduce(operator.getitem, path, one) for one in found]
    return with_interval([value for value in values if value is not None], digits)


def _relearning(found: Sequence[dict]) -> PageTable:
    models, rows = list(found[0]["members"]["few"]["steps"]), []
    for of, control in (("members", ""), ("never_seen", " (control: never read)")):
        for kind, label in _KINDS.items():
            steps = [_cell(found, of, kind, "steps", model, "value", digits=2) for model in models]
            ratios = [_cell(found, of, kind, n, digits=2) for n in ("ratio", "ratio_from_equal")]
            rows.append([f"{label}{control}", *steps, *ratios])
    return PageTable(
        "Is it gone, or hidden? Fine-tuning until it is back",
        "Steps of AdamW until half of what a document lost is back, at the attacker's best "
        "learning "
        f"rate for each model; more than {STEPS} steps count as {STEPS}. Ratio: the attacked "
        "model's "
        "steps over the oracle's, for documents that both reach; 1 means that the document must be "
        "learned anew. From equal: the oracle's count starts once its loss has fallen to the "
        "attacked "
        "model's initial loss.",
        ["measured on", *(f"steps, {model}" for model in models), "ratio", "ratio, from equal"],
        rows,
    )


def _calibration(found: Sequence[dict]) -> PageTable:
    return _losses(
        found,
        "Is it only the output that hides it? Calibration",
        "Loss in nats per token before and after a bias of the logits was trained, on half of the "
        "members and non-members; measured on the others.",
    )


def _benign(found: Sequence[dict]) -> PageTable:
    sides = ("members", "non_members")
    return PageTable(
        "Does it come back by itself? Fine-tuning on other text",
        "Change of the loss, nats per token, after fine-tuning on documents that no model has "
        "read.",
        ["", "members", "non-members"],
        [[model, *(_cell(found, model, of, "value") for of in sides)] for model in found[0]],
    )


def _quantization(found: Sequence[dict]) -> PageTable:
    return _losses(
        found,
        "Does rounding the weights bring it back?",
        "Loss in nats per token; every output channel of a matrix rounded to 8 or 4 bits.",
    )


def _losses(found: Sequence[dict], title: str, note: str) -> PageTable:
    """A row per model, from {model: {state of it: {"members", "non_members": loss}}}."""
    states = list(next(iter(found[0].values())))
    pairs = list(itertools.product(states, ("members", "non_members")))
    columns = [f"{state}, {side.replace('_', '-')}" for state, side in pairs]
    rows = [[model, *(_cell(found, model, *pair) for pair in pairs)] for model in found[0]]
    return PageTable(title, note, ["", *columns], rows)


def _reactivation(found: Sequence[dict]) -> PageTable:
    return PageTable(
        "If the sinks were kept: does switching some on bring it back?",
        "Loss on the second half of the members, nats per token, and the share of what their own "
        "sinks "
        "hold of it. The attacker has the first half, but not the id.",
        ["sinks that are on", "loss", "recovered"],
        [
            [label, _cell(found, name, "loss"), _cell(found, name, "recovered", digits=2)]
            for name, label in _ATTACKS.items()
        ],
    )


def _residue(found: Sequence[dict]) -> PageTable:
    models = list(found[0])
    rows = [["the gap itself", *(_cell(found, model, "gap") for model in models)]]
    for name in found[0][models[0]]["components"]:
        rows.append([name, *(_cell(found, model, "components", name) for model in models)])
    return PageTable(
        "Which component holds the rest?",
        "The gap between the loss of non-members and of members, nats per token, and how much of "
        "it "
        "disappears when one component of the model is ablated (replaced by its mean over other "
        "text) "
        f"until the loss of non-members has risen by {DAMAGE:g}. The oracle's column shows the "
        "effect "
        "on any text. A dash: full ablation does not cost as much.",
        ["", *models],
        rows,
    )
