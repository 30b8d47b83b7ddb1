"""Every law of Table 2, Propositions 1 to 4, Theorems 1 and 2 and Lemma 1: predicted, measured, whether it holds.

Where the paper's law is for infinitely many inputs (or does not depend on N), the measurement is too: p is normalized over
all positive integers, the first N are simulated, and all others count as guessed. Laws hold in the limit, so every fit
covers only points with many recalled inputs: 6 to 45 without a threshold, 8 to 64 with one. There, sums over inputs are
close to their integrals.
"""

import numpy as np

from memsinks_jax.labs.associative_memory import law_measurements as measure
from memsinks_jax.labs.associative_memory import laws
from memsinks_jax.labs.associative_memory.study import Figure, Settings
from memsinks_jax.labs.study import Panel, Study, claim, family, near, picture, record

SHARE = 0.15  # tolerance of fitted exponents in Propositions 2 to 4, as a share of the prediction


def study(settings: Settings) -> Study:
    """Raises InputError where the laws do not apply: alpha <= 1, M < 4."""
    m = settings.m
    if settings.alpha <= 1:
        raise settings.refusal("alpha", "the laws are about errors that fall as d^(1-alpha); give an alpha above 1")
    if m < 4:
        raise settings.refusal("m", "Theorem 1 is for M of at least 4; give --m=4 or more")
    if settings.d and (len(settings.d) < 3 or min(settings.d) <= 8 * np.log(m)):
        raise settings.refusal("d", f"a fit takes at least 3 values, all above 8 log M = {8 * np.log(m):.1f}")
    found = {
        "capacity": measure.capacity(settings),
        "rho": measure.without_threshold(settings),
        "stored": measure.with_threshold(settings),
        "inputs": measure.number_of_inputs(settings),
        "samples": measure.samples(settings),
        "any law": measure.samples_of_any_law(settings),
        "joint": measure.joint(settings),
        "full": measure.too_full(settings),
        "bounds": measure.bounds(settings),
        "minimax": measure.minimax(settings),
        "orthogonal": measure.quasi_orthogonal(settings),
    }
    fitted = {name: ("d", *fit) for name, fit in found["capacity"].items()}
    fitted |= {f"q_rho, rho={rho:g}": ("d", *fit) for rho, fit in found["rho"].items()}
    fitted |= {f"q_rho,[P], rho={rho:g}": ("d", *fit) for rho, fit in found["stored"].items()}
    fitted |= {"q_0 of T samples": ("T", *found["samples"])}
    runs = []
    for name, fit in fitted.items():
        runs += record(name, settings.seeds, {"slope": laws.slope(*fit[1:])}, {"error": fit})
    return Study(
        "laws", "Scaling laws for associative memories", _answer(found), _note(settings), runs,
        _claims(settings, found), picture(_panels(settings, found)),
    )  # fmt: skip


def _answer(found) -> str:
    points = found["bounds"]
    telling = sum(point["upper"] < 1 for point in points)
    return (
        "With random embeddings a d x d matrix holds about d associations. A scheme that stores the d most frequent inputs "
        "alike loses what it leaves out, d^(1-alpha); one that stores every input by its frequency wastes the matrix on "
        f"the frequent ones. Theorem 1 brackets the error at all {len(points)} tested points; its upper bound says "
        f"something (is below 1) at {telling} of them."
    )


def _note(settings: Settings) -> str:
    return (
        f"alpha = {settings.alpha:g}, M = {settings.m}, N = {settings.n} where nothing else is said; {len(settings.seeds)} "
        f"independent groups of runs, {settings.runs} runs "
        "or as many as the noise asks for; an interval is Student's over the groups' fits. Laws for N = infinity: "
        "p normalized over all integers, the first N simulated, the others guessed. Embeddings are drawn in a triangular "
        "basis (Bartlett), which has the law of plain draws at any d. Ties among the most frequent are broken at random."
    )


def _claims(settings: Settings, found) -> list:
    alpha, rows = settings.alpha, []

    def law(name, statement, source, predicted, values, tolerance=None):
        reach = tolerance or SHARE * abs(predicted)
        paper = f"{predicted:.3f} ({source})"
        rows.append(near(name, statement, paper, values, predicted, reach, digits=4))

    def fact(*told, **bounds):
        rows.append(claim(*told, **bounds))

    d_X, errors_GX = found["capacity"]["q_1"]
    law("q_1_in_d", f"exponent of E(q_1) in d, d = {d_X[0]:.0f} to {d_X[-1]:.2g}, T = ∞, N = {settings.n}",
        "Table 2, Prop. 2", laws.exponent_in_d(alpha, 1), laws.slope(d_X, errors_GX), 0.05)  # fmt: skip
    d_X, errors_GX = found["capacity"]["q_0,[d/8]"]
    law("thresholded_in_d", f"exponent of E(q_0,[d/8]) in d, d = {d_X[0]} to {d_X[-1]}, T = ∞, N = {settings.n}",
        "Table 2, Prop. 3", 1 - alpha, laws.slope(d_X, errors_GX), 0.1)  # fmt: skip
    times, errors_GT = found["samples"]
    law("in_T", f"exponent of E(q_0) in T, T = {times[0]} to {times[-1]}, d = {measure.LARGE_D}", "Prop. 1, (6)",
        laws.exponent_in_samples(alpha), laws.slope(times, errors_GT), 0.06)  # fmt: skip
    errors_GT, exact_T = found["any law"]
    fact("prop_1_any_p", "E(q_0) over (1 - 1/M) sum p (1-p)^T for a p that is no power law, mean over T",
         "1 (Prop. 1, any p)", (errors_GT / exact_T).mean(1), at_least=0.9, at_most=1.1)  # fmt: skip
    for rho, (d_X, errors_GX) in found["rho"].items():
        law(f"prop_2_rho_{rho:g}", f"exponent of E(q_rho) in d, rho = {rho:g}, d = {d_X[0]:.0f} to {d_X[-1]:.2g}",
            "Prop. 2", laws.exponent_in_d(alpha, rho), laws.slope(d_X, errors_GX))  # fmt: skip
    rho, fits = found["inputs"]["rho"], found["inputs"]["fits"]
    law("prop_2_few_d", f"exponent of E(q_rho) in d where 2 rho alpha = 1/2 < 1 (rho = {rho:g})", "Prop. 2",
        laws.exponent_in_d(alpha, rho), list(fits[:, 0]))  # fmt: skip
    law("prop_2_few_phi", "the same in phi(N) = N^(1/2), N = 2^14 to 2^20", "Prop. 2",
        -laws.exponent_in_d(alpha, rho), list(fits[:, 1]))  # fmt: skip
    sizes, halves = found["full"]["sizes"], found["full"]["halves"]
    law("q_0_threshold", f"d where E(q_0) = 0.3 grows as N^1, N = {sizes[0]} to {sizes[-1]}", "Prop. 2, rho = 0",
        1.0, laws.slope(sizes, halves))  # fmt: skip
    few, *_, many = measure.STORED
    for rho, (d_X, errors_GX) in found["stored"].items():
        law(f"prop_3_rho_{rho:g}", f"exponent of E(q_rho,[P]) in d, rho = {rho:g}, P = {few} to {many}", "Prop. 3, (14)",
            laws.exponent_thresholded(alpha, rho), laws.slope(d_X, errors_GX))  # fmt: skip
    for name, (_, errors_GDT, sum_DT) in found["joint"].items():
        ratio_GDT = errors_GDT / sum_DT
        fact(f"prop_4_low_{name}", f"E over the sum of both terms with their constants, least over d and T, P = {name}",
             "bounded (Prop. 4)", ratio_GDT.min((1, 2)), at_least=1 / 3)  # fmt: skip
        fact(f"prop_4_high_{name}", f"the same, largest, P = {name}", "bounded (Prop. 4)",
             ratio_GDT.max((1, 2)), at_most=3)  # fmt: skip
    points = found["bounds"]
    fact("theorem_1_upper", f"measured error over its upper bound (7), largest of {len(points)} points", "≤ 1 (Theorem 1)",
         _largest_share(points), at_most=1)  # fmt: skip
    telling = [point for point in points if point["upper"] < 1]
    if telling:
        fact("theorem_1_upper_telling", f"the same over the {len(telling)} points where the bound is below 1",
             "≤ 1 (Theorem 1)", _largest_share(telling), at_most=1)  # fmt: skip
    low = [point for point in points if point["lower"] > 0]
    fact("theorem_1_lower", f"lower bound (8) over the measured error, largest of the {len(low)} points where it is not 0",
         "≤ 1 (Theorem 1)", np.max([p["lower"] / p["errors"] for p in low], 0), at_most=1)  # fmt: skip
    best = found["minimax"]
    fact("theorem_2", f"least error over c (d+1)^(1-alpha), over {len(best['schemes'])} schemes and all d",
         "≥ 1 (Theorem 2)", best["ratio_G"], at_least=1)  # fmt: skip
    law("theorem_2_reached", "exponent of E(q_0,[P = c d/log d]) in d/log d", "Theorem 2, up to logarithms", 1 - alpha,
        laws.slope(best["d"] / np.log(best["d"]), best["reached_GD"]))  # fmt: skip
    orthogonal = found["orthogonal"]
    fact("lemma_1", "share of random draws that are 2 sqrt(log P / d) quasi-orthogonal, least over d and P",
         "> 0 (Lemma 1: one exists)", orthogonal["share_GX"].min(1), at_least=0.5)  # fmt: skip
    fact("model_23", "share of exp(eta^2 d/4) inputs that the model (23) recalls, least over d and eta",
         "1 (section 4.2)", orthogonal["recalled_GX"].min(1), at_least=0.99)  # fmt: skip
    return rows


def _largest_share(points) -> np.ndarray:
    """Largest ratio of measured error to upper bound -> (groups,). Without any error, every bound holds, even 0."""
    errors_PG, upper_P1 = np.array([p["errors"] for p in points]), np.array([[p["upper"]] for p in points])
    with np.errstate(divide="ignore"):
        return np.divide(errors_PG, upper_P1, out=np.zeros_like(errors_PG), where=errors_PG > 0).max(0)


def _panels(settings: Settings, found) -> list[Panel]:
    alpha, m = settings.alpha, settings.m

    def power(d_X, errors_GX, exponent):
        return d_X, errors_GX, *laws.through_middle(d_X, errors_GX, exponent)

    exponents = {"q_1": laws.exponent_in_d(alpha, 1), "q_0,[d/8]": 1 - alpha}
    capacity = {name: power(*fit, exponents.get(name)) for name, fit in found["capacity"].items()}
    rho = {f"$\\rho={rho:g}$": power(*fit, laws.exponent_in_d(alpha, rho)) for rho, fit in found["rho"].items()}
    stored = {
        f"$\\rho={rho:g}$": power(*fit, laws.exponent_thresholded(alpha, rho)) for rho, fit in found["stored"].items()
    }
    few = found["inputs"]["rho"]  # one line for all N, as a function of d / phi(N)
    inputs = {
        f"$N=2^{{{int(np.log2(n))}}}$": power(d_X / laws.phi(n, alpha, few), errors_GX, laws.exponent_in_d(alpha, few))
        for n, (d_X, errors_GX) in found["inputs"]["errors"].items()
    }
    times, errors_GT = found["samples"]
    d_D, errors_GDT, sum_DT = found["joint"]["d/8"]
    joint = {f"width {d:g}": (measure.TIMES, errors_GDT[:, i], sum_DT[i]) for i, d in enumerate(d_D)}
    bounds = {}  # Theorem 1 around the measured errors of two schemes
    for scheme, label in (("q_1", "by frequency"), ("q_0,[32]", "the frequent 32 alone")):
        points = [point for point in found["bounds"] if point["scheme"] == scheme and point["m"] == m]
        d, errors, *both = ([point[name] for point in points] for name in ("d", "errors", "upper", "lower"))
        bounds[label] = d, np.transpose(errors), *both
    orthogonal = found["orthogonal"]
    d_X, draws = orthogonal["d"], {}
    for count in np.unique(orthogonal["P"]):
        chosen = orthogonal["P"] == count
        draws[f"{count} stored"] = d_X[chosen], orthogonal["share_GX"][:, chosen]
    log = {"x": "width $d$", "y": "error", "log": "xy"}
    return [
        family(f"Table 2: three schemes, all samples, N = {settings.n}", shown=capacity, **log),
        family("Proposition 2: weights $p^\\rho$", shown=rho, **log),
        family("Proposition 3: $p^\\rho$ of the frequent alone", shown=stored, **log),
        family("Proposition 2: one line for all $N$", "width over $\\varphi(N)$", "error", inputs, "o-", log="xy"),
        family(f"Proposition 1: width {measure.LARGE_D}", "samples $T$", "error",
               {"measured; dashed: no fit": (times, errors_GT, laws.never_seen(times, alpha, m))}, log="xy"),
        family("Proposition 4: sum of both terms dashed", "samples $T$", "error", joint, log="xy"),
        family(f"Theorem 1: N = {measure.BOUNDED_N}, M = {m}; bounds dashed", shown=bounds, **log),
        family("Lemma 1: quasi-orthogonal draws", "width $d$", "share of draws", draws, log="x", level=1,
               ticks=np.unique(d_X), ylim=(0, 1.05)),
    ]  # fmt: skip


# d None: each law at a suitable d, see `law_measurements`
FIGURES = {"laws": Figure(study, {"runs": 100, "alpha": 2.0, "n": 2000, "m": 5, "d": None})}
