"""Figure 6: the effect of one SGD step on the scores of all inputs: large steps overwrite, small ones miss rare inputs."""

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import model, optimization
from memsinks_jax.labs.associative_memory.study import Settings, record
from memsinks_jax.labs.study import Study, panels, save
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt

DEFAULTS = {"runs": 100, "alpha": 1.5, "n": 10, "m": 5, "d": (5,)}
STEPS = 1000
GAMMAS = (10.0, 0.1)


def study(settings: Settings) -> Study:
    """Raises InputError for several values of d, and for more inputs than one plot of all scores can show."""
    if len(settings.d) > 1:
        raise InputError(
            f"--d={','.join(map(str, settings.d))}: figure 6 has one dimension; give one, for example --d=5"
        )
    if settings.n > 50:
        raise InputError(f"--n={settings.n}: figure 6 shows the scores of every input; give at most 50")
    n, m, d, seeds = settings.n, settings.m, settings.d[0], settings.seeds
    law, y_N = model.zipf(n, settings.alpha), model.outputs(n, m)

    def one_run(key):
        of_memory, of_samples = jax.random.split(key)
        e_NR, gram_MM = model.draw(of_memory, n, m, d, min(n, d))
        inputs_T = model.samples(of_samples, law, STEPS)
        scores_CTMN = jnp.stack([
            optimization.stream("gradient", optimization.kernel(e_NR, d), gram_MM, jnp.asarray(y_N), inputs_T,
                                jnp.full(STEPS, gamma), lambda scores_MN: scores_MN)
            for gamma in GAMMAS
        ])  # fmt: skip
        return scores_CTMN, inputs_T

    scores_GRCTMN, inputs_GRT = model.over_runs(one_run, seeds, settings.draws, together=True)
    right = scores_GRCTMN.argmax(-2) == y_N
    inputs = inputs_GRT.astype(int)
    lost = _lost(right, inputs)
    rare_GC = right[:, :, :, STEPS // 2 :, n // 2 :].mean((1, 3, 4))
    runs = []
    for c, gamma in enumerate(GAMMAS):
        recalled_GT = right[:, :, c, 9::10].mean((1, 3))
        runs += record(f"gamma={gamma:g}", seeds, {"recalled": ("T", range(10, STEPS + 1, 10), recalled_GT)},
                       lost=lost[:, c], rare=rare_GC[:, c])  # fmt: skip
    claims = [
        Claim("overwrites", f"share of recalled inputs lost by a step on an unrecalled one: gamma = {GAMMAS[0]:g} over "
              f"gamma = {GAMMAS[1]:g}", "a large step erases", [float(v) for v in lost[:, 0] / lost[:, 1]], at_least=1),
        Claim("misses_rare", f"share of the rarer half of the inputs recalled late: gamma = {GAMMAS[0]:g} minus "
              f"gamma = {GAMMAS[1]:g}", "a small step does not store the rare",
              [float(v) for v in rare_GC[:, 0] - rare_GC[:, 1]], at_least=0),
    ]  # fmt: skip

    def draw(path):
        figure, axes = panels(4)
        for c, gamma in enumerate(GAMMAS):
            step = _example(right[0, 0, c], inputs[0, 0])
            x = inputs[0, 0, step]
            both = scores_GRCTMN[0, 0, c, step - 1 : step + 1]
            for axis, scores_MN, when in zip(axes[2 * c : 2 * c + 2], both, ("before", "after"), strict=True):
                _matrix(axis, scores_MN, y_N, x, f"Step size {gamma:g}, {when} step {step + 1}")
        save(figure, path)

    return Study(
        "6", "Figure 6: what one step does to all memories",
        "A large step stores the association it meets and may erase others; a small one leaves the others alone and needs "
        "many sights of an input before it is stored.",
        f"N = {n}, M = {m}, alpha = {settings.alpha:g}, d = {d}, batch size one, embeddings divided by sqrt(d). Scores "
        "u_y^T W e_x, scaled for every input from its lowest to its highest; lighter is higher. Red: the input of the "
        f"step and its output; white dots: what is recalled; grey rings: what should be. Claims over {settings.runs} runs "
        f"of {STEPS} steps.",
        runs, claims, draw,
    )  # fmt: skip


def _lost(right, inputs) -> np.ndarray:
    """Share of recalled inputs that a step on an unrecalled one makes the memory forget -> (groups, C)."""
    before, after = right[..., :-1, :], right[..., 1:, :]
    here = np.broadcast_to(inputs[:, :, None, 1:, None], (*before.shape[:-1], 1))
    on_wrong = ~np.take_along_axis(before, here, axis=-1)
    gone = (before & ~after & on_wrong).sum((1, 3, 4))
    return (gone + 1e-9) / ((before & on_wrong).sum((1, 3, 4)) + 1e-9)


def _example(right_TN, inputs_T) -> int:
    """A step after the first hundred, on an unrecalled input: the one that changes the recall of most others."""
    steps = np.arange(100, len(inputs_T))
    wrong = ~right_TN[steps - 1, inputs_T[steps]]
    changed = (right_TN[steps - 1] & ~right_TN[steps]).sum(1)
    return int(steps[np.argmax(wrong * (1 + changed))])


def _matrix(axis, scores_MN, y_N, x: int, title: str) -> None:
    low, high = scores_MN.min(0), scores_MN.max(0)
    n = len(y_N)
    axis.imshow((scores_MN - low) / np.maximum(high - low, 1e-9), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axis.plot(np.arange(n), scores_MN.argmax(0), "o", color="white", markersize=4)
    axis.plot(np.arange(n), y_N, "o", markerfacecolor="none", markeredgecolor="#bdc3c7", markersize=10)
    axis.add_patch(plt.Rectangle((x - 0.5, y_N[x] - 0.5), 1, 1, fill=False, edgecolor="#e74c3c", linewidth=2.5))
    axis.set(title=title, xlabel="input, by frequency", ylabel="output")
    shown = np.arange(0, n, -(-n // 10))
    axis.set_xticks(shown, shown + 1)
