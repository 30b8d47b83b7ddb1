"""The paper's theorems: exponents of the scaling laws, bounds, and fits to measurements."""

import numpy as np
import scipy.special

from memsinks_jax.studies.labs.associative_memory import model


def slope(x_X, values_GX: np.ndarray) -> list[float]:
    """Exponent of a power law, fitted to every row by least squares in log-log -> one per row."""
    return [float(np.polyfit(np.log(x_X), np.log(row), 1)[0]) for row in values_GX]


def through_middle(x_X, values_GX: np.ndarray, exponent: float | None) -> list[np.ndarray]:
    """The power law through the middle of the means, [(X,)]; nothing if there is no exponent."""
    x_X, middle = np.array(x_X, float), len(x_X) // 2
    return [] if exponent is None else [values_GX.mean(0)[middle] * (x_X / x_X[middle]) ** exponent]


def exponent_in_d(alpha: float, rho: float) -> float:
    """Exponent of E(q_rho) in d / phi(N) (13). rho = 1 is the first row of Table 2."""
    return -(alpha - 1) / (2 * rho * alpha)


def phi(n: int | np.ndarray, alpha: float, rho: float):
    """phi(N) of (13)."""
    power = 2 * rho * alpha
    return 1.0 if power > 1 else np.log(n) if power == 1 else n ** (1 - power)


def exponent_thresholded(alpha: float, rho: float) -> float:
    """Exponent of E(q_{rho,[P]}) in d, with P = d^(1 / (2 rho alpha + 1)) (14)."""
    return -(alpha - 1) / (2 * rho * alpha + 1)


def exponent_in_samples(alpha: float) -> float:
    """Exponent of the error in T (6)."""
    return -1 + 1 / alpha


def constant(alpha: float) -> float:
    """C_alpha, the normalization of Zipf's law over all positive integers (1)."""
    return 1 / scipy.special.zeta(alpha)


def never_stored(stored: float, alpha: float, m: int):
    """Error of inputs beyond the first P, guessed: (1 - 1/M) C P^(1-alpha) / (alpha - 1)."""
    return (1 - 1 / m) * constant(alpha) * np.asarray(stored, float) ** (1 - alpha) / (alpha - 1)


def never_seen(samples, alpha: float, m: int):
    """Error of inputs not among T samples: (1 - 1/M) sum_x p(x) (1 - p(x))^T for large T, the law
    (6) with its constant: (1 - 1/M) Gamma(1 - 1/alpha) C^(1/alpha) / alpha T^(-1+1/alpha).
    """
    factor = (
        (1 - 1 / m) * scipy.special.gamma(1 - 1 / alpha) * constant(alpha) ** (1 / alpha) / alpha
    )
    return factor * np.asarray(samples, float) ** (-1 + 1 / alpha)


def never_seen_exactly(samples, law: model.Law, m: int):
    """(1 - 1/M) sum_x p(x) (1 - p(x))^T, for any law (Proposition 1)."""
    p_N = np.asarray(law.p_N, np.float64)
    survives = np.array([(p_N * (1 - p_N) ** t).sum() for t in np.atleast_1d(samples)])
    return (1 - 1 / m) * (survives + law.beyond)


def upper_bound(d: float, q_N: np.ndarray, law: model.Law, y_N: np.ndarray, m: int) -> float:
    """(7) of Theorem 1, for weights q >= 0. Needs M >= 4 and d > 8 log M.

    The set in (7) grows with c_gamma = log M + gamma log d. It changes only where an input x enters
    it, at the positive root c of d q(x)^2 = 16 c (Q + 8 c |q|^2 / d); in between, the first term
    falls. So the infimum over gamma is the smallest value just below one of these roots.

    The paper prints q: [N] -> R, but a negative q(x) stores the opposite: with q = -1 for all x,
    recall is always wrong for large d, while (7) tends to 0. The bound holds for nonnegative
    weights, such as those of (3) and (4).
    """
    q_N, p_N = np.asarray(q_N, np.float64), np.asarray(law.p_N, np.float64)
    square, largest = (q_N**2).sum(), _largest_class(q_N, y_N, m)
    # Root of a c^2 + b c - d q^2 = 0, in a form without cancellation.
    a, b = 128 * square / d, 16 * largest
    roots_N = 2 * d * q_N**2 / (b + np.sqrt(b**2 + 4 * a * d * q_N**2))
    order = np.argsort(roots_N)
    entered_before = np.concatenate([[0.0], np.cumsum(p_N[order])])[:-1]
    # Inputs with the same root enter together.
    entered_before = entered_before[np.searchsorted(roots_N[order], roots_N[order], side="left")]
    gamma = (roots_N[order] - np.log(m)) / np.log(d)
    useful = gamma > 0
    values = 2 * d ** -gamma[useful] + entered_before[useful] + law.beyond
    return float(min(values.min(initial=np.inf), 1.0))


def lower_bound(d: float, q_N: np.ndarray, law: model.Law, y_N: np.ndarray, m: int) -> float:
    """(8) of Theorem 1. An input that is never stored has q = 0 and lies in the set."""
    q_N = np.asarray(q_N, np.float64)
    lost_N = 3 * (d + 1) * q_N**2 <= _largest_class(q_N, y_N, m)
    return float((np.asarray(law.p_N, np.float64) @ lost_N + law.beyond) / 20)


def _largest_class(q_N: np.ndarray, y_N: np.ndarray, m: int) -> float:
    """Q_infinity = max_y sum over the inputs of y of q^2."""
    return float(np.bincount(y_N, weights=q_N**2, minlength=m).max())


def minimax(d: float, alpha: float, largest_output: float) -> float:
    """c_alpha (d + 1)^(1 - alpha), the bound of Theorem 2. largest_output: p_* = max_y p(y)."""
    factor = constant(alpha) * largest_output ** (alpha - 1) / (20 * (alpha + 1) * 3 ** (alpha - 1))
    return factor * (d + 1) ** (1 - alpha)


def quasi_orthogonality(count: int, d: int) -> float:
    """eta = 2 sqrt(log P / d) of Lemma 1."""
    return 2 * np.sqrt(np.log(count) / d)


def coarse(
    law: model.Law, q_N: np.ndarray, y_N: np.ndarray, m: int, tested: int
) -> tuple[model.Law, np.ndarray, np.ndarray]:
    """The same memory, with recall tested on `tested` of its inputs -> (law, q, y), `tested` + M
    rows.

    Everything stored still interferes. The untested inputs add sum q(x) e_x per class to W, which
    is distributed as one embedding with the weight sqrt(sum q(x)^2). It becomes one row per class,
    which is never asked for. The tested inputs are evenly spaced in log x, and each stands for the
    mass around it; the probability of recall is smooth in x.
    """
    n = len(q_N)
    # Distinct inputs, evenly spaced in log x unless this is finer than one input.
    start = next(k for k in range(tested) if (n / (k + 1)) ** (1 / (tested - k)) * (k + 1) >= k + 2)
    tried = np.concatenate(
        [np.arange(start), np.round(np.geomspace(start + 1, n, tested - start)).astype(int) - 1]
    )
    edges = np.searchsorted(tried, np.arange(n), side="left").clip(max=len(tried) - 1)
    mass = np.bincount(edges, weights=law.p_N, minlength=len(tried))
    others = np.ones(n, bool)
    others[tried] = False
    lump = np.sqrt(np.bincount(y_N[others], weights=q_N[others] ** 2, minlength=m))
    coarse_law = model.Law(np.concatenate([mass, np.zeros(m)]), law.beyond)
    return (
        coarse_law,
        np.concatenate([q_N[tried], lump]),
        np.concatenate([y_N[tried], np.arange(m)]),
    )
