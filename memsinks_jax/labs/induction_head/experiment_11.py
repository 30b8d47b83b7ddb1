"""E11: what the result does not depend on: positions, score scaling, optimizer, feed-forward layer, frozen matrices."""

import dataclasses

import numpy as np

from memsinks_jax.labs.induction_head.model import TwoLayers
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import COLOURS, at_end, curve, records
from memsinks_jax.labs.study import BLUE, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Variants of the model"


def recipes(preset: Preset):
    alone, world, d = preset.alone(), preset.world(), preset.width
    adamw = {"optimizer": "adamw", "learning_rate": 0.002 if preset.small else 0.001}
    return {
        "as in E1": alone,
        "sinusoid positions": dataclasses.replace(alone, model=TwoLayers(d, positions="sinusoid")),
        "rotary positions": dataclasses.replace(alone, model=TwoLayers(d, positions="rotary")),
        "scores not divided": dataclasses.replace(alone, model=TwoLayers(d, divide=False)),
        "AdamW": dataclasses.replace(alone, **adamw),
        "all tokens, linear W_F": world,
        "all tokens, MLP": dataclasses.replace(world, model=TwoLayers(d, feed_forward="mlp")),
        "full, no norm": _scaled(preset.full(norm=False)),
        "full, no feed-forward": preset.full(feed_forward=False),
        "full, W_V and W_O frozen": preset.full(frozen=("value", "output")),
    }  # fmt: skip


def _scaled(recipe):
    """Without norms, activations are of size sqrt d, so steps must be smaller."""
    return dataclasses.replace(recipe, learning_rate=recipe.learning_rate / 3)


def study(preset: Preset, runs) -> Study:
    ends = {label: at_end(several, "acc_clean") for label, several in runs.items()}
    claims = [
        Claim(f"learned: {label}", f"clean in-context accuracy, {label}", "learned", values, at_least=0.8)
        for label, values in ends.items()
    ]
    return Study(
        "E11", TITLE,
        "Clean in-context accuracy at the end: " + ", ".join(f"{k} {with_interval(v, 2)}" for k, v in ends.items()) + ".",
        f"K = {preset.k}; fixed triggers for the model of E1, random ones for the full transformer. Each variant has the "
        "steps and the rate of its family, not its own best.",
        records(runs), claims, lambda path: _draw(runs, ends, path),
    )  # fmt: skip


def _draw(runs, ends, path) -> None:
    figure, axes = panels(3)
    families = [label for label in runs if not label.startswith("full")], [r for r in runs if r.startswith("full")]
    for axis, labels, title in zip(axes, families, ("Two-layer model", "Full transformer"), strict=False):
        for label, colour in zip(labels, COLOURS, strict=False):
            curve(axis, runs[label], "acc_clean", label, colour)
        finish(axis, title, "step", "clean accuracy", 2, ylim=(0, 1.02))
    places = np.arange(len(ends))[::-1]
    axes[2].barh(places, [np.mean(values) for values in ends.values()], color=BLUE, alpha=0.75)
    for place, values in zip(places, ends.values(), strict=True):
        axes[2].plot(values, [place] * len(values), ".", color="black", markersize=4)
    axes[2].set_yticks(places, list(ends))
    finish(axes[2], "At the end", "clean accuracy", "", xlim=(0, 1.02))
    save(figure, path)
