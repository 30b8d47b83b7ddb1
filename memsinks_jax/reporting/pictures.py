"""The common style of pictures: matplotlib without a display, the look of an axis, the writing of
files.
"""

import os
import pathlib

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt


def tidy(axis) -> None:
    """A faint grid, no frame above and on the right."""
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure, path: pathlib.Path, dpi: int = 150, **settings) -> None:
    """Writes the file, all or nothing, and closes the figure."""
    scratch = path.with_suffix(f".new{path.suffix}")
    figure.savefig(scratch, dpi=dpi, **settings)
    plt.close(figure)
    os.replace(scratch, path)
