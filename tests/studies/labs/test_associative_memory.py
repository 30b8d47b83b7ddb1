"""The memory, its laws and its bounds, against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from memsinks_jax.studies.labs.associative_memory import figure_laws, laws, model
from memsinks_jax.studies.labs.associative_memory.study import FigureSettings

pytestmark = pytest.mark.slow

M = 5


def plain_draw(rng, n, m, d):
    """Embeddings as the paper has them: e ~ N(0, I_d), u on the unit sphere."""
    u_MD = rng.standard_normal((m, d))
    return rng.standard_normal((n, d)), u_MD / np.linalg.norm(u_MD, axis=1, keepdims=True)


def test_scores_are_those_of_the_matrix():
    rng = np.random.default_rng(0)
    n, d, y_N = 30, 12, model.outputs(30, M)
    e_ND, u_MD = plain_draw(rng, n, M, d)
    q_SN = rng.uniform(size=(2, n))
    for q_N, scores_MN in zip(q_SN, model.scores(e_ND, u_MD @ u_MD.T, q_SN, y_N), strict=True):
        w_DD = sum(q_N[x] * np.outer(u_MD[y_N[x]], e_ND[x]) for x in range(n))
        np.testing.assert_allclose(scores_MN, u_MD @ w_DD @ e_ND.T, atol=1e-4)


@pytest.mark.parametrize("d", [1, 5, 200])
def test_embeddings_have_the_inner_products_of_normal_vectors(d):
    """Moments of inner products, among them one of three vectors, for fewer and for more dimensions
    than vectors.
    """
    keys = jax.random.split(jax.random.key(d), 4000)
    e = np.asarray(jax.vmap(lambda key: model.embeddings(key, 9, d, min(9, d)))(keys), np.float64)
    inner = e @ e.swapaxes(1, 2)
    first, second, last = inner[:, 0, 0], inner[:, 3, 3], inner[:, 8, 8]
    expected = {
        "length": (np.stack([first, second, last], 1), d),
        "its square": (np.stack([first, second, last], 1) ** 2, d * (d + 2)),
        "product": (np.stack([inner[:, 0, 8], inner[:, 3, 4]], 1), 0),
        "its square ": (np.stack([inner[:, 0, 8], inner[:, 3, 4]], 1) ** 2, d),
        "triangle": ((inner[:, 1, 4] * inner[:, 4, 7] * inner[:, 7, 1])[:, None], d),
    }
    for name, (values, mean) in expected.items():
        error = values.std(0) / len(values) ** 0.5
        assert np.all(np.abs(values.mean(0) - mean) < 4.5 * error), name


@pytest.mark.parametrize("freedom", [1, 2, 3, 30, 1e6])
def test_chi(freedom):
    drawn = np.asarray(
        model.chi(jax.random.key(1), jnp.full(20000, freedom, jnp.float32)), np.float64
    )
    assert scipy.stats.kstest(drawn, scipy.stats.chi(freedom).cdf).pvalue > 1e-3


def test_error_counts_the_law_and_what_lies_beyond_it():
    scores_MN = jnp.array([[3.0, 0, 0, 9], [0, 2, 5, 0]])
    law = model.Law(np.array([0.4, 0.3, 0.1, 0.1]), beyond=0.1)
    # Inputs 0 and 1 are right, 2 and 3 wrong; what lies beyond is a guess between two outputs.
    assert model.error(scores_MN, jnp.array([0, 1, 0, 1]), law) == pytest.approx(0.1 + 0.1 + 0.05)


def test_zipf():
    assert model.zipf(3, 1).p_N == pytest.approx(np.array([6, 3, 2]) / 11)
    law = model.zipf(1000, 2.5, infinite=True)
    assert law.p_N.sum() + law.beyond == pytest.approx(1)
    assert law.p_N[9] / law.p_N[0] == pytest.approx(10**-2.5)


def test_samples_follow_the_law_down_to_rare_inputs():
    law = model.zipf(50, 2.0, infinite=True)
    drawn = np.asarray(model.samples(jax.random.key(0), law, 200_000))
    seen = np.bincount(drawn, minlength=51)
    assert len(seen) == 51
    assert scipy.stats.chisquare(seen, 200_000 * np.append(law.p_N, law.beyond)).pvalue > 1e-3
    finite = np.asarray(model.samples(jax.random.key(0), model.zipf(50, 2.0), 200_000))
    assert finite.max() == 49


def test_samples_distinguish_rare_inputs(monkeypatch):
    """64 inputs of 2e-8 each: float32 numbers near 1 are further apart than that."""
    rare = model.Law(np.array([1 - 64 * 2e-8, *[2e-8] * 64]))
    highest = jnp.arange(2**32 - 5000, 2**32, dtype=jnp.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: highest)
    seen = np.bincount(np.asarray(model.samples(jax.random.key(0), rare, 5000)), minlength=65)
    assert seen.sum() == 5000 and seen[10:].min() >= 80 and seen[10:64].max() <= 92


def test_counts_are_of_one_growing_stream():
    counts_TN = np.asarray(model.counts(jax.random.key(2), model.zipf(20, 1.0), (1, 5, 400)))
    assert counts_TN.sum(1).tolist() == [1, 5, 400]
    assert (np.diff(counts_TN, axis=0) >= 0).all()
    drawn = np.asarray(model.samples(jax.random.key(2), model.zipf(20, 1.0), 400))
    assert counts_TN[1].tolist() == np.bincount(drawn[:5], minlength=20).tolist()


def test_ranks_go_by_frequency_and_break_ties_at_random():
    counts_N = jnp.array([2.0, 0, 7, 2, 2])
    ranks = np.array([model.ranks(jax.random.key(seed), counts_N) for seed in range(60)])
    assert (ranks[:, 2] == 0).all() and (ranks[:, 1] == 4).all()
    assert all(set(ranks[:, x]) == {1, 2, 3} for x in (0, 3, 4))


def test_power():
    assert model.power(np.array([0.25, 0.0]), 0.5).tolist() == [0.5, 0]
    assert model.power(np.array([0.25, 0.0]), 0.0).tolist() == [1, 0]


# Errors of a plain numpy loop: N = 100, M = 5, alpha = 2, T infinite, mean and standard error of
# 100 runs.
D = (8, 16, 32, 64, 128, 256, 512)
TABLE = {
    "q_0": (
        (0.652, 0.601, 0.469, 0.280, 0.099, 0.016, 0.000),
        (0.031, 0.030, 0.030, 0.029, 0.017, 0.007, 0.0005),
    ),
    "q_1": (
        (0.220, 0.186, 0.138, 0.116, 0.094, 0.080, 0.066),
        (0.008, 0.007, 0.006, 0.004, 0.003, 0.003, 0.002),
    ),
    "q_0,[d/8]": (
        (0.330, 0.196, 0.107, 0.0530, 0.0249, 0.0101, 0.0028),
        (0.005, 0.003, 0.001, 0.0006, 0.0002, 0.0001, 0.00005),
    ),
}


@pytest.mark.parametrize("seed", [0, 7])
def test_errors_are_those_of_a_plain_loop(seed):
    law = model.zipf(100, 2.0)
    q_DSN = [[np.ones(100), law.p_N, np.arange(100) < d // 8] for d in D]
    errors_RDS = model.infinite_data([seed], 200, law, model.outputs(100, M), M, D, q_DSN)[0]
    for s, (name, (mean_D, error_D)) in enumerate(TABLE.items()):
        ours_D, ours_error_D = errors_RDS[..., s].mean(0), errors_RDS[..., s].std(0) / 200**0.5
        assert np.all(np.abs(ours_D - mean_D) < 3 * np.hypot(error_D, ours_error_D)), name


# The same for finite data at alpha = 0.5, 50 runs, d = 8 to 256, samples T = 100 and 10000.
FINITE = {
    0.0: ((0.671, 0.581, 0.486, 0.354, 0.293, 0.270), (0.665, 0.566, 0.447, 0.273, 0.122, 0.024)),
    1.0: ((0.662, 0.586, 0.515, 0.424, 0.371, 0.316), (0.628, 0.530, 0.434, 0.319, 0.209, 0.109)),
}


@pytest.mark.parametrize("rho", FINITE)
def test_errors_of_finite_data_are_those_of_a_plain_loop(rho):
    errors_RDT = model.finite_data([4], 100, model.zipf(100, 0.5), M, D[:-1], (100, 10000), rho)[0]
    # The loop's own standard errors were not kept: of half as many runs, they are ours times
    # sqrt(2).
    error_DT = errors_RDT.std(0) / 10 * 3**0.5
    assert np.all(np.abs(errors_RDT.mean(0).T - FINITE[rho]) < 3 * error_DT.T + 0.0005)


def test_thresholded_scheme_of_samples_stores_the_most_frequent():
    """With room for all that is kept the error is the mass of the rest, of which a guess gets
    1/M.
    """
    law = model.zipf(40, 1.0)
    errors = model.finite_data([0], 40, law, M, (4096,), (20000,), 0.0, [10])
    assert errors.mean() == pytest.approx(law.p_N[10:].sum() * (1 - 1 / M), abs=0.02)


def test_upper_bound_is_the_infimum_over_gamma():
    rng = np.random.default_rng(1)
    for d, q_N in (
        (1e3, np.ones(60)),
        (1e5, rng.exponential(size=60)),
        (1e6, np.arange(1, 61.0) ** -1),
    ):
        law, y_N = model.zipf(60, 1.5), model.outputs(60, M)
        largest = max((q_N[y_N == y] ** 2).sum() for y in range(M))

        def at(gamma, d=d, q_N=q_N, law=law, largest=largest):
            c = np.log(M) + gamma * np.log(d)
            lost_N = d * q_N**2 <= 16 * c * (largest + 8 * c * (q_N**2).sum() / d)
            return 2 * d**-gamma + law.p_N[lost_N].sum()

        grid = min(1.0, min(at(gamma) for gamma in np.linspace(1e-4, 8, 40001)))
        exact = laws.upper_bound(d, q_N, law, y_N, M)
        assert exact <= grid + 1e-12
        assert exact == pytest.approx(grid, rel=2e-3)


def test_lower_bound():
    law, y_N = model.Law(np.array([0.5, 0.3, 0.1, 0.1])), np.array([0, 1, 0, 1])
    q_N = np.array([1.0, 1.0, 0.18, 0.0])
    # The largest class has q^2 = 1.0324; 3 (d + 1) q^2 at d = 9 is 30, 30, 0.97, 0.
    assert laws.lower_bound(9, q_N, law, y_N, 2) == pytest.approx(0.2 / 20)


def test_bounds_of_theorem_1_hold_at_every_point():
    points = figure_laws.bounds(FigureSettings(seed=3, runs=40, alpha=1.5, n=1000, m=M))
    assert len(points) > 90 and sum(point["upper"] < 1 for point in points) > 40
    for point in points:
        assert point["lower"] <= point["errors"].mean() <= point["upper"] + 1e-12, point


def test_upper_bound_is_not_for_negative_weights():
    """As printed the theorem takes any q; with q = -1 recall is always wrong and the bound is close
    to 0.
    """
    law, y_N, q_N = model.zipf(8, 2.0), model.outputs(8, M), -np.ones(8)
    errors = model.infinite_data([0], 20, law, y_N, M, (1e5,), [[q_N]])
    assert errors.min() == pytest.approx(1, abs=1e-6)
    assert laws.upper_bound(1e5, q_N, law, y_N, M) < 1e-3


def test_constants_of_the_two_tails():
    law = model.zipf(10**6, 1.7, infinite=True)
    assert laws.never_seen(1e4, 1.7, M) == pytest.approx(
        laws.never_seen_exactly(10**4, law, M)[0], rel=0.02
    )
    beyond = model.zipf(200, 2.0, infinite=True).beyond
    assert laws.never_stored(200, 2.0, M) == pytest.approx(beyond * (1 - 1 / M), rel=0.01)


def test_phi_has_three_regimes():
    assert laws.phi(100, 2.0, 1.0) == 1
    assert laws.phi(100, 2.0, 0.25) == pytest.approx(np.log(100))
    assert laws.phi(100, 2.0, 0.125) == pytest.approx(10)


def test_coarse_memory_has_the_error_of_the_full_one():
    n, d = 400, (60.0,)
    law, y_N = model.zipf(n, 1.2, infinite=True), model.outputs(n, M)
    q_N = law.p_N**0.3
    coarse_law, coarse_q, coarse_y = laws.coarse(law, q_N, y_N, M, 80)
    assert len(coarse_q) == 80 + M and coarse_law.p_N.sum() == pytest.approx(law.p_N.sum())
    assert (coarse_q**2).sum() == pytest.approx((q_N**2).sum())
    full = model.infinite_data([0], 300, law, y_N, M, d, [[q_N]]).ravel()
    coarse = model.infinite_data([1], 300, coarse_law, coarse_y, M, d, [[coarse_q]]).ravel()
    assert abs(full.mean() - coarse.mean()) < 3 * np.hypot(full.std(), coarse.std()) / 300**0.5


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_exponents_without_and_with_threshold(alpha):
    settings = FigureSettings(seed=11, runs=10, alpha=alpha, n=2000, m=M)
    for proposition, predicted, count in (
        (figure_laws.proposition_2, laws.exponent_in_d, 3),
        (figure_laws.proposition_3, laws.exponent_thresholded, 4),
    ):
        found = figure_laws.LawClaims()
        proposition(settings, found)
        assert len(found.fits) == count
        for name, (_, d_X, errors_GX) in found.fits.items():
            slope, rho = np.mean(laws.slope(d_X, errors_GX)), float(name.split("rho=")[1])
            assert slope == pytest.approx(predicted(alpha, rho), rel=0.15), name


@pytest.mark.slow
def test_exponent_in_samples():
    settings = FigureSettings(seed=2, runs=20, alpha=2.0, n=2000, m=M)
    found = figure_laws.LawClaims()
    figure_laws.proposition_1(settings, found)
    _, times, errors_GT = found.fits["q_0 of T samples"]
    assert np.mean(laws.slope(times, errors_GT)) == pytest.approx(-0.5, abs=0.06)


def test_runs_with_one_seed_are_the_same_and_with_another_are_not():
    law, y_N = model.zipf(30, 2.0), model.outputs(30, M)
    one, again, other = (
        model.infinite_data([s], 3, law, y_N, M, (16,), [[law.p_N]]) for s in (5, 5, 6)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
