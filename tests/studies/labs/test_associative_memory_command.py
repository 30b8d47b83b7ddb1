"""The command: what it writes, what it refuses."""

import dataclasses
import json

import pytest
import test_commands

from memsinks_jax.config import InputError
from memsinks_jax.labs import associative_memory as command
from memsinks_jax.reporting.pictures import plt
from memsinks_jax.studies.labs.associative_memory.study import Settings
from memsinks_jax.studies.labs.study import lines, write


def test_a_figure_is_written_whole(tmp_path):
    done = test_commands.run(
        "labs.associative_memory", "--figure=5", f"--out={tmp_path}/new/5", "--json"
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "new" / "5"
    assert sorted(path.name for path in out.iterdir()) == [
        "figure_5.png",
        "index.html",
        "results.json",
    ]
    content = json.loads((out / "results.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == content
    assert set(content) == {"figure", "preset", "seeds", "runs", "claims"}
    assert content["figure"] == "5" and content["preset"] == "laptop" and content["seeds"] == [0]
    run = next(run for run in content["runs"] if run["variant"] == "gamma=1")
    assert set(run) == {"variant", "seed", "metrics", "curves"}
    assert run["curves"]["f_n"]["n"][10] == 10
    assert run["curves"]["f_n"]["value"][10] == pytest.approx(3.636, abs=6e-4)
    assert len(run["curves"]["q"]["value"]) == 100
    assert all(
        {"id", "statement", "paper", "measured", "ci95", "holds"} <= set(claim)
        for claim in content["claims"]
    )
    page = (out / "index.html").read_text()
    assert "data:image/png;base64," in page and "--figure=5" in page
    assert (out / "figure_5.png").read_bytes().startswith(b"\x89PNG")
    assert "holds" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figure=2",), "--figure"),
        (("--figure=1", "--seed=x"), "seed"),
        (("--figure=1", "--d=0"), "--d=0"),
        (("--figure=1", "--n=100", "--p=101"), "--p=101"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, arguments, message):
    done = test_commands.run("labs.associative_memory", *arguments, f"--out={tmp_path}/out")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and message in done.stderr, done.stderr
    assert not done.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("figure", "chosen", "message"),
    [
        ("1", {"alpha": 0.0}, "--alpha=0"),
        ("3", {"alpha": -1.0}, "--alpha=-1"),
        ("3", {"alpha": float("nan")}, "--alpha=nan"),
        ("laws", {"alpha": 99.0}, "--alpha=99"),
        ("3", {"p": 101}, "--p=101"),
        ("3", {"p": 0}, "--p=0"),
        ("1", {"d": (0, 8)}, "--d=0,8"),
        ("1", {"d": ()}, "--d="),
        ("4", {"n": 0}, "--n=0"),
        ("4", {"n": 4}, "--n=4"),
        ("4", {"m": 1}, "--m=1"),
        ("4", {"runs": 0}, "--runs=0"),
        ("4", {"runs": -3}, "--runs=-3"),
        ("1", {"n": 10**6}, "too large"),
        ("5", {"d": (8,)}, "--d: figure 5 has no use for it"),
        ("sinks", {"alpha": 2.0}, "--alpha: figure sinks has no use for it"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(figure, chosen, message):
    with pytest.raises(InputError) as refusal:
        command.settings_of(figure, 0, chosen)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("seed", [-1, 2**24])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(InputError, match="--seed"):
        command.settings_of("1", seed, {})


@pytest.mark.parametrize(
    ("figure", "chosen"),
    [
        ("1", {"alpha": 1.0}),
        ("1", {"d": (64,)}),
        ("6", {"d": (5, 6)}),
        ("6", {"n": 51}),
        ("7", {"d": (50, 100)}),
        ("laws", {"alpha": 0.5}),
        ("laws", {"m": 3}),
        ("laws", {"d": (32, 64)}),
        ("laws", {"d": (8, 32, 64)}),
    ],
)
def test_figures_refuse_what_they_cannot_show(figure, chosen):
    with pytest.raises(InputError, match="--"):
        command.FIGURES[figure].study(
            Settings(seed=0, **{**command.FIGURES[figure].defaults, **chosen})
        )


def test_all_figures_take_a_flag_that_only_some_can_use():
    assert command.settings_of("5", 0, {"p": 10}, lenient=True).p is None
    assert command.settings_of("3", 0, {"p": 10}, lenient=True).p == 10


def test_groups_of_runs_are_independent_and_cover_the_runs():
    one, other = (Settings(seed=seed, runs=25) for seed in (0, 1))
    assert len(one.seeds) == 10 and one.draws == 3
    assert not set(one.seeds) & set(other.seeds)
    assert Settings(seed=0, runs=3).seeds == [0, 1, 2] and Settings(seed=0, runs=3).draws == 1


def test_several_figures_share_one_page(tmp_path):
    studies = command.measure(
        {name: command.settings_of(name, 1, {"runs": 2}, lenient=True) for name in ("5", "6")}
    )
    content = write(tmp_path, {"figure": "all"}, command.TITLE, studies, "a command")
    assert {path.name for path in tmp_path.iterdir()} == {
        "figure_5.png",
        "figure_6.png",
        "index.html",
        "results.json",
    }
    assert json.loads((tmp_path / "results.json").read_text()) == content
    assert {claim["id"].split(":")[0] for claim in content["claims"]} == {"5", "6"}
    assert {run["variant"].split(":")[0] for run in content["runs"]} == {"5", "6"}
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png") == 2 and "Figure 5" in page and "Figure 6" in page


def test_a_panel_draws_every_line():
    """There are more of them than colours."""
    axis = plt.figure().add_subplot()
    lines("", "", "", {str(number): ([0, 1], [number, number]) for number in range(15)})(axis)
    assert len(axis.get_lines()) == len(axis.get_legend().get_texts()) == 15


def test_nothing_is_written_when_a_picture_fails(tmp_path):
    def fail(axis):
        raise RuntimeError("no picture")

    study = command.measure({"5": command.settings_of("5", 0, {})})[0]
    broken = dataclasses.replace(study, panels=[fail])
    with pytest.raises(RuntimeError):
        write(tmp_path, {"figure": "all"}, command.TITLE, [study, broken], "a command")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        "--figure=all --seed=7",
        "--figure=laws --seed=7 --alpha=1.5",
        "--figure=laws --seed=8 --alpha=3.0",
    ],
)
def test_every_claim_holds(asked, tmp_path):
    """With the compiler's usual effort: these studies compute more than they compile."""
    arguments = [*asked.split(), f"--out={tmp_path / 'out'}", "--json"]
    content = test_commands.last_json(
        test_commands.run("labs.associative_memory", *arguments, compiler="")
    )
    names = [claim["id"].split(":")[0] for claim in content["claims"]]
    if "--figure=all" in asked:
        assert set(names) == set(command.FIGURES) and names.count("laws") > 20
        assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {
            f"figure_{name}" for name in command.FIGURES
        }
    assert len(names) > 20
    assert not [claim for claim in content["claims"] if not claim["holds"]]
