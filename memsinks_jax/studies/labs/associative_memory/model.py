"""The linear associative memory (section 2) and its weighting schemes (section 3.2).

A matrix W = sum_x q(x) u_{f(x)} e_x^T (4) stores the output f(x) in [M] of each input x in [N], and
recalls it as argmax_y u_y^T W e_x (2). Inputs follow a Zipf law p(x) ~ x^-alpha (1), f(x) = x mod
M, the e_x are N(0, I_d) and the u_y uniform on the unit sphere. The error (5) is the probability
under p that recall is wrong, summed over all x.

W itself is never built. Recall depends only on inner products of embeddings, so the scores of all
inputs are (U U^T) (sum_x q(x) 1[f(x)=y] e_x) E^T: three matrix products, the largest of M x d x N.

Axes: N inputs, M outputs, S schemes, D values of d, T numbers of samples, R coordinates of an
embedding.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special


class Law(NamedTuple):
    """A distribution over inputs, most frequent first: `p_N` of the simulated, `beyond` of all
    others. These are never stored, so their recall is a guess among M outputs.
    """

    p_N: np.ndarray
    beyond: float = 0.0


def zipf(n: int, alpha: float, infinite: bool = False) -> Law:
    """Zipf's law (1), float64. `infinite`: the first n inputs of the law over all integers."""
    weights_N = np.arange(1, n + 1) ** -float(alpha)
    if not infinite:
        return Law(weights_N / weights_N.sum())
    total = scipy.special.zeta(alpha)
    return Law(weights_N / total, float(scipy.special.zeta(alpha, n + 1) / total))


def outputs(n: int, m: int) -> np.ndarray:
    """f(x) = x mod M for x = 1..n -> int (N,)."""
    return np.arange(1, n + 1) % m


def chi(key: jax.Array, freedom: jax.Array) -> jax.Array:
    """Lengths of normal vectors: roots of chi-squares with `freedom` >= 1 degrees -> its shape.

    Marsaglia and Tsang's rejection (2000): with a = freedom / 2 and t = x / sqrt(9a - 3), x ~ N(0,
    1), the proposal 2 (a - 1/3) (1 + t)^3 is accepted at least 19 times of 20. Draws eight
    proposals at once and takes the first accepted one; all eight fail once in 10^10 draws.
    `jax.random.chisquare` takes seconds to compile.
    """
    of_proposals, of_acceptance, of_one = jax.random.split(key, 3)
    shape = (8, *freedom.shape)
    a = jnp.maximum(freedom, 2.0) / 2 - 1 / 3
    x = jax.random.normal(of_proposals, shape)
    t = x / jnp.sqrt(9 * a)
    # The logarithm of the density. No large terms cancel, at millions of degrees of freedom.
    excess = x**2 / 2 + a * (3 * (jnp.log1p(jnp.maximum(t, -0.999999)) - t) - 3 * t**2 - t**3)
    accepted = (t > -1) & (jnp.log(jax.random.uniform(of_acceptance, shape, minval=1e-30)) < excess)
    first = jnp.take_along_axis(t, accepted.argmax(0)[None], axis=0)[0]
    several = jnp.sqrt(2 * a * (1 + first) ** 3)
    return jnp.where(freedom < 2, jnp.abs(jax.random.normal(of_one, freedom.shape)), several)


def embeddings(key: jax.Array, count: int, d: float | jax.Array, width: int) -> jax.Array:
    """`count` vectors e_x ~ N(0, I_d), in a basis in which they are triangular -> (count, width).

    Bartlett's decomposition: rotate the basis so that e_1 lies along the first axis, e_2 in the
    plane of the first two, and so on. Coordinate j of e_j is then the root of a chi-square with d -
    j + 1 degrees of freedom, those before it are N(0, 1), those after it zero. All inner products
    have the distribution of plain draws. The cost does not depend on d, which may be a traced value
    of any size. width: coordinates kept, at least min(count, d).
    """
    of_normal, of_diagonal = jax.random.split(key)
    row, column = jnp.arange(count)[:, None], jnp.arange(width)
    diagonal_R = chi(of_diagonal, jnp.maximum(d - column, 1.0))
    e_NR = jnp.where(row > column, jax.random.normal(of_normal, (count, width)), 0.0)
    e_NR = jnp.where(row == column, diagonal_R, e_NR)
    return jnp.where(column < d, e_NR, 0.0)


def draw(
    key: jax.Array, n: int, m: int, d: float | jax.Array, width: int
) -> tuple[jax.Array, jax.Array]:
    """Embeddings e (N, R), and u_y^T u_z (M, M) of unembeddings on the unit sphere of R^d."""
    of_inputs, of_outputs = jax.random.split(key)
    u_MR = embeddings(of_outputs, m, d, m)
    u_MR = u_MR / jnp.linalg.norm(u_MR, axis=1, keepdims=True)
    return embeddings(of_inputs, n, d, width), u_MR @ u_MR.T


def scores(e_NR: jax.Array, gram_MM: jax.Array, q_SN: jax.Array, y_N: jax.Array) -> jax.Array:
    """u_y^T W e_x of every scheme -> (S, M, N)."""
    m, schemes, width = len(gram_MM), len(q_SN), e_NR.shape[1]
    of_class_MN = y_N == jnp.arange(m)[:, None]
    # Two-axis matrices: XLA's CPU backend multiplies batches of small ones much more slowly.
    of_class_SMN = jnp.where(of_class_MN, q_SN[:, None], 0.0)
    sums_SMR = (of_class_SMN.reshape(schemes * m, -1) @ e_NR).reshape(schemes, m, width)
    mixed_SMR = jnp.einsum("yz,szr->syr", gram_MM, sums_SMR)
    return (mixed_SMR.reshape(schemes * m, width) @ e_NR.T).reshape(schemes, m, -1)


def wrong(scores_xMN: jax.Array, y_N: jax.Array) -> jax.Array:
    """Where recall (2) errs -> bool (..., N)."""
    return scores_xMN.argmax(-2) != y_N


def error(scores_xMN: jax.Array, y_N: jax.Array, law: Law) -> jax.Array:
    """The exact error (5) -> (...)."""
    guess = law.beyond * (1 - 1 / scores_xMN.shape[-2])
    return wrong(scores_xMN, y_N) @ jnp.asarray(law.p_N, jnp.float32) + guess


def power(p_xN: jax.Array | np.ndarray, rho: float) -> jax.Array:
    """q_rho (11) = p^rho. rho = 0 gives the q_0 of (10), which is 1 for everything seen."""
    return jnp.where(p_xN > 0, jnp.where(p_xN > 0, p_xN, 1.0) ** rho, 0.0)


def ranks(key: jax.Array, counts_N: jax.Array) -> jax.Array:
    """Rank of every input by count, 0 for the most frequent (12), ties at random -> int (N,)."""
    blurred_N = counts_N + jax.random.uniform(key, counts_N.shape)
    return jnp.argsort(jnp.argsort(-blurred_N))


def samples(key: jax.Array, law: Law, count: int) -> jax.Array:
    """Draws `count` inputs from the law -> int32 (count,). N stands for any beyond the simulated.

    Compares 32-bit integers with thresholds: in float32, rare inputs would share few values.
    """
    edges_N = np.cumsum(np.asarray(law.p_N, np.float64)) * 2.0**32
    edges_N = np.minimum(edges_N, 2.0**32 - 1).astype(np.uint32)
    if not law.beyond:
        edges_N[-1] = 2**32 - 1
    bits_T = jax.random.bits(key, (count,), jnp.uint32)
    return jnp.searchsorted(edges_N, bits_T, side="left").astype(jnp.int32)


def counts(key: jax.Array, law: Law, times_T: tuple[int, ...]) -> jax.Array:
    """Counts of inputs in the first t samples of a stream, for every t -> float32 (T, N)."""
    n, ends = len(law.p_N), np.asarray(times_T)
    drawn = samples(key, law, int(ends[-1]))
    segment = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    new_TN = jnp.zeros((len(ends), n)).at[segment, drawn].add(1.0, mode="drop")
    return jnp.cumsum(new_TN, axis=0)


def over_runs(
    one_run: Callable, seeds: list[int], draws: int, together: bool = False
) -> np.ndarray:
    """`one_run(key)` for `draws` keys of every seed -> float64 (seeds, draws, ...), or a tree of
    them.

    `together`: all runs in lockstep, for many small steps; else one by one, for large matrices.
    """
    of_seeds = jnp.stack([jax.random.key(seed) for seed in seeds])
    keys = jax.vmap(lambda key: jax.random.split(key, draws))(of_seeds).ravel()
    over_keys = jax.vmap(one_run) if together else lambda keys: jax.lax.map(one_run, keys)
    results = jax.jit(over_keys)(keys)
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64).reshape(len(seeds), draws, *x.shape[1:]), results
    )


def infinite_data(seeds, draws: int, law: Law, y_N, m: int, ds, q_DSN) -> np.ndarray:
    """Errors of every scheme at every d if the whole law is known -> float64 (seeds, draws, D, S).

    `law.p_N` and `y_N` may have a first axis D, as `q_DSN` has. If it is 1 or absent, all d share
    one value.
    """
    n, count = np.shape(q_DSN)[-1], len(ds)
    width = min(n, int(max(ds)))
    cases = (
        jnp.asarray(ds, jnp.float32),
        jnp.broadcast_to(jnp.asarray(q_DSN, jnp.float32), (count, *np.shape(q_DSN)[1:])),
        jnp.broadcast_to(jnp.asarray(y_N), (count, n)),
        Law(
            jnp.broadcast_to(jnp.asarray(law.p_N, jnp.float32), (count, n)),
            jnp.broadcast_to(law.beyond, count),
        ),
    )

    def one_run(key):
        def at(case):
            d, q_SN, y_N, law = case
            return error(scores(*draw(key, n, m, d, width), q_SN, y_N), y_N, law)

        return jax.lax.map(at, cases)

    return over_runs(one_run, seeds, draws)


def finite_data(
    seeds,
    draws: int,
    law: Law,
    m: int,
    ds: tuple[int, ...],
    times: tuple[int, ...],
    rho,
    stored_D=None,
):
    """Errors of q_rho (11), or of q_{rho,[P]} (12) with P = stored_D for every d, from the first T
    samples of a stream -> float64 (seeds, draws, D, T).
    """
    n, width = len(law.p_N), min(len(law.p_N), int(max(ds)))
    y_N = outputs(n, m)
    stored_D = np.full(len(ds), n) if stored_D is None else np.asarray(stored_D)

    def one_run(key):
        of_samples, of_ties, of_memory = jax.random.split(key, 3)
        counts_TN = counts(of_samples, law, times)
        ranks_TN = jax.vmap(ranks, in_axes=(None, 0))(of_ties, counts_TN)
        q_TN = power(counts_TN / jnp.asarray(times, jnp.float32)[:, None], rho)

        def at(d, stored):
            weights_TN = jnp.where(ranks_TN < stored, q_TN, 0.0)
            return error(scores(*draw(of_memory, n, m, d, width), weights_TN, y_N), y_N, law)

        return jax.lax.map(
            lambda pair: at(*pair), (jnp.asarray(ds, jnp.float32), jnp.asarray(stored_D))
        )

    return over_runs(one_run, seeds, draws)
