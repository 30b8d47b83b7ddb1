"""The measurements behind the table of laws. Each returns its settings, and errors of shape (groups, points)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.labs.associative_memory import laws, model
from memsinks_jax.labs.associative_memory.study import Settings

LARGE_D = 16384  # no limit of memory: far more than the inputs seen
RECALLED = 2.0 ** np.array([2.5, 3.25, 4, 4.75, 5.5])  # inputs recalled without threshold; d follows
STORED = (8, 11, 16, 23, 32)  # P of the thresholded schemes
RESOLVED = 1024  # inputs to simulate if at most 45 are recalled
BOUNDED_N = 256  # inputs in the test of Theorem 1
JOINT_D = (32, 64, 128, 256, 512)
TIMES = (10, 32, 100, 316, 1000, 3162, 10000)


def _part(settings: Settings, share: float) -> int:
    """Runs per group if a measurement needs more or fewer than the settings say."""
    return max(round(settings.draws * share), 1)


def _errors(settings: Settings, share: float, law: model.Law, y_N, d_X, q_XSN) -> np.ndarray:
    """Errors of schemes that know the whole law, mean over runs -> (groups, S, *shape of d)."""
    d_X, draws = np.asarray(d_X), _part(settings, share)
    errors_GRXS = model.infinite_data(settings.seeds, draws, law, y_N, settings.m, d_X.ravel(), q_XSN)
    errors_GSX = np.moveaxis(errors_GRXS.mean(1), -1, 1)
    return errors_GSX.reshape(*errors_GSX.shape[:2], *d_X.shape)


def _infinite(settings: Settings, n: int) -> tuple[model.Law, np.ndarray]:
    """The first n inputs of Zipf's law over all integers, and their outputs."""
    return model.zipf(n, settings.alpha, infinite=True), model.outputs(n, settings.m)


def _power(law: model.Law, rho: float) -> np.ndarray:
    """q_rho scaled to a maximum of 1. Recall ignores the scale, and float32 reaches further down."""
    return (law.p_N / law.p_N[0]) ** rho


def room(d, alpha: float, m: int):
    """P = c d / log d, c = min(1, M / (5 (alpha - 1))), at least 1: the number of associations that fit (Theorem 2).

    d / (2 P / M) is the squared signal of a stored input over its interference, so it is lost with a probability of about
    exp(-d M / (4 P)) = d^(-M / 4c). This c keeps it below d^(1-alpha), the error of inputs that are not stored.
    """
    return np.round(min(1, m / (5 * (alpha - 1))) * np.asarray(d) / np.log(d)).astype(int).clip(min=1)


def capacity(settings: Settings) -> dict:
    """Table 2 if the whole law is known -> {scheme: (d, errors)}: q_1 at values of d where it recalls 6 to 45 inputs, q_0
    and q_{0,[d/8]} at d = 64 to 512. The d of the settings replace both."""
    law, y_N = _infinite(settings, settings.n)
    large_D, small_D = settings.d or RECALLED ** (2 * settings.alpha), settings.d or (64, 128, 256, 512)
    q_DSN = [[np.ones(settings.n), np.arange(settings.n) < min(d // 8, settings.n)] for d in small_D]
    small = _errors(settings, 1 / 2, law, y_N, small_D, q_DSN)
    large = _errors(settings, 1 / 2, law, y_N, large_D, _power(law, 1)[None, None])
    return {"q_1": (large_D, large[:, 0]), "q_0": (small_D, small[:, 0]), "q_0,[d/8]": (small_D, small[:, 1])}


def without_threshold(settings: Settings) -> dict:
    """Proposition 2 for several rho with 2 rho alpha > 1 -> {rho: (d, errors)}.

    q_rho recalls about the first d^(1/(2 rho alpha)) inputs. d is chosen so that these are 6 to 45 for every rho. With a
    fixed range of d, a large rho would recall two or three inputs throughout, and the error would be a staircase.
    """
    law, y_N = _infinite(settings, RESOLVED)
    rhos = [rho for rho in (0.5, 1.0, 2.0) if 2 * rho * settings.alpha > 1.2]
    d_RX = np.array([RECALLED ** (2 * rho * settings.alpha) for rho in rhos])
    q_DSN = np.repeat([[_power(law, rho)] for rho in rhos], len(RECALLED), axis=0)
    errors_GRX = _errors(settings, 2, law, y_N, d_RX, q_DSN)[:, 0]
    return {rho: (d_RX[place], errors_GRX[:, place]) for place, rho in enumerate(rhos)}


def with_threshold(settings: Settings) -> dict:
    """Proposition 3: P of STORED, d = 8 P^(2 rho alpha + 1) -> {rho: (d, errors)}. Simulates only the stored inputs."""
    n, rhos = max(STORED), (0.0, 0.25, 0.5, 1.0)
    law, y_N = _infinite(settings, n)
    d_RX = np.array([8.0 * np.array(STORED) ** (2 * rho * settings.alpha + 1) for rho in rhos])
    q_DSN = [[_power(law, rho) * (np.arange(n) < p)] for rho in rhos for p in STORED]
    errors_GRX = _errors(settings, 4, law, y_N, d_RX, q_DSN)[:, 0]
    return {rho: (d_RX[place], errors_GRX[:, place]) for place, rho in enumerate(rhos)}


def number_of_inputs(settings: Settings) -> dict:
    """Proposition 2 for 2 rho alpha = 1/2: the error as a function of d and of phi(N) = sqrt(N).

    The signal of input x over the noise is (M/2) d / sqrt(N x). d is chosen so that this is 32 to 128 at x = 1, where the
    most frequent input is safe and hundreds are recalled.
    """
    alpha, m, sizes = settings.alpha, settings.m, (2**14, 2**17, 2**20)
    rho, cases = 0.25 / alpha, []
    scale = np.array([laws.phi(n, alpha, rho) for n in sizes])
    for n in sizes:
        law, y_N = _infinite(settings, n)
        cases.append(laws.coarse(law, _power(law, rho), y_N, m, tested=256))
    d_NX = np.round(np.array([32, 45, 64, 90, 128]) * scale[:, None] * 2 / m)
    repeat = np.repeat(np.arange(len(sizes)), d_NX.shape[1])
    law_N, q_NS, y_NS = zip(*cases, strict=True)
    law = model.Law(*(np.stack(part)[repeat] for part in zip(*law_N, strict=True)))
    errors_GNX = _errors(settings, 6, law, np.stack(y_NS)[repeat], d_NX, np.stack(q_NS)[repeat, None])[:, 0]
    rows = np.stack([np.log(d_NX).ravel(), np.log(scale)[repeat], np.ones(d_NX.size)], axis=1)
    fits = np.linalg.lstsq(rows, np.log(errors_GNX.reshape(len(errors_GNX), -1)).T, rcond=None)[0].T
    errors = {n: (d_NX[place], errors_GNX[:, place]) for place, n in enumerate(sizes)}
    return {"rho": rho, "errors": errors, "fits": fits}


def samples(settings: Settings) -> tuple[tuple[int, ...], np.ndarray]:
    """Proposition 1: q_0 of T samples, where d is no limit."""
    law, _ = _infinite(settings, settings.n)
    errors = model.finite_data(settings.seeds, _part(settings, 1), law, settings.m, (LARGE_D,), TIMES, 0.0)
    return TIMES, errors.mean(1)[:, 0]


def samples_of_any_law(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Proposition 1 for a law other than a power law: q_0 of T samples, and the prediction -> (groups, T), (T,)."""
    weights_N = np.sort(np.random.default_rng(settings.seed).exponential(size=200) ** 3)[::-1]
    law = model.Law(weights_N / weights_N.sum())
    errors = model.finite_data(settings.seeds, _part(settings, 4), law, settings.m, (LARGE_D,), TIMES[:4], 0.0)
    return errors.mean(1)[:, 0], laws.never_seen_exactly(TIMES[:4], law, settings.m)


def joint(settings: Settings) -> dict:
    """Proposition 4, P = d/8 and c d/log d -> {P: (d, errors (groups, D, T), sum of both terms (D, T))}."""
    alpha, m, d_D = settings.alpha, settings.m, np.array(settings.d or JOINT_D)
    p_PD = np.stack([(d_D // 8).clip(min=1), room(d_D, alpha, m)]).clip(max=settings.n)
    law, _ = _infinite(settings, settings.n)
    draws, d_PD = _part(settings, 1), np.tile(d_D, 2)
    errors = model.finite_data(settings.seeds, draws, law, m, d_PD, TIMES, 0.0, p_PD.ravel()).mean(1)
    errors_PGDT = np.moveaxis(errors.reshape(len(errors), 2, len(d_D), len(TIMES)), 1, 0)
    sum_PDT = laws.never_stored(p_PD, alpha, m)[..., None] + laws.never_seen(TIMES, alpha, m)
    return {name: (d_D, errors_PGDT[place], sum_PDT[place]) for place, name in enumerate(("d/8", "c d/log d"))}


def too_full(settings: Settings) -> dict:
    """Proposition 2, rho = 0: the d at which the error of q_0 falls to 0.3, between the plateau and zero, for several N.

    q_0 treats all inputs alike, so its error does not depend on alpha. Weights inputs equally here, for less noise.
    """
    sizes, shares, largest = np.array([32, 64, 128, 256]), np.array([1 / 4, 1 / 2, 1, 2]), 256
    d_NX = sizes[:, None] * shares
    stored_DN = (np.arange(largest) < np.repeat(sizes, len(shares))[:, None]).astype(float)
    law, y_N = model.Law(stored_DN / stored_DN.sum(1, keepdims=True)), model.outputs(largest, settings.m)
    errors_GNX = _errors(settings, 2, law, y_N, d_NX, stored_DN[:, None])[:, 0]
    halves = [
        [np.exp(np.interp(-0.3, -row_X, np.log(d_X))) for row_X, d_X in zip(rows_NX, d_NX, strict=True)]
        for rows_NX in errors_GNX
    ]
    return {"sizes": sizes, "halves": np.array(halves)}


def bounds(settings: Settings) -> list[dict]:
    """Theorem 1 at many schemes, d and M -> points with `upper`, `lower` and `errors` (groups,)."""
    n, points = BOUNDED_N, []
    d_D = [float(2**k) for k in range(5, 21, 3)]
    rng = np.random.default_rng(settings.seed)
    for m in sorted({settings.m, 16}):
        law, y_N = model.zipf(n, settings.alpha), model.outputs(n, m)
        schemes = {f"q_{rho:g}": _power(law, rho) for rho in (0, 0.5, 1, 2)}
        schemes |= {f"q_0,[{p}]": (np.arange(n) < p).astype(float) for p in (4, 32, 128)}
        schemes |= {"random": rng.exponential(size=n), "one class": np.where(y_N == 0, 1.0, 0.2)}
        d_M = [d for d in d_D if d > 8 * np.log(m)]
        q_SN = np.stack(list(schemes.values()))
        errors_GSX = _errors(dataclasses.replace(settings, m=m), 1, law, y_N, d_M, q_SN[None])
        points += [
            {"scheme": name, "m": m, "d": d, "errors": errors_GSX[:, j, i],
             "upper": laws.upper_bound(d, q_SN[j], law, y_N, m), "lower": laws.lower_bound(d, q_SN[j], law, y_N, m)}
            for i, d in enumerate(d_M) for j, name in enumerate(schemes)
        ]  # fmt: skip
    return points


def minimax(settings: Settings) -> dict:
    """Theorem 2: the best of several schemes at every d, relative to the bound, and the scheme that reaches the bound.

    The theorem says that some p(y|x) with the given p_* is this hard. f(x) = x mod M is, at every tested point.
    """
    n, alpha, m = 256, settings.alpha, settings.m
    law, y_N = _infinite(settings, n)
    d_D = np.array([128.0, 256, 512, 1024, 1600])  # the largest has room for most of the n inputs
    ranks = np.arange(n)

    def schemes(d):
        stored = {f"P = {share:g} d": ranks < share * d for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2)}
        return {"q_0": np.ones(n), "q_0.5": _power(law, 0.5), "q_1": _power(law, 1), **stored,
                "P = c d/log d": ranks < room(d, alpha, m)}  # fmt: skip

    q_DSN = [[*schemes(d).values()] for d in d_D]
    errors_GSD = _errors(settings, 1, law, y_N, d_D, q_DSN)
    largest = max(np.bincount(y_N, weights=law.p_N, minlength=m))
    floor_D = np.array([laws.minimax(d, alpha, largest) for d in d_D])
    return {"schemes": list(schemes(128.0)), "d": d_D, "ratio_G": (errors_GSD / floor_D).min((1, 2)),
            "reached_GD": errors_GSD[:, -1]}  # fmt: skip


def quasi_orthogonal(settings: Settings) -> dict:
    """Lemma 1: share of draws of P random unit vectors whose inner products stay below eta = 2 sqrt(log P / d), and share
    of P inputs that the model (23) recalls with these vectors as embeddings. By the choice of eta, P = exp(eta^2 d / 4).
    Columns: pairs of d and P with eta < 1, where the lemma is not empty."""
    m, largest = settings.m, 256
    pairs = [(d, count) for count in (16, 64, largest) for d in (32, 64, 128, 256, 512)]
    pairs = np.array([pair for pair in pairs if laws.quasi_orthogonality(pair[1], pair[0]) < 0.9], np.float32)
    y_N = model.outputs(largest, m)
    of_class_MN = y_N == np.arange(m)[:, None]

    def one_run(key):
        of_inputs, of_outputs = jax.random.split(key)

        def at(pair):
            d, count = pair
            there_N = jnp.arange(largest) < count
            e_ND = model.embeddings(of_inputs, largest, d, largest)
            e_ND = jnp.where(there_N[:, None], e_ND / jnp.linalg.norm(e_ND, axis=1, keepdims=True), 0)
            u_MD = model.embeddings(of_outputs, m, d, m)
            u_MD = u_MD / jnp.linalg.norm(u_MD, axis=1, keepdims=True)
            inner_NN, eta = e_ND @ e_ND.T, 2 * jnp.sqrt(jnp.log(count) / d)
            close = jnp.abs(jnp.where(jnp.eye(largest, dtype=bool), 0, inner_NN)).max()
            scores_MN = u_MD @ u_MD.T @ of_class_MN @ jax.nn.relu(inner_NN - eta)  # (23)
            recalled = (~model.wrong(scores_MN, y_N) & there_N).sum() / count
            return jnp.stack([(close <= eta).astype(jnp.float32), recalled])

        return jax.lax.map(at, pairs)

    found = model.over_runs(one_run, settings.seeds, _part(settings, 1)).mean(1)
    return {"d": pairs[:, 0], "P": pairs[:, 1].astype(int), "share_GX": found[..., 0], "recalled_GX": found[..., 1]}
