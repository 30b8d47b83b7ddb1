"""The runs behind a figure. `train` trains them, several at a time; each resumes in its workdir."""

import dataclasses
import functools
import importlib.util
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import tqdm
from absl import flags as absl_flags
from ml_collections import config_flags

from memsinks_jax.config import (
    Config,
    InputError,
    flatten,
    settable,
    to_json,
    validate,
    with_fields,
)
from memsinks_jax.models.initial import check_unchanged
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    SIGNALS,
    Interrupted,
    state_is_saved,
)
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.variants import open_config

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: its last `metrics`, all `lines` of metrics.jsonl, measured `details`."""

    variant: str
    seed: int
    workdir: pathlib.Path
    metrics: dict[str, float]
    lines: list[dict]
    details: dict = dataclasses.field(default_factory=dict)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric."""
        points = [(line["step"], line[name]) for line in self.lines if name in line]
        return [step for step, _ in points], [value for _, value in points]

    def to_dict(self) -> dict:
        names = ("held_out_loss", "repeated_loss", "held_out_loss_own", "repeated_loss_own")
        curves = {}
        for name in (*names, "train_loss"):
            steps, values = self.curve(name)
            if steps:
                curves[name] = {"step": steps, "value": values}
        result = {"variant": self.variant, "seed": self.seed, "metrics": self.metrics}
        return result | {"curves": curves} | ({"details": self.details} if self.details else {})


def by_variant(runs: list[Run]) -> dict[str, dict[int, Run]]:
    """{variant: {seed: run}}, in the order of the request."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        groups.setdefault(run.variant, {})[run.seed] = run
    return groups


class Variation(NamedTuple):
    """A training that a figure needs: `choice` follows the name of its config file, `settings` set
    further fields.

    `{out}` in their values is the figure's folder, `{seed}` the seed. `config`: a file of configs/
    other than the figure's.
    """

    choice: str
    settings: dict[str, object] = {}
    config: str = ""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to train. `flags` of the train command make `config`."""

    variant: str
    seed: int
    flags: list[str]
    config: Config
    workdir: pathlib.Path

    @property
    def log(self) -> pathlib.Path:
        return self.workdir.with_name(f"{self.workdir.name}.log")

    @property
    def mark(self) -> pathlib.Path:
        """Written when the run is finished; holds its config and what names its weights."""
        return self.workdir.with_name(f"{self.workdir.name}.finished.json")

    @property
    def finished(self) -> bool:
        """Whether its weights are this config's. Raises InputError if its data or the model
        that it started from have changed.
        """
        try:
            marked, there = self.mark.read_text(), self._marked()
        # not trained to the end yet, or damaged: the train command sees to it
        except (OSError, InputError):
            return False
        if marked == there:
            if self.config.model.initial:
                check_unchanged(self.workdir, self.config.model.initial)
            if self.config.data.files or self.config.general.files:
                _check_data(self.workdir, marked)
        return marked == there

    def _marked(self) -> str:
        weights = workdirs.newest_weights(self.workdir)
        return json.dumps({"config": to_json(self.config), "weights": weights}) + "\n"

    def mark_finished(self) -> None:
        scratch = self.mark.with_suffix(".new")
        scratch.write_text(self._marked())
        os.replace(scratch, self.mark)


def make_jobs(
    config: pathlib.Path,
    preset: str,
    chosen: dict[str, Variation],
    seeds: list[int],
    overrides: list[str],
    out: pathlib.Path,
    workdirs: dict[str, pathlib.Path],
) -> list[Job]:
    """One job per variation and seed, seed after seed.

    Args:
      config: file for variations that name no other. `preset` is from its table of presets, '' if
        it has none.
      overrides: further flags of the train command, such as '--config.data.files=GLOB'.
      out: run V of seed S goes to out/runs/V-seedS, unless `workdirs` has a run with the same
        config.
      workdirs: {config as JSON: its run's folder}; adds new runs.
    Raises:
      InputError: an override of a field that a variation sets, or an invalid config.
    """
    given = {flag.split("=")[0] for flag in overrides}
    made = []
    for seed in seeds:
        for name, one in chosen.items():
            settings = (f"--config.{field}={value}" for field, value in one.settings.items())
            mine = [flag.format(out=out, seed=seed) for flag in settings]
            for flag in mine:
                if flag.split("=")[0] in given:
                    raise InputError(f"{flag.split('=')[0]} is what is varied here; leave it out")
            choice = ",".join(filter(None, (one.choice, preset)))
            changes = [f"--config.seed={seed}", *overrides, *mine]
            file = config.with_name(one.config or config.name)
            resolved = _resolve(file, choice, changes)
            flags = [f"--config={file}:{choice}", *changes]
            if not resolved.data.held_out_documents and "--config.data.held_out_documents" in given:
                raise InputError(
                    "losses of held-out documents are what is compared; raise "
                    "config.data.held_out_documents"
                )
            workdir = workdirs.setdefault(to_json(resolved), out / "runs" / f"{name}-seed{seed}")
            made.append(Job(name, seed, flags, resolved, workdir))
    return made


def _resolve(file: pathlib.Path, choice: str, overrides: list[str]) -> Config:
    """The config that the train command makes of --config=FILE:CHOICE and its overrides."""
    try:
        config = open_config(file).get_config(*[choice] * bool(choice))
    except ValueError as error:
        raise InputError(f"--config: {error}") from None
    except TypeError as error:
        if "positional argument" not in str(error):
            raise
        raise InputError(
            f"--config: get_config() of {file} takes no variant, such as {choice}; let it take one"
        ) from None
    values, arguments = absl_flags.FlagValues(), ["", *overrides]
    about = {"flag_values": values, "sys_argv": arguments}
    holder = config_flags.DEFINE_config_dataclass("config", settable(config), **about)
    values(arguments)
    return validate(with_fields(config, flatten(holder.value)))


def train_all(jobs: list[Job], at_once: int) -> list[Run]:
    """Trains all jobs, `at_once` at a time, each workdir once. Skips finished runs.

    Raises:
      InputError, Interrupted: raised by a train command.
      RuntimeError: a run failed otherwise; the message names its log.
    """
    waiting = list({job.workdir: job for job in reversed(jobs) if not job.finished}.values())[::-1]
    places = _shares_of_cores(min(at_once, len(waiting)))
    running: dict[int, tuple[subprocess.Popen, Job]] = {}
    hidden = not sys.stderr.isatty() or not waiting
    bar = tqdm.tqdm(total=len(waiting), desc="runs", unit="run", disable=hidden)
    logged = time.monotonic()
    asked = threading.Event()
    before = [signal.signal(number, lambda *_: asked.set()) for number in SIGNALS]
    try:
        while waiting or running:
            if asked.is_set():
                raise Interrupted("the runs under way have saved their state")
            for place in range(len(places)):
                if place not in running and waiting:
                    job = waiting.pop(0)
                    # the last run has the machine to itself
                    cores = places[place] if waiting or running else None
                    running[place] = (_start(job, cores), job)
            time.sleep(0.2)
            for place, (process, job) in list(running.items()):
                if process.poll() is not None:
                    del running[place]
                    _check(process.returncode, job.log)
                    job.mark_finished()
                    bar.update()
                    logger.info("finished %s, seed %d", job.variant, job.seed)
            lines = [_last_line(job.log) for _, job in running.values()]
            bar.set_postfix_str("; ".join(lines))
            if bar.disable and time.monotonic() - logged > 15:
                logged = time.monotonic()
                logger.info("%s", "\n".join(lines))
    finally:
        for process, _ in running.values():
            process.terminate()  # each saves its state
        for process, _ in running.values():
            process.wait()
        bar.close()
        state_is_saved()
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    return [_read(job) for job in jobs]


@functools.cache
def _check_data(workdir: pathlib.Path, weights: str) -> None:
    """Raises InputError if a run's files are others now. Once for the same weights."""
    workdirs.read_corpus(workdir)


def default_jobs() -> int:
    """Runs at a time: one per core, since small models do not fill two; on accelerators one."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "libtpu")
    accelerator = any(importlib.util.find_spec(plugin) for plugin in plugins)
    if accelerator and os.environ.get("JAX_PLATFORMS") != "cpu":
        return 1
    return min(os.cpu_count() or 1, 8)


def _shares_of_cores(jobs: int) -> list[set[int] | None]:
    """Splits this process's cores among parallel runs; None if they are unknown."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [None] * jobs
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[place::jobs]) or None for place in range(jobs)]


def _start(job: Job, cores: set[int] | None) -> subprocess.Popen:
    command = [sys.executable, "-m", "memsinks_jax.train", *job.flags, f"--workdir={job.workdir}"]
    # By default jax takes most of an accelerator's memory when it starts.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ if cores else None
    mine = os.sched_getaffinity(0) if cores else None
    job.workdir.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("w") as log:
        if cores:
            os.sched_setaffinity(0, cores)  # a child inherits it
        try:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            return subprocess.Popen(command, env=environment, **streams)
        finally:
            if mine:
                os.sched_setaffinity(0, mine)


def _check(code: int, log: pathlib.Path) -> None:
    if code == EXIT_BAD_INPUT:
        raise InputError(_last_line(log).removeprefix("error: "))
    if code == EXIT_INTERRUPTED:
        raise Interrupted(_last_line(log))
    if code:
        raise RuntimeError(f"a training run ended with code {code}; see {log}")


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text().splitlines()
    return lines[-1] if lines else ""


def _read(job: Job) -> Run:
    lines = read_metrics(job.workdir)
    metrics = {}
    for line in lines:
        metrics |= line
    return Run(job.variant, job.seed, job.workdir, metrics, lines)
