"""Shared by figures that compare losses."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from memsinks_jax.figures import losses


@pytest.mark.parametrize(
    "x, style, marker", [([47], "-", "o"), ([47, 94], "-", "None"), ([47], "s--", "s"), ([47, 94], "s--", "s")]
)
def test_a_band_of_one_point_is_seen(x, style, marker):
    figure, axis = plt.subplots()
    losses.band(axis, x, np.array([[1.0] * len(x), [3.0] * len(x)]), "one", "red", style)
    (line,) = axis.get_lines()
    assert line.get_marker() == marker
    assert list(line.get_ydata()) == [2.0] * len(x)
    plt.close(figure)
