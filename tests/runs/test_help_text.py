"""What --help, --helpfull and --version print, and how soon."""

import dataclasses
import sys

import pytest
from absl import flags
from conftest import python

from memsinks_jax import __version__
from memsinks_jax.config import Config
from memsinks_jax.runs import help_text


def of_train(*arguments: str) -> str:
    """What the command prints, which ends with 0 and does not import jax."""
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['train.py', *{arguments!r}]\n"
        "try:\n    runpy.run_module('memsinks_jax.train', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'jax' not in sys.modules\n"
    )
    return python("-c", code, check=True).stdout


def test_help_says_what_a_command_does_its_options_and_some_settings():
    help_of_train = of_train("--help")
    assert help_of_train.startswith("Trains a model: python -m memsinks_jax.train --config=")
    named = [
        line.split()[0].split("=")[0]
        for line in help_of_train.splitlines()
        if line.startswith("  --")
    ]
    assert named == [
        "--config",
        "--workdir",
        "--profile",
        "--wandb",
        "--[no]plan",
        "--coordinator",
        "--processes",
        "--process",
        "--[no]json",
        *(f"--config.{name}" for name in help_text.COMMON),
    ]
    assert max(map(len, help_of_train.splitlines())) <= 125


def test_version_is_that_of_the_package():
    assert of_train("--version").strip() == __version__


def test_every_setting_has_its_default_and_its_description():
    shown = help_text.settings()
    for section in dataclasses.fields(Config):
        value = getattr(Config(), section.name)
        for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
            assert shown[f"{section.name}.{field.name}"][0] == str(getattr(value, field.name))
    assert shown["seed"][1].startswith("of the stories, the split")
    assert shown["data.repetitions"] == (
        "128",
        "encounters of a repeated document per epoch [1, 1048576]",
    )
    assert shown["optimizer.learning_rate"] == ("0.005", "peak (0, inf)")
    assert shown["data.copies"][1].endswith("of a document | once: skip them")
    assert all(description for _, description in shown.values())


@pytest.mark.parametrize("full", [False, True])
def test_commands_without_a_config_have_no_settings(full):
    defined = flags.FlagValues()
    flags.DEFINE_enum(
        "sinks",
        "drop",
        ["own", "drop"],
        "How they are set.",
        flag_values=defined,
        module_name=sys.argv[0],
    )
    text = help_text.help_text("Measures.\n", defined, full)
    assert (
        text == f"Measures.\n\nOptions:\n{'  --sinks=own|drop':34}How they are set. Default: drop."
    )


def test_all_commands_are_listed():
    done = python("-m", "memsinks_jax", check=True)
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert {"train", "prepare", "forget", "labs.induction_head"} <= set(listed)
    assert not {"config", "sinks", "variants", "__main__"} & set(listed)
    assert "  train                    Trains a model" in done.stdout.splitlines()
