"""A command's options: from its dataclass flags are defined, and into it they are read."""

import dataclasses
import os
import pathlib

import pytest
from conftest import ROOT, python

from memsinks_jax.config import Config, choice, setting
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option


@dataclasses.dataclass(frozen=True)
class Group:
    kind: str = choice("near", "How.", near="", far="")
    number: int = setting(1, "How many.", 1, 9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    config: Config | None = None
    place: pathlib.Path = option(REQUIRED, "Where it is.")
    other: pathlib.Path | None = option(None, "Where another is.")
    name: str | None = option(None, "What it is called.")
    share: float = option(0.5, "A share.")
    which: str = option("a", "One of some.", choices=("a", "b"))
    listed: tuple[str, ...] = option(("x", "y"), "Several.")
    repeated: list[str] = option((), "Again and again.", alias="re-peated")
    on: bool = option(False, "A switch.")
    group: Group


def main(options: Options) -> None:
    print(dataclasses.replace(options, config=options.config and options.config.seed))


def run(*arguments):
    """The output of a command with these options."""
    paths = f"{ROOT}:{ROOT / 'tests'}"
    done = python(__file__, *arguments, env=os.environ | {"PYTHONPATH": paths})
    return done.returncode, done.stdout.replace("PosixPath", "pathlib.Path"), done.stderr


def test_what_is_not_given_has_its_default_and_an_empty_path_is_none():
    for arguments in (("--place=runs",), ("--place=runs", "--other=")):
        code, printed, _ = run(*arguments)
        expected = Options(
            place=pathlib.Path("runs"), listed=("x", "y"), repeated=[], group=Group()
        )
        assert code == 0 and eval(printed) == expected


def test_what_is_given_has_the_type_of_its_field():
    code, printed, _ = run(
        *("--place=a", "--other=b", "--name=", "--share=0.25", "--which=b", "--listed=1,2", "--on"),
        *("--repeated=p,q", "--re-peated=r", "--kind=far", "--number=9"),
        *("--config=smoke", "--config.seed=7"),
    )
    expected = Options(
        config=7,
        place=pathlib.Path("a"),
        other=pathlib.Path("b"),
        name="",
        share=0.25,
        which="b",
        listed=("1", "2"),
        repeated=["p,q", "r"],
        on=True,
        group=Group("far", 9),
    )
    assert code == 0 and eval(printed) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--place is missing: Where it is."),
        (("--place=",), "--place is missing: Where it is."),
        (("--config=nowhere",), "--config: [Errno 2] No such file or directory: 'nowhere'"),
        (("--which=c",), "flag --which=c: value should be one of <a|b>"),
        (("--kind=c",), "flag --kind=c: value should be one of <near|far>"),
        (("--number=0",), "flag --number=0: 0 is not an integer in the range [1, 9]"),
        (("--share=much",), "flag --share=much: could not convert string to float"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, message):
    code, printed, told = run(*arguments)
    assert (code, printed) == (2, "") and told.startswith(f"error: {message}"), told


def test_help_lists_them_in_the_order_of_the_fields():
    _, printed, _ = run("--help")
    lines = [line.split() for line in printed.splitlines() if line.startswith("  --")]
    named = [line[0].partition("=")[0] for line in lines if "--config." not in line[0]]
    own = ["place", "other", "name", "share", "which", "listed", "repeated", "re-peated", "[no]on"]
    every = ["config", *own, "kind", "number", "[no]json"]
    assert named == [f"--{name}" for name in every]


if __name__ == "__main__":
    command_line.run(main, Options)
