"""The sweep runner: points of the grid, their order, its files and pictures."""

import pathlib
import types

import pytest
from conftest import ROOT, expect_input_error

from memsinks_jax import sweep
from memsinks_jax.studies.figures.runs import Run, Variation, make_jobs
from memsinks_jax.variants import open_config

GRID = types.SimpleNamespace(
    GRID={"sinks.shared_fraction": (0.5, 0.7), "sinks.active_fraction": (0.1, 0.3)},
    MEASURE="x",
    CONTROL="standard",
)


def test_points_are_the_grid_without_what_is_set():
    found = sweep.grid(GRID, [], "laptop")
    assert list(found)[:2] == ["control", "shared_fraction=0.5,active_fraction=0.1"]
    assert found["control"] == Variation("standard,laptop")
    assert found["shared_fraction=0.7,active_fraction=0.3"].settings == {
        "sinks.shared_fraction": 0.7,
        "sinks.active_fraction": 0.3,
    }
    assert list(sweep.grid(GRID, ["--config.sinks.active_fraction=0.2"], "")) == [
        "control",
        "shared_fraction=0.5",
        "shared_fraction=0.7",
    ]
    with expect_input_error("every field of the grid is set"):
        sweep.grid(
            GRID, ["--config.sinks.active_fraction=0.2", "--config.sinks.shared_fraction=0.2"], ""
        )
    both = (
        {"sinks.active_fraction": (0.1,), "data.repetitions": (2, 4)},
        {"sinks.active_fraction": (0.1, 0.3)},
    )
    several = types.SimpleNamespace(GRID=both, MEASURE="x", CONTROL="")
    assert [*sweep.grid(several, [], "")] == [
        "active_fraction=0.1,repetitions=2",
        "active_fraction=0.1,repetitions=4",
        "active_fraction=0.1",
        "active_fraction=0.3",
    ]
    assert [*sweep.grid(several, ["--config.sinks.active_fraction=0.2"], "")] == [
        "repetitions=2",
        "repetitions=4",
    ]


def test_points_over_words_have_names_that_are_folders(tmp_path):
    places = ("", "runs/a b", "hf://x")
    of_words = types.SimpleNamespace(
        GRID={"data.copies": ("keep", "once"), "model.initial": places, "sinks.sparse": (True,)},
        MEASURE="x",
        CONTROL="",
    )
    found = sweep.grid(of_words, [], "")
    assert [*found][:2] == [
        "copies=keep,initial=,sparse=1",
        "copies=keep,initial=runs_a b,sparse=1",
    ]
    assert len(found) == 6 and not any("/" in name for name in found)
    words = types.SimpleNamespace(GRID={"data.copies": ("keep", "once")}, MEASURE="x", CONTROL="")
    jobs = make_jobs(
        ROOT / "configs" / "smoke.py", "", sweep.grid(words, [], ""), [0], [], tmp_path, {}
    )
    assert [job.config.data.copies for job in jobs] == ["keep", "once"]


def test_points_of_one_name_are_refused():
    close = types.SimpleNamespace(
        GRID={"optimizer.learning_rate": (0.12345671, 0.12345672)}, MEASURE="x", CONTROL=""
    )
    with expect_input_error(
        "two points of the grid are called learning_rate=0.123457; give values"
    ):
        sweep.grid(close, [], "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("GRID = {}", "GRID is no"),
        ("GRID = 3", "GRID is no"),
        (
            'GRID = {"sinks.opens": (1, 2)}',
            "GRID varies 'sinks.opens'; did you mean 'sinks.opens_at'",
        ),
        ("GRID = {'x' * 300: (1, 2)}", "GRID varies 'x{60}…'; did you mean"),
        ('GRID = {"sinks.opens_at": 3}', "GRID has 3 for sinks.opens_at; give a list"),
        ('GRID = {"sinks.opens_at": ()}', "GRID has .* for sinks.opens_at; give a list"),
        ('MEASURE = "loss"', "MEASURE is 'loss'; choose one of: gap_closed, canary_loss"),
        ("", "get_config\\(\\) of .*a.py takes no variant, such as standard"),
        (
            'MEASURE = "gap_closed"; CONTROL = ""',
            "MEASURE is gap_closed, that of a control; name one",
        ),
    ],
)
def test_a_sweep_that_could_not_be_sorted_trains_nothing(content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "train_all", None)
    path = tmp_path / "a.py"
    usual = 'GRID = {"sinks.opens_at": (1, 2)}; MEASURE = "held_out_loss"; CONTROL = "standard"'
    path.write_text(f"{usual}\n{content}\ndef get_config(): pass\n")
    with expect_input_error(message):
        sweep.sweep(path, "", [0], [], tmp_path, 1, "a command")


def test_a_sweep_needs_no_docstring(tmp_path, monkeypatch):
    """Its page has none of it then."""
    monkeypatch.setattr(sweep, "train_all", lambda jobs, at_once: RUNS)
    monkeypatch.setattr(sweep, "make_jobs", lambda *_: [])
    path = tmp_path / "a.py"
    path.write_text(
        'GRID = {"sinks.opens_at": (1, 2)}; MEASURE = "held_out_loss"; CONTROL = "standard"'
    )
    assert sweep.sweep(path, "", [0], [], tmp_path, 1, "a command")["best"] == "a"
    assert "Its config" not in (tmp_path / "index.html").read_text()


def run(variant, held_out, repeated):
    return Run(
        variant,
        0,
        pathlib.Path(),
        {"held_out_loss": held_out, "repeated_loss": repeated, "step": 9},
        [],
    )


RUNS = [run("control", 1.0, 0.2), run("a", 1.1, 0.4), run("b", 1.3, 1.2), run("c", 1.2, 0.9)]


def test_points_are_sorted_by_the_measure(tmp_path):
    assert sweep.order(RUNS, "held_out_loss") == ["a", "c", "b"]
    assert sweep.order(RUNS, "gap_closed") == ["b", "c", "a"]
    for runs in (RUNS, RUNS[1:]):  # without a control there is nothing to trade
        sweep.draw(runs, tmp_path / f"{len(runs)}.png")
        assert (tmp_path / f"{len(runs)}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "sweeps").glob("*.py")), ids=lambda path: path.stem
)
def test_every_sweep_is_of_configs_that_a_run_can_have(path, tmp_path):
    module = open_config(path)
    assert f"python -m memsinks_jax.sweep --config=configs/sweeps/{path.name}" in module.__doc__
    points = sweep.grid(module, [], "")
    first_and_last = {name: points[name] for name in [*points][:2] + [*points][-1:]}
    jobs = make_jobs(path, "", first_and_last, [0], [], tmp_path, {})
    assert len({job.workdir for job in jobs}) == len(first_and_last)
    assert not module.CONTROL or jobs[0].config.sinks.kind == "none"
    if path.stem in ("opens", "epochs"):  # vary it, or have the default
        return
    of_sinks = [job.config.sinks for job in jobs if job.config.sinks.kind == "by_document"]
    assert all((sinks.opens_at, sinks.slows_at) == (1, 0) for sinks in of_sinks)  # the paper's


def test_a_config_that_is_no_sweep_is_refused(tmp_path):
    with expect_input_error("has no GRID, MEASURE, CONTROL; give a file of configs/sweeps"):
        sweep.sweep(ROOT / "configs" / "smoke.py", "", [0], [], tmp_path, 1, "")
    (tmp_path / "a.py").write_text("GRID, MEASURE, CONTROL = 5, 1, 2\n")
    with expect_input_error(r"a.py: GRID is no \{field: \[values\]\}"):
        sweep.sweep(tmp_path / "a.py", "", [0], [], tmp_path, 1, "")


def test_a_measure_that_does_not_exist_is_refused_before_training(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("GRID, MEASURE, CONTROL = {'data.repetitions': (2, 4)}, 'repeated_los', ''\n")
    with expect_input_error("MEASURE is 'repeated_los'; choose one of: .*, repeated_loss, "):
        sweep._load(path)
    with expect_input_error("MEASURE is canary_loss, which a did not measure"):
        sweep.order([run("a", 1.0, 1.0)], "canary_loss")
