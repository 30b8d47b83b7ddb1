"""E3: bigrams and head learned together, with frequent triggers, rarer ones, or new ones per sequence (figure 4, left)."""

from memsinks_jax.labs.induction_head.experiment_2 import reference
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import at_end, curve, fell, minus, records
from memsinks_jax.labs.study import BLUE, GREEN, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Global bigrams first, in-context outputs later"
RARER = 5  # number of most frequent characters to skip before the rarer trigger


def recipes(preset: Preset):
    rarer = min(RARER, len(preset.statistics.characters) - 1)
    return {
        "frequent trigger": preset.world(k=1),
        "rarer trigger": preset.world(k=1, offset=rarer),
        "random trigger": preset.world(k=1, fixed=False),
    }


def study(preset: Preset, runs) -> Study:
    floors = {label: reference(preset, several[0].recipe.law)["floor"] for label, several in runs.items()}
    halved = {
        label: [fell(run, "loss_head", run.curves["loss_head"][0] / 2) for run in several]
        for label, several in runs.items()
    }
    excess = {label: [_at(run, halved[label][i]) - floors[label] for i, run in enumerate(several)]
              for label, several in runs.items()}  # fmt: skip
    ends = {label: at_end(several, "acc_clean") for label, several in runs.items()}
    claims = [
        Claim(f"global-first: {label}", f"global loss above its floor when the other has halved or at the end, {label}",
              "near the floor within hundreds of steps", excess[label], at_most=0.1)
        for label in runs
    ]  # fmt: skip
    pairs = [("frequent", "rarer"), ("rarer", "random")]
    claims += [
        Claim(f"{one}-before-{other}", f"clean in-context accuracy at the end, {one} trigger minus {other} one",
              f"{one} before {other}", minus(ends[f"{one} trigger"], ends[f"{other} trigger"]), at_least=0.05)
        for one, other in pairs
    ]  # fmt: skip
    halves = "; ".join(f"{label}: {with_interval(halved[label], 0)}" for label in runs)
    return Study(
        "E3", TITLE,
        f"Steps until the in-context loss has halved (the run's end, {runs['random trigger'][0].recipe.steps}, if never): "
        f"{halves}. The global loss ends "
        + ", ".join(f"{with_interval([v - floors[la] for v in at_end(s, 'loss_bigram')], 2)} ({la})"
                    for la, s in runs.items()) + " nats above its floor.",
        f"K = 1, linear W_F, loss on all tokens. Rarer: the character that {RARER} come before. Dotted: the entropy floor. "
        "Positions are random vectors that W_F must learn to ignore, so the floor is neared from above only slowly when "
        "there are as many positions as dimensions.",
        records(runs), claims, lambda path: _draw(runs, floors, path),
    )  # fmt: skip


def _at(run, step) -> float:
    return float(run.curves["loss_bigram"][run.curves["step"].searchsorted(step)])


def _draw(runs, floors, path) -> None:
    figure, axes = panels(3)
    for (label, several), colour in zip(runs.items(), (BLUE, GREEN, RED), strict=True):
        curve(axes[0], several, "loss_bigram", label, colour)
        axes[0].axhline(floors[label], color=colour, linestyle=":", linewidth=1)
        curve(axes[1], several, "loss_head", label, colour)
        curve(axes[2], several, "acc_clean", label, colour)
    finish(axes[0], "Global loss (dotted: its floor)", "step", "nats", 3, ylim=(2, 3.6))
    finish(axes[1], "In-context loss", "step", "nats", 3, ylim=(0, None))
    finish(axes[2], "In-context accuracy, clean", "step", "share", 3, ylim=(0, 1.02))
    save(figure, path)
