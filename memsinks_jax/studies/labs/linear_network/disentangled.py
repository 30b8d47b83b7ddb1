"""Theorems 3.1, D.3 and D.5: what gradient flow does with a memory that resembles other text.

Setting: f(x) = W_proj W_fc x, squared loss, N examples seen once and (s_mem, y_mem) repeated.
Features have a semantic and a memorization part, S_sem + S_mem. The rows of W*, the minimum-norm
interpolant of the examples seen once, lie in S_sem. |phi_mem(s_mem)| = 1, phi_mem(s_i) .
phi_mem(s_mem) = 0; Delta = y_mem - W* phi(s_mem), |Delta| > 1, orthogonal to col(W*); sigma_i(W*) <
1/(2k), k = rank(W*) > 2. The disentangled solution is W_dis = W* + c u v^T, v in S_mem (Definition
D.1 prints S_sem). The one closest to all others has v = phi_mem(s_mem): W_dis = W* + Delta
phi_mem(s_mem)^T.

Stated (D.3): if s_mem is natural, gradient flow does not converge to W_dis. D.5 (cited from Varre
et al. 2023): from W_proj = 0, W_fc^T W_fc = 2 gamma I (printed transposed), it converges to the
interpolant of least norm, Y X^+.
Errors: "natural" is not defined, and without it the statement is false. If the examples seen once
span S_sem, all assumptions hold, but gradient flow converges to W_dis. The proof assumes that an
entangled solution (D.2: an interpolant with new singular values at most |Delta|/(k+1)) exists. One
does iff |r| >= k+1 (r below), which is much more than needed.

Corrected: let r = phi(s_mem) minus its projection on span{phi(s_i)}. Then
    W_gf = W* + Delta r^T / |r|^2,        |W_gf|^2 = |W*|^2 + |Delta|^2 / |r|^2,
W_gf = W_dis iff r has no part in S_sem, and the entangled share of the update is |r_sem|^2 / |r|^2.
    With novelty
nu = |r_sem|:  share = nu^2/(1+nu^2),  |W_gf - W_dis| = |Delta| nu / sqrt(1+nu^2).
"""

import dataclasses
import math

import numpy as np

from memsinks_jax.studies.labs.linear_network.trials import generator
from memsinks_jax.studies.labs.study import Claims, Study, columns, lines, record

D_SEM, D_MEM, OUTPUTS, RANK, ONCE, REPEATS, HIDDEN = 6, 3, 5, 3, 40, 3, 12
DELTA, SIGMA = 1.5, 0.1  # |Delta|; all singular values of W*
NOVELTIES = (0.0, 0.3, 1.0, 4.5)
RATE, MOST_STEPS, EVERY_STEPS = 2e-3, 200_000, 250
TRIALS, LARGEST_NOVELTY = 200, 5.0
EQUAL = 1e-9


@dataclasses.dataclass(frozen=True)
class Problem:
    """Features are columns, semantic entries first. x_FN, y_ON: seen once; s_F, y_O: the memory."""

    x_FN: np.ndarray
    y_ON: np.ndarray
    s_F: np.ndarray
    y_O: np.ndarray
    star_OF: np.ndarray

    @property
    def delta_O(self) -> np.ndarray:
        return self.y_O - self.star_OF @ self.s_F

    @property
    def dis_OF(self) -> np.ndarray:
        return self.star_OF + np.outer(
            self.delta_O, np.where(np.arange(len(self.s_F)) < D_SEM, 0, self.s_F)
        )

    @property
    def r_F(self) -> np.ndarray:
        return self.s_F - self.x_FN @ np.linalg.lstsq(self.x_FN, self.s_F)[0]

    @property
    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and outputs of the full training set."""
        x = np.column_stack([self.x_FN, *[self.s_F] * REPEATS])
        return x, np.column_stack([self.y_ON, *[self.y_O] * REPEATS])

    def corrected(self) -> np.ndarray:
        """W* + Delta r^T / |r|^2."""
        return self.star_OF + np.outer(self.delta_O, self.r_F) / (self.r_F @ self.r_F)

    def least_norm(self) -> np.ndarray:
        x, y = self.all
        return np.linalg.lstsq(x.T, y.T)[0].T


def problem(rng: np.random.Generator, novelty: float) -> Problem:
    """Satisfies all that Theorem D.3 assumes. With novelty 0 the examples seen once span S_sem.
    Otherwise they leave one direction to s_mem.
    """
    known = D_SEM - (novelty > 0)
    sem_FD, mem_FD = np.zeros((D_SEM + D_MEM, D_SEM)), np.zeros((D_SEM + D_MEM, D_MEM))
    sizes = (D_SEM, D_MEM, OUTPUTS)
    sem_FD[:D_SEM], mem_FD[D_SEM:], left_OO = (orthogonal(rng, size) for size in sizes)
    star_OF = SIGMA * left_OO[:, :RANK] @ sem_FD[:, :RANK].T
    x_FN = sem_FD[:, :known] @ rng.standard_normal((known, ONCE)) / math.sqrt(known)
    x_FN += mem_FD[:, 1:] @ rng.standard_normal((D_MEM - 1, ONCE)) / math.sqrt(D_MEM - 1)
    s_F = sem_FD[:, :known] @ rng.standard_normal(known) / math.sqrt(known) + mem_FD[:, 0]
    s_F += novelty * sem_FD[:, -1]
    return Problem(x_FN, star_OF @ x_FN, s_F, star_OF @ s_F + DELTA * left_OO[:, RANK], star_OF)


def orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def descend(
    rng: np.random.Generator, problems: list[Problem]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradient descent on 1/2 |W_proj W_fc X - Y|^2, until the gradient is 0 -> W of every problem
    (P, O, F); the steps recorded (L,), and W at these steps (L, P, O, F).
    """
    moments = [(x @ x.T, y @ x.T) for x, y in (one.all for one in problems)]
    xx_PFF, yx_POF = (np.stack(parts) for parts in zip(*moments, strict=True))
    # 2 gamma = 1
    fc_PHF = np.stack([orthogonal(rng, HIDDEN)[:, : D_SEM + D_MEM] for _ in problems])
    proj_POH = np.zeros((len(problems), OUTPUTS, HIDDEN))
    steps, seen = [], []
    for step in range(MOST_STEPS):
        w_POF = proj_POH @ fc_PHF
        gradient_POF = w_POF @ xx_PFF - yx_POF
        if step % EVERY_STEPS == 0:
            steps.append(step)
            seen.append(w_POF)
            if np.abs(gradient_POF).max() < 1e-11:
                break
        proj_POH, fc_PHF = (
            proj_POH - RATE * gradient_POF @ fc_PHF.swapaxes(1, 2),
            fc_PHF - RATE * proj_POH.swapaxes(1, 2) @ gradient_POF,
        )
    return seen[-1], np.array(steps), np.array(seen)


def facts(one: Problem, w_OF: np.ndarray) -> dict[str, float]:
    """The quantities in the theorem, for an interpolant W."""
    update, size, r_F = w_OF - one.star_OF, np.linalg.norm(one.delta_O), one.r_F
    sigma = np.linalg.svd(one.star_OF, compute_uv=False)[:RANK]
    star, k_1 = (one.star_OF**2).sum(), RANK + 1
    return {
        "share": (update[:, :D_SEM] ** 2).sum() / (update**2).sum(),
        "to W_dis": np.linalg.norm(w_OF - one.dis_OF),
        "to least norm": np.linalg.norm(w_OF - one.least_norm()),
        "to corrected form": np.linalg.norm(w_OF - one.corrected()),
        "norm of r": np.linalg.norm(r_F),
        "squared norm": (w_OF**2).sum(),
        "squared norm, corrected": star + size**2 / (r_F @ r_F),
        "squared norm, bound of D.2": star + 2 * sigma.sum() * size / k_1 + size**2 / k_1,
        "squared norm of W_dis": (one.dis_OF**2).sum(),
    }


def counts(seed: int, spanning: bool, trials: int = TRIALS) -> dict[str, float]:
    """Violations of both theorems by the minimum-norm interpolant, over random problems."""
    rng = generator(seed, f"disentangled {spanning}")
    found = {"stated": 0, "corrected": 0, "D.2 exists": 0, "error": 0.0}
    for _ in range(trials):
        one = problem(rng, 0.0 if spanning else rng.uniform(0.05, LARGEST_NOVELTY))
        w_OF, r_F = one.least_norm(), one.r_F
        equal = np.linalg.norm(w_OF - one.dis_OF) < EQUAL
        found["stated"] += equal
        found["corrected"] += equal != (np.linalg.norm(r_F[:D_SEM]) < EQUAL)
        found["D.2 exists"] += np.linalg.norm(r_F) >= RANK + 1
        found["error"] = max(found["error"], np.linalg.norm(w_OF - one.corrected()))
    return found


def flow(seed: int) -> tuple[list[dict[str, float]], np.ndarray, np.ndarray]:
    """Descends at every novelty -> facts at the end; steps (L,), distance to W_dis (P, L)."""
    rng = generator(seed, "disentangled")
    problems = [problem(rng, novelty) for novelty in NOVELTIES]
    w_POF, steps, seen_LPOF = descend(rng, problems)
    distance_PL = [
        np.linalg.norm(seen_LPOF[:, p] - one.dis_OF, axis=(1, 2)) for p, one in enumerate(problems)
    ]
    found = [facts(one, w) for one, w in zip(problems, w_POF, strict=True)]
    return found, steps, np.array(distance_PL)


def study(seeds: tuple[int, ...]) -> Study:
    flows, runs, nus = [flow(seed) for seed in seeds], [], np.array(NOVELTIES)
    for seed, (found, steps, distance_PL) in zip(seeds, flows, strict=True):
        for nu, one, distance_L in zip(NOVELTIES, found, distance_PL, strict=True):
            curves = {"to W_dis": ("step", steps, distance_L[None])}
            runs += record(f"novelty={nu:g}", [seed], columns([one]), curves)
    spanning, novel = (
        columns([counts(seed, is_spanning) for seed in seeds]) for is_spanning in (True, False)
    )
    runs += record("once-seen span S_sem", seeds, spanning)
    runs += record("novel direction", seeds, novel)
    of_SP = {
        name: np.array([[one[name] for one in found] for found, *_ in flows])
        for name in flows[0][0][0]
    }
    claims = Claims()
    what = "|W_gf - Y X^+| x 10^8, largest over novelties"
    claims.add("d5", what, "0 (D.5)", of_SP["to least norm"].max(1) * 1e8, at_most=1)
    what = "|W_gf - (W* + Δ r^T/|r|²)| x 10^8, the same"
    claims.add("form", what, "corrected", of_SP["to corrected form"].max(1) * 1e8, at_most=1)
    what = "W_gf ≠ W_dis, once-seen span S_sem"
    claims.never("stated_spanning", what, "never (D.3)", spanning["stated"], TRIALS)
    what = "W_gf ≠ W_dis, s_mem has a novel semantic direction"
    claims.never("stated_novel", what, "never (D.3)", novel["stated"], TRIALS)
    what = "W_gf = W_dis iff r has no part in S_sem"
    values = np.add(spanning["corrected"], novel["corrected"])
    claims.never("corrected", what, "corrected", values, 2 * TRIALS)
    what = "an entangled solution (D.2) exists, as the proof assumes, novel direction"
    values = np.subtract(TRIALS, novel["D.2 exists"])
    claims.never("assumed", what, "always (proof)", values, TRIALS)
    for place, nu in enumerate(NOVELTIES):
        what, expected = f"entangled share of the update, novelty {nu:g}", nu**2 / (1 + nu**2)
        values, paper = of_SP["share"][:, place], "above 0 (D.3)"
        claims.near(f"share_{nu:g}", what, paper, values, round(expected, 3), 1e-3)
        what, expected = f"|W_gf - W_dis|, novelty {nu:g}", DELTA * nu / math.sqrt(1 + nu**2)
        values = of_SP["to W_dis"][:, place]
        claims.near(f"distance_{nu:g}", what, paper, values, round(expected, 2), 1e-2)
    norm, of_d2, of_dis = (
        of_SP[name][:, -1]
        for name in ("squared norm", "squared norm, bound of D.2", "squared norm of W_dis")
    )
    what = f"|W_gf|², novelty {NOVELTIES[-1]:g}"
    claims.near("norm", what, "below the bound of D.2", norm, 0.14, 0.01)
    claims.near("norm_d2", "bound of D.2 on |W_ent|²", "below |W_dis|²", of_d2, 0.82, 0.01)
    claims.near("norm_dis", "|W_dis|²", "|W*|² + |Δ|²", of_dis, 2.28, 0.01)
    nu, steps, distance_PL = np.linspace(0, LARGEST_NOVELTY, 300), *flows[0][1:]
    star, bound = RANK * SIGMA**2, of_SP["squared norm, bound of D.2"].mean()
    shown = []
    title = "Entangled share of the update"
    curves = {"measured": (nus, of_SP["share"]), "derived": (nu, None, nu**2 / (1 + nu**2))}
    shown.append(lines(title, "novelty $\\nu$", "share", curves, "o", ylim=(0, 1)))
    title = "Where gradient flow ends"
    curves = {
        "distance to $W_{dis}$": (nus, of_SP["to W_dis"]),
        "squared norm": (nus, of_SP["squared norm"]),
        "derived": (nu, None, DELTA * nu / np.sqrt(1 + nu**2), star + DELTA**2 / (1 + nu**2)),
    }
    levels = 0 * nu + star + DELTA**2, 0 * nu + bound
    curves["squared norm of $W_{dis}$, its bound in D.2"] = nu, None, *levels
    shown.append(lines(title, "novelty $\\nu$", "distance, squared norm", curves, "o", 2))
    title = "Distance to $W_{dis}$ while training"
    curves = {
        f"novelty {x:g}": (steps + 1, np.maximum(distance_L, 1e-13))
        for x, distance_L in zip(NOVELTIES, distance_PL, strict=True)
    }
    shown.append(lines(title, "step", "distance", curves, legend=2, log="y"))
    return Study(
        "disentangled",
        "Theorems 3.1, D.3, D.5: what gradient flow does with a memory",
        "Gradient flow uses just the directions of the memory which no other text has, in "
        "proportion. If those are all in the memorization subspace it finds the disentangled "
        "solution, against the theorem as stated; with a novelty of 1, half of the update is in "
        "the semantic subspace.",
        f"d_sem = {D_SEM}, d_mem = {D_MEM}, k = rank(W*) = {RANK}, N = {ONCE}, {REPEATS} repeats, "
        f"|Δ| = {DELTA:g}, σ(W*) = {SIGMA:g}, {HIDDEN} hidden neurons with W_fc^T W_fc = I, "
        f"gradient descent at rate {RATE:g} until the gradient is 0. Violations: the interpolant "
        f"of least norm in {TRIALS} random problems a seed with, and {TRIALS} without, a novel "
        f"direction, novelty up to {LARGEST_NOVELTY:g}. Every assumption of D.3 holds in all.",
        runs,
        claims,
        shown,
    )
