"""Figure 3: when to store all inputs alike (q_0), when by frequency (q_1), and what a threshold gains."""

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import laws, model
from memsinks_jax.labs.associative_memory.study import Settings, curve, mark, record, theory
from memsinks_jax.labs.study import BLUE, GREEN, ORANGE, Study, finish, panels, save
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim

# alpha None: 0.5 in the maps of d and T, 2 if T is infinite, as in the paper. A given alpha applies to all three.
DEFAULTS = {"runs": 100, "alpha": None, "n": 100, "m": 5, "d": (8, 16, 32, 64, 128, 256, 512), "p": None}
TIMES = (10, 32, 100, 316, 1000, 3162, 10000, 31623, 100000)
NAMES = ("q_0", "q_1", "q_0,[P]")


def study(settings: Settings) -> Study:
    """Raises InputError for fewer than two values of d."""
    n, m, d, seeds, draws = settings.n, settings.m, settings.d, settings.seeds, settings.draws
    if len(d) < 2:
        raise InputError(f"--d={d[0]}: figure 3 shows several dimensions; give at least 2, for example --d=8,64,512")
    flat, steep = (model.zipf(n, settings.alpha or alpha) for alpha in (0.5, 2.0))
    maps = {
        name: model.finite_data(seeds, draws, flat, m, d, TIMES, rho).mean(1)
        for name, rho in (("q_0", 0.0), ("q_1", 1.0))
    }
    first_N = np.arange(n)
    q_DSN = [[np.ones(n), steep.p_N, first_N < settings.stored(value)] for value in d]
    each_GRDS = model.infinite_data(seeds, draws, steep, model.outputs(n, m), m, d, q_DSN)
    errors = dict(zip(NAMES, np.moveaxis(each_GRDS.mean(1), -1, 0), strict=True))
    runs = []
    for name, errors_GD in errors.items():
        runs += record(f"{name}, T=infinity", seeds, {"error": ("d", d, errors_GD)})
    for name, errors_GDT in maps.items():
        for place, value in enumerate(d):
            runs += record(f"{name}, d={value}", seeds, {"error": ("T", TIMES, errors_GDT[:, place])})
    return Study(
        "3", "Figure 3: which association scheme is better when",
        "Storing everything alike is best once the matrix has room for all inputs, and worst while it has not. Weights by "
        "frequency keep the frequent ones in a small matrix and starve the rare ones in a large one. A threshold has both.",
        f"N = {n}, M = {m}, {settings.runs} runs; maps: alpha = {settings.alpha or 0.5:g}; right: alpha = "
        f"{settings.alpha or 2:g}, the law known (T = infinity), P = {settings.p or 'd/8'}. "
        "Dashed: the exponents of Table 2, through the measured error at the middle d.",
        runs, _claims(settings, errors, maps), lambda path: _draw(settings, errors, maps, path),
        [report.heading("Error at T = infinity: mean (standard error) over runs"), _table(d, each_GRDS)],
    )  # fmt: skip


def _claims(settings: Settings, errors, maps) -> list[Claim]:
    n, d = settings.n, settings.d
    rows = []

    def add(name, statement, paper, values, **bounds):
        rows.append(Claim(name, statement, paper, [float(value) for value in values], **bounds))

    late = TIMES.index(10000)
    if d[0] <= n / 8:
        add("small_d", f"E(q_0) - E(q_1) at d = {d[0]}, T = 10000", "q_1 avoids memory overflow",
            maps["q_0"][:, 0, late] - maps["q_1"][:, 0, late], at_least=0)  # fmt: skip
        add("overflow", f"E(q_0) at d = {d[0]}, T = ∞", "high while d < N", errors["q_0"][:, 0], at_least=0.3)
    if d[-1] >= 2 * n:
        add("large_d", f"E(q_1) - E(q_0) at d = {d[-1]}, T = 10000", "q_0 stores the rare ones too",
            maps["q_1"][:, -1, late] - maps["q_0"][:, -1, late], at_least=0)  # fmt: skip
        add(
            "room_for_all",
            f"E(q_0) at d = {d[-1]}, T = ∞",
            "falls fast to 0 beyond N",
            errors["q_0"][:, -1],
            at_most=0.02,
        )
    if settings.p is None and d[-1] > 128 and (settings.alpha or 2) > 1:
        place = max(i for i, value in enumerate(d) if settings.stored(value) <= n / 2)
        add("threshold_gains", f"E(q_0,[d/8]) / E(q_1) at d = {d[place]}, T = ∞", "smaller",
            errors["q_0,[P]"][:, place] / errors["q_1"][:, place], at_most=1)  # fmt: skip
    return rows


def _table(d, each_GRDS: np.ndarray) -> str:
    each_RDS = each_GRDS.reshape(-1, *each_GRDS.shape[2:])
    mean_DS, error_DS = each_RDS.mean(0), each_RDS.std(0) / len(each_RDS) ** 0.5
    rows = [
        [report.text(name), *(f"{mean_DS[i, s]:.4f} ({error_DS[i, s]:.4f})" for i in range(len(d)))]
        for s, name in enumerate(NAMES)
    ]
    return report.table(["scheme", *(f"d = {value}" for value in d)], rows, ["", *["number"] * len(d)])


def _draw(settings: Settings, errors, maps, path) -> None:
    d = np.array(settings.d, float)
    figure, axes = panels(3)
    for axis, (name, errors_GDT) in zip(axes, maps.items(), strict=False):
        image = axis.pcolormesh(TIMES, d, errors_GDT.mean(0), cmap="RdYlBu_r", vmin=0, vmax=0.8, shading="nearest")
        finish(axis, f"Error of ${name}$, $\\alpha={settings.alpha or 0.5:g}$", "samples $T$", "width $d$", log="xy")
        axis.grid(False)
        mark(axis, settings.d, "y")
    figure.colorbar(image, ax=axes[1], label="error")
    alpha = settings.alpha or 2.0
    exponents = {"q_1": laws.exponent_in_d(alpha, 1), "q_0,[P]": None if settings.p else 1 - alpha}
    labels = {"q_0": "all alike, $q_0$", "q_1": "by frequency, $q_1$",
              "q_0,[P]": f"the frequent alone, $q_{{0,[{settings.p or 'd/8'}]}}$"}  # fmt: skip
    for colour, (name, errors_GD) in zip((BLUE, ORANGE, GREEN), errors.items(), strict=True):
        curve(axes[2], d, np.maximum(errors_GD, 1e-5), labels[name], colour)
        if alpha > 1 and exponents.get(name) is not None:
            middle = len(d) // 2
            line = errors_GD.mean(0)[middle] * (d / d[middle]) ** exponents[name]
            theory(axes[2], d, line, f"$d^{{{exponents[name]:.3g}}}$", colour)
    axes[2].axvline(settings.n, color="#7f8c8d", linewidth=0.8, linestyle=":", label="$d=N$")
    finish(axes[2], f"All samples, $\\alpha={alpha:g}$", "width $d$", "error", log="xy", legend=3, ylim=(1e-3, 1))
    mark(axes[2], settings.d)
    save(figure, path)
