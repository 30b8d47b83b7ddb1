"""E1: the induction head alone, all three memories trained from the start (the study's figure 3)."""

import numpy as np

from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import PROBES, at_end, curve, minus, reached, records
from memsinks_jax.labs.study import BLUE, GREY, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "The birth of an induction head"
LEVEL = 0.9  # a memory counts as learned when its probe reaches this


def recipes(preset: Preset):
    return {"trained": preset.alone(256)}


def study(preset: Preset, runs) -> Study:
    several = runs["trained"]
    all_accuracy, clean = (at_end(several, name) for name in ("acc_end", "acc_clean"))
    first = {name: [reached(run, name, LEVEL) for run in several] for name in ("wo1", "wk1")}
    first["wk0_64"] = [reached(run, "wk0_64", _middle(run, "wk0_64")) for run in several]
    early = [_ahead(run) for run in several]
    order = " then ".join(sorted(first, key=lambda name: np.mean(first[name])))
    claims = [
        Claim("accuracy", "in-context accuracy at the end", "about 0.99", all_accuracy,
              at_least=0.9 if preset.small else 0.95),
        Claim("accuracy-clean", "the same without sequences caught in a cycle", "about 0.99", clean,
              at_least=0.9 if preset.small else 0.93),
        Claim("order-1", f"steps from {LEVEL} recall of W_O^2 to {LEVEL} recall of W_K^2", "W_O^2 first",
              minus(first["wk1"], first["wo1"]), at_least=0),
        Claim("order-2", f"steps from {LEVEL} recall of W_K^2 to half of W_K^1's rise (t < 64)", "W_K^2 first",
              minus(first["wk0_64"], first["wk1"]), at_least=0),
        Claim("order-3", f"steps from {LEVEL} recall of W_K^2 to {LEVEL} recall of W_K^1, all t (the run's end if never)",
              "W_K^2 first", minus([reached(run, "wk0", LEVEL) for run in several], first["wk1"]), at_least=0),
        Claim("early-positions", "recall of W_K^1 below position 64 over that of all, mean while it is learned",
              "early positions first", early, at_least=0.02),
    ]  # fmt: skip
    return Study(
        "E1", TITLE,
        f"In-context accuracy {with_interval(all_accuracy)}, {with_interval(clean)} without sequences caught in a cycle. "
        f"Learned in the order {order} (wo1 and wk1 at {LEVEL}, wk0_64 half-way up).",
        f"K = {preset.k} fixed triggers, uniform outputs, loss on outputs that can be known, width {preset.width}, "
        f"{several[0].recipe.batch} sequences of {several[0].recipe.law.length} tokens a step. "
        f"Bands: lowest to highest of {len(several)} seeds. wk1 is recall among {preset.k} triggers, so its chance is "
        f"1/{preset.k}; wo1 needs all {len(preset.statistics.characters)} characters, also the rarest.",
        records(runs), claims, lambda path: _draw(several, path),
    )  # fmt: skip


def _middle(run, name) -> float:
    return (run.curves[name][0] + run.curves[name][-1]) / 2


def _ahead(run) -> float:
    """Mean of wk0_64 - wk0 from where wk0_64 has completed a tenth of its rise."""
    early, every = run.curves["wk0_64"], run.curves["wk0"]
    begin = np.argmax(early >= early[0] + 0.1 * (early[-1] - early[0]))
    return float((early - every)[begin:].mean())


def _draw(several, path) -> None:
    figure, axes = panels(3)
    curve(axes[0], several, "acc_end", "all sequences", BLUE)
    curve(axes[0], several, "acc_clean", "without cycles", RED)
    curve(axes[0], several, "score2_acc", "layer 2 looks after the trigger", GREY, "--")
    finish(axes[0], "In-context accuracy", "step", "share", 2, ylim=(0, 1.02))
    for name, (colour, label) in PROBES.items():
        curve(axes[1], several, name, label, colour, over=1)
    for name in ("wo1", "wk1"):
        axes[1].axvline(np.mean([reached(run, name, LEVEL) for run in several]), color=PROBES[name][0], linestyle=":")
    middle = np.mean([reached(run, "wk0_64", _middle(run, "wk0_64")) for run in several])
    axes[1].axvline(middle, color=PROBES["wk0_64"][0], linestyle=":")
    finish(axes[1], f"Memory recall (dotted: {LEVEL}, or half-way up)", "step", "recall", 2, ylim=(0, 1.02))
    curve(axes[2], several, "loss_head", "outputs that can be known", BLUE)
    curve(axes[2], several, "loss_bigram", "all other tokens (not trained)", GREY, "--")
    finish(axes[2], "Loss", "step", "nats", 2, ylim=(0, None))
    save(figure, path)
