"""What all commands do before their own work."""

import concurrent.futures
import errno
import fcntl
import os
import pathlib
import subprocess
import sys
import time

import jax
import pytest
from conftest import ROOT, expect_input_error, python

from memsinks_jax import loop
from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import measure as measure_associative_memory
from memsinks_jax.labs.induction_head import measure as measure_induction_head
from memsinks_jax.model import host_memory
from memsinks_jax.models import trained
from memsinks_jax.runs import command_line, output
from memsinks_jax.runs.interruption import atomic_folder


@pytest.fixture
def no_cache_named(monkeypatch, tmp_path):
    """A user who has named no folder for compiled programs; jax's own setting is put back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    before = jax.config.jax_compilation_cache_dir
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def test_compiled_programs_are_cached_in_a_folder_of_the_processor(no_cache_named, monkeypatch):
    command_line.keep_compiled_programs()
    first = pathlib.Path(jax.config.jax_compilation_cache_dir)
    assert first.parent == no_cache_named / "memsinks_jax"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(first)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setattr("platform.machine", lambda: "another")
    command_line.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir != str(first)


def test_a_folder_that_the_user_names_is_left_alone(no_cache_named, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    before = jax.config.jax_compilation_cache_dir
    command_line.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == before


def test_all_that_computes_keeps_freed_memory(tiny, tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    def ask():
        raise Asked

    monkeypatch.setattr(host_memory, "keep_freed_memory", ask)
    for compute in (
        lambda: loop.train_and_evaluate(tiny, tmp_path),
        lambda: trained.open_run(tmp_path),
        lambda: measure_associative_memory({}),
        lambda: measure_induction_head(None, [], tmp_path),
    ):
        with pytest.raises(Asked):
            compute()


SIGNALS = pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])


@SIGNALS
def test_a_signal_ends_a_command_with_a_line_and_leaves_nothing(tmp_path, number, code):
    """It comes where Python would lose an exception."""
    program = f"""
import os, pathlib, signal
from memsinks_jax.runs import command_line
from memsinks_jax.runs.interruption import atomic_folder
class Collected:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
def main():
    with atomic_folder(pathlib.Path("{tmp_path}/folder/out")) as folder:
        (folder / "weights").write_text("half")
        Collected()
command_line.run(main)
"""
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (code, "interrupted: run the same command again\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("has_other_files", [False, True])
def test_a_full_disk_leaves_no_empty_folder(tmp_path, has_other_files):
    """Only what the block itself made is removed."""
    (tmp_path / "mine").mkdir()
    with (
        pytest.raises(OSError),
        atomic_folder(tmp_path / "mine" / "reports" / "lab" / "index.html"),
    ):
        if has_other_files:
            (tmp_path / "mine" / "reports" / "lab" / "results.json").write_text("{}")
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"] + [
        "reports",
        "lab",
        "results.json",
    ] * has_other_files


def test_a_second_command_does_not_take_the_place_of_the_first(tmp_path):
    out = tmp_path / "out"
    with atomic_folder(out) as folder:
        (folder / "weights").write_text("half")
        busy = rf"another command is writing .*out \(process {os.getpid()} on .*wait for it"
        with expect_input_error(busy), atomic_folder(out):
            pass
        assert (folder / "weights").read_text() == "half"
        os.replace(folder, out)
    with expect_input_error("out exists; choose another place"), atomic_folder(out):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "weights"]


def test_of_commands_that_begin_together_one_writes(tmp_path):
    """Each takes the place anew as soon as it is free; what is in it is never another's."""
    out, refused, written = tmp_path / "out", [], []

    def command(number):
        deadline = time.monotonic() + 60
        while written.count(number) < 10 and time.monotonic() < deadline:
            try:
                with atomic_folder(out) as folder:
                    (folder / "mine").write_text(str(number))
                    assert (folder / "mine").read_text() == str(number)
                    assert len(list(folder.iterdir())) == 1
                    written.append(number)
            except InputError:
                refused.append(number)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(command, range(4)))
    assert sorted(written) == sorted(10 * [*range(4)]) and refused
    assert not list(tmp_path.iterdir())


def test_what_a_killed_command_leaves_is_removed_by_the_next(tmp_path):
    program = f"""
import os, pathlib
from memsinks_jax.runs.interruption import atomic_folder
with atomic_folder(pathlib.Path("{tmp_path}/out")) as folder:
    (folder / "weights").write_text("half")
    os.kill(os.getpid(), 9)
"""
    assert python("-c", program).returncode == -9
    assert list(tmp_path.rglob("weights"))
    with atomic_folder(tmp_path / "out") as folder:
        assert not list(folder.iterdir())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK])
def test_without_locks_a_warning_and_nothing_of_another_command_is_removed(
    tmp_path, monkeypatch, caplog, number
):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "weights").write_text("half")
        assert f"no locks ({os.strerror(number)}): start no second command" in caplog.text
        unknown = "of another command .* or was killed; .* remove .*half-written"
        with expect_input_error(unknown), atomic_folder(tmp_path / "out"):
            pass
        assert (folder / "weights").exists()
    assert not list(tmp_path.iterdir())


@SIGNALS
def test_a_signal_while_a_command_is_imported_is_one_line(tmp_path, number, code):
    """It comes while jax is imported, which loses exceptions."""
    (tmp_path / "jax.py").write_text(
        f"import os, signal\ntry:\n    os.kill(os.getpid(), signal.{number})\n"
        "except BaseException: pass\nraise SystemExit(0)\n"
    )
    done = python("-m", "memsinks_jax.evaluate", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (code, "interrupted: run the same command again\n")


def test_a_signal_after_the_work_takes_nothing_away():
    program = """
import atexit, os, signal, sys
from memsinks_jax.runs import command_line
atexit.register(os.kill, os.getpid(), getattr(signal, sys.argv.pop()))
command_line.run(dict)
"""
    for number in ("SIGINT", "SIGTERM"):
        done = python("-c", program, number)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        (">&-", 0, ""),
        ("| true", 2, "whoever read the output has ended"),
        (">/dev/full", 2, "free some space"),
    ],
)
def test_nobody_takes_the_output(output, code, words):
    program = "import sys, time; from memsinks_jax.runs import command_line; "
    program += "command_line.run(lambda: time.sleep(0.1) or {1: sys.stdout.isatty()})"
    script = f"set -o pipefail; {sys.executable} -c '{program}' --json {output}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (
        done.returncode == code and words in done.stderr and done.stderr.count("\n") == bool(words)
    ), done.stderr


def test_characters_that_an_output_has_no_letter_for_are_written_by_number():
    program = "from memsinks_jax.runs import command_line; command_line.run(lambda: print('日本'))"
    done = python("-c", program, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u65e5\\u672c\n", "")


def test_devices_that_are_not_there_are_refused():
    program = (
        "import jax; from memsinks_jax.runs import command_line; command_line.run(jax.devices)"
    )
    for platform in ("nonsense", "cuda"):
        done = python("-c", program, env=os.environ | {"JAX_PLATFORMS": platform})
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: jax does not start with JAX_PLATFORMS={platform}: ")
        assert done.stderr.count("\n") == 1


def test_where_nothing_can_be_written_is_known_before_the_work(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with expect_input_error("gone exists; use another --out"):
        output.check_free(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        output.check_free(tmp_path / "file" / "out")
    output.check_free(tmp_path / "new" / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"gone", "file"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("    return 1 / 0\n", "mine.py:2: return 1 / 0: ZeroDivisionError: division by zero"),
        ('    return {}["x"]\n', "mine.py:2: return {}[\"x\"]: KeyError: 'x'"),
        ("    raise ValueError(3)\n", "mine.py:2: raise ValueError(3): ValueError: 3"),
        ("    return 5\n", "get_config() of the file must return a memsinks_jax.config.Config"),
        ("", "mine.py has no function get_config()"),
    ],
)
def test_an_error_in_the_users_config_is_reported_with_its_line(tmp_path, lines, message):
    (tmp_path / "mine.py").write_text(f"def get_config():\n{lines}" if lines else "x = 1\n")
    command = [
        sys.executable,
        "-m",
        "memsinks_jax.train",
        f"--config={tmp_path}/mine.py",
        f"--workdir={tmp_path}/run",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    where = f"{tmp_path}/" if message.startswith("mine.py") else ""
    assert (done.returncode, done.stderr) == (2, f"error: --config: {where}{message}\n")
    assert not (tmp_path / "run").exists()
