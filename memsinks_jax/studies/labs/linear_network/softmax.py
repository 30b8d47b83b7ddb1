"""Theorem H.1: the entries of a softmax of bounded logits, and the constants c_min, c_max that
follow.

Stated: for x in R^d with |x|_inf <= C,  max softmax(x) <= e^{2C} / (d-1)  and  min softmax(x) >=
e^{-2C} / d  (k is printed for C). Correct, but the first is empty once 2C > ln(d-1). Tight, and
never above 1:

    max softmax(x) <= e^{2C} / (e^{2C} + d - 1),        min softmax(x) >= 1 / (1 + (d-1) e^{2C}).

Corollary, stated: with |z| = 1 and |W_proj|_2 < C_proj / 2, every entry of softmax(W_proj z) lies
between c_min = e^{-C_proj} / d_emb and c_max = e^{C_proj} / (d_emb - 1) (one place prints
d_{emb-1}, another C_V for C_proj).
Error: d of the theorem is the number of logits, so the vocabulary V instead of the width d_emb of
the model.
Corrected: c_min = e^{-C_proj} / V, c_max = e^{C_proj} / (V-1).
"""

import collections

import numpy as np
from scipy.special import softmax

from memsinks_jax.studies.labs.linear_network.readout import probabilities
from memsinks_jax.studies.labs.linear_network.trials import ROUNDING, below, generator
from memsinks_jax.studies.labs.study import Claims, Study, columns, lines, record

TRIALS, LAYERS = 20_000, 2_000  # of vectors, of the corollary
SIZES = (2, 5, 10, 30, 100)  # d
LARGEST = 3.0  # C


def study(seeds: tuple[int, ...]) -> Study:
    found = {draw.__name__: columns([draw(seed) for seed in seeds]) for draw in (vectors, layers)}
    runs = [run for kind, metrics in found.items() for run in record(kind, seeds, metrics)]
    drawn, trained, claims = found["vectors"], found["layers"], Claims()
    claims.never("max", "max softmax ≤ e^2C/(d-1)", "never (H.1)", drawn["max"], TRIALS)
    claims.never("min", "min softmax ≥ e^-2C/d", "never (H.1)", drawn["min"], TRIALS)
    what, paper = "max softmax ≤ e^2C/(e^2C+d-1)", "not stated, tighter"
    claims.never("tight_max", what, paper, drawn["tight max"], TRIALS)
    what = "min softmax ≥ 1/(1+(d-1)e^2C)"
    claims.never("tight_min", what, paper, drawn["tight min"], TRIALS)
    what = "both tighter bounds are reached at a corner of the cube"
    claims.never("corner", what, "not stated", drawn["corner"], TRIALS)
    what = "c_min ≤ softmax(W z) ≤ c_max with d_emb in them"
    claims.never("corollary_stated", what, "never (after H.1)", trained["stated"], LAYERS)
    what = "c_min ≤ softmax(W z) ≤ c_max with V in them"
    claims.never("corollary", what, "corrected", trained["corrected"], LAYERS)
    d, rng = 10, generator(seeds[0], "picture")
    c_T, x_TD = draw(rng, 3000, d)
    order, share_TD, bound = np.argsort(c_T), softmax(x_TD, axis=1), bounds(c_T, d)
    shown, largest, smallest = [], share_TD.max(1), share_TD.min(1)
    for side, word, values_T in (("max", "largest", largest), ("min", "smallest", smallest)):
        curves = {
            "stated": (c_T[order], None, bound[side][order]),
            "reached": (c_T[order], None, bound[f"tight {side}"][order]),
            "random vectors": (c_T, values_T),
        }
        title, x = f"Softmax of {d} logits: {word} entry", "largest logit, $C$"
        shown.append(lines(title, x, f"{word} entry", curves, ".", log="y", level=1))
    return Study(
        "softmax",
        "Theorem H.1: softmax of bounded logits",
        "The theorem holds. Its upper bound is above 1, so trivial, at "
        f"{found['vectors']['vacuous'].mean() / TRIALS:.0%} of the points drawn; the exact bound "
        "costs one more term. The constants c_min and c_max that appendix H builds on it hold "
        "with the vocabulary in them, not the width.",
        f"{TRIALS:,} vectors a seed, d of {', '.join(map(str, SIZES))}, C uniform up to "
        f"{LARGEST:g}, half of the entries at ±C; {LAYERS:,} layers of 2 to 24 logits and widths "
        "2 to 24, C_proj up to 2, z along the layer's first right singular vector in half of "
        "them. Pictured: d = 10.",
        runs,
        claims,
        shown,
    )


def draw(rng: np.random.Generator, trials: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds C (trials,), and vectors within them (trials, d), half of the entries at the bound."""
    c_T = rng.uniform(0, LARGEST, trials)
    x_TD = rng.uniform(-1, 1, (trials, d))
    return c_T, c_T[:, None] * np.where(rng.random((trials, d)) < 0.5, np.sign(x_TD), x_TD)


def bounds(c_T: np.ndarray, d: int) -> dict[str, np.ndarray]:
    grown_T = np.exp(2 * c_T)
    return {
        "max": grown_T / (d - 1),
        "min": 1 / grown_T / d,
        "tight max": grown_T / (grown_T + d - 1),
        "tight min": 1 / (1 + (d - 1) * grown_T),
    }


def vectors(seed: int, trials: int = TRIALS) -> dict[str, int]:
    """Violations of the stated and the tighter bounds."""
    rng, found = generator(seed, "vectors"), collections.Counter()
    for d in SIZES:
        c_T, x_TD = draw(rng, trials // len(SIZES), d)
        share_TD, bound = softmax(x_TD, axis=1), bounds(c_T, d)
        for name, bound_T in bound.items():
            is_max, high, low = name.endswith("max"), share_TD.max(1), share_TD.min(1)
            found[name] += below(bound_T, high) if is_max else below(low, bound_T)
        corner_TD = c_T[:, None] * np.where(np.arange(d) == 0, 1, -1)
        high_T, low_T = (softmax(sign * corner_TD, axis=1)[:, 0] for sign in (1, -1))
        off_T = np.abs(high_T - bound["tight max"]) + np.abs(low_T - bound["tight min"])
        found["corner"] += int(np.sum(off_T > ROUNDING))
        found["vacuous"] += int(np.sum(bound["max"] > 1))
    return found


def layers(seed: int, trials: int = LAYERS) -> dict[str, int]:
    """Violations of the corollary's constants, with the width (as stated) and with the
    vocabulary.
    """
    rng, found = generator(seed, "layers"), {"stated": 0, "corrected": 0}
    for _ in range(trials):
        tokens, width = rng.integers(2, 25, 2)
        w_VH = rng.standard_normal((tokens, width))
        squares, right = np.linalg.eigh(w_VH.T @ w_VH)
        norm = rng.uniform(0, 1)
        z_H = right[:, -1] if rng.random() < 0.5 else rng.standard_normal(width)
        share_V = softmax(w_VH @ z_H * (norm / np.sqrt(squares[-1]) / np.linalg.norm(z_H)))
        for name, size in (("stated", width), ("corrected", tokens)):
            low, high = probabilities(norm, size)
            found[name] += bool(below(share_V.min(), low) + below(high, share_V.max()))
    return found
