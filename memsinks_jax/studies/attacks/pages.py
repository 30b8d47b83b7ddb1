"""Results of the attacks as tables: of one audit, or of one per seed with intervals over seeds."""

from collections.abc import Callable, Sequence

from memsinks_jax.auditing.audit import table_sections
from memsinks_jax.auditing.pages import Table
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


def tables(found: Sequence[dict]) -> list[Table]:
    """Tables for results of `attacks.attack`, one per seed. Skips attacks that were not run."""
    makers = {
        "relearning": _relearning,
        "calibration": _calibration,
        "benign": _benign,
        "quantization": _quantization,
        "reactivation": _reactivation,
        "residue": _residue,
    }
    return [
        make([one[name] for one in found])
        for name, make in makers.items()
        if all(one.get(name) for one in found)
    ]


def _cell(found: Sequence[dict], value: Callable[[dict], float | None], digits: int = 2) -> str:
    return with_interval([v for v in map(value, found) if v is not None], digits)


def _relearning(found: Sequence[dict]) -> Table:
    models = list(found[0]["members"]["few"]["steps"])
    rows = [
        [
            f"{label}{'' if of == 'members' else ' (control: never read)'}",
            *(
                _cell(found, lambda one, o=of, k=kind, m=model: one[o][k]["steps"][m]["value"])
                for model in models
            ),
            *(
                _cell(found, lambda one, o=of, k=kind, n=name: one[o][k][n])
                for name in ("ratio", "ratio_from_equal")
            ),
        ]
        for of in ("members", "never_seen")
        for kind, label in _KINDS.items()
    ]
    return Table(
        "Is it gone, or hidden? Fine-tuning until it is back",
        "Steps of AdamW until half of what a document lost is back, at the attacker's best "
        "learning rate for each model; "
        f"more than {STEPS} steps count as {STEPS}. Ratio: the attacked model's steps over the "
        "oracle's, for documents "
        "that both reach; 1 means that the document must be learned anew. From equal: the "
        "oracle's count starts once its "
        "loss has fallen to the attacked model's initial loss.",
        ["measured on", *(f"steps, {model}" for model in models), "ratio", "ratio, from equal"],
        rows,
    )


def _calibration(found: Sequence[dict]) -> Table:
    return _losses(
        found,
        "Is it only the output that hides it? Calibration",
        "Loss in nats per token before and after a bias of the logits was trained, on half of "
        "the members and non-members; "
        "measured on the others.",
    )


def _benign(found: Sequence[dict]) -> Table:
    rows = [
        [
            model,
            *(
                _cell(found, lambda one, m=model, o=of: one[m][o]["value"], 3)
                for of in ("members", "non_members")
            ),
        ]
        for model in found[0]
    ]
    return Table(
        "Does it come back by itself? Fine-tuning on other text",
        "Change of the loss, nats per token, after fine-tuning on documents that no model has "
        "read.",
        ["", "members", "non-members"],
        rows,
    )


def _quantization(found: Sequence[dict]) -> Table:
    return _losses(
        found,
        "Does rounding the weights bring it back?",
        "Loss in nats per token; every output channel of a matrix rounded to 8 or 4 bits.",
    )


def _losses(found: Sequence[dict], title: str, note: str) -> Table:
    """A row per model, from {model: {state of it: {"members", "non_members": loss}}}."""
    states = list(next(iter(found[0].values())))
    sides = {"members": "members", "non_members": "non-members"}
    rows = [
        [
            model,
            *(
                _cell(found, lambda one, m=model, k=state, s=side: one[m][k][s], 3)
                for state in states
                for side in sides
            ),
        ]
        for model in found[0]
    ]
    return Table(
        title,
        note,
        ["", *(f"{state}, {side}" for state in states for side in sides.values())],
        rows,
    )


def _reactivation(found: Sequence[dict]) -> Table:
    rows = [
        [
            label,
            _cell(found, lambda one, n=name: one[n]["loss"], 3),
            _cell(found, lambda one, n=name: one[n]["recovered"]),
        ]
        for name, label in _ATTACKS.items()
    ]
    return Table(
        "If the sinks were kept: does switching some on bring it back?",
        "Loss on the second half of the members, nats per token, and the share of what their own "
        "sinks hold of it. The "
        "attacker has the first half, but not the id.",
        ["sinks that are on", "loss", "recovered"],
        rows,
    )


def _residue(found: Sequence[dict]) -> Table:
    models = list(found[0])
    gap = [
        "the gap itself",
        *(_cell(found, lambda one, m=model: one[m]["gap"], 3) for model in models),
    ]
    rows = [
        [
            name,
            *(
                _cell(found, lambda one, m=model, n=name: one[m]["components"][n], 3)
                for model in models
            ),
        ]
        for name in found[0][models[0]]["components"]
    ]
    return Table(
        "Which component holds the rest?",
        "The gap between the loss of non-members and of members, nats per token, and how much of "
        "it disappears when one "
        "component of the model is ablated (replaced by its mean over other text) until the loss "
        "of non-members has risen "
        f"by {DAMAGE:g}. The oracle's column shows the effect on any text. A dash: full ablation "
        "does not cost as much.",
        ["", *models],
        [gap, *rows],
    )
