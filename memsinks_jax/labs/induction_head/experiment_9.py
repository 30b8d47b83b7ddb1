"""E9: the ordinary transformer learns the same circuit: its attention maps (the study's figure 2)."""

import jax
import numpy as np

from memsinks_jax.labs.induction_head.law import sampler
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import at_end, curve, records
from memsinks_jax.labs.induction_head.training import purpose
from memsinks_jax.labs.study import BLUE, GREEN, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Attention maps of an ordinary two-layer transformer"
SHOWN = 40  # tokens of the sequence in the picture


def recipes(preset: Preset):
    return {"two layers, one head": preset.full(layers=2, heads=1)}


def study(preset: Preset, runs) -> Study:
    (several,) = runs.values()
    clean, first, second = (at_end(several, name) for name in ("acc_clean", "score_acc", "score2_next_acc"))
    claims = [
        Claim("accuracy", "clean in-context accuracy", "about 0.99", clean, at_least=0.9),
        Claim("previous-token", "layer 1, after a trigger, looks most at it", "previous-token head", first, at_least=0.5),
        Claim("induction", "layer 2, at a trigger seen before, looks most at its output", "induction head", second,
              at_least=0.7),
    ]  # fmt: skip
    return Study(
        "E9", TITLE,
        f"Clean in-context accuracy {with_interval(clean, 2)}. One place after a trigger the first layer looks most at the "
        f"trigger in {with_interval(first, 2)} of cases; at a trigger seen before the second looks most at the token to "
        f"be said in {with_interval(second, 2)}.",
        f"K = {preset.k} random triggers, uniform outputs, loss on all tokens, AdamW, norms and feed-forward layers. The "
        "map is one sequence; circles mark the outputs of a trigger seen before, at the row of the trigger.",
        records(runs), claims, lambda path: _draw(preset, several, path),
    )  # fmt: skip


def _draw(preset: Preset, several, path) -> None:
    run = several[0]
    batch = jax.device_get(sampler(preset.statistics, run.recipe.law)(purpose(run.seed, 3), 64))
    # The most informative sequence: many predictable outputs among its first tokens, and not in a cycle.
    shown = min(SHOWN, run.recipe.law.length)
    scores = (batch.seen_BT[:, :shown] >= 2).sum(1) - 1000 * batch.cyclic_B
    row = int(np.argsort(scores)[-8])
    tokens = batch.tokens_BS[row : row + 1, :-1]
    trace = jax.device_get(run.recipe.model.forward(run.weights, tokens))
    names = [repr(preset.statistics.characters[v])[1:-1].replace(" ", "␣") for v in tokens[0, :shown]]
    figure, axes = panels(3)
    seen = batch.seen_BT[row, :shown]
    for layer, axis in enumerate(axes[:2]):
        axis.imshow(trace.attentions[layer][0, 0, :shown, :shown], cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(shown), names, fontsize=6, family="monospace")
        axis.set_yticks(range(shown), names, fontsize=6, family="monospace")
        axis.set(title=f"Layer {layer + 1}: from row to column", xlabel="attended to", ylabel="at")
    for t in np.flatnonzero(seen >= 2):
        earlier = [s + 1 for s in range(t - 1) if tokens[0, s] == tokens[0, t] and s + 1 < t]
        axes[1].plot(
            earlier, [t] * len(earlier), "o", markersize=5, markerfacecolor="none", color=RED, markeredgewidth=0.8
        )
    curve(axes[2], several, "acc_clean", "clean accuracy", BLUE)
    curve(axes[2], several, "score_acc", "layer 1 looks one back", GREEN)
    curve(axes[2], several, "score2_next_acc", "layer 2 looks at the output", RED)
    finish(axes[2], "While training", "step", "share", 2, ylim=(0, 1.02))
    save(figure, path)
