"""Figure 7: amplitude and level of known cycles, and its plot."""

import pytest

from memsinks_jax.config import Config, to_json, with_fields
from memsinks_jax.studies.figures import figure_7
from memsinks_jax.studies.figures.runs import Run

EVERY, STEPS = 10, 120


@pytest.fixture
def make(tmp_path):
    schedule = f"memsinks_jax.studies.schedules:EveryNth,steps={EVERY}"
    config = with_fields(Config(), {"data.schedule": schedule, "data.repeated_documents": 1})
    (tmp_path / "config.json").write_text(to_json(config))

    def run(variant, seed, falls, top=3.0, lift=0.0):
        """Loss is `top` before encounters, lower by falls[third] after; dropped, `lift` higher."""
        sinks, lines = variant == "sinks_paper", [{"step": 5, "train_loss": 1.0}]
        for step in range(EVERY, STEPS + 1, EVERY):
            third = min(3 * step // STEPS, 2)
            for at, loss in ((step - 1, top), (step, 0.0), (step + 1, top - falls[third])):
                line = {"step": at, "repeated_loss": loss + (lift if sinks else 0)}
                if at <= STEPS:
                    lines.append(line | ({"repeated_loss_own": loss} if sinks else {}))
        return Run(variant, seed, tmp_path, {"step": STEPS, "held_out_loss": 2.0}, lines)

    return run


def test_amplitude_and_level_are_of_a_third_and_of_encounters_measured_on_both_sides(make):
    standard = make("standard", 0, (0.6, 0.4, 0.2))
    sinks = make("sinks_paper", 0, (0.5, 0.3, 0.1), lift=1.0)
    steps, _, _ = figure_7.encounters(standard)
    # nothing is measured behind the last step
    assert list(steps) == list(range(EVERY, STEPS, EVERY))
    amplitudes = [figure_7.amplitude(standard, third) for third in range(3)]
    assert amplitudes == pytest.approx([0.6, 0.4, 0.2])
    assert figure_7.amplitude(sinks) == pytest.approx(0.1)
    assert figure_7.level(sinks) == pytest.approx(2.95)
    assert figure_7.level(sinks, figure_7.DROPPED) == pytest.approx(3.95)


def test_claims_are_paired_by_seed(make):
    runs = [
        make("standard", 0, (0, 0, 0.2)),
        make("standard", 1, (0, 0, 0.4)),
        make("sinks_paper", 0, (0, 0, 0.1), top=1.5),
        make("sinks_paper", 1, (0, 0, 0.2), top=1.5),
    ]
    found = {claim.id: claim.values for claim in figure_7.FIGURE.claims(runs)}
    assert found["amplitude"] == pytest.approx([-0.1, -0.2])
    assert found["level"] == pytest.approx([1.45 / 2.9, 1.4 / 2.8])
    assert set(found) == {"amplitude", "level", "dropped"}
    assert {claim.holds for claim in figure_7.FIGURE.claims(runs[:2])} == {None}


def test_picture_and_table(make, tmp_path):
    falls, variants = (0.6, 0.4, 0.2), figure_7.FIGURE.variants
    runs = [make(variant, seed, falls) for variant in variants for seed in (0, 1)]
    columns, _, rows = figure_7.FIGURE.table(runs)
    first = rows[1][columns.index("amplitude, first third")]
    assert first == pytest.approx([0.6, 0.6])
    assert "every 10 steps" in figure_7.FIGURE.note_text(runs)
    del runs[1].lines[-6:]  # a shorter run
    for name, shown in (("all", runs), ("one", runs[:1])):
        figure_7.FIGURE.draw(shown, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
