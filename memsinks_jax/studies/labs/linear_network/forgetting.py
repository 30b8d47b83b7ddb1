"""Theorem H.2: memorized text is forgotten while other sequences are learned.

Setting: logits W z, SGD on the cross-entropy (see `readout`), one-hot targets, |z| = 1. After s_mem
come m steps on sequences i seen once.

Stated:     e_mem^T f^(i+m)(z_mem) <= e_mem^T f^(i)(z_mem) - gamma m eps c_min,
            eps <= z_i . z_mem.
Errors: it needs eps >= 0 but does not say so. Every step adds -gamma softmax_mem(W z_i)
(z_i . z_mem); if the product is negative, the largest probability bounds it, not the smallest. The
targets e_i must differ from e_mem (only in the setup), and |W_proj|_2 < C_proj / 2 must hold during
all m steps. s^(i) .. s^(i+m) are m+1 sequences; m are meant.

Corrected:  drop >= gamma m eps c_min for eps >= 0,  drop >= gamma m eps c_max for eps < 0 (a rise
of at most this amount), with c_min and c_max for the vocabulary (see `softmax`).
"""

from typing import NamedTuple

import numpy as np

from memsinks_jax.studies.labs.linear_network import readout
from memsinks_jax.studies.labs.linear_network.trials import below, features, generator
from memsinks_jax.studies.labs.study import Claims, Study, columns, record, scatter

TRIALS, TOKENS, HIDDEN, STEPS, RATE = 300, 30, 12, 100, 0.05
MEMORIZED = 20  # steps on s_mem first, so that there is a memory to forget
KINDS = {
    "positive": "positive features (eps ≥ 0)",
    "signed": "features of any sign",
    "opposite": "z_i = -z_mem",
    "same target": "positive features, e_mem among the targets",
}


class DropBounds(NamedTuple):
    """One value per trial: the drop of the logit, its stated bound, its corrected bound."""

    drop: np.ndarray
    stated: np.ndarray
    corrected: np.ndarray

    def metrics(self) -> dict[str, float]:
        drop, stated, corrected = np.mean(self, 1)
        return {
            "drop": drop,
            "stated bound": stated,
            "corrected bound": corrected,
            "stated violated": below(self.drop, self.stated),
            "corrected violated": below(self.drop, self.corrected),
        }


def measure(seed: int, kind: str, trials: int = TRIALS) -> DropBounds:
    """kind: one of KINDS."""
    rng = generator(seed, f"forgetting {kind}")
    signed = kind == "signed"
    memory_BH = features(rng, trials, HIDDEN, signed=signed)
    z_NBH = features(rng, STEPS, trials, HIDDEN, signed=signed)
    if kind == "opposite":
        z_NBH = np.repeat(-memory_BH[None], STEPS, 0)
    # e_mem is token 0
    token_NB = rng.integers(0 if kind == "same target" else 1, TOKENS, (STEPS, trials))
    rate_B, start_BVH = np.full(trials, RATE), np.zeros((trials, TOKENS, HIDDEN))
    repeated_NBH = np.repeat(memory_BH[None], MEMORIZED, 0)
    before_BVH, _ = readout.train(
        start_BVH, repeated_NBH, np.zeros((MEMORIZED, trials), int), rate_B
    )
    after_BVH, norm_B = readout.train(before_BVH, z_NBH, token_NB, rate_B)
    drop_B = ((before_BVH[:, 0] - after_BVH[:, 0]) * memory_BH).sum(-1)
    alike_B = (z_NBH * memory_BH).sum(-1).min(0)
    low_B, high_B = readout.probabilities(norm_B, TOKENS)
    reach_B = RATE * STEPS * alike_B
    return DropBounds(drop_B, reach_B * low_B, reach_B * np.where(alike_B < 0, high_B, low_B))


def study(seeds: tuple[int, ...]) -> Study:
    found, metrics, runs, claims = {}, {}, [], Claims()
    for kind, meaning in KINDS.items():
        found[kind] = [measure(seed, kind) for seed in seeds]
        metrics[kind] = columns([one.metrics() for one in found[kind]])
        runs += record(kind, seeds, metrics[kind])
        rows = [("stated", "drop ≥ γ m eps c_min", "never (H.2)")]
        rows += [("corrected", "corrected bound", "corrected")]
        if kind == "same target":
            rows = [("stated", "drop ≥ γ m eps c_min", "excluded in its setup")]
        for form, statement, paper in rows:
            id, counts = f"{kind.replace(' ', '_')}_{form}", metrics[kind][f"{form} violated"]
            claims.never(id, f"{statement}, {meaning}", paper, counts, TRIALS)
    drop_S, bound_S = (metrics["positive"][name] for name in ("drop", "stated bound"))
    claims.near("drop", "mean drop of the logit, positive features", "falls", drop_S, 0.232, 0.05)
    what = "mean of the bound over the mean drop"
    claims.add("bound", what, "a lower bound", bound_S / drop_S, at_most=0.1)
    return Study(
        "forgetting",
        "Theorem H.2: forgetting",
        f"With features that are alike the memory's logit falls, by {drop_S.mean():.3f} where the "
        f"bound asks for {bound_S.mean():.3f}. Without eps ≥ 0, which the paper does not say, the "
        "bound is false: where sequences are unlike the memory they strengthen it.",
        f"{TRIALS} trials a seed: {TOKENS} tokens, {HIDDEN} neurons, {MEMORIZED} steps on the "
        f"memory from zero, {STEPS} on others, rate {RATE:g}. C_proj is twice the largest |W|_2 "
        "of the run, measured. Pictured: the bound as stated.",
        runs,
        claims,
        [
            scatter(
                KINDS[kind],
                "stated bound",
                "drop of the logit",
                {"a trial": found[kind][0][1::-1]},
                "below: violated",
            )
            for kind in ("positive", "signed", "opposite")
        ],
    )
