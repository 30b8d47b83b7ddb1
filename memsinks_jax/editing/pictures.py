"""Plots of an edit: the patch map, and the answers at every bound."""

import pathlib

import numpy as np

from memsinks_jax.editing.boundary import Sweep
from memsinks_jax.editing.patching import PatchMap
from memsinks_jax.reporting.pictures import plt, save, tidy

_SHARES = (
    ("on_target", "positive: predict the target", "#1f618d", "-"),
    ("unchanged", "negative: answer as before", "#c0392b", "-"),
    ("off_target", "negative: do not predict the target", "#d68910", "--"),
)


def draw_map(axis, losses: np.ndarray, successes: np.ndarray, target: str) -> None:
    """Draws losses (L, T) as colours, with rings where the patched model predicts the target."""
    image = axis.imshow(
        losses, aspect="auto", cmap="viridis_r", vmin=min(0.0, losses.min()), origin="lower"
    )
    layers, places = np.nonzero(successes)
    axis.scatter(places, layers, s=60, facecolors="none", edgecolors="#e74c3c", linewidths=1.8)
    axis.set(ylabel="layer")
    axis.set_yticks(range(len(losses)))
    axis.figure.colorbar(image, ax=axis, label=f"loss of “{target.strip()}” (nats)")


def draw_maps(maps: dict[str, PatchMap], words: list[str], target: str, path: pathlib.Path) -> None:
    """Draws the target's loss after every single patch, a panel for each of `maps`. words:
    tokens.
    """
    layers = len(next(iter(maps.values())).losses)
    size = (1.6 + len(maps) * (1.2 + 0.62 * len(words)), 1.7 + 0.36 * layers)
    figure, axes = plt.subplots(1, len(maps), figsize=size, squeeze=False, layout="constrained")
    for axis, (title, found) in zip(axes[0], maps.items(), strict=True):
        draw_map(axis, found.losses, found.successes, target)
        axis.set(title=f"{title}, step {found.step:.3g} (unpatched {found.base_loss:.2f})")
        shown = [word.strip() or repr(word) for word in words]
        axis.set_xticks(range(len(words)), shown, rotation=45, ha="right")
    save(figure, path, dpi=130)


def draw_sweep(swept: Sweep, chosen: float, path: pathlib.Path) -> None:
    """Draws the shares of positive and negative prompts over the bounds."""
    figure, axis = plt.subplots(figsize=(7.4, 3.6), layout="constrained")
    for name, label, colour, style in _SHARES:
        shares, look = getattr(swept, name)(), {"marker": "o", "markersize": 3}
        axis.plot(swept.bounds, shares, style, color=colour, label=label, **look)
    axis.axvline(chosen, color="black", linewidth=1, linestyle=":", label=f"taken: {chosen:.3g}")
    axis.set(xscale="log", xlabel="boundary b", ylabel="share of prompts", ylim=(-0.03, 1.03))
    tidy(axis)
    axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=8)
    save(figure, path, dpi=130)


def draw_similarities(rows: list[dict], path: pathlib.Path) -> None:
    """Draws how strongly the memory acts on each prompt. `rows` come from `search.effects`."""
    colours = {"prompt": "black", "positive": "#1f618d", "negative": "#c0392b"}
    figure, axis = plt.subplots(figsize=(8.6, 0.9 + 0.26 * len(rows)), layout="constrained")
    places = np.arange(len(rows))[::-1]
    similarities, kinds = zip(*((row["similarity"], row["kind"]) for row in rows), strict=True)
    axis.barh(places, similarities, color=[colours[kind] for kind in kinds], height=0.7)
    axis.set_yticks(places, [row["prompt"] for row in rows], fontsize=8)
    axis.set(xlim=(0, 1.02), xlabel="f at the prompt's nearest token: 1 is all of the memory")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    labels = ["the edit's own prompt", "shall change", "shall not"]
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    axis.spines[["top", "right"]].set_visible(False)
    save(figure, path, dpi=130)
