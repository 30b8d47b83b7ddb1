"""E7: the width: the trained head against the formulas of the theory at the same width."""

import dataclasses

from memsinks_jax.labs.induction_head import construction
from memsinks_jax.labs.induction_head.model import TwoLayers
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import COLOURS, at_end, bars, curve, minus, records
from memsinks_jax.labs.study import BLUE, GREY, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Width: training against the formulas"


def _widths(preset: Preset) -> tuple[int, ...]:
    return (32, 64, 128, 256) if preset.small else (32, 64, 128, 256, 512)


def recipes(preset: Preset):
    base = preset.alone()
    # Gradients grow with the width: without clipping, narrow models need a larger rate, wide ones a smaller.
    return {f"d={d}": dataclasses.replace(base, model=TwoLayers(d)) for d in _widths(preset)}


def study(preset: Preset, runs) -> Study:
    ends = {label: at_end(several, "acc_clean") for label, several in runs.items()}
    built = {}
    for d in _widths(preset):
        built[f"d={d}"] = [
            construction.evaluate(preset.statistics, runs[f"d={d}"][0].recipe.law, TwoLayers(d, unit=True), seed)
            .rates["acc_clean"]
            for seed in preset.seeds
        ]  # fmt: skip
    claims = [
        Claim(f"beats-formulas: {label}", f"clean accuracy, trained minus constructed, {label}",
              "any matrix can store more than a sum of products",
              minus(ends[label], built[label]), at_least=0.0)
        for label in runs if int(label[2:]) <= 128
    ]  # fmt: skip
    labels = list(runs)
    for one, other in zip(labels, labels[1:], strict=False):
        claims.append(
            Claim(f"wider: {other}", f"clean accuracy, {other} minus {one}", "wider is better, until it is learned",
                  minus(ends[other], ends[one]), at_least=-0.02)
        )  # fmt: skip
    return Study(
        "E7", TITLE,
        "Clean accuracy, trained (constructed): "
        + ", ".join(f"{label} {with_interval(ends[label], 2)} ({with_interval(built[label], 2)})" for label in runs) + ".",
        f"K = {preset.k} fixed triggers, sequences of {runs[labels[0]][0].recipe.law.length} tokens. Trained from PyTorch's "
        "scales, constructed at variance 1/d.",
        records(runs), claims, lambda path: _draw(runs, ends, built, path),
    )  # fmt: skip


def _draw(runs, ends, built, path) -> None:
    figure, axes = panels(2)
    for (label, several), colour in zip(runs.items(), COLOURS, strict=False):
        curve(axes[0], several, "acc_clean", label.replace("d=", "width "), colour)
    finish(axes[0], "In-context accuracy while training", "step", "clean accuracy", 3, ylim=(0, 1.02))
    groups = {"trained": list(ends.values()), "constructed": list(built.values())}
    bars(axes[1], [label.replace("d=", "width ") for label in runs], groups, (BLUE, GREY))
    finish(axes[1], "At the end", "", "clean accuracy", 2, ylim=(0, 1.02))
    save(figure, path)
