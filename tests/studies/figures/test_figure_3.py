"""The measures of figure 3 from known curves, and its plot of several seeds."""

import dataclasses
import pathlib

import pytest

from memsinks_jax.studies.figures.figure_3 import FIGURE, MASKED, gap, growth
from memsinks_jax.studies.figures.runs import Run

LOSSES = [3.0, 2.0, 1.9, 1.8, 1.7, 1.6]


def run(variant, seed, gaps=None):
    """Held-out loss falls as LOSSES, and rises by `gaps` when dropped, if that is possible."""
    lines = []
    for number, loss in enumerate(LOSSES):
        line = {"step": 100 * (number + 1), "held_out_loss": loss - 0.5, "repeated_loss": 0.1}
        if gaps:
            line |= {"held_out_loss": loss + gaps[number], "held_out_loss_own": loss}
            line["repeated_loss_own"] = 0.2
        lines.append(line)
    return Run(variant, seed, pathlib.Path(), lines[-1], lines)


RUNS = [
    run("standard", 0),
    run("gradient_masking", 0, [0, 1, 2, 3, 4, 5]),
    run("sinks_paper", 0, [0.5] * 6),
    run("standard", 1),
    run("gradient_masking", 1, [4, 4, 4, 4, 3, 3]),
    run("sinks_paper", 1, [0.25] * 6),
]


def test_claims_are_paired_by_seed_and_not_decided_where_a_variant_is_missing():
    found = {claim.id: claim for claim in FIGURE.claims(RUNS)}
    decided = {name for name, claim in found.items() if claim.holds is not None}
    assert decided == {f"gradient_masking_{name}" for name in ("kept", "gap", "growth", "control")}
    assert found["gradient_detach_gap"].undecided == "gradient_detach was not measured"
    assert found["gradient_masking_kept"].values == pytest.approx([1.6 / 1.1] * 2)
    assert found["gradient_masking_gap"].values == pytest.approx([5, 3])
    assert found["gradient_masking_growth"].values == pytest.approx([4, -1])
    assert found["gradient_masking_control"].values == pytest.approx([4.5, 2.75])
    assert not found["gradient_masking_growth"].holds
    assert found["gradient_masking_kept"].holds
    decided = {claim.id for claim in FIGURE.claims(RUNS[1:2]) if claim.holds is not None}
    assert decided == {"gradient_masking_gap", "gradient_masking_growth"}


def test_growth_of_few_evaluations():
    short = run("sinks_paper", 0, [0.5] * 6)
    assert growth(short) == pytest.approx(0)
    del short.lines[1:]
    assert gap(short) == [0.5]
    assert growth(short) == 0


def test_table_of_final_numbers():
    columns, labels, rows = FIGURE.table(RUNS)
    standard, masked, _ = (dict(zip(columns, row, strict=True)) for row in rows)
    assert standard["held-out, kept"] == pytest.approx([1.1, 1.1])
    assert standard["held-out, dropped"] == standard["gap"] == []
    assert masked["held-out, dropped"] == pytest.approx([6.6, 4.6])
    assert masked["gap"] == pytest.approx([5, 3])
    assert masked["repeated, kept"] == [0.2, 0.2]
    assert len(rows) == len(labels)


def test_it_is_drawn_with_whatever_was_run(tmp_path):
    shorter = [*RUNS[:3], *(dataclasses.replace(run, lines=run.lines[:4]) for run in RUNS[3:])]
    both = [*RUNS, *(run(list(MASKED)[1], seed, [1] * 6) for seed in (0, 1))]
    for name, runs in (("all", both), ("shorter", shorter), ("one", RUNS[:1])):
        FIGURE.draw(runs, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
