"""E5: W_O^2 and W_F compete for the logits, and leave their natural estimates (the study's figure 4, right)."""

from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import curve, minus, records, smooth
from memsinks_jax.labs.study import BLUE, GREEN, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Memories that compete for the logits"


def recipes(preset: Preset):
    # The first and last of E3, under the same names, so that both experiments share these runs.
    return {
        "frequent trigger": preset.world(k=1),
        "several triggers": preset.world(),
        "random trigger": preset.world(k=1, fixed=False),
    }


def study(preset: Preset, runs) -> Study:
    lowest = {label: [float(smooth(run.curves["ff1"]).min()) for run in several] for label, several in runs.items()}
    drift = {label: [float(run.curves["ff1"][-1]) - low for run, low in zip(several, lowest[label], strict=True)]
             for label, several in runs.items()}  # fmt: skip
    started = {label: [float(run.curves["ff1"][0]) for run in several] for label, several in runs.items()}
    recalled = {label: [float(run.curves["wo1"][-1]) for run in several] for label, several in runs.items()}
    claims = []
    for label in runs:
        claims += [
            Claim(f"approach: {label}", f"fall of ff1 from its start to its lowest, nats, {label}",
                  "approaches the bigrams", minus(started[label], lowest[label]),
                  at_least=0.5),
            Claim(f"drift: {label}", f"rise of ff1 from its lowest to the end, nats, {label}", "drifts from them again",
                  drift[label], at_least=0.02),
        ]  # fmt: skip
    return Study(
        "E5", TITLE,
        "; ".join(
            f"{label}: ff1 falls to {with_interval(lowest[label], 2)} nats and rises by {with_interval(drift[label], 2)}, "
            f"wo1 ends at {with_interval(recalled[label], 2)}" for label in runs
        ) + ".",
        "ff1 is the divergence of pi_b from what W_F alone says; wo1 the recall of W_O^2. Uniform logits have an ff1 of "
        "2.27 over all characters of the bundled text.",
        records(runs), claims, lambda path: _draw(runs, path),
    )  # fmt: skip


def _draw(runs, path) -> None:
    figure, axes = panels(2)
    for (label, several), colour in zip(runs.items(), (BLUE, GREEN, RED), strict=True):
        curve(axes[0], several, "wo1", label, colour, over=1)
        curve(axes[1], several, "ff1", label, colour, over=1)
    finish(axes[0], "Recall of the copying memory, $W_O^2$", "step", "recall", 3, ylim=(0, 1.02))
    finish(axes[1], "Feed-forward layer: divergence from the bigrams", "step", "nats", 3, ylim=(0, 4))
    save(figure, path)
