"""How many documents can sinks hold? The linear memory with a mask tied to every document.

M sinks are the input space of the memory, like the hidden neurons of a down projection. Document x
has a code: its activations h_x at the sinks, times a mask that is drawn from its id alone and on
with probability p. The memory adds up u_{f(x)} (mask_x h_x)^T, and is queried with the document's
own masked code. Activations of two documents have the similarity s: h = sqrt(s) common + sqrt(1 -
s) own, both N(0, I).

By Theorem 1, recall of x depends on d q(x)^2 over Q = max_y sum_{f(x)=y} q(x)^2, signal over
interference. Here:
- signal: the product of a document's code with itself is p M;
- interference of one other document: only sinks on for both count. It has the mean s p^2 M, the
  same sign for all documents of an output, and the variance p^2 M (1 + 2 s^2 - p s (1 + 2 s))
  around it.
With n documents per output, drawn at random, so that n itself varies by sqrt(n), signal squared
over interference is d_eff / n with

    1 / d_eff = (1 + 2 s^2 - p s (1 + 2 s)) / M + s^2 p^2

which replaces d in Theorem 1. For s = 0 the mask cancels out: d_eff = M for any p. For s > 0 it
reduces the interference of what documents share: without a mask, d_eff is never above 1 / s^2. A
mask drawn anew at every access lowers the signal to p^2 M, so d_eff by p^2. Few active sinks cost
more on top: the length of a code, p M on average, has a relative variance of (3 - p) / (p M), and
recall of short codes fails first.

Documents read once write to sinks too. Suppose U of them come with every document that was read k
times. The memory holds the latter with q = k and the others with q = 1, so in Q they count as U /
k^2 more documents per output: n (1 + U / k^2). Sinks that open at the second encounter hold q = k -
1 and q = 0, so only returning documents interfere: n.

Axes: N documents, M sinks, K outputs, C cases.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special

from memsinks_jax.studies.labs.associative_memory import model


class Case(NamedTuple):
    """A pool of sinks: their number M, the active fraction p, the similarity s of activations,
    whether masks are tied, and the weight q of a document read once, relative to one to recall.
    """

    sinks: int
    active: float
    alike: float
    tied: bool = True
    once: float = 0.0


def weight_of_once(encounters: int, opens_at: int) -> float:
    """`Case.once` if documents to recall came `encounters` times, and sinks open at `opens_at`."""
    return max(2 - opens_at, 0) / (encounters + 1 - opens_at)


def interference(case: Case) -> tuple[float, float]:
    """Variance of one other document's contribution, and its squared mean, over (p M)^2."""
    p, s = case.active, case.alike
    return (1 + 2 * s**2 - p * s * (1 + 2 * s)) / case.sinks, (s * p) ** 2


def effective_dimension(case: Case) -> float:
    """d_eff of the module's docstring, which replaces d in Theorem 1."""
    return (1 if case.tied else case.active**2) / sum(interference(case))


def length_variance(case: Case) -> float:
    """Variance of sum mask h^2 over its squared mean, or with a new mask of sum mask mask' h^2."""
    shared = case.active if case.tied else case.active**2
    return (3 - shared) / (shared * case.sinks)


def predicted_error(case: Case, documents, outputs: int):
    """Probability that another output wins over the stored one, with normal interference in every
    output.

    The signal's length varies by `length_variance`, the number of documents per output around n =
    documents / outputs by sqrt(n). Both are modelled as gamma distributed. With z the interference
    at the own output and r_k the relative number of a rival's documents:

        1 - E integral of phi(z) F(z + sqrt(length d_eff / n))^(K-1) dz,
        F(t) = E Phi(t / sqrt(of the variance with r_k))

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
    """How many documents each to recall counts as, with U = `once` others: 1 + U / k^2, or 1."""
    return 1 + once * case.once**2


def predicted_capacity(case: Case, outputs: int, tolerated: float) -> float:
    """Number of documents held at this error rate, the inverse of `predicted_error`; 0 if none."""

    def excess(log_documents):
        return float(predicted_error(case, np.exp(log_documents), outputs)) - tolerated

    if excess(0) > 0:
        return 0.0
    return float(np.exp(scipy.optimize.brentq(excess, 0, np.log(100.0 * outputs * case.sinks))))


def masks(key: jax.Array, documents: int, sinks: int) -> jax.Array:
    """Uniform numbers, by a document's id; a sink is on if its number is below p -> (N, M)."""
    keys = jax.vmap(lambda identity: jax.random.fold_in(key, identity))(jnp.arange(documents))
    return jax.vmap(lambda key: jax.random.uniform(key, (sinks,)))(keys)


def recall(
    stored_NM: jax.Array, asked_NM: jax.Array, y_N: jax.Array, outputs: int, sizes: tuple[int, ...]
) -> jax.Array:
    """Error of recall of the first `size` documents, from a memory of these alone -> (sizes,).

    `stored` has as many codes for every document of `asked`: itself first, then documents read
    once. The unembeddings are orthogonal, so that reading the answer does not limit the sinks.
    """
    of_class_KN = (y_N == jnp.arange(outputs)[:, None]).astype(jnp.float32)
    w_KM = jnp.zeros((outputs, stored_NM.shape[1]))
    errors = []
    start = 0
    each = len(stored_NM) // len(asked_NM)
    for size in sizes:
        end = size * each
        w_KM += of_class_KN[:, start:end] @ stored_NM[start:end]
        errors.append(model.wrong(w_KM @ asked_NM[:size].T, y_N[:end:each]).mean())
        start = end
    return jnp.stack(errors)


def measure(
    seeds, draws: int, cases: list[Case], outputs: int, sizes: tuple[int, ...], once: int = 0
) -> np.ndarray:
    """Error of recall, with U = `once` documents for each -> float64 (seeds, draws, C, sizes)."""
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
    """Number of documents at which the error crosses `tolerated`, between sizes in log ->
    (groups,). NaN if it does not.
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
