"""Shared by figures: the table of what was measured, and lines of pictures."""

import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest

from memsinks_jax.studies.figures import panels
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import Table


@pytest.mark.parametrize(
    "x, style, marker", [([47], "-", "o"), ([47, 94], "-", "None"), ([47], "s--", "s"), ([47, 94], "s--", "s")]
)
def test_a_band_of_one_point_is_seen(x, style, marker):
    figure, axis = plt.subplots()
    panels.band(axis, x, [[1.0, 3.0]] * len(x), "one", "red", style)
    (line,) = axis.get_lines()
    assert line.get_marker() == marker
    assert list(line.get_ydata()) == [2.0] * len(x)
    plt.close(figure)


def test_where_nothing_was_memorized_no_share_of_it_is_closed():
    """Documents whose rows are all the same: a figure must not fail after all trainings."""
    run = Run("standard", 0, pathlib.Path(), {"held_out_loss": 1.0, "repeated_loss": 1.0}, [])
    assert np.isnan(Table([run]).column("closed", "standard"))


def test_runs_of_other_lengths_are_shown_as_far_as_all_go():
    """Another seed fills rows differently, so the last evaluation comes at another step."""
    steps, values_SX = panels.at_same_steps(
        [([47, 94, 100], [3.0, 2.0, 1.4]), ([47, 94], [1.0, 0.0]), ([47, 97], [5, 4])]
    )
    assert list(steps) == [47, 94]
    np.testing.assert_allclose(values_SX, [[3, 2], [1, 0], [5, 4 + 3 / 50]])


def test_an_expression_is_of_the_runs_of_a_seed():
    def run(variant, seed, loss, held_out=2.0):
        return Run(variant, seed, pathlib.Path(), {"repeated_loss": loss, "held_out_loss": held_out}, [])

    runs = [
        run("standard_0.5", 0, 1.0),
        run("standard_0.5", 1, 0.5),
        run("sinks_0.5", 1, 1.5),
        run("sinks_0.5", 0, 1.0),
    ]
    table = Table(runs, {"both": lambda one, other: (one.seed, other.seed)}, lambda variant: "standard_0.5")
    assert table.column("closed", "sinks_0.5") == [1 - 0.5 / 1.5, 0.0]  # in the order of its runs
    assert table.column("2 * max(gap, standard.gap) - gap", "sinks_0.5") == [2.5, 1.0]
    assert table.column("own", "sinks_0.5") == table.column("closed", "nowhere") == []
    assert table.paired("both(standard_0.5, sinks_0.5)") == [(0, 0), (1, 1)]
    assert table.paired("sinks_0.5.repeated_loss / standard_0.5.repeated_loss") == [3.0, 1.0]
    assert table.paired("sinks_0.5.gap - nowhere.gap") is None
    with pytest.raises(KeyError, match="own"):  # of a variant that was run: a claim does not vanish
        table.paired("sinks_0.5.own")


def test_a_claim_about_both_kinds_of_sinks_has_both_values():
    runs = [Run(name, 0, pathlib.Path(), {"a": a}, []) for name, a in (("sinks_paper", 1.0), ("sinks", 2.0))]
    written = "id | text | {sinks}.a >= 0.5"
    (claim,) = Table(runs).claims(written)
    assert (claim.values, claim.on_return, claim.at_least) == ([1.0], [2.0], 0.5)
    (claim,) = Table(runs[:1]).claims(written)
    assert claim.on_return is None and not Table(runs[1:]).claims(written)


def test_claims_are_read_as_they_are_written(caplog):
    runs = [Run(name, 0, pathlib.Path(), {"a": 1.0, "b": 0.0}, []) for name in ("one", "other_0.5")]
    found = Table(runs).claims(
        """
        range | of two
            lines | -0.5 <= one.a - other_0.5.a <= 1e-3 | >= 0.5 (section 1)
        below | text | min(one.a,
            other_0.5.b) <= 2
        needs | text | one.a >= 0 | said | absent
        there | text | one.a >= 0 | said | one other_0.5
        absent | text | one.a / absent.a >= 0
        undefined | text | one.a / one.b >= 0
        """,
        "not asked",
    )
    stated = [(c.id, c.statement, c.paper, c.values, c.at_least, c.at_most, c.on_return) for c in found]
    assert stated == [
        ("range", "of two lines", ">= 0.5 (section 1)", [0.0], -0.5, 1e-3, None),
        ("below", "text", "not asked", [0.0], None, 2.0, None),
        ("there", "text", "said", [1.0], 0.0, None, None),
    ]
    assert "undefined" in caplog.text
