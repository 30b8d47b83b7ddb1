"""Figure 8: with learned embeddings, two dimensions hold every association."""

import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap

from memsinks_jax.labs.associative_memory import learned, model
from memsinks_jax.labs.associative_memory.study import Settings, record
from memsinks_jax.labs.study import Study, panels, save
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.reporting.pictures import plt

DEFAULTS = {"runs": 10, "alpha": 2.0, "n": 100, "m": 5}
DIMENSIONS = 2
STEPS, GAMMA = 2000, 0.05


def study(settings: Settings) -> Study:
    n, seeds = settings.n, settings.seeds
    law, found, runs, claims = model.zipf(n, settings.alpha), {}, [], []
    steps = np.arange(STEPS // 100, STEPS + 1, STEPS // 100)
    for m in (settings.m, 2 * settings.m):
        y_N = model.outputs(n, m)
        e, u, errors_GRT = model.over_runs(
            lambda key, y_N=y_N, m=m: learned.learn(key, law, jnp.asarray(y_N), m, DIMENSIONS, STEPS, GAMMA),
            seeds, settings.draws, together=True,
        )  # fmt: skip
        found[m] = e[0, 0], u[0, 0], y_N
        # The error is a sum of p(x) over unrecalled inputs: without any it is exactly zero.
        solved_G = (errors_GRT[:, :, -1] == 0).mean(1)
        curves = {"error": ("step", steps, errors_GRT[:, :, steps - 1].mean(1))}
        runs += record(f"M={m}", seeds, curves, solved=solved_G, error=errors_GRT[:, :, -1].mean(1))
        share = float(solved_G.mean())
        claims.append(
            Claim(f"zero_error_{m}", f"share of runs with zero error, d = {DIMENSIONS}, M = {m}, N = {n}",
                  "zero error is reached (Fig. 8)", [share], at_least=0.9)
        )  # fmt: skip

    def draw(path):
        figure, axes = panels(3)
        for axis, (m, kind) in zip(
            axes, ((settings.m, "levels"), (settings.m, "e"), (2 * settings.m, "e")), strict=True
        ):
            _plane(axis, *found[m], kind)
        save(figure, path)

    return Study(
        "8", "Figure 8: learned embeddings",
        "Random embeddings hold about d associations in a d x d matrix. Learned ones hold any number in two dimensions: "
        "inputs of one output gather around its direction.",
        f"N = {n}, d = {DIMENSIONS}, alpha = {settings.alpha:g}, W = I; e and u learned by Adam (step {GAMMA:g}, {STEPS} "
        f"steps) on the cross-entropy of the whole law, from N(0, I). Shown: seed {seeds[0]}. Areas: argmax_y u_y^T u.",
        runs, claims, draw,
    )  # fmt: skip


def _plane(axis, e_ND, u_MD, y_N, kind: str) -> None:
    """Regions of argmax_y u_y^T u with the u_y, or with the e_x coloured by their output."""
    m = len(u_MD)
    colours = plt.get_cmap("tab10" if m <= 10 else "nipy_spectral")(np.linspace(0, 1, m) if m > 10 else np.arange(m))
    points = u_MD if kind == "levels" else e_ND
    reach = 1.15 * np.abs(points).max()
    grid = np.linspace(-reach, reach, 400)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1)
    axis.imshow((plane @ u_MD.T).argmax(-1), origin="lower", extent=(-reach, reach) * 2, cmap=ListedColormap(colours),
                vmin=0, vmax=m - 1, alpha=0.3, interpolation="nearest", aspect="auto")  # fmt: skip
    if kind == "levels":
        for y, (place, colour) in enumerate(zip(u_MD, colours, strict=True)):
            axis.annotate("", place, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 2})
            axis.annotate(f"$u_{{{y}}}$", 1.07 * place, ha="center", va="center")
    else:
        axis.scatter(*e_ND.T, c=colours[y_N], s=22, edgecolors="white", linewidths=0.5)
    title = "Outputs $u_y$, areas they win" if kind == "levels" else "Inputs $e_x$ by output"
    axis.set(title=f"{title}, M = {m}", xlabel="first coordinate", ylabel="second coordinate")
    axis.set_box_aspect(1)
    axis.spines[["top", "right"]].set_visible(False)
