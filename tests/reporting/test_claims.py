"""Intervals, verdicts, and the measures of figure 4."""

import pathlib

import pytest

from memsinks_jax.reporting.claims import Claim, interval, with_interval
from memsinks_jax.studies.figures.figure_4 import FIGURE
from memsinks_jax.studies.figures.runs import Run


def test_interval_is_students():
    # Textbook case: mean 5, standard deviation 1, n = 4: 3.182 / 2 to either side.
    assert interval([4.0, 4.5, 5.5, 6.0]) == pytest.approx(
        [5 - 3.1824 * 0.91287 / 2, 5 + 3.1824 * 0.91287 / 2], rel=1e-4
    )
    assert interval([5.0]) is None
    assert with_interval([5.0, 5.0]) == "5.000 ± 0.000"
    assert with_interval([5.0]) == "5.000"
    assert with_interval([]) == "–"


@pytest.mark.parametrize(
    ("values", "bound", "holds"),
    [
        ([0.8], {"at_least": 0.75}, True),
        ([0.7], {"at_least": 0.75}, False),
        ([0.7], {"at_most": 0.75}, True),
        ([0.79, 0.80, 0.81], {"at_least": 0.75}, True),
        ([0.70, 0.80, 0.90], {"at_least": 0.75}, False),  # the mean does, the interval does not
        ([0.70, 0.80, 0.90], {"at_most": 0.85}, False),
    ],
)
def test_a_claim_holds_with_its_whole_interval(values, bound, holds):
    assert Claim("c", "statement", "paper", values, **bound).holds is holds


def test_bounds_are_shown():
    assert Claim("c", "s", "p", [1.0], at_least=0.75).bound == "≥ 0.75"
    assert Claim("c", "s", "p", [1.0], at_most=1.5).bound == "≤ 1.5"
    assert Claim("c", "s", "p", [1.0], at_least=0.2, at_most=0.3).bound == "0.2 to 0.3"


def run(variant, seed, held_out, repeated):
    lines = [{"step": 1, "held_out_loss": 5.0, "repeated_loss": repeated / 2}]
    return Run(
        variant,
        seed,
        pathlib.Path(),
        {"held_out_loss": held_out, "repeated_loss": repeated, "step": 9},
        lines,
    )


RUNS = [
    run("standard", 0, 1.0, 0.2),
    run("no_repeat", 0, 1.2, 1.2),
    run("sinks_paper", 0, 0.9, 0.7),
    run("standard", 1, 1.1, 0.1),
    run("no_repeat", 1, 1.2, 1.1),
    run("sinks_paper", 1, 1.0, 0.8),
]


def test_measures():
    table = FIGURE.of(RUNS)
    assert table.measure("closed", 0, "sinks_paper") == pytest.approx(1 - 0.2 / 0.8)
    assert table.measure("closed", 0, "standard") == 0
    assert table.measure("recovery", 0, "sinks_paper") == pytest.approx(0.7 / 1.2)


def test_claims_are_paired_by_seed_and_not_decided_where_a_variant_is_missing():
    found = {claim.id: claim for claim in FIGURE.claims(RUNS) if claim.holds is not None}
    assert found["gap_closed"].values == pytest.approx([0.75, 0.8])
    assert found["memorizes"].values == pytest.approx([0.2, 0.1 / 1.1])
    assert found["held_out_standard"].values == pytest.approx([0.9, 1 / 1.1])
    assert found["late_rise"].values == pytest.approx([0.35, 0.4])
    assert not {name for name in found if name.startswith("control")}
    assert {claim.id for claim in FIGURE.claims(RUNS[:1]) if claim.holds is not None} == {
        "memorizes"
    }


def test_table_of_final_numbers():
    columns, _, rows = FIGURE.table(RUNS)
    by_name = [dict(zip(columns, row, strict=True)) for row in rows]
    assert by_name[2]["gap closed"] == pytest.approx([0.75, 0.8])
    assert by_name[0]["held-out"] == [1.0, 1.1]
    assert by_name[0]["repeated, own sinks"] == []
