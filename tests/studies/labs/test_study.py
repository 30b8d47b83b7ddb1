"""What the labs share: what their commands write and refuse, a page of several studies, panels."""

import dataclasses
import json

import pytest
from test_commands import assert_refused, last_json, run

from memsinks_jax.labs import associative_memory
from memsinks_jax.reporting.pictures import plt
from memsinks_jax.studies.labs.study import lines, write

pytestmark = pytest.mark.slow

SMALL = "--preset=paper --k=3 --steps=20 --d=8 --batch=4 --seeds=0,1"


@pytest.mark.parametrize(
    ("lab", "kind", "name", "flags", "seeds", "told"),
    [
        ("linear_network", "theorem", "disentangled", "--seeds=3,5", [3, 5], "holds"),
        ("associative_memory", "figure", "5", "", [0], "holds"),
        pytest.param(
            *("induction_head", "experiment", "E1", SMALL, [0, 1]),
            "20 steps of 4 sequences of 256 tokens at width 8), about ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_study_is_written_whole(lab, kind, name, flags, seeds, told, tmp_path):
    out = tmp_path / "new" / "out"
    done = run(f"labs.{lab}", f"--{kind}={name}", f"--out={out}", "--json", *flags.split())
    content = last_json(done)
    made = {"index.html", "results.json", f"{kind}_{name}.png"}
    assert {path.name for path in out.iterdir()} - {"runs"} == made
    assert json.loads((out / "results.json").read_text()) == content
    assert list(content) == [kind, "preset", "seeds", "runs", "claims"]
    assert content[kind] == name and content["seeds"] == seeds
    for row in content["runs"]:
        assert set(row) == {"variant", "seed", "metrics", "curves"}
    known = {"id", "statement", "paper", "measured", "ci95", "holds"}
    assert all(known <= set(claim) for claim in content["claims"])
    page = (out / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert all(flag in page for flag in (f"--{kind}={name}", *flags.split()))
    assert (out / f"{kind}_{name}.png").read_bytes().startswith(b"\x89PNG")
    assert told in done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("linear_network --theorem=none --out={x}/out", "none"),
        ("linear_network --theorem=all --out={x}/one", "is a file"),
        ("associative_memory --figure=2 --out={x}/out", "--figure"),
        ("associative_memory --figure=1 --seed=x --out={x}/out", "seed"),
        ("associative_memory --figure=1 --d=0 --out={x}/out", "--d=0"),
        ("associative_memory --figure=1 --n=100 --p=101 --out={x}/out", "--p=101"),
        ("induction_head --experiment=E12 --out={x}/out", "E12"),
        ("induction_head --experiment=E1 --text={x}/one --out={x}/out", "1 different characters"),
        ("induction_head --experiment=E1 --k=66 --out={x}/out", "--k=66"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(command, message, tmp_path):
    (tmp_path / "one").write_text("aaaa")
    assert_refused(
        run("labs." + command.split()[0], *command.format(x=tmp_path).split()[1:]), message
    )
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one").read_text() == "aaaa"


def figures(*names):
    settings = {
        name: associative_memory.settings_of(name, 1, {"runs": 2}, lenient=True) for name in names
    }
    return associative_memory.measure(settings)


def test_several_figures_share_one_page(tmp_path):
    content = write(tmp_path, {"figure": "all"}, "Title", figures("5", "6"), "a command")
    made = {"figure_5.png", "figure_6.png", "index.html", "results.json"}
    assert {path.name for path in tmp_path.iterdir()} == made
    assert json.loads((tmp_path / "results.json").read_text()) == content
    assert {claim["id"].split(":")[0] for claim in content["claims"]} == {"5", "6"}
    assert {run["variant"].split(":")[0] for run in content["runs"]} == {"5", "6"}
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png") == 2 and "Figure 5" in page and "Figure 6" in page


def test_nothing_is_written_when_a_picture_fails(tmp_path):
    def fail(axis):
        raise RuntimeError("no picture")

    (study,) = figures("5")
    broken = dataclasses.replace(study, panels=[fail])
    with pytest.raises(RuntimeError):
        write(tmp_path, {"figure": "all"}, "Title", [study, broken], "a command")
    assert not list(tmp_path.iterdir())


def test_a_panel_draws_every_line():
    """There are more of them than colours."""
    axis = plt.figure().add_subplot()
    lines("", "", "", {str(number): ([0, 1], [number, number]) for number in range(15)})(axis)
    assert len(axis.get_lines()) == len(axis.get_legend().get_texts()) == 15
