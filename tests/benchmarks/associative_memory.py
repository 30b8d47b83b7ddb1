"""Speed of the lab against a plain numpy loop on the same work:

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/associative_memory.py

The loop goes over runs, values of d and schemes, or over runs and steps, with numpy inside: a
matrix W from one product, scores from two more. Both sides draw their own embeddings and samples;
their mean errors are compared. Times are medians of alternating runs after an uncounted warm-up.
numpy uses one thread: its products are small, and on a busy machine more threads make the loop many
times slower.
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.studies.labs.associative_memory import model, optimization

N, M, RUNS, REPEATS = 100, 5, 100, 3
LAW, Y = model.zipf(N, 2.0), model.outputs(N, M)
D = (8, 16, 32, 64, 128, 256, 512)
TIMES = (10, 100, 1000, 10000)
STEPS, GAMMA = 1000, 1.0
AT_LEAST = 20  # times as fast, over all of the work


def draw(rng, d):
    e_ND, u_MD = rng.standard_normal((N, d)), rng.standard_normal((M, d))
    return e_ND, u_MD / np.linalg.norm(u_MD, axis=1, keepdims=True)


def error_of(scores_MN):
    return LAW.p_N @ (scores_MN.argmax(0) != Y)


def schemes_at(d):
    return np.ones(N), LAW.p_N, np.arange(N) < d // 8


def schemes_numpy():
    """Errors of three schemes at seven d with the law known."""
    rng, errors = np.random.default_rng(0), np.zeros((RUNS, len(D), 3))
    for run in range(RUNS):
        for i, d in enumerate(D):
            e_ND, u_MD = draw(rng, d)
            for s, q_N in enumerate(schemes_at(d)):
                w_DD = (u_MD[Y] * q_N[:, None]).T @ e_ND
                errors[run, i, s] = error_of(u_MD @ w_DD @ e_ND.T)
    return errors.mean(0)


def samples_numpy():
    """Errors of q_0 and q_1 of T samples at seven d."""
    rng, errors = np.random.default_rng(1), np.zeros((2, RUNS, len(D), len(TIMES)))
    for rho in (0, 1):
        for run in range(RUNS):
            drawn = rng.choice(N, size=max(TIMES), p=LAW.p_N)
            for i, d in enumerate(D):
                e_ND, u_MD = draw(rng, d)
                for t, count in enumerate(TIMES):
                    seen_N = np.bincount(drawn[:count], minlength=N)
                    q_N = np.where(seen_N > 0, (seen_N / count) ** float(rho), 0)
                    errors[rho, run, i, t] = error_of(
                        u_MD @ ((u_MD[Y] * q_N[:, None]).T @ e_ND) @ e_ND.T
                    )
    return errors.mean(1)


def descent_numpy():
    """Error of SGD on W after every step, batch size one."""
    rng, errors = np.random.default_rng(2), np.zeros((RUNS, STEPS))
    for run in range(RUNS):
        e_ND, u_MD = draw(rng, N)
        e_ND /= N**0.5
        w_DD = np.zeros((N, N))
        for step, x in enumerate(rng.choice(N, size=STEPS, p=LAW.p_N)):
            scores_M = u_MD @ (w_DD @ e_ND[x])
            chance_M = np.exp(scores_M - scores_M.max())
            chance_M /= chance_M.sum()
            chance_M[Y[x]] -= 1
            w_DD -= GAMMA * np.outer(chance_M @ u_MD, e_ND[x])
            errors[run, step] = error_of(u_MD @ w_DD @ e_ND.T)
    return errors.mean(0)


def over_runs(one_run):
    """A compiled function of a seed -> mean over RUNS runs, in the lab's way."""
    compiled = jax.jit(one_run)

    def measure():
        return np.asarray(compiled(jax.random.split(jax.random.key(0), RUNS)), np.float64).mean(0)

    return measure


def schemes_jax():
    q_DSN = jnp.asarray(np.array([schemes_at(d) for d in D], np.float32))

    def one_run(key):
        def at(case):
            d, q_SN = case
            return model.error(model.scores(*model.draw(key, N, M, d, N), q_SN, Y), Y, LAW)

        return jax.lax.map(at, (jnp.array(D, jnp.float32), q_DSN))

    return over_runs(lambda keys: jax.lax.map(one_run, keys))


def samples_jax():
    def one_run(key):
        of_samples, of_memory = jax.random.split(key)
        counts_TN = model.counts(of_samples, LAW, TIMES)
        p_TN = counts_TN / jnp.asarray(TIMES, jnp.float32)[:, None]
        q_SN = jnp.concatenate([model.power(p_TN, 0.0), model.power(p_TN, 1.0)])

        def at(d):
            return model.error(model.scores(*model.draw(of_memory, N, M, d, N), q_SN, Y), Y, LAW)

        return (
            jax.lax.map(at, jnp.array(D, jnp.float32)).reshape(len(D), 2, len(TIMES)).swapaxes(0, 1)
        )

    return over_runs(lambda keys: jax.lax.map(one_run, keys))


def descent_jax():
    def one_run(key):
        of_memory, of_samples = jax.random.split(key)
        e_NR, gram_MM = model.draw(of_memory, N, M, N, N)
        inputs_T = model.samples(of_samples, LAW, STEPS)
        return optimization.stream(
            "gradient",
            optimization.kernel(e_NR, N),
            gram_MM,
            jnp.asarray(Y),
            inputs_T,
            jnp.full(STEPS, GAMMA),
            lambda scores_MN: model.error(scores_MN, Y, LAW),
        )

    return over_runs(jax.vmap(one_run))


def seconds(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def main():
    total = np.zeros(2)
    for name, plain, fast in (
        ("schemes, law known", schemes_numpy, schemes_jax()),
        ("schemes, T samples", samples_numpy, samples_jax()),
        ("SGD, 1000 steps", descent_numpy, descent_jax()),
    ):
        fast()
        pairs = [(seconds(plain), seconds(fast)) for _ in range(REPEATS)]
        (plain_s, fast_s) = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
        ratio = statistics.median(one[0] / other[0] for one, other in pairs)
        apart = np.abs(pairs[0][0][1] - pairs[0][1][1]).max()
        print(
            f"{name:20s}  numpy {plain_s:7.3f} s   lab {fast_s:7.4f} s   ratio {ratio:6.1f}   "
            f"errors apart {apart:.3f}"
        )
        assert apart < 0.2, "the two sides do not measure the same"
        total += plain_s, fast_s
    print(
        f"{'all':20s}  numpy {total[0]:7.3f} s   lab {total[1]:7.4f} s   ratio "
        f"{total[0] / total[1]:6.1f}"
    )
    return 0 if total[0] / total[1] >= AT_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
