"""The receipt of a removal: which neurons were removed and what was lost, as numbers, a picture and
a page.
"""

import functools
import json
import os
import pathlib
from collections.abc import Callable

import numpy as np

from memsinks_jax.config import Config, InputError
from memsinks_jax.data import ids
from memsinks_jax.data.documents import in_words
from memsinks_jax.forgetting import neurons
from memsinks_jax.forgetting.neurons import Losses
from memsinks_jax.forgetting.request import Found
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.models.trained import Trained
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.sinks.kinds import partition

MODES = ("own", "all")  # with sinks by context both are one


def _modes(config: Config) -> tuple[str, ...]:
    return MODES[:1] if config.sinks.traits.by_context else MODES


_MODE_LABELS = {"own": "each document's own sinks on", "all": "all sinks on"}
SETS = {
    "target": "the documents",
    "related": "never read, same id",
    "others": "other documents",
    "held_out": "held-out text",
}

PLACEBOS = {"others": "other documents", "never_met": "ids that nobody has"}


def removed_neurons(config: Config, removed_LF: np.ndarray) -> dict:
    """{"mlp": {"sinks": over all layers, "removed": of them, "by_layer": [[neuron]]}}"""
    return {
        "mlp": {
            "sinks": partition(config.model, config.sinks).sinks * config.model.layers,
            "removed": int(removed_LF.sum()),
            "by_layer": [np.flatnonzero(of_layer).tolist() for of_layer in removed_LF],
        }
    }


def measure(
    run: Trained,
    after: dict,
    asked: Found,
    placebos: dict[str, list[np.ndarray]],
    without: Callable[[dict, np.ndarray], dict] | None = None,
) -> dict:
    """The effect of the removal, in nats per token: {"documents", "losses",
    "target_all_sinks_dropped", "selectivity", "placebo"}.

    Args:
      after: the parameters without the sinks; `run` has the original ones.
      placebos: {name of PLACEBOS: [what to remove instead]}, neurons as from neurons.neurons_of.
      without: (parameters, what to remove) -> parameters; by default neurons.without.
    """
    without = without or functools.partial(neurons.without, run.config)
    loss, target, modes = DocumentLoss(run.config), asked.sets["target"], _modes(run.config)
    found = {
        name: neurons.losses(loss, run, after, documents, modes)
        for name, documents in asked.sets.items()
    }
    nats, tokens = loss(run.params, target.batches(run), "drop")
    own = found["target"]["own"]
    documents = [
        {
            "source": name,
            "id": ids.to_hex(identity),
            "tokens": int(count),
            "before": float(before / count),
            "after": float(now / count),
        }
        for name, identity, count, before, now in zip(
            asked.places, target.identities, own.tokens, own.before, own.after, strict=True
        )
    ]
    measured = {
        name: {mode: losses.to_dict() for mode, losses in of.items()} for name, of in found.items()
    }
    selective = {}
    if "others" in found:
        for mode in modes:
            pair = found["target"][mode], found["others"][mode]
            value, bounds = (
                neurons.selectivity(*pair),
                neurons.bootstrap(neurons.selectivity, *pair),
            )
            selective[mode] = {
                "value": _finite(value),
                "ci95": bounds and [_finite(bound) for bound in bounds],
            }
    dropped = float(nats.sum() / tokens.sum())
    beyond = {
        name: _beyond(loss, run, target, each, found["target"], without)
        for name, each in placebos.items()
        if each
    }
    return {
        "documents": documents,
        "losses": measured,
        "target_all_sinks_dropped": dropped,
        "selectivity": selective,
        "placebo": beyond,
    }


def _beyond(
    loss: DocumentLoss,
    run: Trained,
    target: Documents,
    placebos: list[np.ndarray],
    right: dict[str, Losses],
    without: Callable[[dict, np.ndarray], dict],
) -> dict:
    """{"removals": number of placebos, mode: {"placebo_rise": their mean, "effect": the rise beyond
    it, "effect_ci95": over documents}}, in nats per token of the removed documents.
    """
    batches, found = target.batches(run), {"removals": len(placebos)}
    after = {mode: [] for mode in right}
    for removed in placebos:  # one at a time, because each is a copy of the sinks
        params = without(run.params, removed)
        for mode in right:
            after[mode].append(loss(params, batches, mode)[0])
    for mode in right:
        nats = np.mean(after[mode], axis=0)
        effect = Losses(nats, right[mode].after, right[mode].tokens).to_dict()
        rise = Losses(right[mode].before, nats, right[mode].tokens).rise
        found[mode] = {
            "placebo_rise": rise,
            "effect": effect["rise"],
            "effect_ci95": effect["rise_ci95"],
        }
    return found


def _measured(receipt: dict) -> list[str]:
    """The modes in which losses were measured."""
    return list(receipt["losses"]["target"])


def _noun(receipt: dict) -> str:
    return next(noun for noun in ("document", "text") if f"removed_{noun}s" in receipt)


def _worded(receipt: dict, text: str) -> str:
    """A text about documents, with the word for what was removed."""
    return text.replace("document", _noun(receipt))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON knows no infinity


def loss_table(receipt: dict) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of text: the losses of every set of documents before and after."""
    rows = []
    for name, of_set in receipt["losses"].items():
        for mode, found in of_set.items():
            labels = [_worded(receipt, text) for text in (SETS[name], _MODE_LABELS[mode])]
            rows.append(
                [
                    *labels,
                    f"{found['documents']}",
                    f"{found['before']:.3f}",
                    f"{found['after']:.3f}",
                    f"{found['rise']:+.3f}",
                    _between(found["rise_ci95"]),
                ]
            )
    columns = ["loss, nats per token", "", "documents" if _noun(receipt) == "document" else "texts"]
    return [*columns, "before", "after", "rise", "95% interval"], rows


def _between(bounds: list[float] | None) -> str:
    return f"{bounds[0]:+.3f} to {bounds[1]:+.3f}" if bounds else "–"


def selectivity_text(receipt: dict) -> str:
    """The selectivity in one sentence."""
    if not receipt["selectivity"]:
        return _worded(
            receipt,
            "Selectivity is not known: there are no other documents to compare with; give "
            "--others.",
        )
    parts = []
    for mode, found in receipt["selectivity"].items():
        value = (
            "infinite (the others' loss does not rise)"
            if found["value"] is None
            else f"{found['value']:.1f}"
        )
        low, high = found["ci95"] or (None, None)
        if low is not None:
            value += f" ({low:.1f} to {'infinity' if high is None else f'{high:.1f}'})"
        parts.append(f"{value} with {_MODE_LABELS[mode]}")
    text = (
        "Selectivity, the rise of the documents' loss divided by that of the others: "
        f"{'; '.join(parts)}."
    )
    return _worded(receipt, text)


def placebo_table(receipt: dict) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of text: the effect of the removal on the documents beyond each placebo."""
    rows = []
    for name, of in receipt["placebo"].items():
        for mode in _measured(receipt):
            labels = [_worded(receipt, text) for text in (PLACEBOS[name], _MODE_LABELS[mode])]
            rows.append(
                [
                    *labels,
                    f"{of['removals']}",
                    f"{of[mode]['placebo_rise']:+.3f}",
                    f"{of[mode]['effect']:+.3f}",
                    _between(of[mode]["effect_ci95"]),
                ]
            )
    return ["removed instead (same number)", "", "removals", "rise", "effect", "95% interval"], rows


def removed_text(receipt: dict) -> str:
    """The number of removed sinks in one sentence."""
    parts = [
        f"{of['removed']} of {of['sinks']} sinks of the {site}"
        for site, of in receipt["removed"].items()
    ]
    noun = _noun(receipt)
    text = (
        f"Removed for {in_words(receipt[f'removed_{noun}s'], noun)}: {' and '.join(parts)}, over "
        "all layers."
    )
    if "contexts" in receipt["removed"]:
        text = text.replace("sinks of the contexts, over all layers", "contexts")
    return text


def draw(receipt: dict, path: pathlib.Path) -> None:
    """Draws losses before and after: one bar per set of documents, one panel per mode of MODES."""
    modes, names = _measured(receipt), list(receipt["losses"])
    figure, axes = plt.subplots(
        1,
        len(modes),
        figsize=(5.5 * len(modes), 3.6),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    (axes,) = axes
    for axis, mode in zip(axes, modes, strict=True):
        for shift, when, colour in ((-0.2, "before", "#7f8c8d"), (0.2, "after", "#c0392b")):
            heights = [receipt["losses"][name][mode][when] for name in names]
            bars = axis.bar(np.arange(len(names)) + shift, heights, 0.38, label=when, color=colour)
            axis.bar_label(bars, fmt="%.2f", fontsize=8.5)
        if mode == "own":
            dropped = receipt["target_all_sinks_dropped"]
            axis.hlines(
                dropped, -0.45, 0.45, color="black", linestyle="--", label="all sinks dropped"
            )
        labels = [_worded(receipt, SETS[name]) for name in names]
        axis.set(
            title=_worded(receipt, _MODE_LABELS[mode]), xticks=range(len(names)), xticklabels=labels
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss (nats per token)")
    axes[0].legend(frameon=False, fontsize=8.5)
    save(figure, path)


def read_evidence(folder: pathlib.Path) -> dict:
    """Test results of such removals, {"folder", "command", "claims"}, from a folder that
    `reproduce` wrote.

    Raises:
      InputError: it is not such a folder, or no claim of the figure is decided.
    """
    path = folder / "results.json"
    try:
        content = json.loads(path.read_text())
        found = {"folder": str(folder), "command": content["command"], "claims": content["claims"]}
        claims = [Claim.from_dict(claim) for claim in found["claims"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--evidence: {path} is no result of memsinks_jax.reproduce "
            f"({type(error).__name__}); make one with "
            f"--figure=removal --out={folder}"
        ) from None
    if all(claim.holds is None for claim in claims):
        raise InputError(
            f"--evidence: {path} has no claim that is decided; reproduce the figure with all of "
            "its variants"
        )
    return found


def _evidence(receipt: dict, place: pathlib.Path) -> list[str]:
    if "evidence" not in receipt:
        return []
    of = receipt["evidence"]
    page = pathlib.Path(
        os.path.relpath(pathlib.Path(of["folder"]).absolute() / "index.html", place.absolute())
    )
    return [
        report.heading("How such removals were tested"),
        *report.claims_section([Claim.from_dict(claim) for claim in of["claims"]]),
        report.link(page.as_posix(), "the whole test"),
        report.code(of["command"]),
    ]


def page(receipt: dict, picture: pathlib.Path, place: pathlib.Path) -> list[str]:
    """Sections of the receipt's page, which will lie in the folder `place`."""
    columns, rows = loss_table(receipt)
    placebo_columns, placebo_rows = placebo_table(receipt)
    by_layer = [
        [report.text(site), str(layer), report.text(" ".join(map(str, of_layer)))]
        for site, of in receipt["removed"].items()
        for layer, of_layer in enumerate(of.get("by_layer", ()))
    ]
    title = (
        f"The sinks of {receipt['deleted']}"
        if "deleted" in receipt
        else "Neurons whose weights are zero"
    )
    neurons_section = [
        report.heading(title),
        report.table(["site", "layer", "neurons"], by_layer, ["", "number", "note"]),
    ]
    shown = {"source": "from"} | {name: name for name in ("id", "tokens", "before", "after")}
    documents = [
        [
            report.text(f"{one[name]:.3f}" if name in ("before", "after") else str(one[name]))
            for name in shown
        ]
        for one in receipt["documents"]
    ]
    return [
        report.paragraph(f"{removed_text(receipt)} {selectivity_text(receipt)}", "lead"),
        report.picture(picture, "Bars of the loss before and after, for every set of documents."),
        report.table(
            columns, [list(map(report.text, row)) for row in rows], ["", "note", *["number"] * 5]
        ),
        report.paragraph(
            _worded(
                receipt,
                "Intervals are over documents. With every sink dropped, the loss of the removed "
                "documents is "
                f"{receipt['target_all_sinks_dropped']:.3f}. With their own sinks on, the "
                "loss after "
                "removal is the same if none of these sinks is left.",
            ),
            "note",
        ),
        report.heading("Placebo"),
        report.table(
            placebo_columns,
            [list(map(report.text, row)) for row in placebo_rows],
            ["", "note", *["number"] * 4],
        ),
        report.paragraph(
            _worded(
                receipt,
                "The same removal with other ids: the rise of the documents' loss, nats per "
                "token. The effect "
                "is the additional rise with the right ids. docs/removal.md explains what is "
                "left after it.",
            ),
            "note",
        ),
        *_evidence(receipt, place),
        report.heading(f"{_noun(receipt).capitalize()}s, their own sinks on"),
        report.table([*shown.values()], documents, ["", "note", *["number"] * (len(shown) - 2)]),
        *(neurons_section if by_layer else ()),
    ]


def write(folder: pathlib.Path, workdir: pathlib.Path, out: pathlib.Path, receipt: dict) -> None:
    """Writes the receipt, its picture and its page into a folder, which will be moved to `out`."""
    report.write_json(folder / "receipt.json", receipt)
    picture = folder / "receipt.png"
    draw(receipt, picture)
    report.write_page(
        folder / "index.html",
        f"Removed from {workdir.absolute().name}",
        page(receipt, picture, out),
    )
