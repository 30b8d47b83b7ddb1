"""The memories of the theory, without training: accuracy by width, and what a gradient step stores."""

import numpy as np

from memsinks_jax.labs.induction_head import construction
from memsinks_jax.labs.induction_head.law import Law
from memsinks_jax.labs.induction_head.model import TwoLayers
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import COLOURS, PROBES, bars, in_words, record
from memsinks_jax.labs.study import BLUE, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "The induction head of the theory, by width"
WIDTHS = (32, 64, 128, 256, 512)
# Clean accuracy at K = 5, T = 256 by a separate calculation in numpy, with its tolerance.
EXPECTED = {128: (0.74, 0.10), 256: (0.988, 0.015), 512: (0.995, 0.01)}
GRADIENT_WIDTH, GRADIENT_BATCHES, GRADIENT_BATCH = 256, 16, 32


def recipes(preset: Preset):
    return {}


def study(preset: Preset, runs) -> Study:
    law = Law(k=preset.k)
    seeds = preset.seeds
    built = {
        d: [construction.evaluate(preset.statistics, law, TwoLayers(d, unit=True), seed) for seed in seeds]
        for d in WIDTHS
    }
    steps = [
        construction.gradient_order(
            preset.statistics, law, TwoLayers(GRADIENT_WIDTH, unit=True), seed, GRADIENT_BATCHES, GRADIENT_BATCH
        )
        for seed in seeds
    ]
    chance = {"wo1": 1 / len(preset.statistics.characters), "wk1": 1 / preset.k, "wk0_64": 1 / 63}
    clean = {d: [one.rates["acc_clean"] for one in several] for d, several in built.items()}
    claims = []
    for d, (value, apart) in EXPECTED.items():
        claims.append(
            Claim(f"accuracy: d={d}", f"clean accuracy of the construction, d = {d}", f"{value} ± {apart}",
                  clean[d], at_least=value - apart, at_most=min(value + apart, 1.0))
        )  # fmt: skip
        lowest = [min(one.rates[name] for name in ("wo1", "wk1", "wk0", "wk0_64")) for one in built[d]]
        claims.append(Claim(f"probes: d={d}", f"least of the four probes, d = {d}", "1", lowest, at_least=0.99))
    claims.append(
        Claim("last-memory", "clean accuracy of W_O^2 and W_K^2 without W_K^1, d = 256", "0.18",
              [one.variants["W_O^2 and W_K^2"] for one in built[256]], at_most=0.3)
    )  # fmt: skip
    for name, least in chance.items():
        claims.append(
            Claim(f"gradient: {name}", f"{name} of one gradient step from zero, over chance", "clearly above 1",
                  [one[name] / least for one in steps], at_least=min(3.0, 0.6 / least))
        )  # fmt: skip
    shown = {name: with_interval([one[name] for one in steps], 2) for name in chance}
    return Study(
        "construction", TITLE,
        "Clean in-context accuracy: " + ", ".join(f"{with_interval(clean[d])} at d = {d}" for d in WIDTHS) + ". One "
        f"gradient step from zero on each memory, those before it in place, recalls {shown['wo1']} (W_O^2), "
        f"{shown['wk1']} (W_K^2), {shown['wk0_64']} (W_K^1, t < 64).",
        f"K = {preset.k} fixed triggers, sequences of {law.length} tokens, everything random has variance 1/d. Scales of "
        f"the memories chosen on {construction.SEARCHED} sequences, accuracy of {construction.JUDGED} others. Expected "
        "values are for K = 5 and the bundled text. The gradient: "
        f"{GRADIENT_BATCHES * GRADIENT_BATCH} sequences, d = {GRADIENT_WIDTH}.",
        [record(f"d={d}", seed, one.rates | one.variants) for d in WIDTHS for seed, one in zip(seeds, built[d], strict=True)]
        + [record("gradient step", seed, one) for seed, one in zip(seeds, steps, strict=True)],
        claims, lambda path: _draw(built, steps, chance, path),
    )  # fmt: skip


def _draw(built, steps, chance, path) -> None:
    figure, axes = panels(3)
    places = np.arange(len(WIDTHS))

    def line(axis, values, label, colour, style="-"):
        several = np.array([[values(one) for one in built[d]] for d in WIDTHS])
        axis.plot(places, several.mean(1), style, color=colour, label=label, marker=".")
        axis.fill_between(places, several.min(1), several.max(1), color=colour, alpha=0.15, linewidth=0)

    line(axes[0], lambda one: one.rates["acc_clean"], "clean", RED)
    line(axes[0], lambda one: one.rates["acc_end"], "all", BLUE, "--")
    for name, colour in zip(built[WIDTHS[0]][0].variants, COLOURS[2:], strict=False):
        label = in_words(name)
        line(axes[0], lambda one, name=name: one.variants[name], label, colour, ":")
    for d, (value, apart) in EXPECTED.items():
        axes[0].errorbar(WIDTHS.index(d) + 0.08, value, apart, color="black", capsize=3, linewidth=1)
    finish(axes[0], "In-context accuracy (black: expected)", "width", "share", 3, ylim=(0, 1.02))
    for (name, label), colour in zip(
        (*((name, label) for name, (_, label) in PROBES.items()), ("score_acc", "layer 1 looks one back")),
        (RED, *COLOURS[2:]), strict=False,
    ):  # fmt: skip
        line(axes[1], lambda one, name=name: one.rates[name], label, colour)
    finish(axes[1], "Recall is not yet a working head", "width", "share", 3, ylim=(0, 1.02))
    for axis in axes[:2]:
        axis.set_xticks(places, WIDTHS)
    groups = {"one gradient step": [[one[name] for one in steps] for name in chance],
              "chance": [[value] for value in chance.values()]}  # fmt: skip
    bars(axes[2], ["copying", "matching", "previous token,\nt < 64"], groups, (BLUE, "#bdc3c7"))
    finish(axes[2], "What one gradient step stores", "", "recall", 2, ylim=(0, 1.02))
    save(figure, path)
