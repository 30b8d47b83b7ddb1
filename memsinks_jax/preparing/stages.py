"""Runs a stage on this machine, on Ray, or on Slurm, with the same tasks and the same bytes. Skips
completed tasks.
"""

import collections.abc
import contextlib
import ctypes
import dataclasses
import errno
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
from memsinks_jax.data.documents import in_words
from memsinks_jax.preparing.steps import Task, running_file

logger = logging.getLogger("memsinks_jax.prepare")

_SECONDS_TO_END = 60  # how long the workers of a killed command may take
_ROOT = pathlib.Path(__file__).parents[2]

# Label of each stage, and its time relative to the first, roughly as on prose and short stories
# with two workers.
_STAGES = {
    "tokens": ("tokenising", 1.0),
    "pairs": ("near-duplicates", 0.5),
    "clusters": ("clusters", 0.1),
    "stretches": ("n-grams of repeated text", 0.3),
    "repeated": ("repeated text", 0.3),
    "counts": ("contexts", 0.5),
    "contexts": ("contexts with sinks", 0.3),
    "corpus": ("putting together", 0.02),
}
_SECONDS_BETWEEN_DRAWINGS, _SECONDS_BETWEEN_LINES = 0.5, 10
# share of the whole; before it, an estimate of the time left would be a guess
_ESTIMATED_FROM = 0.01
# waits this many times as long as a progress check takes; it is slow with many pieces
_BETWEEN_CHECKS = 50


@dataclasses.dataclass(frozen=True)
class Where:
    """Where tasks run, and how many at a time."""

    executor: str  # local | ray | slurm
    workers: int
    slurm: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # sbatch options; `partition` and `time` are required


@contextlib.contextmanager
def claimed(work: pathlib.Path) -> collections.abc.Iterator[None]:
    """Locks the folder against a second command, and waits until a killed command's workers have
    ended.
    """
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "command.lock", "a+") as mine, open(work / "workers.lock", "a+") as workers:
        try:
            if not _locked(mine, 0):
                raise InputError(
                    f"{work.parent}: another prepare is writing there; wait for it or give "
                    "another --out"
                )
            if not _locked(workers, _SECONDS_TO_END):
                raise InputError(
                    f"{work.parent}: workers of an earlier prepare still write there; end them "
                    "first"
                )
            fcntl.lockf(workers, fcntl.LOCK_UN)
        except OSError as error:
            warning = (
                "%s: its file system has no locks (%s): start no second command that writes there"
            )
            logger.warning(warning, work.parent, error.strerror)
        yield


def end_forks_with_us() -> None:
    """For a command: makes forked helpers end with it. datatrove starts multiprocess's manager,
    which would live on.
    """
    if sys.platform == "linux":
        die_with_parent = 1  # PR_SET_PDEATHSIG of prctl.h
        library = ctypes.CDLL(None)
        os.register_at_fork(after_in_child=lambda: library.prctl(die_with_parent, signal.SIGKILL))


def _locked(file, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            # held by this process only: children do not inherit it
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except (BlockingIOError, PermissionError):  # depends on the operating system
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)


def run_stage(
    stage: str, steps: list[PipelineStep], tasks: int, work: pathlib.Path, where: Where
) -> None:
    """Runs the incomplete ones of tasks 0 to `tasks` - 1 of a stage.

    Raises:
      InputError or OSError: the cause of the first task that failed.
    """
    for stale in work.glob(f"failed-{stage}-*.json"):
        stale.unlink()
    executor = _executor(stage, Task(steps, work, stage), tasks, work, where)
    if not executor.get_incomplete_ranks():
        return
    failure = None
    try:
        with (
            _workers_watched(work, stage) if where.executor == "local" else contextlib.nullcontext()
        ):
            executor.run()
    except (InputError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        failure = error  # the tasks' notes say more, or everything is complete after all
    for path in sorted(work.glob(f"failed-{stage}-*.json")):
        _raise(path)
    incomplete = executor.get_incomplete_ranks()
    if incomplete and isinstance(failure, InputError | OSError):
        raise failure
    if incomplete:
        why = f" ({' '.join(str(failure).split())})" if failure else ""
        raise InputError(
            f"{len(incomplete)} of {tasks} tasks of the stage '{stage}' did not finish{why}; see "
            f"{work / stage}, then "
            "run the same command again"
        )


@contextlib.contextmanager
def _workers_watched(work: pathlib.Path, stage: str) -> collections.abc.Iterator[None]:
    """Stops waiting if a worker is killed, for example for lack of memory: a pool would wait for it
    forever.
    """
    for stale in work.glob(running_file(work, stage, "*").name):
        stale.unlink()
    ended = threading.Event()

    def watch():
        while not ended.wait(1.0):
            for path in work.glob(running_file(work, stage, "*").name):
                with contextlib.suppress(OSError, ValueError):  # it is just ending
                    if not _is_alive(int(path.read_text())) and path.exists():
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                        return

    def report(*_):
        raise InputError(
            "a worker was killed, perhaps out of memory; run the same command again, with fewer "
            "--workers if need be"
        )

    before = signal.signal(signal.SIGUSR1, report)
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


def _raise(path: pathlib.Path) -> None:
    try:
        note = json.loads(path.read_text())
    except ValueError:  # truncated: the disk was full, for this note too
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
    if note["kind"] == "os" and note["errno"]:
        raise OSError(note["errno"], note["message"].split("] ", 1)[-1])
    if note["kind"] == "other":
        raise InputError(f"a task failed: {note['message']}; {path} holds the whole trace")
    raise InputError(note["message"])


def _executor(
    stage: str, task: Task, tasks: int, work: pathlib.Path, where: Where
) -> PipelineExecutor:
    log = str(work / stage)
    if where.executor == "local":
        return LocalPipelineExecutor(
            [task], tasks=tasks, workers=min(where.workers, tasks), logging_dir=log
        )
    if where.executor == "ray":
        _start_ray()
        return RayPipelineExecutor(
            [task],
            tasks=tasks,
            workers=min(where.workers, tasks),
            logging_dir=log,
            mem_per_cpu_gb=1,
        )
    options = dict(where.slurm)
    environment = (
        f"export PATH={pathlib.Path(sys.executable).parent}:$PATH "
        f"PYTHONPATH={_ROOT}:$PYTHONPATH; cd {os.getcwd()}"
    )
    return SlurmPipelineExecutor(
        [task],
        tasks=tasks,
        workers=where.workers,
        logging_dir=log,
        job_name=f"prepare-{stage}",
        time=options.pop("time"),
        partition=options.pop("partition"),
        qos=options.pop("qos", None),
        # --wait: the command continues when the jobs have ended.
        sbatch_args={"wait": ""} | options,
        env_command=environment,
    )


def _start_ray() -> None:
    """Joins the cluster at RAY_ADDRESS, or starts one on this machine."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "--executor=ray needs Ray; pip install '.[ray]', or use local or slurm"
        ) from None
    if not ray.is_initialized():
        paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"env_vars": {"PYTHONPATH": paths}}
        ray.init(
            logging_level=logging.ERROR,
            log_to_driver=False,
            include_dashboard=False,
            runtime_env=environment,
        )


class Watch:
    """Shows documents per second and time left over all stages: a bar on a terminal, else a line
    every ten seconds.

    Args:
      tasks: number of tasks of each stage that will run, in order.
    """

    def __init__(self, work: pathlib.Path, bytes_of_pieces: list[int], tasks: dict[str, int]):
        self._work, self._bytes, self._tasks = work, bytes_of_pieces, tasks
        whole = sum(_STAGES[stage][1] for stage in tasks)
        self._shares = {stage: _STAGES[stage][1] / whole for stage in tasks}
        self._pieces = {}  # documents of completed pieces: their notes are not read again
        self._stage, self._before, self._found, self._done, self._advanced = None, 0.0, 0.0, 0.0, 0
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        for path in self._work.glob("*.progress"):
            if not path.read_text().startswith("-1"):
                path.unlink()  # of a piece that a killed command had started: it starts again
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._succeeded = kind is None
        self._end.set()
        self._thread.join()

    def begin(self, stage: str) -> None:
        """Marks earlier stages as done, and this one as running."""
        with self._lock:
            if self._stage is not None:
                self._check()  # one last time: its documents are added to the total
                self._before += self._shares[self._stage]
            self._stage, self._advanced, self._began = stage, 0, time.monotonic()
            share, self._documents_found = self._check()
            # by an earlier command; not part of this one's speed
            self._found += share * self._shares[stage]

    def advance(self, tasks: int) -> None:
        """Sets the number of completed tasks of a stage that runs in this process."""
        self._advanced = tasks

    def progress(self) -> tuple[float, str]:
        """(share of the whole that is done, text for the user)"""
        with self._lock:
            share, documents = self._check()
            now = time.monotonic()
            # A note that is being written cannot be read. Keeps the last known progress.
            done = self._done = max(self._done, self._before + share * self._shares[self._stage])
            text = _STAGES[self._stage][0]
            if documents:
                text += f", {in_words(documents, 'document')}"
            pace = (documents - self._documents_found) / max(now - self._began, 1e-9)
            if pace >= 1:
                text += f", {pace:,.0f} documents/s"
            if done - self._found >= _ESTIMATED_FROM:
                left = (1 - done) * (now - self._start) / (done - self._found)
                text += f", {tqdm.tqdm.format_interval(left)} left"
        return done, text

    def _check(self) -> tuple[float, int]:
        """(share of the stage that is done, documents that have passed it)"""
        if self._stage == "tokens":
            return self._check_pieces()
        done = self._advanced
        with contextlib.suppress(OSError):  # not there yet, or removed with the last stage
            done = max(done, len(os.listdir(self._work / self._stage / "completions")))
        share = done / self._tasks[self._stage]
        return share, round(share * sum(self._pieces.values()))

    def _check_pieces(self) -> tuple[float, int]:
        done = documents = 0
        for path in self._work.glob("*.progress"):
            piece = int(path.stem)
            if piece in self._pieces:
                continue
            with contextlib.suppress(OSError, ValueError):  # being written
                consumed, count = map(int, path.read_text().split())
                if consumed < 0:
                    self._pieces[piece] = count
                else:
                    done, documents = done + min(consumed, self._bytes[piece]), documents + count
        done += sum(self._bytes[piece] for piece in self._pieces)
        return done / sum(self._bytes), documents + sum(self._pieces.values())

    def _run(self) -> None:
        bar = None
        if sys.stderr.isatty():
            # The bar's own speed would count what a killed command had done.
            shape = "prepare: {percentage:3.0f}%|{bar}| {desc}"
            bar = tqdm.tqdm(total=1.0, bar_format=shape, dynamic_ncols=True)
        seconds, took = _SECONDS_BETWEEN_LINES if bar is None else _SECONDS_BETWEEN_DRAWINGS, 0.0
        while not self._end.wait(max(seconds, _BETWEEN_CHECKS * took)):
            if self._stage is None:
                continue
            begun = time.thread_time()
            done, text = self.progress()
            if bar is None:
                logger.info("prepare: %.0f%%, %s", 100 * done, text)
            else:
                bar.n = done
                bar.set_description_str(text)
            took = time.thread_time() - begun
        if bar is not None:
            if self._succeeded:
                bar.n = 1.0
                bar.set_description_str(
                    in_words(sum(self._pieces.values()), "document"), refresh=False
                )
            bar.close()
