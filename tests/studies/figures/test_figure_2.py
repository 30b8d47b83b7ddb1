"""Figure 2: its claims from known curves, its table, page and plot."""

import pathlib

import pytest
from measured import details

from memsinks_jax.config import Config, to_json
from memsinks_jax.studies.figures import figure_2
from memsinks_jax.studies.figures.runs import Run

# half of the gap is 0.5
HELD_OUT, REPEATED = [3.0, 2.0, 1.5, 1.4, 1.3, 1.3], [2.9, 1.8, 1.9, 0.9, 0.4, 0.3]


def run(variant, seed, curves, workdir=pathlib.Path()):
    lines = [
        {"step": step, "held_out_loss": h, "repeated_loss": r}
        for step, (h, r) in enumerate(zip(HELD_OUT, REPEATED, strict=True))
    ]
    metrics = lines[-1] | ({"canary_loss": 0.02} if variant == "canary" else {})
    return Run(variant, seed, workdir, metrics, lines, details(curves, (0.3, 1.3)))


def line(rise):
    """A method that forgets 1 nat at `rise`."""
    return [(0.25, rise / 4), (1.0, rise)]


REPETITION = {"hard_concrete": line(0.8), "integrated_gradients": line(0.6)}
CANARY = {
    "hard_concrete": {"repeated": line(0.6), "canary": line(0.2)},
    "integrated_gradients": {"repeated": line(0.2), "canary": line(0.3)},
}


def runs_of(workdir=pathlib.Path()):
    return [
        run(variant, seed, curves, workdir)
        for seed in (0, 1)
        for variant, curves in (("repetition", REPETITION), ("canary", CANARY))
    ]


def test_claims_compare_at_matched_forgetting():
    found = {claim.id: claim.values[0] for claim in figure_2.FIGURE.claims(runs_of())}
    assert found == pytest.approx(
        {
            "hard_concrete_forgets": 1.0,
            "integrated_gradients_forgets": 1.0,
            "hard_concrete_canary": 0.1,
            "hard_concrete_canary_alone": 0.3,
            "integrated_gradients_canary": 0.2,
            "integrated_gradients_canary_alone": 0.15,
            "gradients_less_repetition": 0.1,
            "gradients_less_canary": 0.2,
            "gradients_less_canary_alone": -0.05,
            "pronounced_canary": 0.1,
            "pronounced_canary_alone": -0.15,
            "together": 0.5,
            "no_rise": 0.0,
        }
    )
    part = figure_2.FIGURE.claims(runs_of()[:1])
    assert {claim.id for claim in part if claim.holds is not None} == {"together", "no_rise"}
    falling = REPETITION | {"hard_concrete": [(0.5, 0.3), (0.9, 0.2)]}
    worse = [run("repetition", 0, falling), run("canary", 0, CANARY)]
    holds = {claim.id: claim.holds for claim in figure_2.FIGURE.claims(worse)}
    assert holds["hard_concrete_forgets"] is False


def test_table_page_and_picture(tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    runs = runs_of(tmp_path)
    columns, labels, rows = figure_2.FIGURE.table(runs)
    repetition, canary = (dict(zip(columns, row, strict=True)) for row in rows)
    assert repetition["rise, pruning"] == pytest.approx([0.4, 0.4])
    assert repetition["rise, pruning, canaries"] == []
    assert canary["rise, gradients, canaries"] == pytest.approx([0.15, 0.15])
    assert canary["canaries"] == [0.02, 0.02]
    assert len(rows) == len(labels)
    assert "32 random tokens" in " ".join(figure_2.sections(runs, tmp_path))
    assert "2 seeds" in figure_2.FIGURE.note_text(runs)
    for number, some in enumerate((runs, runs[:1], runs[1:2])):
        figure_2.FIGURE.draw(some, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
