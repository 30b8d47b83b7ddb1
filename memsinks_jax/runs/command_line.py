"""What all commands share: flags, JSON output, and one clear line with exit code 2 for bad
input.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import logging
import math
import os
import pathlib
import platform
import re
import shlex
import signal
import sys
import threading
import traceback
import types
import typing
from collections.abc import Callable, Iterable

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from memsinks_jax import __version__, private_interfaces
from memsinks_jax.config import (
    Config,
    InputError,
    Rule,
    flatten,
    nearest_field,
    settable,
    shown,
    validate,
    with_fields,
)
from memsinks_jax.data.documents import printable
from memsinks_jax.model.host_memory import use_one_arena
from memsinks_jax.runs import interruption
from memsinks_jax.runs.help_text import help_text
from memsinks_jax.runs.interruption import EXIT_BAD_INPUT, EXIT_INTERRUPTED, Interrupted
from memsinks_jax.variants import CONFIGS, config_file

_GROUPS = {
    field.name for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.type)
}

_WRITABLE = "; make it writable for this user, or choose another folder"
_ADVICE = {
    errno.ENOSPC: "; free some space and run the same command again",
    errno.EFBIG: "; raise the limit of a file's size (ulimit -f) and run the same command again",
    errno.EDQUOT: "; free some of your quota and run the same command again",
    errno.EMFILE: "; raise the limit of open files (ulimit -n) and run the same command again",
    errno.ENAMETOOLONG: "; choose a shorter name",
    errno.ENOTEMPTY: "; another command has just written there; choose another place",
    errno.ENOTDIR: "; choose a place below a folder",
    errno.EPIPE: "; whoever read the output has ended",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
}

JSON = flags.DEFINE_bool("json", False, "Print one JSON object as the last line of stdout.")


REQUIRED = dataclasses.MISSING  # the default of an option that has to be given
_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    pathlib.Path: flags.DEFINE_string,
    tuple: flags.DEFINE_list,  # --name=a,b
    list: flags.DEFINE_multi_string,  # --name=a --name=b
}


def option(default, about: str, *bounds: float, choices: Iterable[str] = (), **absl):
    """A field of a command's options, as `config.setting` is one of a config.

    Args:
      bounds: the lowest value, and the highest.
      absl: required=True lets absl refuse a command without it; alias is another name.
    """
    rule = Rule(about, *bounds, choices=dict.fromkeys(choices, ""))
    return dataclasses.field(default=default, metadata={"rule": rule, "absl": absl})


def _kind(field: dataclasses.Field) -> type:
    """The type of a field: int of `int | None`, tuple of `tuple[str, ...]`."""
    is_union = isinstance(field.type, types.UnionType)
    kind = typing.get_args(field.type)[0] if is_union else field.type
    return typing.get_origin(kind) or kind


def _define(options: type) -> None:
    """Defines a flag for every field of a dataclass, and of those that are its fields."""
    for field in dataclasses.fields(options):
        name, kind = field.name, _kind(field)
        default = None if field.default is REQUIRED else field.default
        if kind is Config:
            _define_config(default)
        elif dataclasses.is_dataclass(kind):
            _define(kind)
        else:
            rule, of_command = field.metadata["rule"], {"module_name": sys.argv[0]}
            absl = of_command | field.metadata.get("absl", {})
            alias = absl.pop("alias", None)
            if rule.choices:
                flags.DEFINE_enum(name, default, list(rule.choices), rule.about, **absl)
            else:
                ends = [end if math.isfinite(end) else None for end in (rule.lowest, rule.highest)]
                default = list(default) if isinstance(default, tuple) else default
                bounds = ends if kind in (int, float) else ()
                _DEFINE[kind](name, default, rule.about, *bounds, **absl)
            if alias:
                flags.DEFINE_alias(alias, name, **of_command)


def _define_config(default: str | None) -> None:
    """The flag --config=FILE[:VARIANT] with its overrides --config.NAME=VALUE."""
    about = (
        "Config file, or name of one in configs/, with its choices: ts_repetition:sinks, "
        "smollm:360m,sinks."
    )
    holder = config_flags.DEFINE_config_file("config", None, about)
    private_interfaces.change_config(flags.FLAGS["config"], settable)
    flags.set_default(holder, default)


def _read(options: type):
    """An instance of a dataclass of options; a path that is empty is None. Raises InputError."""
    fields, values = dataclasses.fields(options), {}
    # The last ones first: a config is read when the flags themselves are known to go together.
    for field in reversed(fields):
        name, kind = field.name, _kind(field)
        if dataclasses.is_dataclass(kind) and kind is not Config:
            values[name] = _read(kind)
            continue
        value = flags.FLAGS[name].value
        if kind is Config:
            values[name] = _read_config(value) if value or field.default else None
        else:
            absent = value is None or (kind is pathlib.Path and not value)
            values[name] = None if absent else kind(value)
    found = options(**values)
    require(found, *(field.name for field in fields if field.default is REQUIRED))
    return found


def require(options: object, *names: str) -> None:
    """Raises InputError, with the flag's help, for the first of these options that is not given."""
    for name in names:
        if not getattr(options, name):
            about = flags.FLAGS[name].help.splitlines()[0]  # absl adds lines about lists
            raise InputError(f"--{name} is missing: {about}")


def whole_numbers(flag: str, texts: list[str], example: str, least: int = 0) -> tuple[int, ...]:
    """The values of a flag that lists whole numbers, sorted. Raises InputError if there is none, or
    one below `least`.
    """
    if not texts or not all(text.strip().isdecimal() and int(text) >= least for text in texts):
        raise InputError(
            f"--{flag}={','.join(texts)}: give whole numbers from {least}, for example "
            f"--{flag}={example}"
        )
    return tuple(sorted(set(map(int, texts))))


def seeds(texts: list[str]) -> tuple[int, ...]:
    """The values of --seeds. Raises InputError unless they are distinct whole numbers."""
    if (
        not texts
        or not all(text.strip().isdecimal() for text in texts)
        or len(set(map(int, texts))) < len(texts)
    ):
        raise InputError(
            f"--seeds={','.join(texts)}: give different whole numbers, for example --seeds=0,1,2"
        )
    return tuple(map(int, texts))


def _read_config(given) -> Config:
    """The validated config of the command line."""
    if given is None:
        raise InputError("--config is missing; give a file, for example --config=configs/smoke.py")
    try:
        # ml_collections keeps back a file's errors until the config is first read.
        values = flatten(given)
    except OSError as error:
        known = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.py")))
        reason = _one_line(error.__cause__ or error)
        raise InputError(
            f"--config: {reason}; give a file, or the name of one of {known}"
        ) from None
    except AttributeError:
        raise InputError(
            "--config: get_config() of the file must return a memsinks_jax.config.Config"
        ) from None
    return validate(with_fields(Config(), values))


def given() -> dict:
    """{SECTION.FIELD: value} of the --config.SECTION.FIELD=VALUE flags of the command line."""
    return config_flags.get_override_values(flags.FLAGS["config"])


def overrides() -> list[str]:
    """The same flags, to pass on to another command."""
    return [f"--config.{name}={value}" for name, value in given().items()]


def command(name: str) -> str:
    """The command that runs, for a page."""
    return " ".join([f"python -m memsinks_jax.{name}", *map(shlex.quote, sys.argv[1:])])


def run(main: Callable[..., dict], options: type | None = None) -> None:
    """Runs a command: parses flags, calls `main` with an instance of `options`, prints its result
    with --json, turns errors into exit codes.
    """
    if options:
        _define(options)

    def guarded(argv: list[str]) -> None:
        if len(argv) > 1:
            _exit_with_error(f"unexpected argument {argv[1]!r}; flags look like --name=value")
        _set_up_logging()
        _mend_stdout()
        use_one_arena()
        keep_compiled_programs()
        try:
            interruption.end_at_once()  # unless the command listens itself
            result = main(_read(options)) if options else main()
            interruption.ignore()
            if JSON.value:
                print(json.dumps(result))
            sys.stdout.flush()
        except InputError as error:
            _exit_with_error(str(error))
        except Interrupted as error:
            interruption.ignore()
            print(f"interrupted: {error}; run the same command again to resume", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)
        except MemoryError as error:
            _exit_with_error(
                f"out of memory: {_one_line(error)}; lower what asks for it, or take a larger "
                "machine"
            )
        except OSError as error:
            # Errors of the file system (full disk, no permission) are for the user to fix and need
            # no trace.
            _exit_with_error(f"{_one_line(error)}{_ADVICE.get(error.errno, '')}")
        except Exception as error:
            if "JAX_PLATFORMS" not in os.environ or not private_interfaces.raised_by_devices(error):
                raise
            platforms = os.environ.get("JAX_PLATFORMS")
            _exit_with_error(
                f"jax does not start with JAX_PLATFORMS={platforms}: {_one_line(error)}; unset "
                "it, or install what it names"
            )

    app.run(guarded, flags_parser=_parse_flags)


def _parse_flags(argv: list[str]) -> list[str]:
    asked = set(argv[1:]) & {"--help", "-h", "--helpfull", "--version"}
    if asked:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` ends without a word
        full, about = "--helpfull" in asked, sys.modules["__main__"].__doc__ or ""
        print(__version__ if "--version" in asked else help_text(about, flags.FLAGS, full))
        sys.exit()
    try:
        return flags.FLAGS(list(map(_with_file, argv)))
    except flags.Error as error:
        chosen = next((a for a in argv if re.fullmatch("--config=.*:.*", a)), None)
        if chosen and "get_config() takes 0 positional arguments" in str(error):
            _exit_with_error(
                f"{chosen}: this config has no variants; leave out what follows the colon"
            )
        group = next(
            (
                a.partition("=")[0]
                for a in argv
                if a.startswith("--config.") and _field_of(a) in _GROUPS
            ),
            None,
        )
        if group:
            _exit_with_error(
                f"{group} is a group of settings; give one of them, {group}.NAME=VALUE"
            )
        _exit_with_error(_of_config_file(error, argv) or _one_line(error))
    except (AttributeError, KeyError) as error:
        if reason := _of_config_file(error, argv):
            _exit_with_error(reason)
        if "attribute 'get_config'" in str(error):
            _exit_with_error(f"--config: {_config_file(argv)} has no function get_config()")
        # ml_collections raises these for an unknown field.
        fields = [_field_of(a) for a in argv if a.startswith("--config.")]
        field = next((field for field in fields if nearest_field(field) != field), None)
        if field is None:
            _exit_with_error(f"--config: {_one_line(error)}")
        _exit_with_error(
            f"config has no field {shown(field)}; did you mean {nearest_field(field)!r}?"
        )
    except SyntaxError as error:
        _exit_with_error(f"--config: {error.filename}:{error.lineno}: not Python ({error.msg})")
    except (Exception, SystemExit) as error:
        _exit_with_error(_of_config_file(error, argv) or _one_line(error))


def _config_file(argv: list[str]) -> str:
    """The path of the file of --config; empty if it is not given."""
    files = [
        _with_file(argument).partition("=")[2]
        for argument in argv
        if argument.startswith("--config=")
    ]
    return files[-1].partition(":")[0] if files else ""


def _of_config_file(error: BaseException, argv: list[str]) -> str:
    """An error of the config file itself, with its line; empty if the file raised none."""
    path = _config_file(argv)
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame for frame in reversed(frames) if frame.filename == path), None)
        if line and frames[-1].name == "choose" and isinstance(error, ValueError):
            # it names the file and what there is to choose from
            return f"--config: {_one_line(error)}"
        if line:
            return (
                f"--config: {path}:{line.lineno}: {line.line}: {type(error).__name__}: "
                f"{_one_line(error)}"
            )
        error = error.__cause__ or error.__context__
    return ""


def _with_file(argument: str) -> str:
    """--config=smollm:135m -> --config=.../configs/smollm.py:135m; any other argument unchanged."""
    flag, given, value = argument.partition("=")
    if flag != "--config" or not value:
        return argument
    name, colon, choice = value.partition(":")
    return f"{flag}{given}{config_file(name)}{colon}{choice}"


def _field_of(argument: str) -> str:
    return re.sub(r"^--(no)?config\.", "", argument).split("=")[0]


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _exit_with_error(message: str) -> None:
    print(f"error: {printable(message, len(message))}", file=sys.stderr)  # names may hold anything
    with contextlib.suppress(OSError):  # the reader has gone
        sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the error may have left a thread that fails again at shutdown or, with several
    # hosts, waits for hosts that wait for this one.
    os._exit(EXIT_BAD_INPUT)


def _mend_stdout() -> None:
    """Makes a closed stdout drop what is printed, and one without Unicode print escapes."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def keep_compiled_programs() -> None:
    """Turns on jax's cache of compiled programs, unless JAX_COMPILATION_CACHE_DIR sets its folder.

    Each kind of processor has its own folder, because XLA compiles for the exact processor.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        features = re.search(
            r"^(flags|Features).*", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        features = None
    processor = f"{platform.machine()} {platform.processor()} {features and features[0]}"
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = home / "memsinks_jax" / hashlib.sha256(processor.encode()).hexdigest()[:12]
    # for jax, if it is not imported yet, and for child processes
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_compilation_cache_dir", str(folder))


def _set_up_logging() -> None:
    """Logs our own lines at INFO to stderr, and those of libraries only if something is wrong."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("memsinks_jax")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)
    # Orbax logs the trace of a failed save. The run reports it in one line, like errors in other
    # libraries' threads.
    absl_logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    threading.excepthook = lambda what: ours.warning(
        "the thread %s failed: %s", what.thread and what.thread.name, _one_line(what.exc_value)
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
