"""The text of --help and --helpfull: a command's description, its options, and settings of a
run.
"""

import sys
import textwrap

from absl import flags

from memsinks_jax import config

# The most common settings; --helpfull lists all.
COMMON = (
    "data.files",
    "data.repeated_documents",
    "data.repetitions",
    "data.row_length",
    "model.layers",
    "model.d_model",
    "model.hidden",
    "training.batch_size",
    "training.epochs",
    "optimizer.learning_rate",
)
_WIDTH, _COLUMN = 120, 34


def help_text(about: str, defined: flags.FlagValues, full: bool = False) -> str:
    """The complete text. absl's own lists flags by module, and ml_collections defines the flag of a
    setting only when it is given.

    Args:
      about: docstring of the command.
      defined: its flags, parsed or not; those of absl itself are left out.
      full: every setting of a run, instead of COMMON.
    """
    parts = [about.strip(), "", "Options:", *(_option(flag) for flag in _own(defined))]
    if "config" in defined:
        shown = settings()
        title = "Every setting, with its default:"
        if not full:
            shown = {name: shown[name] for name in COMMON}
            title = "Settings that are changed most, with their defaults (--helpfull lists all):"
        parts += [
            "",
            title,
            *(
                _entry(f"--config.{name}={default}", text)
                for name, (default, text) in shown.items()
            ),
        ]
    return "\n".join(parts)


def settings() -> dict[str, tuple[str, str]]:
    """{"SECTION.FIELD": (default, description with its choices or range)}, in order."""
    return {
        name: (str(default), str(config.RULES[name]))
        for name, default in config.flatten(config.Config()).items()
    }


def _own(defined: flags.FlagValues) -> list[flags.Flag]:
    """The flags of this package: the config, the command's in the order of definition, those of all
    commands.
    """
    of = defined.flags_by_module_dict()
    ours = [*of.get(sys.argv[0], ()), *of.get("memsinks_jax.runs.command_line", ())]
    return sorted(
        (flag for flag in ours if "." not in flag.name), key=lambda flag: flag.name != "config"
    )


def _option(flag: flags.Flag) -> str:
    if flag.boolean:
        return _entry(
            f"--[no]{flag.name}", f"{flag.help} Default: {'on' if flag.default else 'off'}."
        )
    choices = "|".join(getattr(flag.parser, "enum_values", ()))
    default = flag.default_as_str.strip("'") if flag.default not in (None, "", []) else ""
    text = flag.help.split(";\n")[0].removeprefix(f"<{choices}>: ") + (
        f" Default: {default}." if default else ""
    )
    return _entry(f"--{flag.name}={choices or flag.name.upper()}", text)


def _entry(name: str, text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - _COLUMN) or [""]
    head = f"  {name} ".ljust(_COLUMN)
    if len(head) > _COLUMN:
        lines.insert(0, "")
    return "\n".join([f"{head}{lines[0]}".rstrip(), *(" " * _COLUMN + line for line in lines[1:])])
