"""Figure 5: the weight f^n(0) of an association seen n times (20), and the closest scheme q_rho."""

import numpy as np
import scipy.optimize

from memsinks_jax.labs.associative_memory import optimization
from memsinks_jax.labs.associative_memory.study import Settings, record, shades, theory
from memsinks_jax.labs.study import Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim

DEFAULTS = {"alpha": 2.0, "n": 100, "m": 5}
STEPS = 1000
GAMMAS = (10.0, 1.0, 0.1, 0.01, 0.001)
PAPER = {10.0: 0.05, 0.1: 0.35, 0.001: 1.0}  # {gamma: rho of the closest scheme in the paper}, at alpha = 2


def _closest(q_N: np.ndarray, p_N: np.ndarray) -> float:
    """rho of the p^rho closest to q in least squares, both with the largest weight 1."""
    return float(scipy.optimize.minimize_scalar(lambda rho: ((q_N - p_N**rho) ** 2).sum(), bounds=(0, 2)).x)


def study(settings: Settings) -> Study:
    """Nothing here is random: all seeds agree, and every quantity has one value."""
    n, m, alpha, seeds = settings.n, settings.m, settings.alpha, settings.seeds[:1]
    # Number of times each input was seen: (x + 3)^-alpha, scaled so that the rarest was seen once.
    seen_N = np.round(((np.arange(1, n + 1) + 3.0) / (n + 3)) ** -alpha).astype(int)
    longest = max(seen_N[0], STEPS)
    weights = {gamma: np.asarray(optimization.iterates(gamma, m, int(longest))) for gamma in GAMMAS}
    q = {gamma: weights[gamma][seen_N] / weights[gamma][seen_N[0]] for gamma in GAMMAS}
    p_N = seen_N / seen_N[0]
    fitted = {gamma: _closest(q[gamma], p_N) for gamma in GAMMAS}
    runs = []
    for gamma in GAMMAS:
        curves = {"f_n": ("n", range(STEPS + 1), weights[gamma][None, : STEPS + 1]),
                  "q": ("x", range(1, n + 1), q[gamma][None])}  # fmt: skip
        runs += record(f"gamma={gamma:g}", seeds, curves, rho=[fitted[gamma]])
    claims = [
        Claim(f"rho_{gamma:g}", f"rho of the q_rho closest to q_gamma, gamma = {gamma:g}", f"{rho:g}", [fitted[gamma]],
              at_least=round(rho - 0.1, 2), at_most=round(rho + 0.1, 2))
        for gamma, rho in PAPER.items() if alpha == 2
    ]  # fmt: skip

    def draw(path):
        figure, (left, right) = panels(2)
        for gamma, colour in zip(GAMMAS, shades(len(GAMMAS)), strict=True):
            left.plot(
                range(STEPS + 1), weights[gamma][: STEPS + 1], color=colour, label=f"step size {gamma:g}", linewidth=1.8
            )
            right.plot(range(1, n + 1), q[gamma], color=colour, label=f"step size {gamma:g}", linewidth=1.8)
            theory(right, range(1, n + 1), p_N ** fitted[gamma], f"$q_\\rho$, $\\rho={fitted[gamma]:.2f}$", colour)
        finish(left, "What SGD stores of an input", "times it was seen", "weight $f^n(0)$", legend=3, xlim=(0, STEPS))
        finish(right, "The scheme it amounts to", "input, by frequency", "weight over the largest", log="xy", legend=4)
        save(figure, path)

    return Study(
        "5", "Figure 5: which scheme SGD finds",
        "A large step stores an association at its first sight and hardly adds to it later, which is q_0; a small one adds "
        "in proportion to the sights, which is q_1.",
        f"f of (20) with M = {m}; inputs seen (x+3)^-{alpha:g} times, the rarest of {n} once. Dashed: q_rho with the rho "
        "closest in least squares.",
        runs, claims, draw,
    )  # fmt: skip
