"""A killed run ends as if it had never been killed: starts, kills and stops real processes."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import CACHE, FAST_COMPILER, ROOT, python

from memsinks_jax.config import MeshConfig
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import EXIT_INTERRUPTED
from memsinks_jax.training import sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.training.step import init_state

pytestmark = [pytest.mark.slow, pytest.mark.long]

# Fewer where time is short.
KILLS = int(os.environ.get("MEMSINKS_JAX_KILLS", "50"))
TERMS = int(os.environ.get("MEMSINKS_JAX_TERMS", "20"))
STEPS = 60
FIELDS = "training.checkpoint_every=3 training.evaluate_every=7 model.layers=1 model.d_model=16"
FLAGS = f"--config={ROOT}/configs/smoke.py", *map("--config.{}".format, FIELDS.split())
FLAGS += (f"--config.training.steps={STEPS}",)
CONTEXT = "--config.sinks.kind=by_context"


def start(workdir, *flags, devices=1):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": CACHE,
        "XLA_FLAGS": f"{FAST_COMPILER} --xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, "-m", "memsinks_jax.train", *FLAGS, f"--workdir={workdir}", *flags]
    # To files: a pipe that nobody reads fills up, and one that a killed run's child holds never
    # ends.
    with (workdir.parent / "out.log").open("a") as out:
        into = {"stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, **into)
    _started.append(process)
    return process


_started = []


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    """Runs of a test that failed would slow down all others, and the children of a process that was
    killed.
    """
    yield
    while _started:
        process = _started.pop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(workdir, *flags, **keywords):
    process = start(workdir, *flags, **keywords)
    assert process.wait(300) == 0, (workdir.parent / "out.log").read_text()


def outcome(workdir):
    """The whole state of the last checkpoint, and the metrics but for the speed."""
    shapes = jax.eval_shape(lambda: init_state(workdirs.read_config(workdir), STEPS))
    checkpoints = Checkpoints(workdir)
    assert checkpoints.newest() == STEPS
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    state = checkpoints.restore(sharding.placed(shapes, mesh))
    checkpoints.close()
    return jax.device_get(state), but_for_the_speed(workdir)


def but_for_the_speed(workdir):
    return [line | {"tokens_per_second": 0} for line in read_metrics(workdir)]


def assert_same(workdir, undisturbed):
    (state, lines), (expected_state, expected_lines) = outcome(workdir), undisturbed
    assert lines == expected_lines
    assert jax.tree.all(jax.tree.map(np.array_equal, state, expected_state))


def undisturbed(folder, *flags):
    """The outcome of a run, and its seconds."""
    finish(folder / "run", *flags)
    begin = time.monotonic()
    finish(folder / "again", *flags)  # with every program compiled
    return outcome(folder / "run"), time.monotonic() - begin


def test_killed_at_random_moments(tmp_path):
    """A run that is done makes room for a new one, until 50 kills have hit; each ends bit for bit
    like the undisturbed. With memory by context.
    """
    expected, seconds = undisturbed(tmp_path, CONTEXT)
    dice, kills, runs, hit = random.Random(0), 0, 0, set()
    while kills < KILLS:
        workdir = tmp_path / f"run{runs}"
        while True:
            process = start(workdir, CONTEXT)
            try:
                code = process.wait(dice.uniform(0.1, 1.1) * seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                folder = workdir / "checkpoints"
                saving = folder.exists() and any("tmp" in path.name for path in folder.iterdir())
                elsewhere = "elsewhere" if workdir.exists() else "before the workdir"
                hit.add("in a save" if saving else elsewhere)
                continue
            assert code == 0, (tmp_path / "out.log").read_text()
            break
        assert_same(workdir, expected)
        assert not (workdir / "damaged").exists()
        runs += 1
    assert len(hit) >= 2 or kills < 20
    assert "Traceback" not in (tmp_path / "out.log").read_text()
    print(f"{kills} kills over {runs} runs, {sorted(hit)}")


def test_stopped_at_random_moments(tmp_path):
    """SIGTERM: exit 75 within 10 seconds, every finished step saved, and a second SIGTERM in the
    save does no harm.
    """
    expected, seconds = undisturbed(tmp_path)
    dice, stops, runs, slowest = random.Random(1), 0, 0, 0.0
    while stops < TERMS:
        workdir = tmp_path / f"run{runs}"
        while True:
            process = start(workdir)
            try:
                code = process.wait(dice.uniform(0.1, 1.1) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                begin = time.monotonic()
                time.sleep(dice.uniform(0, 0.3))
                process.send_signal(signal.SIGTERM)
                code = process.wait(60)
                slowest = max(slowest, time.monotonic() - begin)
                if code == 0:  # it came when all was done
                    break
                assert code == EXIT_INTERRUPTED, (tmp_path / "out.log").read_text()
                stops += 1
                if lines := read_metrics(workdir):
                    assert Checkpoints(workdir).newest() == max(line["step"] for line in lines)
                continue
            break
        assert code == 0, (tmp_path / "out.log").read_text()
        assert_same(workdir, expected)
        runs += 1
    assert slowest < 10
    print(f"{stops} stops over {runs} runs, the slowest took {slowest:.1f} s")


def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start_hosts(count, workdir, *flags):
    shared = f"--coordinator=localhost:{free_port()}", f"--processes={count}"
    shared += ("--config.mesh.data=8", *flags)
    hosts = range(count)
    return [start(workdir, f"--process={n}", *shared, devices=8 // count) for n in hosts]


def wait_for_step(workdir, step, processes):
    end = time.monotonic() + 120
    while not any(line["step"] >= step for line in read_metrics(workdir)):
        assert time.monotonic() < end, (workdir.parent / "out.log").read_text()
        going_on = all(process.poll() is None for process in processes)
        assert going_on, (workdir.parent / "out.log").read_text()
        time.sleep(0.05)


LONG = "--config.training.steps=100000"


def test_other_numbers_of_hosts_go_on(tmp_path):
    """1 -> 2 -> 4 -> 1 processes of eight devices in all: the same batches, the same losses to
    rounding. The 2 share all rows, of the 4 two and two share theirs.
    """
    # Steps enough to be stopped in, however fast they are; a rate at which the rounding of another
    # order of sums does not
    # grow: at ten times that, a gradient at step 64 is 1e-4 off.
    flags = "mesh.data=8", "training.steps=90", "optimizer.learning_rate=5e-4"
    flags = tuple(map("--config.{}".format, flags))
    finish(tmp_path / "straight", *flags, devices=8)
    workdir = tmp_path / "run"
    for count, step, data, tensor in ((1, 10, 8, 1), (2, 20, 1, 8), (4, 30, 2, 4)):
        there = (*flags, f"--config.mesh.data={data}", f"--config.mesh.tensor={tensor}")
        alone = [start(workdir, *there, devices=8)] if count == 1 else []
        processes = alone or start_hosts(count, workdir, *there)
        wait_for_step(workdir, step, processes)
        processes[-1].send_signal(signal.SIGTERM)  # at one of them
        assert [process.wait(60) for process in processes] == [EXIT_INTERRUPTED] * count
    finish(workdir, *flags, devices=8)
    lines = [but_for_the_speed(tmp_path / name) for name in ("straight", "run")]
    for line, expected in zip(*lines, strict=True):
        count = "tokens" if "tokens" in line else "step"
        assert line[count] == expected[count]
        assert line == pytest.approx(expected, rel=1e-5)


def test_hosts_agree_on_a_damaged_checkpoint(tmp_path):
    """Each checks its share: whichever host finds the damage, all resume from the checkpoint
    before.
    """
    workdir, folder = tmp_path / "run", tmp_path / "run" / "checkpoints"
    # Files of either host: Orbax may write a host's share as several.
    flags = "mesh.data=1", "mesh.fsdp=8", "model.d_model=256", "model.hidden=4096"
    flags = tuple(map("--config.{}".format, flags))
    stop_hosts_later(workdir, LONG, *flags)
    for host in range(2):
        newest = max(int(path.name) for path in folder.iterdir())
        files = (folder / str(newest) / "params" / f"ocdbt.process_{host}" / "d").iterdir()
        file = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        assert len(content) > 2**20
        content[2**19] ^= 1
        file.write_bytes(content)
        stop_hosts_later(workdir, LONG, *flags)
        assert (workdir / "damaged" / f"{newest}-0").is_dir()
        assert f"params/ocdbt.process_{host}/d/{file.name}" in (tmp_path / "out.log").read_text()


def stop_hosts_later(workdir, *flags):
    """Starts two, and stops them when they are some steps on."""
    step = max((line["step"] for line in read_metrics(workdir)), default=0)
    processes = start_hosts(2, workdir, *flags)
    wait_for_step(workdir, step + 4, processes)
    processes[0].send_signal(signal.SIGTERM)
    codes = [process.wait(60) for process in processes]
    assert codes == [EXIT_INTERRUPTED] * 2, (workdir.parent / "out.log").read_text()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_host_ends_the_others_with_a_line(tmp_path, victim):
    workdir = tmp_path / "run"
    processes = start_hosts(2, workdir, LONG)
    wait_for_step(workdir, 5, processes)
    processes[victim].kill()
    begin = time.monotonic()
    assert processes[1 - victim].wait(60) == EXIT_INTERRUPTED
    assert time.monotonic() - begin < 60
    processes[victim].wait()
    last = [line for line in (tmp_path / "out.log").read_text().splitlines() if line][-1]
    assert last.startswith("interrupted: this process ended with code")
    assert "run the same command again on all hosts" in last
    assert Checkpoints(workdir).newest() >= 3


def test_a_full_disk(tmp_path):
    """A small disk of its own; needs the right to mount one."""
    if os.geteuid():
        pytest.skip("only root can mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        done = run_command(disk / "run")
        assert (done.returncode, done.stderr.count("error:")) == (2, 1)
        assert "free; free some space; the last that is there is of step 3" in done.stderr
        assert "Traceback" not in done.stderr
        before = sorted(path.name for path in (disk / "run" / "checkpoints").iterdir())
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        done = run_command(disk / "run")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "Read-only file system" in done.stderr
        assert sorted(path.name for path in (disk / "run" / "checkpoints").iterdir()) == before
        subprocess.run(["mount", "-o", "remount,rw,size=100m", str(disk)], check=True)
        assert run_command(disk / "run").returncode == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def run_command(workdir):
    return python("-m", "memsinks_jax.train", *FLAGS, f"--workdir={workdir}", "--json")


def test_a_workdir_that_is_removed_while_it_is_used(tmp_path):
    workdir = tmp_path / "run"
    process = start(workdir, LONG)
    wait_for_step(workdir, 5, [process])
    workdir.rename(tmp_path / "elsewhere")
    assert process.wait(60) == 2
    gone = "run is gone: it was moved or removed during the run"
    assert gone in (tmp_path / "out.log").read_text()
    assert not (workdir / "config.json").exists()
    assert json.loads((tmp_path / "elsewhere" / "config.json").read_text())
