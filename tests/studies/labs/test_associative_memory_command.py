"""The command: what it writes, what it refuses."""

import pytest
import test_commands
from conftest import expect_input_error

from memsinks_jax.config import InputError
from memsinks_jax.labs import associative_memory as command
from memsinks_jax.studies.labs.associative_memory.study import FigureSettings

pytestmark = [pytest.mark.slow, pytest.mark.long]


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
    with expect_input_error("--seed"):
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
    with expect_input_error("--"):
        command.FIGURES[figure].study(
            FigureSettings(seed=0, **{**command.FIGURES[figure].defaults, **chosen})
        )


def test_all_figures_take_a_flag_that_only_some_can_use():
    assert command.settings_of("5", 0, {"p": 10}, lenient=True).p is None
    assert command.settings_of("3", 0, {"p": 10}, lenient=True).p == 10


def test_groups_of_runs_are_independent_and_cover_the_runs():
    one, other = (FigureSettings(seed=seed, runs=25) for seed in (0, 1))
    assert len(one.seeds) == 10 and one.draws == 3
    assert not set(one.seeds) & set(other.seeds)
    assert (
        FigureSettings(seed=0, runs=3).seeds == [0, 1, 2]
        and FigureSettings(seed=0, runs=3).draws == 1
    )


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
