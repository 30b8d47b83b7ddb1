"""Every law of Table 2, Propositions 1 to 4, Theorems 1 and 2 and Lemma 1: predicted, measured,
whether it holds.

Where the paper's law is for infinitely many inputs (or does not depend on N), the measurement is
too: p is normalized over all positive integers, the first N are simulated, and all others count as
guessed. Laws hold in the limit, so every fit covers only points with many recalled inputs: 6 to 45
without a threshold, 8 to 64 with one. There, sums over inputs are close to their integrals.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.studies.labs.associative_memory import laws, model
from memsinks_jax.studies.labs.associative_memory.study import Figure, FigureSettings
from memsinks_jax.studies.labs.study import Claims, Panel, Study, lines, record

SHARE = 0.15  # tolerance of fitted exponents in Propositions 2 to 4, as a share of the prediction
LARGE_D = 16384  # no limit of memory: far more than the inputs seen
# inputs recalled without threshold; d follows
RECALLED = 2.0 ** np.array([2.5, 3.25, 4, 4.75, 5.5])
STORED = (8, 11, 16, 23, 32)  # P of the thresholded schemes
RESOLVED = 1024  # inputs to simulate if at most 45 are recalled
BOUNDED_N = 256  # inputs in the test of Theorem 1
JOINT_D = (32, 64, 128, 256, 512)
TIMES = (10, 32, 100, 316, 1000, 3162, 10000)


class LawClaims(Claims):
    """What was measured. fits: {variant: (x axis, its values (X,), errors (groups, X))}."""

    def __init__(self):
        super().__init__()
        self.panels: list[Panel] = []
        self.fits: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}

    def exponent(self, id, statement, source, predicted: float, fitted, reach=None) -> None:
        """Claims an exponent. reach: the tolerance, by default SHARE of the prediction."""
        paper, reach = f"{predicted:.3f} ({source})", reach or SHARE * abs(predicted)
        self.near(id, statement, paper, fitted, predicted, reach, digits=4)

    def over_d(self, title: str, shown: dict[str, tuple], x: str = "width $d$") -> None:
        """Errors and power laws through their middle. shown: {label: (d, errors, exponent)}."""
        powers = {
            name: (d_X, rows, *laws.through_middle(d_X, rows, power))
            for name, (d_X, rows, power) in shown.items()
        }
        self.panels.append(lines(title, x, "error", powers, log="xy"))

    def of_rhos(self, id, source, title, scheme: str, places: str, cases) -> None:
        """The exponents of a family of schemes. cases: (rho, d, errors, exponent) of each. places:
        what was fitted over, where {0} is d.
        """
        shown = {}
        for rho, d_X, errors_GX, exponent in cases:
            what = f"exponent of E({scheme}) in d, rho = {rho:g}, {places.format(d_X)}"
            fitted = laws.slope(d_X, errors_GX)
            self.exponent(f"{id}_rho_{rho:g}", what, source, exponent, fitted)
            self.fits[f"{scheme}, rho={rho:g}"] = "d", d_X, errors_GX
            shown[f"$\\rho={rho:g}$"] = d_X, errors_GX, exponent
        self.over_d(title, shown)


def study(settings: FigureSettings) -> Study:
    """Raises InputError where the laws do not apply: alpha <= 1, M < 4."""
    alpha, m, seeds = settings.alpha, settings.m, settings.seeds
    if alpha <= 1:
        raise settings.refusal(
            "alpha", "the laws are about errors that fall as d^(1-alpha); give an alpha above 1"
        )
    if m < 4:
        raise settings.refusal("m", "Theorem 1 is for M of at least 4; give --m=4 or more")
    if settings.d and (len(settings.d) < 3 or min(settings.d) <= 8 * np.log(m)):
        raise settings.refusal(
            "d", f"a fit takes at least 3 values, all above 8 log M = {8 * np.log(m):.1f}"
        )
    points, found, runs = bounds(settings), LawClaims(), []
    table_2(settings, found)
    proposition_1(settings, found)
    proposition_1_of_any_law(settings, found)
    proposition_2(settings, found)
    proposition_2_few(settings, found)
    proposition_2_of_q_0(settings, found)
    proposition_3(settings, found)
    proposition_4(settings, found)
    theorem_1(settings, found, points)
    theorem_2(settings, found)
    lemma_1(settings, found)
    for name, fit in sorted(
        found.fits.items(), key=lambda fit: fit[1][0] == "T"
    ):  # those over d first
        runs += record(name, seeds, {"slope": laws.slope(*fit[1:])}, {"error": fit})
    informative = sum(point["upper"] < 1 for point in points)
    return Study(
        "laws",
        "Scaling laws for associative memories",
        "With random embeddings a d x d matrix holds about d associations. A scheme that stores "
        "the d most frequent inputs alike loses what it leaves out, d^(1-alpha); one that stores "
        "every input by its frequency wastes the matrix on the frequent ones. Theorem 1 brackets "
        f"the error at all {len(points)} tested points; its upper bound is not trivial (is below "
        f"1) at {informative} of them.",
        f"alpha = {alpha:g}, M = {m}, N = {settings.n} unless stated otherwise; {len(seeds)} "
        f"independent groups of runs, {settings.runs} runs or as many as the noise asks for; an "
        "interval is Student's over the groups' fits. Laws for N = infinity: p normalized over "
        "all integers, the first N simulated, the others guessed. Embeddings are drawn in a "
        "triangular basis (Bartlett), which has the law of plain draws at any d. Ties among the "
        "most frequent are broken at random.",
        runs,
        found,
        found.panels,
    )


def _part(settings: FigureSettings, share: float) -> int:
    """Runs per group if a measurement needs more or fewer than in the settings."""
    return max(round(settings.draws * share), 1)


def _errors(settings: FigureSettings, share: float, law: model.Law, y_N, d_X, q_XSN) -> np.ndarray:
    """Errors of schemes that know the whole law, mean over runs -> (groups, S, *shape of d)."""
    d_X, draws = np.asarray(d_X), _part(settings, share)
    errors_GRXS = model.infinite_data(
        settings.seeds, draws, law, y_N, settings.m, d_X.ravel(), q_XSN
    )
    errors_GSX = np.moveaxis(errors_GRXS.mean(1), -1, 1)
    return errors_GSX.reshape(*errors_GSX.shape[:2], *d_X.shape)


def _infinite(settings: FigureSettings, n: int) -> tuple[model.Law, np.ndarray]:
    """The first n inputs of Zipf's law over all integers, and their outputs."""
    return model.zipf(n, settings.alpha, infinite=True), model.outputs(n, settings.m)


def _power(law: model.Law, rho: float) -> np.ndarray:
    """q_rho scaled to a maximum of 1. Recall ignores the scale, and float32 reaches further
    down.
    """
    return (law.p_N / law.p_N[0]) ** rho


def room(d, alpha: float, m: int):
    """P = c d / log d, c = min(1, M / (5 (alpha - 1))), at least 1: what fits (Theorem 2).

    d / (2 P / M) is the squared signal of a stored input over its interference, so it is lost with
    a probability of about exp(-d M / (4 P)) = d^(-M / 4c). This c keeps it below d^(1-alpha), the
    error of inputs that are not stored.
    """
    return (
        np.round(min(1, m / (5 * (alpha - 1))) * np.asarray(d) / np.log(d)).astype(int).clip(min=1)
    )


def table_2(settings: FigureSettings, found: LawClaims) -> None:
    """Table 2 if the whole law is known: q_1 at values of d where it recalls 6 to 45 inputs, q_0
    and q_{0,[d/8]} at d = 64 to 512. The d of the settings replace both.
    """
    n, alpha = settings.n, settings.alpha
    law, y_N = _infinite(settings, n)
    large_D, small_D = settings.d or RECALLED ** (2 * alpha), settings.d or (64, 128, 256, 512)
    q_DSN = [[np.ones(n), np.arange(n) < min(d // 8, n)] for d in small_D]
    small_GSD = _errors(settings, 1 / 2, law, y_N, small_D, q_DSN)
    q_1_GD = _errors(settings, 1 / 2, law, y_N, large_D, _power(law, 1)[None, None])[:, 0]
    fits = {
        "q_1": (large_D, q_1_GD, laws.exponent_in_d(alpha, 1)),
        "q_0": (small_D, small_GSD[:, 0], None),
        "q_0,[d/8]": (small_D, small_GSD[:, 1], 1 - alpha),
    }
    for id, name, places, source, reach in (
        ("q_1_in_d", "q_1", f"{large_D[0]:.0f} to {large_D[-1]:.2g}", "Prop. 2", 0.05),
        ("thresholded_in_d", "q_0,[d/8]", f"{small_D[0]} to {small_D[-1]}", "Prop. 3", 0.1),
    ):
        what = f"exponent of E({name}) in d, d = {places}, T = ∞, N = {n}"
        *fit, exponent = fits[name]
        found.exponent(id, what, f"Table 2, {source}", exponent, laws.slope(*fit), reach)
    found.over_d(f"Table 2: three schemes, all samples, N = {n}", fits)
    found.fits |= {name: ("d", *fit) for name, (*fit, _) in fits.items()}


def proposition_1(settings: FigureSettings, found: LawClaims) -> None:
    """q_0 of T samples, where d is no limit."""
    law, _ = _infinite(settings, settings.n)
    draws, alpha, m = _part(settings, 1), settings.alpha, settings.m
    errors = model.finite_data(settings.seeds, draws, law, m, (LARGE_D,), TIMES, 0.0)
    errors_GT = errors.mean(1)[:, 0]
    what = f"exponent of E(q_0) in T, T = {TIMES[0]} to {TIMES[-1]}, d = {LARGE_D}"
    predicted, fitted = laws.exponent_in_samples(alpha), laws.slope(TIMES, errors_GT)
    found.exponent("in_T", what, "Prop. 1, (6)", predicted, fitted, 0.06)
    found.fits["q_0 of T samples"] = "T", TIMES, errors_GT
    shown = {"measured; dashed: no fit": (TIMES, errors_GT, laws.never_seen(TIMES, alpha, m))}
    title = f"Proposition 1: width {LARGE_D}"
    found.panels.append(lines(title, "samples $T$", "error", shown, log="xy"))


def proposition_1_of_any_law(settings: FigureSettings, found: LawClaims) -> None:
    """Proposition 1 for a law other than a power law: q_0 of T samples, and the prediction."""
    weights_N = np.sort(np.random.default_rng(settings.seed).exponential(size=200) ** 3)[::-1]
    law = model.Law(weights_N / weights_N.sum())
    errors = model.finite_data(
        settings.seeds, _part(settings, 4), law, settings.m, (LARGE_D,), TIMES[:4], 0.0
    )
    ratio_G = (errors.mean(1)[:, 0] / laws.never_seen_exactly(TIMES[:4], law, settings.m)).mean(1)
    what = "E(q_0) over (1 - 1/M) sum p (1-p)^T for a p that is no power law, mean over T"
    found.add("prop_1_any_p", what, "1 (Prop. 1, any p)", ratio_G, at_least=0.9, at_most=1.1)


def proposition_2(settings: FigureSettings, found: LawClaims) -> None:
    """Several rho with 2 rho alpha > 1.

    q_rho recalls about the first d^(1/(2 rho alpha)) inputs. d is chosen so that these are 6 to 45
    for every rho. With a fixed range of d, a large rho would recall two or three inputs throughout,
    and the error would be a staircase.
    """
    (law, y_N), alpha = _infinite(settings, RESOLVED), settings.alpha
    rhos = [rho for rho in (0.5, 1.0, 2.0) if 2 * rho * alpha > 1.2]
    d_RX = np.array([RECALLED ** (2 * rho * alpha) for rho in rhos])
    q_DSN = np.repeat([[_power(law, rho)] for rho in rhos], len(RECALLED), axis=0)
    errors_RGX = _errors(settings, 2, law, y_N, d_RX, q_DSN)[:, 0].swapaxes(0, 1)
    exponents = [laws.exponent_in_d(alpha, rho) for rho in rhos]
    cases = zip(rhos, d_RX, errors_RGX, exponents, strict=True)
    title, places = "Proposition 2: weights $p^\\rho$", "d = {0[0]:.0f} to {0[4]:.2g}"
    found.of_rhos("prop_2", "Prop. 2", title, "q_rho", places, cases)


def proposition_2_few(settings: FigureSettings, found: LawClaims) -> None:
    """2 rho alpha = 1/2: the error as a function of d and of phi(N) = sqrt(N).

    The signal of input x over the noise is (M/2) d / sqrt(N x). d is chosen so that this is 32 to
    128 at x = 1, where the most frequent input is safe and hundreds are recalled.
    """
    alpha, m, sizes = settings.alpha, settings.m, (2**14, 2**17, 2**20)
    rho, cases = 0.25 / alpha, []
    predicted = laws.exponent_in_d(alpha, rho)
    scale = np.array([laws.phi(n, alpha, rho) for n in sizes])
    for n in sizes:
        law, y_N = _infinite(settings, n)
        cases.append(laws.coarse(law, _power(law, rho), y_N, m, tested=256))
    d_NX = np.round(np.array([32, 45, 64, 90, 128]) * scale[:, None] * 2 / m)
    repeat = np.repeat(np.arange(len(sizes)), d_NX.shape[1])
    law_N, q_NS, y_NS = zip(*cases, strict=True)
    law = model.Law(*(np.stack(part)[repeat] for part in zip(*law_N, strict=True)))
    errors_GNX = _errors(
        settings, 6, law, np.stack(y_NS)[repeat], d_NX, np.stack(q_NS)[repeat, None]
    )[:, 0]
    rows = np.stack([np.log(d_NX).ravel(), np.log(scale)[repeat], np.ones(d_NX.size)], axis=1)
    in_d_G, in_phi_G, _ = np.linalg.lstsq(
        rows, np.log(errors_GNX.reshape(len(errors_GNX), -1)).T, rcond=None
    )[0]
    what = f"exponent of E(q_rho) in d where 2 rho alpha = 1/2 < 1 (rho = {rho:g})"
    found.exponent("prop_2_few_d", what, "Prop. 2", predicted, in_d_G)
    what = "the same in phi(N) = N^(1/2), N = 2^14 to 2^20"
    found.exponent("prop_2_few_phi", what, "Prop. 2", -predicted, in_phi_G)
    shown = {
        f"$N={n:,}$": (d_NX[place] / scale[place], errors_GNX[:, place], predicted)
        for place, n in enumerate(sizes)
    }
    found.over_d("Proposition 2: one line for all $N$", shown, "width over $\\varphi(N)$")


def proposition_2_of_q_0(settings: FigureSettings, found: LawClaims) -> None:
    """rho = 0: the d at which the error of q_0 falls to 0.3, for several N.

    This error does not depend on alpha. Weights inputs equally here, for less noise.
    """
    sizes, shares, largest = np.array([32, 64, 128, 256]), np.array([1 / 4, 1 / 2, 1, 2]), 256
    d_NX = sizes[:, None] * shares
    stored_DN = (np.arange(largest) < np.repeat(sizes, len(shares))[:, None]).astype(float)
    law = model.Law(stored_DN / stored_DN.sum(1, keepdims=True))
    y_N = model.outputs(largest, settings.m)
    errors_GNX = _errors(settings, 2, law, y_N, d_NX, stored_DN[:, None])[:, 0]

    def half(row_X, d_X):
        return np.exp(np.interp(-0.3, -row_X, np.log(d_X)))

    halves = [list(map(half, rows_NX, d_NX)) for rows_NX in errors_GNX]
    statement = f"d where E(q_0) = 0.3 grows as N^1, N = {sizes[0]} to {sizes[-1]}"
    paper = "Prop. 2, rho = 0"
    found.exponent("q_0_threshold", statement, paper, 1.0, laws.slope(sizes, halves))


def proposition_3(settings: FigureSettings, found: LawClaims) -> None:
    """Several rho with P stored inputs, d = 8 P^(2 rho alpha + 1). Simulates only these inputs."""
    n, rhos, alpha = max(STORED), (0.0, 0.25, 0.5, 1.0), settings.alpha
    law, y_N = _infinite(settings, n)
    d_RX = np.array([8.0 * np.array(STORED) ** (2 * rho * alpha + 1) for rho in rhos])
    q_DSN = [[_power(law, rho) * (np.arange(n) < p)] for rho in rhos for p in STORED]
    errors_RGX = _errors(settings, 4, law, y_N, d_RX, q_DSN)[:, 0].swapaxes(0, 1)
    exponents = [laws.exponent_thresholded(alpha, rho) for rho in rhos]
    cases = zip(rhos, d_RX, errors_RGX, exponents, strict=True)
    title = "Proposition 3: $p^\\rho$ of the frequent alone"
    places = f"P = {STORED[0]} to {STORED[-1]}"
    found.of_rhos("prop_3", "Prop. 3, (14)", title, "q_rho,[P]", places, cases)


def proposition_4(settings: FigureSettings, found: LawClaims) -> None:
    """The error over d and T, P = d/8 and c d/log d, against the sum of both terms."""
    alpha, m, d_D = settings.alpha, settings.m, np.array(settings.d or JOINT_D)
    p_PD = np.stack([(d_D // 8).clip(min=1), room(d_D, alpha, m)]).clip(max=settings.n)
    law, _ = _infinite(settings, settings.n)
    draws, d_PD = _part(settings, 1), np.tile(d_D, 2)
    errors = model.finite_data(settings.seeds, draws, law, m, d_PD, TIMES, 0.0, p_PD.ravel())
    errors_GPDT = errors.mean(1).reshape(len(errors), 2, len(d_D), len(TIMES))
    sum_PDT = laws.never_stored(p_PD, alpha, m)[..., None] + laws.never_seen(TIMES, alpha, m)
    for place, name in enumerate(("d/8", "c d/log d")):
        ratio_GDT = errors_GPDT[:, place] / sum_PDT[place]
        what = f"E divided by the sum of both terms with constants, least over d, T; P = {name}"
        values = ratio_GDT.min((1, 2))
        found.add(f"prop_4_low_{name}", what, "bounded (Prop. 4)", values, at_least=1 / 3)
        what = f"the same, largest, P = {name}"
        values = ratio_GDT.max((1, 2))
        found.add(f"prop_4_high_{name}", what, "bounded (Prop. 4)", values, at_most=3)
    shown = {
        f"width {d:g}": (TIMES, errors_GPDT[:, 0, i], sum_PDT[0, i]) for i, d in enumerate(d_D)
    }
    title = "Proposition 4: sum of both terms dashed"
    found.panels.append(lines(title, "samples $T$", "error", shown, log="xy", ordered=True))


def bounds(settings: FigureSettings) -> list[dict]:
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
            {
                "scheme": name,
                "m": m,
                "d": d,
                "errors": errors_GSX[:, j, i],
                "upper": laws.upper_bound(d, q_SN[j], law, y_N, m),
                "lower": laws.lower_bound(d, q_SN[j], law, y_N, m),
            }
            for i, d in enumerate(d_M)
            for j, name in enumerate(schemes)
        ]
    return points


def theorem_1(settings: FigureSettings, found: LawClaims, points: list[dict]) -> None:
    """The measured errors of `bounds` against both bounds."""

    def largest(points) -> np.ndarray:
        """Largest ratio of error to upper bound -> (groups,). Without error, any bound holds."""
        errors_PG = np.array([p["errors"] for p in points])
        upper_P1 = np.array([[p["upper"]] for p in points])
        with np.errstate(divide="ignore"):
            return np.divide(
                errors_PG, upper_P1, out=np.zeros_like(errors_PG), where=errors_PG > 0
            ).max(0)

    informative = [p for p in points if p["upper"] < 1]
    low = [p for p in points if p["lower"] > 0]
    what = f"measured error divided by its upper bound (7), largest of {len(points)} points"
    found.add("theorem_1_upper", what, "≤ 1 (Theorem 1)", largest(points), at_most=1)
    if informative:
        what = f"the same, at the {len(informative)} points where the bound is below 1"
        values = largest(informative)
        found.add("theorem_1_upper_telling", what, "≤ 1 (Theorem 1)", values, at_most=1)
    where = f"largest of the {len(low)} points where it is not 0"
    what = f"lower bound (8) over the measured error, {where}"
    values = np.max([p["lower"] / p["errors"] for p in low], 0)
    found.add("theorem_1_lower", what, "≤ 1 (Theorem 1)", values, at_most=1)
    shown = {}
    for scheme, label in (("q_1", "by frequency"), ("q_0,[32]", "the frequent 32 alone")):
        its = [point for point in points if point["scheme"] == scheme and point["m"] == settings.m]
        d, errors, *both = (
            [point[name] for point in its] for name in ("d", "errors", "upper", "lower")
        )
        shown[label] = d, np.transpose(errors), *both
    title = f"Theorem 1: N = {BOUNDED_N}, M = {settings.m}; bounds dashed"
    found.panels.append(lines(title, "width $d$", "error", shown, log="xy"))


def theorem_2(settings: FigureSettings, found: LawClaims) -> None:
    """The best of several schemes at every d, relative to the bound, and the one that reaches it.

    The theorem says that some p(y|x) with the given p_* is this hard. f(x) = x mod M is, at every
    tested point.
    """
    n, alpha, m = 256, settings.alpha, settings.m
    law, y_N = _infinite(settings, n)
    d_D = np.array([128.0, 256, 512, 1024, 1600])  # the largest has room for most of the n inputs
    ranks = np.arange(n)

    def schemes(d):
        stored = {f"P = {share:g} d": ranks < share * d for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2)}
        return {
            "q_0": np.ones(n),
            "q_0.5": _power(law, 0.5),
            "q_1": _power(law, 1),
            **stored,
            "P = c d/log d": ranks < room(d, alpha, m),
        }

    q_DSN = [[*schemes(d).values()] for d in d_D]
    errors_GSD = _errors(settings, 1, law, y_N, d_D, q_DSN)
    largest = max(np.bincount(y_N, weights=law.p_N, minlength=m))
    floor_D = np.array([laws.minimax(d, alpha, largest) for d in d_D])
    least_G = (errors_GSD / floor_D).min((1, 2))
    fitted = laws.slope(d_D / np.log(d_D), errors_GSD[:, -1])
    what = f"least error divided by c (d+1)^(1-alpha), of {len(schemes(128.0))} schemes and all d"
    found.add("theorem_2", what, "≥ 1 (Theorem 2)", least_G, at_least=1)
    what = "exponent of E(q_0,[P = c d/log d]) in d/log d"
    paper = "Theorem 2, up to logarithms"
    found.exponent("theorem_2_reached", what, paper, 1 - alpha, fitted)


def lemma_1(settings: FigureSettings, found: LawClaims) -> None:
    """Share of draws of P random unit vectors whose inner products stay below eta = 2 sqrt(log P /
    d), and share of P inputs that the model (23) recalls with these vectors as embeddings. By the
    choice of eta, P = exp(eta^2 d / 4).
    Columns: pairs of d and P with eta < 1, where the lemma is not empty.
    """
    m, largest = settings.m, 256
    pairs = [(d, count) for count in (16, 64, largest) for d in (32, 64, 128, 256, 512)]
    pairs = np.array(
        [pair for pair in pairs if laws.quasi_orthogonality(pair[1], pair[0]) < 0.9], np.float32
    )
    y_N = model.outputs(largest, m)
    of_class_MN = y_N == np.arange(m)[:, None]

    def one_run(key):
        of_inputs, of_outputs = jax.random.split(key)

        def at(pair):
            d, count = pair
            there_N = jnp.arange(largest) < count
            e_ND = model.embeddings(of_inputs, largest, d, largest)
            e_ND = jnp.where(
                there_N[:, None], e_ND / jnp.linalg.norm(e_ND, axis=1, keepdims=True), 0
            )
            u_MD = model.embeddings(of_outputs, m, d, m)
            u_MD = u_MD / jnp.linalg.norm(u_MD, axis=1, keepdims=True)
            inner_NN, eta = e_ND @ e_ND.T, 2 * jnp.sqrt(jnp.log(count) / d)
            close = jnp.abs(jnp.where(jnp.eye(largest, dtype=bool), 0, inner_NN)).max()
            scores_MN = u_MD @ u_MD.T @ of_class_MN @ jax.nn.relu(inner_NN - eta)  # (23)
            recalled = (~model.wrong(scores_MN, y_N) & there_N).sum() / count
            return jnp.stack([(close <= eta).astype(jnp.float32), recalled])

        return jax.lax.map(at, pairs)

    results_GX2 = model.over_runs(one_run, settings.seeds, _part(settings, 1)).mean(1)
    share_GX, recalled_GX = results_GX2[..., 0], results_GX2[..., 1]
    what = "share of random draws that are 2 sqrt(log P / d) quasi-orthogonal, least over d and P"
    found.add("lemma_1", what, "> 0 (Lemma 1: one exists)", share_GX.min(1), at_least=0.5)
    what = "share of exp(eta^2 d/4) inputs that the model (23) recalls, least over d and eta"
    found.add("model_23", what, "1 (section 4.2)", recalled_GX.min(1), at_least=0.99)
    d_X, p_X = pairs.T
    shown = {f"{p:g} stored": (d_X[p_X == p], share_GX[:, p_X == p]) for p in np.unique(p_X)}
    title, how = "Lemma 1: quasi-orthogonal draws", {"ticks": np.unique(d_X), "ylim": (0, 1.05)}
    found.panels.append(lines(title, "width $d$", "share of draws", shown, log="x", level=1, **how))


# d None: each law at a suitable d
FIGURES = {"laws": Figure(study, {"runs": 100, "alpha": 2.0, "n": 2000, "m": 5, "d": None})}
