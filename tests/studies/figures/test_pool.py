"""Figure pool: its claims, table and plot from made-up runs, and the selectivity of a tiny
model.
"""

import pytest
from conftest import tiny_config
from measured import trained

from memsinks_jax.config import Config, to_json, with_fields
from memsinks_jax.studies.figures import pool, step_times
from memsinks_jax.studies.figures.runs import Run

LOSSES = {"standard": (1.0, 0.2), "masked": (1.0, 0.8), "pool_154": (1.1, 0.8)}
LOSSES |= {"pool_1024": (1.0, 0.9), "pool_4096": (0.98, 0.9), "pool_65536": (0.98, 0.9)}


def made_up(variant, seed, held_out, repeated, workdir):
    metrics = {"held_out_loss": held_out, "repeated_loss": repeated, "step": 9}
    # those of the largest do not notice
    others = {"masked": 0.5, "pool_65536": -1e-3}.get(variant, 0.005)
    capacity = [
        {"removed": n, "target_rise": 1.0 + seed, "others_rise": others * n} for n in (1, 2)
    ]
    milliseconds = {"standard": 10.0, "pool_65536": 12.0}.get(variant, 11.0)
    details = {"step_ms": [milliseconds, 2 * milliseconds, milliseconds]}
    details |= {} if variant == "standard" else {"capacity": capacity}
    if variant not in ("standard", "pool_65536"):
        best, optimised = (0.5, 0.99) if variant == "masked" else (0.1, 0.9)
        details["recovered"] = {"best": best, "optimised": optimised}
    return Run(variant, seed, workdir, metrics, [metrics], details)


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    return [
        made_up(name, seed, *values, tmp_path) for seed in (0, 1) for name, values in LOSSES.items()
    ]


def test_claims_table_and_picture(runs, tmp_path):
    found = {claim.id: claim.values for claim in pool.FIGURE.claims(runs)}
    assert found["selective"] == pytest.approx([200, 400])
    assert found["closed"] == pytest.approx([0.15, 0.15])
    assert found["held_out"] == pytest.approx([0.98, 0.98])
    assert found["step_time"] == pytest.approx([12 / 11, 12 / 11])
    columns, labels, rows = pool.FIGURE.table(runs)
    rows = [dict(zip(columns, row, strict=True)) for row in rows]
    of_no_sinks, masked, largest = rows[0], rows[1], rows[-1]
    assert (of_no_sinks["selectivity"], masked["selectivity"]) == ([], [2, 4])
    assert largest["selectivity"] == pytest.approx([1e4, 2e4])
    assert [row["step, ms"] for row in (rows[0], rows[-1])] == [[10, 10], [12, 12]]
    assert found["best_id"] == pytest.approx([0.1, 0.1])
    assert found["optimised"] == pytest.approx([-0.09, -0.09])
    recovered = [row["recovered, best id"] for row in (of_no_sinks, masked, largest)]
    assert recovered == [[], [0.5, 0.5], []]
    assert len(labels) == len(rows) == len(pool.VARIANTS)
    pool.FIGURE.draw(runs, tmp_path / "pool.png")
    pool.FIGURE.draw([run for run in runs if run.variant == "pool_154"], tmp_path / "one.png")
    assert (tmp_path / "pool.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_where_documents_share_no_sink_others_do_not_notice(tmp_path):
    """Of a tiny model with sparse sinks, two repeated documents."""
    fields = {"sinks.sampling": "floyd", "sinks.sparse": True}
    fields |= {"sinks.active": 6, "sinks.pool": 4000}
    run = trained(with_fields(tiny_config(), fields), tmp_path / "run", "pool_4096")
    (run,) = pool.measure([run])
    (row,) = [row for row in run.details["capacity"] if row["removed"] == 1]
    assert row["target_rise"] > 0 and row["others_rise"] == 0
    assert pool.selectivity(run) == row["target_rise"] / pool.MEASURABLE
    assert set(run.details["recovered"]) == set(pool.ATTACKS)
    assert run.details["recovered"]["best"] < 1
    (ratio,) = pool.FIGURE.of([run]).paired(pool.STEP_RATIO.format("pool_4096", "pool_4096"))
    assert ratio == 1 and min(run.details["step_ms"]) > 0


def test_sides_take_turns_in_alternate_orders():
    made = []
    sides = [lambda steps: made.append("a"), lambda steps: made.append("b")]
    found = step_times.take_turns(sides, rounds=3, seconds=0.0)
    assert "".join(made[-6:]) == "baabba" and [len(times) for times in found] == [3, 3]
