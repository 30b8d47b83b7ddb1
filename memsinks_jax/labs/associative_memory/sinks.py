"""How many documents can sink neurons hold? The linear memory with a mask tied to every document.

M sinks are the input space of the memory, as the hidden neurons are of a down projection. Document x has a code, its
activations h_x in the sinks times its own mask, on with chance p and drawn from its id alone; the memory adds up
u_{f(x)} (mask_x h_x)^T and is asked with the document's own masked code again. Activations of two documents are alike
to the degree s: h = sqrt(s) common + sqrt(1 - s) own, both N(0, I).

Theorem 1 says that recall of x hangs on d q(x)^2 over Q = max_y sum_{f(x)=y} q(x)^2, signal over interference. Here:
- signal: a document's code times itself is p M;
- interference of one other document: only sinks on for both count. It has the mean s p^2 M, the same sign for all
  documents of an output, and the variance p^2 M (1 + 2 s^2 - p s (1 + 2 s)) around it.
With n documents an output, drawn at random, so that n itself varies by sqrt(n), signal squared over interference is
d_eff / n with

    1 / d_eff = (1 + 2 s^2 - p s (1 + 2 s)) / M + s^2 p^2

which takes the place of d in Theorem 1. For s = 0 the mask cancels out: d_eff = M whatever p. For s > 0 it removes the
interference of what documents share: without it d_eff is never above 1 / s^2. A mask drawn anew at every access lowers
the signal to p^2 M, so d_eff by p^2. Few active sinks cost on top of that: the length of a code, p M on average, varies by
a share (3 - p) / (p M) of variance, and recall of short codes fails first.

Documents that are read once write into sinks too. Beside one that has come k times stand U of them; the memory holds the
first with q = k and the others with q = 1, so that by Q they count as U / k^2 documents more an output: n (1 + U / k^2).
Sinks that open at the second encounter hold q = k - 1 and q = 0, and interference is that of what comes back alone: n.

Axes: N documents, M sinks, K outputs, C cases.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special

from memsinks_jax.labs.associative_memory import model


class Case(NamedTuple):
    """A pool of sinks: their number M, the active fraction p, how alike activations are (s), masks tied or not, and the
    weight q in the memory of a document read once, over that of one to be recalled."""

    sinks: int
    active: float
    alike: float
    tied: bool = True
    once: float = 0.0


def weight_of_once(encounters: int, opens_at: int) -> float:
    """`Case.once` where the documents to be recalled came so often, at least `opens_at` times, and sinks open there."""
    return max(2 - opens_at, 0) / (encounters + 1 - opens_at)


def interference(case: Case) -> tuple[float, float]:
    """Variance of one other document's share around its mean, and that mean squared, over the squared signal p M."""
    p, s = case.active, case.alike
    return (1 + 2 * s**2 - p * s * (1 + 2 * s)) / case.sinks, (s * p) ** 2


def effective_dimension(case: Case) -> float:
    """d_eff of the module's docstring: what stands for d in Theorem 1."""
    return (1 if case.tied else case.active**2) / sum(interference(case))


def length_variance(case: Case) -> float:
    """Variance of a document's signal over its squared mean: of sum mask h^2, or with a new mask of sum mask mask' h^2."""
    shared = case.active if case.tied else case.active**2
    return (3 - shared) / (shared * case.sinks)


def predicted_error(case: Case, documents, outputs: int):
    """Chance that another output wins over the one stored, with normal interference in every output.

    The signal's length varies by `length_variance`, the number of documents an output around n = documents / outputs by
    sqrt(n); both are taken as gamma laws. With z the interference in the own output and r_k a rival's number over n:

        1 - E integral of phi(z) F(z + sqrt(length d_eff / n))^(K-1) dz,   F(t) = E Phi(t / sqrt(of the variance with r_k))

    by quadrature -> shape of `documents`.
    """
    n = np.asarray(documents, float)[..., None, None, None] / outputs
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    middles, variance = (np.arange(32) + 0.5) / 32, length_variance(case)
    lengths = variance * scipy.special.gammaincinv(1 / variance, middles)[:, None, None]
    numbers = scipy.special.gammaincinv(n, middles) / n
    around, shared = interference(case)
    rival = np.sqrt((around * numbers + shared) / (around + shared))
    ahead = nodes[:, None] + np.sqrt(lengths * effective_dimension(case) / n)
    below = scipy.special.ndtr(ahead / np.maximum(rival, 1e-9)).mean(-1)
    return 1 - (below ** (outputs - 1) @ weights).mean(-1) / np.sqrt(2 * np.pi)


def crowding(case: Case, once: int) -> float:
    """How many documents one to be recalled counts as, with U = `once` beside it: 1 + U / k^2, or 1."""
    return 1 + once * case.once**2


def predicted_capacity(case: Case, outputs: int, tolerated: float) -> float:
    """Documents that are held with this share of errors, the inverse of `predicted_error`; 0 if not even one is."""

    def excess(log_documents):
        return float(predicted_error(case, np.exp(log_documents), outputs)) - tolerated

    if excess(0) > 0:
        return 0.0
    return float(np.exp(scipy.optimize.brentq(excess, 0, np.log(100.0 * outputs * case.sinks))))


def masks(key: jax.Array, documents: int, sinks: int) -> jax.Array:
    """Uniform numbers that decide, where below p, which sinks are on: a function of the document's id -> (N, M)."""
    return jax.vmap(lambda identity: jax.random.uniform(jax.random.fold_in(key, identity), (sinks,)))(
        jnp.arange(documents)
    )


def recall(
    stored_NM: jax.Array, asked_NM: jax.Array, y_N: jax.Array, outputs: int, sizes: tuple[int, ...]
) -> jax.Array:
    """Error of recall of the first `size` documents from the memory of them alone, for every size -> (sizes,).

    `stored` has as many for every document of `asked`, itself the first: what is read once stands behind it. The
    unembeddings are orthogonal: reading the answer is not what limits the sinks.
    """
    of_class_KN = (y_N == jnp.arange(outputs)[:, None]).astype(jnp.float32)
    w_KM, errors, start, each = jnp.zeros((outputs, stored_NM.shape[1])), [], 0, len(stored_NM) // len(asked_NM)
    for size in sizes:
        end = size * each
        w_KM += of_class_KN[:, start:end] @ stored_NM[start:end]
        errors.append(model.wrong(w_KM @ asked_NM[:size].T, y_N[:end:each]).mean())
        start = end
    return jnp.stack(errors)


def measure(seeds, draws: int, cases: list[Case], outputs: int, sizes: tuple[int, ...], once: int = 0) -> np.ndarray:
    """Error of recall for every case, with U = `once` documents beside each -> float64 (seeds, draws, C, sizes)."""
    each = 1 + once
    documents, width = max(sizes) * each, max(case.sinks for case in cases)

    def one_run(key):
        of_common, of_own, of_mask, of_other, of_outputs = jax.random.split(key, 5)
        common_M = jax.random.normal(of_common, (width,))
        own_NM = jax.random.normal(of_own, (documents, width))
        mask_NM, other_NM = (masks(of, documents, width) for of in (of_mask, of_other))
        y_N = jax.random.randint(of_outputs, (documents,), 0, outputs)

        def of_case(case):
            sinks, active, alike, tied, weight = case
            h_NM = jnp.sqrt(alike) * common_M + jnp.sqrt(1 - alike) * own_NM
            h_NM = jnp.where(jnp.arange(width) < sinks, h_NM, 0)
            stored_NM = jnp.where(mask_NM < active, h_NM, 0)
            asked_NM = jnp.where(tied > 0, stored_NM, jnp.where(other_NM < active, h_NM, 0))
            weight_N1 = jnp.where(jnp.arange(documents) % each == 0, 1, weight)[:, None]
            return recall(weight_N1 * stored_NM, asked_NM[::each], y_N, outputs, sizes)

        return jax.lax.map(of_case, jnp.asarray(cases, jnp.float32))

    return model.over_runs(one_run, seeds, draws)


def capacity(sizes, errors_GS: np.ndarray, tolerated: float) -> np.ndarray:
    """Documents at which the error crosses `tolerated`, between the sizes by interpolation in log -> (groups,).

    NaN where it is not crossed between the first size and the last.
    """
    held = []
    for errors_S in errors_GS:
        above = errors_S > tolerated
        last = len(sizes) - 1 - int(np.argmin(above[::-1])) if not above.all() else -1
        if last < 0 or last == len(sizes) - 1:
            held.append(np.nan)
            continue
        share = (tolerated - errors_S[last]) / (errors_S[last + 1] - errors_S[last])
        held.append(np.exp(np.log(sizes[last]) + share * np.log(sizes[last + 1] / sizes[last])))
    return np.array(held)
