"""Plots and sections of the study of local bounded memory, drawn from the `details` of its runs."""

import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from memsinks_jax.editing.boundary import BOUNDS
from memsinks_jax.editing.pictures import draw_map
from memsinks_jax.reporting import report
from memsinks_jax.reporting.pictures import plt, save
from memsinks_jax.studies.figures import sections as shared
from memsinks_jax.studies.figures.panels import AnyPanel, Categories, Line, Panel
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Table

_KINDS = {"weak": "weak facts", "strong": "strong facts, made wrong"}
_COLOURS = {"attention": "#1f618d", "mlp": "#c0392b"}
_OF_KINDS = {"weak": {"attention": "#7fb3d5", "mlp": "#e6a9a1"}, "strong": _COLOURS}
_SHARES = {
    "on_target": ("positive: predict the target", "#1f618d", ".-"),
    "unchanged": ("negative: unchanged", "#c0392b", ".-"),
    "off_target": ("negative: not the target", "#d68910", ".--"),
}
_CLASSES = {
    "other_relation": "same subject",
    "neighbour": "neighbours",
    "negated": "negated",
    "unrelated": "unrelated",
}


def panels(table: Table) -> list[AnyPanel]:
    """Where edits succeed, how far they reach, what else they change, how many fit."""
    runs = list(table.groups["standard"].values())
    sizes = min((run.details["capacity"]["sizes"] for run in runs), key=len, default=())
    shares, left = {"ylim": (-0.03, 1.03)}, {"loc": "lower left"}

    def succeeds(run: Run, kind: str, site: str) -> tuple[Sequence[float], Sequence[float]]:
        of_layers = run.details["kinds"][kind][site]["success_by_layer"]
        return range(len(of_layers)), of_layers

    def reaches(run: Run, kind: str, name: str) -> tuple[Sequence[float], Sequence[float]]:
        return BOUNDS, run.details["kinds"][kind]["attention"]["shares"][name]

    def fits(run: Run, rule: str, name: str) -> tuple[Sequence[float], Sequence[float]]:
        return sizes, run.details["capacity"][rule][name][: len(sizes)]

    def line(shown: Callable, of: Sequence[str], *style: str) -> Line:
        return Line("standard", lambda run: shown(run, *of), *style)

    def reach(kind: str) -> Panel:
        return Panel(
            title=f"How far it reaches: {_KINDS[kind]}",
            x="bound b, attention",
            y="share of prompts",
            log=True,
            lines=[line(reaches, (kind, name), *style) for name, style in _SHARES.items()],
            settings=shares,
            legend={"loc": "lower right" if kind == "weak" else "center right"},
        )

    layers = [
        line(succeeds, (kind, site), f"{kind}, {site}", colour, style)
        for kind, style in (("weak", ".--"), ("strong", ".-"))
        for site, colour in _COLOURS.items()
    ]
    measures = (
        ("efficacy", "predicts its target", "#1f618d"),
        ("paraphrase", "paraphrases", "#1e8449"),
        ("unchanged", "negative: unchanged", "#c0392b"),
    )
    together = [
        line(fits, (rule, name), f"{label}, {rule}", colour, style)
        for rule, style in (("sum", ".-"), ("nearest", ".:"))
        for name, label, colour in measures
    ]
    unchanged = {}
    for kind, colours in _OF_KINDS.items():
        for site, colour in colours.items():
            columns = [table.column(f"unchanged_{name}", f"{kind}_{site}") for name in _CLASSES]
            unchanged[f"{kind}, {site}"] = colour, columns
    return [
        Panel(
            title="Where a step succeeds",
            x="layer of the patch, last token",
            y="share of edits",
            settings=shares,
            lines=layers,
            legend={"loc": "lower right"},
        ),
        *map(reach, _KINDS),
        Categories(
            title="What stays: negative prompts unchanged",
            names=list(_CLASSES.values()),
            series=unchanged,
            y="share of prompts",
            settings=shares,
            legend=left,
        ),
        Panel(
            title="Many memories at one layer (mlp)",
            x="memories",
            y="share",
            log=True,
            ticks={size: str(size) for size in sizes},
            settings=shares,
            legend=left,
            lines=together,
        ),
        lambda axis: _draw_crossfire(axis, runs[0]),
    ]


def _draw_crossfire(axis, run: Run) -> None:
    image = axis.imshow(np.array(run.details["capacity"]["fires"]), vmin=0, vmax=1, cmap="magma")
    axis.set(title="Which memory fires on which prompt", xlabel="memory", ylabel="edit prompt")
    axis.figure.colorbar(image, ax=axis, label="share of the memory added (f)")


def draw_examples(run: Run, path: pathlib.Path) -> None:
    """Patch maps of the first edit of each kind at both sites."""
    figure, axes = plt.subplots(2, 2, figsize=(12.5, 6.6), layout="constrained")
    for row, kind in zip(axes, _KINDS, strict=True):
        for axis, site in zip(row, _COLOURS, strict=True):
            example = run.details["kinds"][kind][site]["example"]
            successes = np.array(example["tokens"]) == example["target_token"]
            draw_map(axis, np.array(example["losses"]), successes, example["target"])
            title = f"{site}, step {example['step']:.3g}: “{example['prompt']}”"
            axis.set(title=title, xlabel="token")
            axis.title.set_fontsize(9)
    save(figure, path, dpi=130)


_METHODS = {
    "predicts target": "efficacy",
    "paraphrases": "paraphrase",
    "not the target": "off_target",
    "unchanged": "unchanged",
    "divergence": "divergence",
    "perplexity": "perplexity_ratio",
}
_REACHED = {
    "best mean of on target and unchanged": "best_mean",
    "AUC, last token": "auc_last",
    "AUC, nearest": "auc_nearest",
}


def compared(runs: list[Run]) -> list[str]:
    """Tables of other distances and other ways to edit."""

    def tables(name: str, columns: dict[str, str], more: Callable) -> Iterator[str]:
        for kind, label in _KINDS.items():
            found = [more(kind, run) | run.details["kinds"][kind][name] for run in runs]
            rows = {}
            for row in found[0]:
                of_row = [of.get(row, {}) for of in found]
                rows[row] = [[of[x] for of in of_row if x in of] for x in columns.values()]
            yield from (report.paragraph(label), shared.with_intervals(list(columns), rows))

    def ours(kind: str, run: Run) -> dict:
        values = {of: run.metrics.get(f"{kind}_attention_{of}", np.nan) for of in _METHODS.values()}
        return {"memory": values}

    return [
        report.heading("Other ways to edit, attention"),
        *tables("baselines", _METHODS, ours),
        shared.note("""Random value: as large as the memory's, same key and bound. No bound: the
            value is added everywhere. Fine-tuning step: one step of gradient descent on the prompt,
            with the smallest sufficient rate. Logit bias: as much on the target as its prompt
            needs. Divergence: of the predictions after negative prompts, in nats."""),
        report.heading("Other distances, attention"),
        *tables("distances", _REACHED, lambda kind, run: {}),
        shared.note(
            "AUC: how well the distance separates positive from negative prompts, for any bound."
        ),
    ]
