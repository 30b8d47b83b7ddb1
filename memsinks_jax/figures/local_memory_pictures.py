"""Plots and sections of the study of local bounded memory, drawn from the `details` of its runs."""

import pathlib

import numpy as np

from memsinks_jax.editing.boundary import BOUNDS
from memsinks_jax.editing.pictures import draw_map
from memsinks_jax.figures import losses
from memsinks_jax.figures.runs import Run
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.reporting.pictures import plt, save, tidy

_KINDS = {"weak": "weak facts", "strong": "strong facts, made wrong"}
_COLOURS = {"attention": "#1f618d", "mlp": "#c0392b"}
_SHARES = {
    "on_target": ("positive: say the target", "#1f618d", "-"),
    "unchanged": ("negative: unchanged", "#c0392b", "-"),
    "off_target": ("negative: not the target", "#d68910", "--"),
}
_DOTS = {"marker": "o", "markersize": 3}
_CLASSES = {"other_relation": "same subject", "neighbour": "neighbours", "negated": "negated", "unrelated": "unrelated"}


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Where edits succeed, how far they reach, what else they change, how many fit."""
    figure, axes = plt.subplots(2, 3, figsize=(14.5, 7.6), layout="constrained")
    _draw_success(axes[0, 0], runs)
    for axis, kind in zip(axes[0, 1:], _KINDS, strict=True):
        _draw_reach(axis, runs, kind)
    _draw_classes(axes[1, 0], runs)
    _draw_capacity(axes[1, 1], runs)
    _draw_crossfire(axes[1, 2], runs[0])
    for axis in axes.flat[:5]:
        tidy(axis)
        axis.set_ylim(-0.03, 1.03)
    save(figure, path, dpi=140)


def _draw_success(axis, runs: list[Run]) -> None:
    for kind, style in zip(_KINDS, ("--", "-"), strict=True):
        for site, colour in _COLOURS.items():
            rows = [run.details["kinds"][kind][site]["success_by_layer"] for run in runs]
            losses.band(axis, range(len(rows[0])), np.array(rows), f"{kind}, {site}", colour, style, **_DOTS)
    axis.set(title="Where a step succeeds", xlabel="layer of the patch, last token", ylabel="share of edits")
    axis.set_xticks(range(len(rows[0])))
    axis.legend(fontsize=8, loc="lower right", framealpha=0.9)


def _draw_reach(axis, runs: list[Run], kind: str) -> None:
    for name, (label, colour, style) in _SHARES.items():
        rows = [run.details["kinds"][kind]["attention"]["shares"][name] for run in runs]
        losses.band(axis, BOUNDS, np.array(rows), label, colour, style, **_DOTS)
    axis.set(
        title=f"How far it reaches: {_KINDS[kind]}",
        xscale="log",
        xlabel="bound b, attention",
        ylabel="share of prompts",
    )
    axis.legend(frameon=False, fontsize=8, loc="lower right" if kind == "weak" else "center right")


def _draw_classes(axis, runs: list[Run]) -> None:
    groups = [(kind, site) for kind in _KINDS for site in _COLOURS]
    for n, (kind, site) in enumerate(groups):
        means = [[run.metrics[f"{kind}_{site}_unchanged_{name}"] for run in runs] for name in _CLASSES]
        x = np.arange(len(_CLASSES)) + (n - 1.5) * 0.2
        heights = np.array(means)
        low, high = heights.mean(axis=1) - heights.min(axis=1), heights.max(axis=1) - heights.mean(axis=1)
        axis.bar(x, heights.mean(axis=1), 0.19, yerr=[low, high], color=_COLOURS[site],
                 alpha=0.55 if kind == "weak" else 1, label=f"{kind}, {site}", error_kw={"linewidth": 1})  # fmt: skip
    axis.set_xticks(range(len(_CLASSES)), _CLASSES.values())
    axis.set(title="What stays: negative prompts unchanged", ylabel="share of prompts")
    axis.legend(fontsize=8, loc="lower left", framealpha=0.9)


def _draw_capacity(axis, runs: list[Run]) -> None:
    sizes = min((run.details["capacity"]["sizes"] for run in runs), key=len)
    measures = (("efficacy", "says its target", "#1f618d"), ("paraphrase", "paraphrases", "#1e8449"),
                ("unchanged", "negative: unchanged", "#c0392b"))  # fmt: skip
    for rule, style in (("sum", "-"), ("nearest", ":")):
        for name, label, colour in measures:
            rows = [run.details["capacity"][rule][name][: len(sizes)] for run in runs]
            losses.band(axis, sizes, np.array(rows), f"{label}, {rule}", colour, style, **_DOTS)
    axis.set(title="Many memories at one layer (mlp)", xscale="log", xlabel="memories", ylabel="share")
    axis.set_xticks(sizes, sizes)
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, loc="lower left")


def _draw_crossfire(axis, run: Run) -> None:
    image = axis.imshow(np.array(run.details["capacity"]["fires"]), vmin=0, vmax=1, cmap="magma")
    axis.set(title="Which memory fires on which prompt", xlabel="memory", ylabel="edit prompt")
    axis.figure.colorbar(image, ax=axis, label="f")


def draw_examples(run: Run, path: pathlib.Path) -> None:
    """Patch maps of the first edit of each kind at both sites."""
    figure, axes = plt.subplots(2, 2, figsize=(12.5, 6.6), layout="constrained")
    for row, kind in zip(axes, _KINDS, strict=True):
        for axis, site in zip(row, _COLOURS, strict=True):
            example = run.details["kinds"][kind][site]["example"]
            successes = np.array(example["tokens"]) == example["target_token"]
            draw_map(axis, np.array(example["losses"]), successes, example["target"])
            axis.set(title=f"{site}, step {example['step']:.3g}: “{example['prompt']}”", xlabel="token")
            axis.title.set_fontsize(9)
    save(figure, path, dpi=130)


_JUDGED = {
    "says target": "efficacy", "paraphrases": "paraphrase", "not the target": "off_target", "unchanged": "unchanged",
    "divergence": "divergence", "perplexity": "perplexity_ratio",
}  # fmt: skip
_REACHED = {
    "best mean of on target and unchanged": "best_mean",
    "AUC, last token": "auc_last",
    "AUC, nearest": "auc_nearest",
}


def compared(runs: list[Run]) -> list[str]:
    """Tables of other distances and other ways to edit."""
    sections = [report.heading("Other ways to edit, attention")]
    for kind, label in _KINDS.items():
        ours = {
            "memory": [
                {name: run.metrics.get(f"{kind}_attention_{name}", np.nan) for name in _JUDGED.values()} for run in runs
            ]
        }
        sections += [report.paragraph(label), _table(ours | _by_row(runs, kind, "baselines"), _JUDGED)]
    sections += [
        report.paragraph(
            "Random value: as large as the memory's, same key and bound. No bound: the value is added everywhere. "
            "Fine-tuning step: one step of gradient descent on the prompt, with the smallest sufficient rate. Logit bias: "
            "as much on the target as its prompt needs. Divergence: of the predictions after negative prompts, in nats.",
            "note",
        ),
        report.heading("Other distances, attention"),
    ]  # fmt: skip
    for kind, label in _KINDS.items():
        sections += [report.paragraph(label), _table(_by_row(runs, kind, "distances"), _REACHED)]
    return [
        *sections,
        report.paragraph("AUC: how well the distance separates positive from negative prompts, for any bound.", "note"),
    ]


def _by_row(runs: list[Run], kind: str, name: str) -> dict[str, list[dict[str, float]]]:
    tables = [run.details["kinds"][kind][name] for run in runs]
    return {row: [table[row] for table in tables if row in table] for row in tables[0]}


def _table(rows: dict[str, list[dict[str, float]]], columns: dict[str, str]) -> str:
    cells = [
        [report.text(row)] + [with_interval([o[name] for o in outcomes if name in o]) for name in columns.values()]
        for row, outcomes in rows.items()
    ]
    return report.table(["", *columns], cells, ["", *["number"] * len(columns)])
