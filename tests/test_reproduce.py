"""All figures at once, made up: each run trained once and measured once, one page of all claims."""

import json
import pathlib

import pytest
from conftest import expect_input_error

from memsinks_jax import reproduce
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.runs import command_line
from memsinks_jax.studies.figures import theory
from memsinks_jax.studies.figures.figure import Figure
from memsinks_jax.studies.figures.panels import Panel
from memsinks_jax.studies.figures.runs import Run

ASKED = reproduce.FigureOptions("laptop", [0], [], 2)


def figure(measured, events, value):
    """A figure whose one claim is `value`; `events` gets a line when it is measured."""

    def measure(runs):
        events.append(f"measured {measured}")
        return runs

    return Figure(
        title=f"Title of {measured}",
        answer=f"Answer of {measured}",
        config="ts_repetition.py",
        variants=("standard",),
        measure=measure,
        sections=lambda runs, out: [],
        measures={"value": lambda run: value},
        columns={"held-out": "value"},
        panels=lambda table: [Panel(title="", lines=[])],
        statements=f"c | claim of {measured} | standard.value >= 0.5 | p",
    )


@pytest.fixture
def events(monkeypatch):
    events = []

    def train_all(jobs, at_once):
        events.append(f"trained {len({job.workdir for job in jobs})} of {len(jobs)}")
        return [Run(job.variant, job.seed, job.workdir, {}, []) for job in jobs]

    monkeypatch.setattr(reproduce, "train_all", train_all)
    monkeypatch.setattr(
        reproduce, "FIGURES", {"a": figure("a", events, 0.75), "b": figure("b", events, 0.25)}
    )
    return events


def test_all_figures_share_their_runs_and_one_page(tmp_path, events):
    content = reproduce.reproduce_all(ASKED, tmp_path)
    assert events == [
        "trained 1 of 2",
        "trained 1 of 1",
        "measured a",
        "trained 1 of 1",
        "measured b",
    ]
    assert [(claim["id"], claim["holds"]) for claim in content["claims"]] == [
        ("a: c", True),
        ("b: c", False),
    ]
    assert content == json.loads((tmp_path / "results.json").read_text())
    page = (tmp_path / "index.html").read_text()
    assert page.index("claim of b") < page.index("Answer of a")  # it opens with the claims
    for words in ("Claims: 1 of 2 hold", 'href="figure_b/index.html"', "≥ 0.5", "Title of b"):
        assert words in page


def test_a_figure_of_no_model_stays(tmp_path, events, monkeypatch):
    def make(about, out, command):
        events.append("made c")
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.html").write_text("c")
        (out / "results.json").write_text(json.dumps(about | {"claims": []}))
        return about | {"claims": []}

    monkeypatch.setitem(reproduce.FIGURES, "c", Figure(title="c", answer="c", make=make))
    first = reproduce.reproduce_all(ASKED, tmp_path)
    events.clear()
    assert reproduce.reproduce_all(ASKED, tmp_path) == first
    # models may be others by now
    assert {"measured a", "measured b"} <= set(events) and "made c" not in events
    (tmp_path / "figure_c" / "index.html").unlink()  # killed before it was written
    reproduce.reproduce_all(ASKED, tmp_path)
    assert events.count("made c") == 1
    reproduce.reproduce_all(reproduce.FigureOptions("laptop", [0, 1], [], 2), tmp_path)
    assert events.count("made c") == 2


def test_a_dry_run_lists_every_run_once_and_trains_nothing(events, capsys):
    asked = reproduce.FigureOptions("paper", [3, 4], ["--config.training.steps=7"], 1)
    content = reproduce.dry_run(["a", "b"], asked)
    (one,) = content["runs"]
    assert (one["run"], one["steps"], one["tokens"]) == ("a: standard", 7, 7 * 32 * 512)
    assert one["parameters"] == (8192 + 512) * 1024 + 24 * (12 * 1024**2 + 13 * 1024) + 2 * 1024
    assert set(one["needs"]) == {"v5e-16", "H200"}
    shown = capsys.readouterr().err
    assert "a: standard" in shown and "v5e-16" in shown
    assert events == []


def test_the_theorems_are_a_figure_of_the_same_command(tmp_path, monkeypatch):
    monkeypatch.setattr(theory, "THEOREMS", {"softmax": None})
    content = reproduce.reproduce("theory", ASKED, tmp_path, [], "the command")
    assert content == json.loads((tmp_path / "results.json").read_text())
    assert (content["figure"], content["preset"], content["command"]) == (
        "theory",
        "laptop",
        "the command",
    )
    assert [Claim.from_dict(claim).bound for claim in content["claims"]][0] == "≤ 0"
    assert (tmp_path / "figure_softmax.png").exists()
    assert "the command" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("figure", "asked", "everything", "out", "words"),
    [
        (None, {}, False, "x", "--figure or --all"),
        ("4", {}, True, "x", "--figure or --all"),
        ("4", {}, False, None, "--out is missing"),
        (
            "4",
            {"preset": "desktop,half"},
            False,
            "x",
            "desktop,half is unknown; choose of small, laptop, paper",
        ),
        ("4", {"hf": "gpt2"}, False, "x", "figure 4 compares with no pretrained model"),
        (None, {"hf": "gpt2"}, True, "x", "--all compares with no pretrained model"),
        (None, {"variants": ["sinks"]}, True, "x", "--variants are of one figure"),
        (
            "theory",
            {"overrides": ["--config.data.ids=group"]},
            False,
            "x",
            "theory trains no model",
        ),
    ],
)
def test_flags_that_do_not_go_together(figure, asked, everything, out, words):
    asked = {"preset": "laptop", "seeds": [0], "overrides": [], "at_once": 1} | asked
    with expect_input_error(words):
        reproduce._check(figure, reproduce.FigureOptions(**asked), everything, False, out)


def test_studies_may_compare_with_what_was_published():
    asked = reproduce.FigureOptions("laptop", [0], [], 1, hf="gpt2")
    reproduce._check("local_memory", asked, False, False, "x")
    for variants, words in (
        (["nix"], "no 'nix'; choose of standard, sinks_paper_active_0.1"),
        ([], "is empty; choose of standard"),
    ):
        with expect_input_error(words):
            reproduce.jobs_of(
                "5a",
                reproduce.FigureOptions("laptop", [0], [], 1, variants=variants),
                pathlib.Path(),
                {},
            )


@pytest.mark.parametrize("seeds", [[], ["a"], ["-1"], ["1.5"], ["²"], [""], ["0", "0"]])
def test_seeds_are_different_whole_numbers(seeds):
    with expect_input_error(f"--seeds={','.join(seeds)}: give different whole numbers"):
        command_line.seeds(seeds)
    assert command_line.seeds(["3", " 5"]) == (3, 5)
