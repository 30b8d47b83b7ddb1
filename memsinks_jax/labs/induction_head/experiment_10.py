"""E10: one layer is not enough (section 3)."""

from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import at_end, curve, minus, records
from memsinks_jax.labs.study import BLUE, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "One layer against two"


def recipes(preset: Preset):
    return {"one layer": preset.full(layers=1), "two layers": preset.full(layers=2)}


def study(preset: Preset, runs) -> Study:
    one, two = (at_end(runs[label], "acc_end") for label in runs)
    claims = [
        Claim("two-layers", "in-context accuracy of two layers", "about 0.99", two, at_least=0.9),
        Claim("one-layer", "in-context accuracy of one layer", "below 0.55", one, at_most=0.55),
        Claim("gap", "in-context accuracy, two layers minus one", "about 0.45",
              minus(two, one), at_least=0.3),
    ]  # fmt: skip
    return Study(
        "E10", TITLE,
        f"In-context accuracy {with_interval(one, 2)} with one layer, {with_interval(two, 2)} with two.",
        f"Ordinary transformer, {runs['two layers'][0].recipe.model.heads} heads, K = {preset.k} random triggers, uniform "
        "outputs, loss on all tokens, AdamW.",
        records(runs), claims, lambda path: _draw(runs, path),
    )  # fmt: skip


def _draw(runs, path) -> None:
    figure, axes = panels(3)
    for (label, several), colour in zip(runs.items(), (RED, BLUE), strict=True):
        curve(axes[0], several, "acc_end", f"{label}, all", colour)
        curve(axes[0], several, "acc_clean", f"{label}, clean", colour, "--")
        curve(axes[1], several, "loss_head", label, colour)
        curve(axes[2], several, "loss_bigram", label, colour)
    finish(axes[0], "In-context accuracy", "step", "share", 2, ylim=(0, 1.02))
    finish(axes[1], "In-context loss", "step", "nats", 2, ylim=(0, None))
    finish(axes[2], "Global loss", "step", "nats", 2, ylim=(2, 3.6))
    save(figure, path)
