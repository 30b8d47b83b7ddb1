"""The common style of pictures: matplotlib without a display, the look of an axis, the writing of
files.
"""

import pathlib

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

from memsinks_jax.atomic import atomic_file


def tidy(axis) -> None:
    """A faint grid, no frame above and on the right."""
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure, path: pathlib.Path, dpi: int = 150, **settings) -> None:
    """Writes the file, all or nothing, and closes the figure."""
    with atomic_file(path) as scratch:
        figure.savefig(scratch, dpi=dpi, **settings)
    plt.close(figure)
