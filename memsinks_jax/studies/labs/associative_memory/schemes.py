"""Figures 1 and 3: weighting schemes of section 3, whose weights are given."""

import numpy as np

from memsinks_jax.reporting import report
from memsinks_jax.studies.labs.associative_memory import laws, model
from memsinks_jax.studies.labs.associative_memory.study import Figure, FigureSettings
from memsinks_jax.studies.labs.study import Claims, Panel, Study, finish, lines, mean_ci, record

TIMES = (10, 32, 100, 316, 1000, 3162, 10000, 31623, 100000)
SCHEMES = ("q_0", "q_1", "q_0,[P]")


def figure_1(settings: FigureSettings) -> Study:
    """The error of the thresholded scheme, over d and T.

    Raises InputError for alpha <= 1, where the figure's law does not apply, and for a single d.
    """
    alpha, m, seeds = settings.alpha, settings.m, settings.seeds
    if alpha <= 1:
        raise settings.refusal("alpha", "the law of figure 1 is d^(1-alpha); give an alpha above 1")
    d = settings.dimensions("1", "several", "32,64,128")
    stored = [settings.stored(value) for value in d]
    law = model.zipf(settings.n, alpha, infinite=True)
    errors_GDT = model.finite_data(seeds, settings.draws, law, m, d, TIMES, 0.0, stored).mean(1)
    terms_D, terms_T = laws.never_stored(stored, alpha, m), laws.never_seen(TIMES, alpha, m)
    sum_DT = terms_D[:, None] + terms_T
    ratio_GDT = errors_GDT / sum_DT
    claims = Claims()
    what = "E divided by d^(1-alpha) + T^(-1+1/alpha) with their constants, least of the grid"
    claims.add("law_low", what, "bounded from below (15)", ratio_GDT.min((1, 2)), at_least=1 / 3)
    what = "the same, largest"
    claims.add("law_high", what, "bounded from above (15)", ratio_GDT.max((1, 2)), at_most=3)
    # Claims each plateau only where the other term has become small.
    if terms_T[-3] < 0.1 * terms_D[0]:
        what = f"at d = {d[0]}: error at T = {TIMES[-1]} over that at T = {TIMES[-3]}"
        ratio_G = errors_GDT[:, 0, -1] / errors_GDT[:, 0, -3]
        claims.near("plateau_in_T", what, "1: memory is the limit", ratio_G, 1, 0.1)
    if terms_D[-2] < 0.1 * terms_T[0]:
        what = f"at T = {TIMES[0]}: error at d = {d[-1]} over that at d = {d[-2]}"
        ratio_G = errors_GDT[:, -1, 0] / errors_GDT[:, -2, 0]
        claims.near("plateau_in_d", what, "1: samples are the limit", ratio_G, 1, 0.1)
    runs = []
    for place, value in enumerate(d):
        runs += record(f"d={value}", seeds, {}, {"error": ("T", TIMES, errors_GDT[:, place])})
    shown = []
    title = "Error and model capacity"
    curves = {
        f"T = {time}": (d, errors_GDT[:, :, place], sum_DT[:, place])
        for place, time in enumerate(TIMES)
        if place % 2 == 0
    }
    shown.append(lines(title, "width $d$", "error", curves, log="xy", ticks=d, ordered=True))
    title = "Error and data"
    curves = {
        f"d = {value}": (TIMES, errors_GDT[:, place], sum_DT[place])
        for place, value in enumerate(d)
    }
    shown.append(lines(title, "samples $T$", "error", curves, legend=4, log="xy", ordered=True))
    scheme = f"P = {settings.p}" if settings.p else "P = d/8"
    return Study(
        "1",
        "Figure 1: capacity and data",
        "The error is the sum of what the memory has no room for and of what the samples have not "
        "shown: each curve follows one law down to the plateau that the other sets.",
        f"Scheme q_0,[P] (12) with {scheme}, alpha = {alpha:g}, N = {settings.n} simulated of "
        f"infinitely many, M = {m}, {settings.runs} runs; bands from the lowest to the highest of "
        f"{len(settings.seeds)} groups. Dashed: d^(1-alpha) + T^(-1+1/alpha) with the constants "
        "of the two tails, (1-1/M) C P^(1-alpha)/(alpha-1) and (1-1/M) Gamma(1-1/alpha) "
        "C^(1/alpha)/alpha T^(-1+1/alpha); nothing is fitted. The sum counts twice what is "
        "missing for both reasons, so it lies above near the bend. Inputs as frequent as each "
        "other are taken into the top P at random.",
        runs,
        claims,
        shown,
    )


def figure_3(settings: FigureSettings) -> Study:
    """When to store all inputs alike (q_0), when by frequency (q_1), and what a threshold gains."""
    n, m, seeds, draws = settings.n, settings.m, settings.seeds, settings.draws
    d = settings.dimensions("3", "several", "8,64,512")
    flat, steep = (model.zipf(n, settings.alpha or alpha) for alpha in (0.5, 2.0))
    maps = {
        f"q_{rho:g}": model.finite_data(seeds, draws, flat, m, d, TIMES, rho).mean(1)
        for rho in (0.0, 1.0)
    }
    q_DSN = [[np.ones(n), steep.p_N, np.arange(n) < settings.stored(value)] for value in d]
    each_GRDS = model.infinite_data(seeds, draws, steep, model.outputs(n, m), m, d, q_DSN)
    errors = dict(zip(SCHEMES, np.moveaxis(each_GRDS.mean(1), -1, 0), strict=True))
    runs = []
    for name, errors_GD in errors.items():
        runs += record(f"{name}, T=infinity", seeds, {}, {"error": ("d", d, errors_GD)})
    for name, errors_GDT in maps.items():
        for place, value in enumerate(d):
            runs += record(
                f"{name}, d={value}", seeds, {}, {"error": ("T", TIMES, errors_GDT[:, place])}
            )
    claims, difference_GD = Claims(), (maps["q_0"] - maps["q_1"])[..., TIMES.index(10000)]
    if d[0] <= n / 8:
        what = f"E(q_0) - E(q_1) at d = {d[0]}, T = 10000"
        claims.add("small_d", what, "q_1 avoids memory overflow", difference_GD[:, 0], at_least=0)
        what = f"E(q_0) at d = {d[0]}, T = ∞"
        claims.add("overflow", what, "high while d < N", errors["q_0"][:, 0], at_least=0.3)
    if d[-1] >= 2 * n:
        what = f"E(q_1) - E(q_0) at d = {d[-1]}, T = 10000"
        values = -difference_GD[:, -1]
        claims.add("large_d", what, "q_0 stores the rare ones too", values, at_least=0)
        what = f"E(q_0) at d = {d[-1]}, T = ∞"
        values = errors["q_0"][:, -1]
        claims.add("room_for_all", what, "falls fast to 0 beyond N", values, at_most=0.02)
    alpha = settings.alpha or 2.0
    if settings.p is None and d[-1] > 128 and alpha > 1:
        place = max(i for i, value in enumerate(d) if settings.stored(value) <= n / 2)
        what = f"E(q_0,[d/8]) / E(q_1) at d = {d[place]}, T = ∞"
        values = errors["q_0,[P]"][:, place] / errors["q_1"][:, place]
        claims.add("threshold_gains", what, "smaller", values, at_most=1)
    exponents, curves = {}, {}
    if alpha > 1:
        exponents = {"q_1": laws.exponent_in_d(alpha, 1)}
        exponents["q_0,[P]"] = None if settings.p else 1 - alpha
    for name, errors_GD in errors.items():
        law = laws.through_middle(d, errors_GD, exponents.get(name))
        curves[name] = (d, np.maximum(errors_GD, 1e-5), *law)
    shown = [
        _map(f"Error of ${name}$, $\\alpha={settings.alpha or 0.5:g}$", d, rows)
        for name, rows in maps.items()
    ]
    title = f"All samples, $\\alpha={alpha:g}$"
    shown.append(lines(title, "width $d$", "error", curves, log="xy", ticks=d, ylim=(1e-3, 1)))
    rows = [
        [name, *(mean_ci(errors_G, 4) for errors_G in errors_GD.T)]
        for name, errors_GD in errors.items()
    ]
    table = report.text_table(["scheme", *(f"d = {value}" for value in d)], rows, len(d))
    return Study(
        "3",
        "Figure 3: which association scheme is better when",
        "Storing everything alike is best once the matrix has room for all inputs, and worst "
        "while it has not. Weights by frequency keep the frequent ones in a small matrix and "
        "starve the rare ones in a large one. A threshold has both.",
        f"N = {n}, M = {m}, {settings.runs} runs; maps: alpha = {settings.alpha or 0.5:g}; "
        "curves: alpha = "
        f"{settings.alpha or 2:g}, the law known (T = infinity), P = {settings.p or 'd/8'}. "
        "Dashed: the exponents of Table 2, through the measured error at the middle d.",
        runs,
        claims,
        shown,
        [report.heading("Error at T = infinity: mean ± half of its 95% interval"), table],
    )


def _map(title: str, d, errors_GDT: np.ndarray) -> Panel:
    def draw(axis) -> None:
        image = axis.pcolormesh(
            TIMES, d, errors_GDT.mean(0), cmap="RdYlBu_r", vmin=0, vmax=0.8, shading="nearest"
        )
        finish(axis, title, "samples $T$", "width $d$", log="xy")
        axis.grid(False)
        axis.set_yticks(d, d)
        axis.figure.colorbar(image, ax=axis, label="error")

    return draw


DEFAULTS = {"runs": 100, "m": 5, "d": (8, 16, 32, 64, 128, 256, 512), "p": None}
FIGURES = {
    "1": Figure(figure_1, DEFAULTS | {"alpha": 2.0, "n": 2000}),
    # alpha None: 0.5 in the maps of d and T, 2 if T is infinite, as in the paper
    "3": Figure(figure_3, DEFAULTS | {"alpha": None, "n": 100}),
}
