"""Figure 4: is (20) a good approximation of what SGD stores? Yes if d >= N, no if d << N."""

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.labs.associative_memory import model, optimization
from memsinks_jax.labs.associative_memory.study import Settings, curve, record
from memsinks_jax.labs.study import BLUE, DASHED, GREEN, ORANGE, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim

DEFAULTS = {"runs": 100, "alpha": 2.0, "n": 100, "m": 5}
STEPS = 1000
LABELS = {"gradient": "SGD (18)", "approximation": "update (19)", "scheme": "$q_\\gamma$ of (20) in (4)"}
COLOURS = dict(zip(optimization.RULES, (BLUE, ORANGE, GREEN), strict=True))


def study(settings: Settings) -> Study:
    n, m, seeds = settings.n, settings.m, settings.seeds
    law, y_N = model.zipf(n, settings.alpha), jnp.asarray(model.outputs(n, m))
    cases = ((n, 10.0), (n, 1.0), (max(n // 10, 1), 1.0))
    d_C, gamma_C = (jnp.array(column, jnp.float32) for column in zip(*cases, strict=True))

    def one_run(key, d, gamma):
        of_memory, of_samples = jax.random.split(key)
        e_NR, gram_MM = model.draw(of_memory, n, m, d, n)
        kernel_NN = optimization.kernel(e_NR, d)
        inputs_T = model.samples(of_samples, law, STEPS)
        return jnp.stack([
            optimization.stream(rule, kernel_NN, gram_MM, y_N, inputs_T, jnp.full(STEPS, gamma),
                                lambda scores_MN: model.error(scores_MN, y_N, law))
            for rule in optimization.RULES
        ])  # fmt: skip

    over_cases = jax.vmap(one_run, in_axes=(None, 0, 0))
    errors_GRCUT = model.over_runs(lambda key: over_cases(key, d_C, gamma_C), seeds, settings.draws, together=True)
    errors_GCUT = errors_GRCUT.mean(1)
    steps = np.unique(np.geomspace(1, STEPS, 60).round().astype(int))
    errors_GCUX = errors_GCUT[..., steps - 1]
    runs = []
    for c, (d, gamma) in enumerate(cases):
        for u, rule in enumerate(optimization.RULES):
            runs += record(f"{rule}, d={d}, gamma={gamma:g}", seeds, {"error": ("T", steps, errors_GCUX[:, c, u])})
    # Distance of the scheme's mean error from SGD's, in logarithms, over the steps of the plot.
    gap_GC = np.abs(np.log(errors_GCUX[:, :, 2] / errors_GCUX[:, :, 0])).mean(-1)
    claims = [
        Claim(f"close_{gamma:g}", f"mean |log E(q_gamma) / E(SGD)| at d = N = {n}, gamma = {gamma:g}", "curves coincide",
              [float(value) for value in gap_GC[:, c]], at_most=0.25)
        for c, (_, gamma) in enumerate(cases[:2])
    ]  # fmt: skip
    claims.append(
        Claim("part", f"E(q_gamma) / E(SGD) after {STEPS} steps at d = {cases[2][0]}", "the approximation is not valid",
              [float(value) for value in errors_GCUX[:, 2, 2, -1] / errors_GCUX[:, 2, 0, -1]], at_least=1.5)
    )  # fmt: skip
    claims.append(
        Claim("part_more", f"that mean |log| at d = {cases[2][0]} over the one at d = N, gamma = 1", "breaks when d << N",
              [float(value) for value in gap_GC[:, 2] / gap_GC[:, 1]], at_least=1.5)
    )  # fmt: skip

    def draw(path):
        figure, axes = panels(3)
        for u, rule in enumerate(optimization.RULES):
            one_X = errors_GRCUT[0, 0, 0, u, steps - 1]
            style = DASHED if u else "-"
            axes[0].plot(steps, one_X, linestyle=style, color=COLOURS[rule], label=LABELS[rule], linewidth=1.8)
            for c in (1, 2):
                curve(axes[c], steps, errors_GCUX[:, c, u], LABELS[rule], COLOURS[rule], style)
        titles = [f"width {d}, step size {gamma:g}" for d, gamma in cases]
        for axis, title, kind in zip(axes, titles, ("One run, ", "Mean, ", "Mean, "), strict=True):
            finish(axis, kind + title, "steps", "error", log="xy", legend=2)
        save(figure, path)

    return Study(
        "4", "Figure 4: what SGD stores, and its approximation",
        "With room for all inputs, SGD stores an association with the weight f^n(0) after n sights of it. In a matrix too "
        "small the gradient also repairs what interference breaks, which no fixed weight does.",
        f"N = {n}, M = {m}, alpha = {settings.alpha:g}, batch size one, W = 0 at the start, {settings.runs} runs. "
        "Embeddings are divided by sqrt(d), so that a unit of q changes its own logit by about 1, as (20) assumes; the "
        "paper's own rescaling is not in its main text. Dashed: the approximations.",
        runs, claims, draw,
    )  # fmt: skip
