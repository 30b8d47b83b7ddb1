"""The runs behind a figure: trained by the train command, several at a time, each in a workdir that resumes."""

import dataclasses
import importlib.util
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time

import tqdm

from memsinks_jax.command_line import EXIT_BAD_INPUT, EXIT_INTERRUPTED, Interrupted
from memsinks_jax.config import InputError
from memsinks_jax.training.metrics import read_metrics

logger = logging.getLogger(__name__)

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run. `metrics` are its last values, `lines` all of its metrics.jsonl, `details` what else was measured."""

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
        names = ("held_out_loss", "repeated_loss", "held_out_loss_own", "repeated_loss_own", "train_loss")
        curves = {name: dict(zip(("step", "value"), self.curve(name), strict=True)) for name in names}
        curves = {name: curve for name, curve in curves.items() if curve["step"]}
        result = {"variant": self.variant, "seed": self.seed, "metrics": self.metrics, "curves": curves}
        return result | ({"details": self.details} if self.details else {})


def by_variant(runs: list[Run]) -> dict[str, dict[int, Run]]:
    """{variant: {seed: run}}, in the order in which they were asked for."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        groups.setdefault(run.variant, {})[run.seed] = run
    return groups


def train_all(
    config: str, preset: str, variants: list[str], seeds: list[int], overrides: list[str], out: pathlib.Path, jobs: int
) -> list[Run]:
    """Trains every variant with every seed, `jobs` at a time; a run that is already complete costs a few seconds.

    Args:
      config: name of the file in configs/.
      overrides: further flags of the train command, such as '--config.data.files=GLOB'.
      out: run V of seed S goes to out/runs/V-seedS, its log beside it.
    Raises:
      InputError, Interrupted: as the train command that met it.
      RuntimeError: a run failed otherwise; the message names its log.
    """
    (out / "runs").mkdir(parents=True, exist_ok=True)
    waiting = [(variant, seed) for seed in seeds for variant in variants]
    places = _shares_of_cores(min(jobs, len(waiting)))
    running: dict[int, tuple] = {}
    bar = tqdm.tqdm(total=len(waiting), desc="runs", unit="run", disable=not sys.stderr.isatty())
    told = time.monotonic()
    order = list(waiting)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        while waiting or running:
            for place in range(len(places)):
                if place not in running and waiting:
                    variant, seed = waiting.pop(0)
                    flags = [f"--config={CONFIGS / config}:{variant},{preset}", f"--config.seed={seed}", *overrides]
                    cores = places[place] if waiting or running else None  # the last run has the machine to itself
                    running[place] = (_start(out, f"{variant}-seed{seed}", flags, cores), variant, seed)
            time.sleep(0.2)
            for place, (process, variant, seed) in list(running.items()):
                if process.poll() is not None:
                    del running[place]
                    _check(process.returncode, _log(out, variant, seed))
                    bar.update()
                    logger.info("finished %s, seed %d", variant, seed)
            lines = [_last_line(_log(out, variant, seed)) for _, variant, seed in running.values()]
            bar.set_postfix_str("; ".join(lines))
            if bar.disable and time.monotonic() - told > 15:
                told = time.monotonic()
                logger.info("%s", "\n".join(lines))
    finally:
        for process, _, _ in running.values():
            process.terminate()  # each saves its state
        for process, _, _ in running.values():
            process.wait()
        bar.close()
    return [_read(out / "runs" / f"{variant}-seed{seed}", variant, seed) for variant, seed in order]


def _interrupt(number: int, frame) -> None:
    raise Interrupted("the runs under way have saved their state")


def default_jobs() -> int:
    """Runs at a time: one a core on a CPU, where small models do not fill two; one where there is an accelerator."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "libtpu")
    accelerator = any(importlib.util.find_spec(plugin) for plugin in plugins)
    return 1 if accelerator and os.environ.get("JAX_PLATFORMS") != "cpu" else min(os.cpu_count() or 1, 8)


def _shares_of_cores(jobs: int) -> list[set[int] | None]:
    """Splits this process's cores, so that runs side by side do not fight for all of them; None where that is unknown."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [None] * jobs
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[place::jobs]) or None for place in range(jobs)]


def _start(out: pathlib.Path, name: str, flags: list[str], cores: set[int] | None) -> subprocess.Popen:
    command = [sys.executable, "-m", "memsinks_jax.train", *flags, f"--workdir={out / 'runs' / name}"]
    mine = os.sched_getaffinity(0) if cores else None
    with (out / "runs" / f"{name}.log").open("w") as log:
        if cores:
            os.sched_setaffinity(0, cores)  # a child inherits it
        try:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        finally:
            if mine:
                os.sched_setaffinity(0, mine)


def _log(out: pathlib.Path, variant: str, seed: int) -> pathlib.Path:
    return out / "runs" / f"{variant}-seed{seed}.log"


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


def _read(workdir: pathlib.Path, variant: str, seed: int) -> Run:
    lines = read_metrics(workdir)
    metrics = {}
    for line in lines:
        metrics |= line
    return Run(variant, seed, workdir, metrics, lines)


def results(figure: str, preset: str, seeds: list[int], runs: list[Run], claims: list) -> dict:
    """The content of results.json."""
    return {
        "figure": figure, "preset": preset, "seeds": seeds,
        "runs": [run.to_dict() for run in runs], "claims": [claim.to_dict() for claim in claims],
    }  # fmt: skip
