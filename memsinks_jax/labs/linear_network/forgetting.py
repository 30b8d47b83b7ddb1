"""Theorem H.2: memorized text is forgotten while other sequences are learned.

Setting: logits W z, SGD on the cross-entropy (see `readout`), one-hot targets, |z| = 1. After s_mem come m steps on
sequences i seen once.

Stated:     e_mem^T f^(i+m)(z_mem) <= e_mem^T f^(i)(z_mem) - gamma m eps c_min,     eps <= z_i . z_mem.
Errors: it needs eps >= 0 but does not say so. Every step adds -gamma softmax_mem(W z_i) (z_i . z_mem); if the product is
negative, the largest probability bounds it, not the smallest. The targets e_i must differ from e_mem (only in the setup),
and |W_proj|_2 < C_proj / 2 must hold during all m steps. s^(i) .. s^(i+m) are m+1 sequences; m are meant.

Corrected:  drop >= gamma m eps c_min for eps >= 0,  drop >= gamma m eps c_max for eps < 0 (a rise of at most this
amount), with c_min and c_max for the vocabulary (see `softmax`).
"""

import dataclasses

import numpy as np

from memsinks_jax.labs.linear_network import readout
from memsinks_jax.labs.linear_network.trials import (
    below,
    generator,
    near,
    positive_features,
    record,
    signed_features,
    violated,
)
from memsinks_jax.labs.study import BLUE, GREEN, GREY, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim

TRIALS, TOKENS, HIDDEN, STEPS, RATE = 300, 30, 12, 100, 0.05
MEMORIZED = 20  # steps on s_mem first, so that there is a memory to forget
KINDS = {
    "positive": "positive features (eps ≥ 0)",
    "signed": "features of any sign",
    "opposite": "z_i = -z_mem",
    "same target": "positive features, e_mem among the targets",
}


@dataclasses.dataclass(frozen=True)
class Found:
    """One value per trial: the drop of the logit, its stated bound, its corrected bound."""

    drop: np.ndarray
    stated: np.ndarray
    corrected: np.ndarray


def measure(seed: int, kind: str, trials: int = TRIALS) -> Found:
    """kind: one of KINDS."""
    rng = generator(seed, f"forgetting {kind}")
    draw = signed_features if kind == "signed" else positive_features
    memory_BH = draw(rng, trials, HIDDEN)
    z_NBH = draw(rng, STEPS, trials, HIDDEN)
    if kind == "opposite":
        z_NBH = np.repeat(-memory_BH[None], STEPS, 0)
    token_NB = rng.integers(0 if kind == "same target" else 1, TOKENS, (STEPS, trials))  # e_mem is token 0
    rate_B, start_BVH = np.full(trials, RATE), np.zeros((trials, TOKENS, HIDDEN))
    repeated_NBH = np.repeat(memory_BH[None], MEMORIZED, 0)
    before_BVH, _ = readout.train(start_BVH, repeated_NBH, np.zeros((MEMORIZED, trials), int), rate_B)
    after_BVH, norm_B = readout.train(before_BVH, z_NBH, token_NB, rate_B)
    drop_B = ((before_BVH[:, 0] - after_BVH[:, 0]) * memory_BH).sum(-1)
    alike_B = (z_NBH * memory_BH).sum(-1).min(0)
    low_B, high_B = readout.probabilities(norm_B, TOKENS)
    reach_B = RATE * STEPS * alike_B
    return Found(drop_B, reach_B * low_B, reach_B * np.where(alike_B < 0, high_B, low_B))


def study(seeds: tuple[int, ...]) -> Study:
    found = {kind: [measure(seed, kind) for seed in seeds] for kind in KINDS}
    claims = []
    for kind, several in found.items():
        name = kind.replace(" ", "_")
        stated = [below(one.drop, one.stated) for one in several]
        paper = "never (H.2)" if kind != "same target" else "excluded in its setup"
        claims.append(violated(f"{name}_stated", f"drop ≥ γ m eps c_min, {KINDS[kind]}", paper, stated, TRIALS))
        if kind != "same target":
            corrected = [below(one.drop, one.corrected) for one in several]
            claims.append(
                violated(f"{name}_corrected", f"corrected bound, {KINDS[kind]}", "corrected", corrected, TRIALS)
            )
    positive = found["positive"]
    claims += [
        near("drop", "mean drop of the logit, positive features", "falls", [one.drop.mean() for one in positive], 0.232,
             0.05),
        Claim("bound", "mean of the bound over the mean drop", "a lower bound",
              [float(one.stated.mean() / one.drop.mean()) for one in positive], at_most=0.1),
    ]  # fmt: skip
    runs = [
        record(kind, seed, {"drop": one.drop.mean(), "stated bound": one.stated.mean(),
                            "corrected bound": one.corrected.mean(), "stated violated": below(one.drop, one.stated),
                            "corrected violated": below(one.drop, one.corrected)})
        for kind, several in found.items() for seed, one in zip(seeds, several, strict=True)
    ]  # fmt: skip
    drop, bound = (np.mean([getattr(one, name).mean() for one in positive]) for name in ("drop", "stated"))
    return Study(
        "forgetting", "Theorem H.2: forgetting",
        f"With features that are alike the memory's logit falls, by {drop:.3f} where the bound asks for {bound:.3f}. "
        "Without eps ≥ 0, which the paper does not say, the bound is false: where sequences are unlike the memory they "
        "strengthen it.",
        f"{TRIALS} trials a seed: {TOKENS} tokens, {HIDDEN} neurons, {MEMORIZED} steps on the memory from zero, then "
        f"{STEPS} on others, rate {RATE:g}. C_proj is twice the largest |W|_2 of the run, measured. Pictured: the "
        f"bound as stated.",
        runs, claims, lambda path: _draw({kind: several[0] for kind, several in found.items()}, path),
    )  # fmt: skip


def _draw(found: dict[str, Found], path) -> None:
    figure, axes = panels(3)
    for axis, (kind, colour) in zip(axes, (("positive", GREEN), ("signed", BLUE), ("opposite", RED)), strict=True):
        one = found[kind]
        axis.plot(one.stated, one.drop, ".", color=colour, markersize=4, alpha=0.6, label="a trial")
        ends = np.array([one.stated.min(), one.stated.max()])
        axis.plot(ends, ends, color=GREY, linewidth=1.2, label="below: violated")
        finish(axis, KINDS[kind], "stated bound", "drop of the logit", legend=2)
    save(figure, path)
