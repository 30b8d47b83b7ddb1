"""Runs a stage on this machine, on Ray, or on Slurm: the same tasks, the same bytes. What is complete is not run again."""

import collections.abc
import contextlib
import ctypes
import dataclasses
import fcntl
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import tqdm
from datatrove.executor.base import PipelineExecutor
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from memsinks_jax.config import InputError
from memsinks_jax.preparing.steps import Task, running_file

logger = logging.getLogger("memsinks_jax.prepare")

_SECONDS_TO_END = 60  # for the workers of a command that was killed
_ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Where:
    """Where tasks run, and how many at a time."""

    executor: str  # local | ray | slurm
    workers: int
    slurm: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # sbatch options; `partition` and `time` must be there


@contextlib.contextmanager
def claimed(work: pathlib.Path) -> collections.abc.Iterator[None]:
    """Keeps a second command out of the folder, and waits until a killed one's workers have ended."""
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "command.lock", "a+") as mine, open(work / "workers.lock", "a+") as workers:
        if not _locked(mine, 0):
            raise InputError(f"{work.parent}: another prepare is writing there; wait for it or give another --out")
        if not _locked(workers, _SECONDS_TO_END):
            raise InputError(f"{work.parent}: workers of an earlier prepare still write there; end them first")
        fcntl.lockf(workers, fcntl.LOCK_UN)
        yield


def end_forks_with_us() -> None:
    """For a command: multiprocess's manager, which datatrove starts, is a fork that would live on when we are killed."""
    if sys.platform == "linux":
        die_with_parent = 1  # PR_SET_PDEATHSIG of prctl.h
        library = ctypes.CDLL(None)
        os.register_at_fork(after_in_child=lambda: library.prctl(die_with_parent, signal.SIGKILL))


def _locked(file, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: no child keeps it
            return True
        except (BlockingIOError, PermissionError):  # Linux says the one, other systems the other
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        except OSError:
            return True  # no locks on this file system


def run_stage(stage: str, steps: list[PipelineStep], tasks: int, work: pathlib.Path, where: Where) -> None:
    """Runs tasks 0 to `tasks` - 1 of a stage, those that are not complete.

    Raises:
      InputError or OSError: what stopped the first task that failed.
    """
    for stale in work.glob(f"failed-{stage}-*.json"):
        stale.unlink()
    executor = _executor(stage, Task(steps, work, stage), tasks, work, where)
    if not executor.get_incomplete_ranks():
        return
    failure = None
    try:
        with _workers_watched(work, stage) if where.executor == "local" else contextlib.nullcontext():
            executor.run()
    except (InputError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        failure = error  # the notes of the tasks say more, or nothing is incomplete after all
    for path in sorted(work.glob(f"failed-{stage}-*.json")):
        _raise(json.loads(path.read_text()), path)
    incomplete = executor.get_incomplete_ranks()
    if incomplete and isinstance(failure, InputError | OSError):
        raise failure
    if incomplete:
        why = f" ({' '.join(str(failure).split())})" if failure else ""
        raise InputError(
            f"{len(incomplete)} of {tasks} tasks of the stage '{stage}' did not end{why}; look into {work / stage}, then "
            "run the same command again"
        )


@contextlib.contextmanager
def _workers_watched(work: pathlib.Path, stage: str) -> collections.abc.Iterator[None]:
    """Ends the wait for a worker that was killed, for want of memory for example: a pool would wait for it for ever."""
    for stale in work.glob(running_file(work, stage, "*").name):
        stale.unlink()
    ended = threading.Event()

    def watch():
        while not ended.wait(1.0):
            for path in work.glob(running_file(work, stage, "*").name):
                with contextlib.suppress(OSError, ValueError):  # it ends just now
                    if not _is_alive(int(path.read_text())) and path.exists():
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                        return

    def tell(*_):
        raise InputError(
            "a worker was killed, perhaps for want of memory; run the same command again, with fewer --workers if need be"
        )

    before = signal.signal(signal.SIGUSR1, tell)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _raise(note: dict, path: pathlib.Path) -> None:
    if note["kind"] == "os" and note["errno"]:
        raise OSError(note["errno"], note["message"].split("] ", 1)[-1])
    if note["kind"] == "other":
        raise InputError(f"a task failed: {note['message']}; {path} holds the whole trace")
    raise InputError(note["message"])


def _executor(stage: str, task: Task, tasks: int, work: pathlib.Path, where: Where) -> PipelineExecutor:
    log = str(work / stage)
    if where.executor == "local":
        return LocalPipelineExecutor([task], tasks=tasks, workers=min(where.workers, tasks), logging_dir=log)
    if where.executor == "ray":
        _start_ray()
        return RayPipelineExecutor(
            [task], tasks=tasks, workers=min(where.workers, tasks), logging_dir=log, mem_per_cpu_gb=1
        )
    options = dict(where.slurm)
    environment = (
        f"export PATH={pathlib.Path(sys.executable).parent}:$PATH PYTHONPATH={_ROOT}:$PYTHONPATH; cd {os.getcwd()}"
    )
    return SlurmPipelineExecutor(
        [task], tasks=tasks, workers=where.workers, logging_dir=log, job_name=f"prepare-{stage}",
        time=options.pop("time"), partition=options.pop("partition"), qos=options.pop("qos", None),
        # --wait: the command goes on when the jobs have ended.
        sbatch_args={"wait": ""} | options, env_command=environment,
    )  # fmt: skip


def _start_ray() -> None:
    """Joins the cluster that RAY_ADDRESS names, or starts one on this machine."""
    try:
        import ray
    except ImportError:
        raise InputError("--executor=ray needs Ray; pip install 'memsinks_jax[ray]', or use local or slurm") from None
    if not ray.is_initialized():
        paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"env_vars": {"PYTHONPATH": paths}}
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False, runtime_env=environment)


class Watch:
    """Documents and MB a second and the time left: a bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, work: pathlib.Path, bytes_of_pieces: list[int]):
        self._work, self._bytes = work, bytes_of_pieces
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._start, self._before = time.monotonic(), self._state()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join()

    def _state(self) -> tuple[int, int]:
        """(bytes of the input that are done, documents written)"""
        done = documents = 0
        for path in self._work.glob("*.progress"):
            with contextlib.suppress(OSError, ValueError):  # just being written
                consumed, count = map(int, path.read_text().split())
                size = self._bytes[int(path.stem)]
                done += size if consumed < 0 else min(consumed, size)
                documents += count
        return done, documents

    def _run(self) -> None:
        total = sum(self._bytes)
        on_terminal = sys.stderr.isatty()
        # The bar's own pace would count what a killed command had done.
        shape = "{desc}: {percentage:3.0f}%|{bar}| {postfix}"
        bar = (
            tqdm.tqdm(total=total or None, desc="prepare", bar_format=shape, dynamic_ncols=True)
            if on_terminal
            else None
        )
        last = time.monotonic()
        while not self._end.wait(0.5 if on_terminal else 1.0):
            done, documents = self._state()
            seconds = time.monotonic() - self._start
            pace = (done - self._before[0]) / seconds
            left = f", {(total - done) / pace:,.0f} s left" if pace > 0 and total else ""
            told = (
                f"{documents:,} documents, {(documents - self._before[1]) / seconds:,.0f} documents/s, "
                f"{pace / 1e6:.1f} MB/s{left}"
            )
            if bar is not None:
                bar.n = done
                bar.set_postfix_str(told)
            elif time.monotonic() - last > 10:
                last = time.monotonic()
                logger.info("prepare: %s", told)
        if bar is not None:
            bar.close()
