"""Shared by figures that compare losses."""

import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest

from memsinks_jax.figures import losses
from memsinks_jax.figures.runs import Run


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


def test_where_nothing_was_memorized_no_share_of_it_is_closed():
    """Documents whose rows are all the same: a figure must not fail after all trainings."""
    run = Run("standard", 0, pathlib.Path(), {"held_out_loss": 1.0, "repeated_loss": 1.0}, [])
    assert np.isnan(losses.gap_closed(run, run))


def test_runs_of_other_lengths_are_shown_as_far_as_all_go():
    """Another seed fills rows differently, so the last evaluation comes at another step."""
    steps, values_SX = losses.at_same_steps(
        [([47, 94, 100], [3.0, 2.0, 1.4]), ([47, 94], [1.0, 0.0]), ([47, 97], [5, 4])]
    )
    assert list(steps) == [47, 94]
    np.testing.assert_allclose(values_SX, [[3, 2], [1, 0], [5, 4 + 3 / 50]])
