"""Beyond the paper: sinks in this setting. Does dropping them remove memorized sequences and keep the induction head?"""

import dataclasses

import numpy as np

from memsinks_jax.labs.induction_head.law import Law
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.sinks import World
from memsinks_jax.labs.induction_head.study import bars, minus, record
from memsinks_jax.labs.study import BLUE, GREY, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Sinks beside an induction head"
POOL = 32  # sequences that return; half of every batch is drawn from them
ORDINARY, SINKS = "no sinks", "sinks"


def recipes(preset: Preset):
    law = Law(k=preset.k, length=64 if preset.small else 256)
    hidden = 4 * preset.width
    steps = preset.steps or (1000 if preset.small else 3000)
    batch = min(preset.batch or 32, 2 * POOL)
    sinks = World(law, preset.width, hidden // 4, hidden - hidden // 4, 0.3, POOL, batch, steps)
    return {ORDINARY: dataclasses.replace(sinks, shared=hidden, sinks=0), SINKS: sinks}


def study(preset: Preset, runs) -> Study:
    world = recipes(preset)[SINKS]
    ends = {label: [_end(curves) for curves in several] for label, several in runs.items()}

    def values(label, of):
        return [of(end) for end in ends[label]]

    heart = values(ORDINARY, lambda end: end["by heart own"])
    own, left = (values(SINKS, lambda end, mode=mode: end[f"by heart {mode}"]) for mode in ("own", "dropped"))
    removed = [1 - b / a for a, b in zip(own, left, strict=True)]
    before, after = (
        values(ORDINARY, lambda end: end["accuracy own"]),
        values(SINKS, lambda end: end["accuracy dropped"]),
    )
    cost = values(SINKS, lambda end: end["global dropped"])
    plain = values(ORDINARY, lambda end: end["global own"])
    claims = [
        Claim("memorizes", "advantage of the ordinary model on the pool over fresh sequences, nats",
              "repeated sequences are memorized", heart, at_least=0.1),
        Claim("removed", "share of this advantage that dropping removes, in the model with sinks",
              "what repeats goes to the sinks", removed, at_least=0.5),
        Claim("left", "advantage left after dropping, over the ordinary model's", "little is left",
              [b / a for a, b in zip(heart, left, strict=True)], at_most=0.5),
        Claim("head-stays", "clean in-context accuracy of fresh sequences: sinks dropped minus the ordinary model",
              "in-context ability stays in the shared part", minus(after, before),
              at_least=-0.05),
        Claim("bigrams-stay", "global loss of fresh sequences: sinks dropped minus the ordinary model, nats",
              "general knowledge stays in the shared part", minus(cost, plain),
              at_most=0.1),
    ]  # fmt: skip
    return Study(
        "sinks", TITLE,
        f"The ordinary model knows the pool by heart to {with_interval(heart, 2)} nats a token; with sinks it is "
        f"{with_interval(own, 2)} with a sequence's own sinks and {with_interval(left, 2)} with all dropped. In-context "
        f"accuracy of fresh sequences: {with_interval(before, 2)} without sinks in the model, {with_interval(after, 2)} "
        "with them dropped.",
        f"Two-layer model with an MLP of {world.shared} shared neurons and {world.sinks} sinks, {world.active:.0%} of the "
        f"sinks on for a sequence; {POOL} sequences return in half of every batch of {world.batch}. AdamW, loss on all "
        "tokens. By heart: global loss of fresh sequences minus that of the pool. Attention and W_O^2 have no sinks.",
        [record(label, seed, end, _curves(curves)) for label in runs
         for seed, end, curves in zip(preset.seeds, ends[label], runs[label], strict=True)],
        claims, lambda path: _draw(runs, ends, path),
    )  # fmt: skip


def _end(curves) -> dict[str, float]:
    """Means over the last three points."""
    last = {name: float(np.mean(values[-3:])) for name, values in curves.items()}
    found = {}
    for mode in ("own", "dropped"):
        found[f"accuracy {mode}"] = last[f"fresh {mode} acc_clean"]
        found[f"global {mode}"] = last[f"fresh {mode} loss_bigram"]
        found[f"by heart {mode}"] = last[f"fresh {mode} loss_bigram"] - last[f"pool {mode} loss_bigram"]
    return found


def _curves(curves) -> dict:
    kept = [f"{who} {mode} {what}" for who in ("fresh", "pool") for mode in ("own", "dropped")
            for what in ("acc_clean", "loss_bigram")]  # fmt: skip
    steps = curves["step"].astype(int).tolist()
    return {name: {"step": steps, "value": curves[name].round(5).tolist()} for name in kept}


def _draw(runs, ends, path) -> None:
    figure, axes = panels(4)

    def line(axis, label, of, name, colour, style="-"):
        values_GX = np.array([of(curves) for curves in runs[label]])
        steps = runs[label][0]["step"]
        axis.plot(steps, values_GX.mean(0), style, color=colour, label=name, linewidth=1.7)
        axis.fill_between(steps, values_GX.min(0), values_GX.max(0), color=colour, alpha=0.15, linewidth=0)

    for label, mode, name, colour, style in (
        (ORDINARY, "own", "no sinks in the model", GREY, "-"),
        (SINKS, "own", "own sinks on", RED, "-"),
        (SINKS, "dropped", "sinks dropped", BLUE, "-"),
    ):
        line(axes[0], label, lambda c, m=mode: c[f"fresh {m} loss_bigram"] - c[f"pool {m} loss_bigram"], name, colour)
        line(axes[1], label, lambda c, m=mode: c[f"fresh {m} acc_clean"], name, colour, style)
        line(axes[2], label, lambda c, m=mode: c[f"fresh {m} loss_bigram"], name, colour, style)
    finish(axes[0], "Known by heart of the pool", "step", "nats a token", 2)
    finish(axes[1], "In-context accuracy, fresh", "step", "clean accuracy", 2, ylim=(0, 1.02))
    finish(axes[2], "Global loss, fresh", "step", "nats", 2, ylim=(2, 3.6))
    columns = [(ORDINARY, "own"), (SINKS, "own"), (SINKS, "dropped")]
    groups = {
        "by heart, nats": [[end[f"by heart {mode}"] for end in ends[label]] for label, mode in columns],
        "in-context accuracy": [[end[f"accuracy {mode}"] for end in ends[label]] for label, mode in columns],
    }
    bars(axes[3], ["no sinks", "own sinks", "dropped"], groups, (RED, BLUE))
    finish(axes[3], "At the end", "", "", 2)
    save(figure, path)
