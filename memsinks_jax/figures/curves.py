"""Curves over training that several figures draw alike."""

import numpy as np


def band(axis, curves: list[tuple[list[int], list[float]]], label: str, colour: str, style: str = "-") -> None:
    """(steps, values) of one run each, at the same steps: their mean, and a band from the lowest to the highest."""
    values = np.array([values for _, values in curves])
    axis.plot(curves[0][0], values.mean(axis=0), style, color=colour, label=label, linewidth=1.8)
    axis.fill_between(curves[0][0], values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, linewidth=0)
