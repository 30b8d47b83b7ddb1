"""Figure 1: the error of the thresholded scheme falls with d until samples run out, and with T until memory runs out."""

from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import laws, model
from memsinks_jax.labs.associative_memory.study import Settings, curve, mark, record, shades, theory
from memsinks_jax.labs.study import Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim

DEFAULTS = {"runs": 100, "alpha": 2.0, "n": 2000, "m": 5, "d": (8, 16, 32, 64, 128, 256, 512), "p": None}
TIMES = (10, 32, 100, 316, 1000, 3162, 10000, 31623, 100000)


def study(settings: Settings) -> Study:
    """Raises InputError for alpha <= 1, where the figure's law does not apply, and for a single d."""
    alpha, m, d = settings.alpha, settings.m, settings.d
    if alpha <= 1:
        raise InputError(f"--alpha={alpha:g}: the law of figure 1 is d^(1-alpha); give an alpha above 1")
    if len(d) < 2:
        raise InputError(f"--d={d[0]}: figure 1 shows several dimensions; give at least 2, for example --d=32,64,128")
    stored = [settings.stored(value) for value in d]
    law = model.zipf(settings.n, alpha, infinite=True)
    errors_GDT = model.finite_data(settings.seeds, settings.draws, law, m, d, TIMES, 0.0, stored).mean(1)
    terms_D, terms_T = laws.never_stored(stored, alpha, m), laws.never_seen(TIMES, alpha, m)
    ratio_GDT = errors_GDT / (terms_D[:, None] + terms_T)

    def claim(name, statement, paper, values_G, **bounds):
        return Claim(name, statement, paper, [float(value) for value in values_G], **bounds)

    claims = [
        claim("law_low", "E over d^(1-alpha) + T^(-1+1/alpha) with their constants, least over the grid",
              "bounded from below (15)", ratio_GDT.min((1, 2)), at_least=1 / 3),
        claim("law_high", "the same, largest", "bounded from above (15)", ratio_GDT.max((1, 2)), at_most=3),
    ]  # fmt: skip
    # Claims each plateau only where the other term has become small.
    if terms_T[-3] < 0.1 * terms_D[0]:
        claims.append(
            claim(
                "plateau_in_T",
                f"at d = {d[0]}: error at T = {TIMES[-1]} over that at T = {TIMES[-3]}",
                "1: memory is the limit",
                errors_GDT[:, 0, -1] / errors_GDT[:, 0, -3],
                at_least=0.9,
                at_most=1.1,
            )
        )
    if terms_D[-2] < 0.1 * terms_T[0]:
        claims.append(
            claim(
                "plateau_in_d",
                f"at T = {TIMES[0]}: error at d = {d[-1]} over that at d = {d[-2]}",
                "1: samples are the limit",
                errors_GDT[:, -1, 0] / errors_GDT[:, -2, 0],
                at_least=0.9,
                at_most=1.1,
            )
        )
    runs = []
    for place, value in enumerate(d):
        runs += record(f"d={value}", settings.seeds, {"error": ("T", TIMES, errors_GDT[:, place])})

    def draw(path):
        figure, (left, right) = panels(2)
        for place, colour in zip(range(0, len(TIMES), 2), shades(len(TIMES[::2])), strict=True):
            curve(left, d, errors_GDT[:, :, place], f"$T={TIMES[place]:,}$".replace(",", "{,}"), colour)
            theory(left, d, terms_D + terms_T[place], "sum of both laws" if place == 0 else None, colour)
        for place, colour in enumerate(shades(len(d))):
            curve(right, TIMES, errors_GDT[:, place], f"$d={d[place]}$", colour)
            theory(right, TIMES, terms_D[place] + terms_T, "sum of both laws" if place == 0 else None, colour)
        finish(left, "Error and model capacity", "width $d$", "error", log="xy", legend=3)
        finish(right, "Error and data", "samples $T$", "error", log="xy", legend=4)
        mark(left, d)
        save(figure, path)

    kept = f"P = {settings.p}" if settings.p else "P = d/8"
    return Study(
        "1", "Figure 1: capacity and data",
        "The error is the sum of what the memory has no room for and of what the samples have not shown: each curve follows "
        "one law until it meets the plateau the other sets.",
        f"Scheme q_0,[P] (12) with {kept}, alpha = {alpha:g}, N = {settings.n} simulated of infinitely many, M = {m}, "
        f"{settings.runs} runs; bands from the lowest to the highest of {len(settings.seeds)} groups. Dashed: "
        "d^(1-alpha) + T^(-1+1/alpha) with the constants of the two tails, (1-1/M) C P^(1-alpha)/(alpha-1) and "
        "(1-1/M) Gamma(1-1/alpha) C^(1/alpha)/alpha T^(-1+1/alpha); nothing is fitted. "
        "The sum counts twice what is missing for both reasons, so it lies above near the bend. Inputs as "
        "frequent as each other are taken into the top P at random.",
        runs, claims, draw,
    )  # fmt: skip
