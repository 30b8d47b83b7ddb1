"""E2: memories frozen until half-way: which one do the others need first? (the study's figure 3, other panels)"""

import dataclasses

import jax
import numpy as np

from memsinks_jax.labs.induction_head.baselines import baselines
from memsinks_jax.labs.induction_head.law import Law, sampler
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import PROBES, at_end, curve, during, in_words, minus, records
from memsinks_jax.labs.study import BLUE, GREY, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Which memory waits for which"
SEQUENCES = 1000  # to measure models without a head
LATE = {
    "none frozen": (),
    "W_O^2 late": ("output_2",),
    "both W_K late": ("key_1", "key_2"),
    "W_K^1 late": ("key_1",),
    "W_K^2 late": ("key_2",),
}


def recipes(preset: Preset):
    base = _base(preset)
    until = _until(preset)
    return {
        label: dataclasses.replace(base, frozen_until=tuple((name, until) for name in names))
        for label, names in LATE.items()
    }


def _base(preset: Preset):
    """Small batches need longer before and after the thaw."""
    return dataclasses.replace(preset.alone(), steps=preset.steps or 1000)


def _until(preset: Preset) -> int:
    return min(500 if preset.small else 300, _base(preset).steps // 2)


def reference(preset: Preset, law: Law) -> dict[str, float]:
    """What models without a head reach on sequences of the law."""
    drawn = jax.device_get(jax.jit(sampler(preset.statistics, law), static_argnums=1)(jax.random.key(0), SEQUENCES))
    return baselines(preset.statistics, drawn.tokens_BS, drawn.seen_BT, drawn.cyclic_B)


def study(preset: Preset, runs) -> Study:
    until, majority = _until(preset), reference(preset, _base(preset).law)

    def highest(label, name):
        return [float(during(run, name, 0, until).max()) for run in runs[label]]

    def at_thaw(label, name):
        return [float(during(run, name, until - 50, until).mean()) for run in runs[label]]

    def jump(label):
        return minus(at_end(runs[label], "acc_clean"), at_thaw(label, "acc_clean"))

    claims = [
        Claim("without-output", f"in-context accuracy before step {until}, W_O^2 frozen, highest",
              f"no head: at most the majority's {majority['majority']:.2f} + 0.05", highest("W_O^2 late", "acc_end"),
              at_most=majority["majority"] + 0.05),
        Claim("output-alone", f"recall of W_O^2 at step {until}, both W_K frozen", "learned without them",
              at_thaw("both W_K late", "wo1"), at_least=0.9),
        Claim("output-alone-accuracy", "in-context accuracy at that time", "low", at_thaw("both W_K late", "acc_end"),
              at_most=0.45),
        Claim("output-alone-clean", "the same without cycles", "low", at_thaw("both W_K late", "acc_clean"),
              at_most=0.25),
        Claim("jump-output", "clean accuracy gained after the thaw, W_O^2 late", "jumps", jump("W_O^2 late"),
              at_least=0.3),
        Claim("jump-keys", "clean accuracy gained after the thaw, both W_K late", "jumps", jump("both W_K late"),
              at_least=0.3),
        Claim("jump-key-1", "clean accuracy gained after the thaw, W_K^1 late", "jumps", jump("W_K^1 late"),
              at_least=0.3),
        Claim("key-2-without-key-1", f"recall of W_K^2 at step {until}, W_K^1 frozen", "learned without it",
              at_thaw("W_K^1 late", "wk1"), at_least=0.9),
        Claim("key-1-without-key-2", f"recall of W_K^1 (t < 64) at step {until}, W_K^2 frozen, over that with all trained",
              "learned much less",
              [one / max(other, 1e-9) for one, other in
               zip(at_thaw("W_K^2 late", "wk0_64"), at_thaw("none frozen", "wk0_64"), strict=True)], at_most=0.5),
    ]  # fmt: skip
    return Study(
        "E2", TITLE,
        f"With both key matrices frozen W_O^2 is learned all the same (recall "
        f"{with_interval(at_thaw('both W_K late', 'wo1'), 2)} at step {until}) but accuracy without cycles stays at "
        f"{with_interval(at_thaw('both W_K late', 'acc_clean'), 2)}; with W_O^2 frozen it stays at "
        f"{with_interval(at_thaw('W_O^2 late', 'acc_clean'), 2)}. After the thaw they end at "
        f"{np.mean(at_end(runs['both W_K late'], 'acc_clean')):.2f} and "
        f"{np.mean(at_end(runs['W_O^2 late'], 'acc_clean')):.2f}.",
        f"As E1 with sequences of {_base(preset).law.length} tokens. A frozen memory has neither gradient nor decay until "
        f"step {until} (dotted). Copying the majority of the context gives {majority['majority']:.2f}, "
        f"{majority['majority_clean']:.2f} without cycles.",
        records(runs), claims, lambda path: _draw(runs, until, path),
    )  # fmt: skip


def _draw(runs, until, path) -> None:
    figure, axes = panels(len(runs))
    for axis, (label, several) in zip(axes, runs.items(), strict=True):
        curve(axis, several, "acc_end", "accuracy, all", BLUE, "--")
        curve(axis, several, "acc_clean", "accuracy, clean", GREY, "--")
        for name, (colour, text) in PROBES.items():
            curve(axis, several, name, text, colour, over=1)
        axis.axvline(until, color="black", linestyle=":", linewidth=1)
        finish(axis, in_words(label), "step", "share", ylim=(0, 1.02))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)
