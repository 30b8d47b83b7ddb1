"""Metrics of a run: JSON lines and TensorBoard events always, W&B on request, a progress bar on a
terminal.
"""

import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import time

import jax
import tqdm

from memsinks_jax.atomic import atomic_file
from memsinks_jax.config import InputError

logger = logging.getLogger(__name__)


class MetricWriter:
    """Appends to `metrics.jsonl`, to TensorBoard events under `tensorboard/`, and to
    `skipped.jsonl` if it must.

    A line is {"step": finished steps, name: value, ...}. When a run resumes at `start_step`, later
    lines of the interrupted run are removed first, so every step is in the files once.

    Args:
      wandb: from `open_wandb`, closed with the rest; None: not used.
    """

    def __init__(self, workdir: pathlib.Path, start_step: int, wandb=None):
        # here, because it imports PyTorch if that is installed, and most commands write no events
        import tensorboardX

        self._skipped = workdir / "skipped.jsonl"
        for path in (workdir / "metrics.jsonl", self._skipped):
            drop_later_lines(path, start_step)
        self._file = (workdir / "metrics.jsonl").open("a")
        self._events = tensorboardX.SummaryWriter(
            str(workdir / "tensorboard"), purge_step=start_step + 1
        )
        self._wandb = wandb

    def write(self, step: int, values: dict[str, float]) -> None:
        try:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            # the error does not name the file
            raise OSError(error.errno, error.strerror, self._file.name) from None
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        if self._wandb:
            self._wandb.log(values, step=step)

    def write_skipped(self, step: int, values: dict[str, float], documents: list[str]) -> None:
        """A batch whose update was skipped, with the ids of its documents."""
        # JSON has no nan
        measured = {name: repr(values[name]) for name in ("train_loss", "gradient_norm")}
        with self._skipped.open("a") as file:
            file.write(json.dumps({"step": step, **measured, "documents": documents}) + "\n")

    def sync(self) -> None:
        """Flushes to disk, so that the lines survive a crash. Called before a checkpoint that
        counts them as written.
        """
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self._events.close()
        if self._wandb:
            self._wandb.finish()


def check_wandb() -> None:
    if importlib.util.find_spec("wandb") is None:
        raise InputError("--wandb needs W&B's package: pip install '.[wandb]'")


def open_wandb(project: str, workdir: pathlib.Path, config: dict):
    """A run of Weights & Biases with the workdir's name; a resumed run resumes it.

    Raises:
      InputError: wandb is not installed, or refuses: without a key, for example.
    """
    check_wandb()
    import wandb

    name = workdir.absolute().name
    identity = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:16]
    try:
        return wandb.init(
            project=project, name=name, id=identity, resume="allow", dir=str(workdir), config=config
        )
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"--wandb={project}: {reason}; run `wandb login`, or set WANDB_MODE=offline"
        ) from None


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    """All lines of a run's `metrics.jsonl`, in order; [] before the first. Raises InputError for a
    damaged file.
    """
    return read_lines(workdir / "metrics.jsonl")


def read_lines(path: pathlib.Path) -> list[dict]:
    """All lines of a file that a run appends to; [] if there is none. Raises InputError for a
    damaged one.
    """
    if not path.exists():
        return []
    try:
        # A killed run may leave half a line at the end. It has no line break and does not count.
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(
            f"{path} is damaged ({error}); put a copy in its place, or take another --workdir"
        ) from None


def drop_later_lines(path: pathlib.Path, step: int) -> None:
    """Removes the lines of steps after `step` from such a file, all or nothing; the run that
    resumes writes them again.
    """
    if path.exists():
        kept = (line for line in read_lines(path) if line["step"] <= step)
        with atomic_file(path) as scratch:
            scratch.write_text("".join(json.dumps(line) + "\n" for line in kept))


class Progress:
    """A progress bar with loss, tokens/s and time left on a terminal; plain log lines elsewhere."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, label: str, steps: int, start_step: int):
        self._label, self._steps = label, steps
        self._bar = tqdm.tqdm(
            total=steps,
            initial=start_step,
            desc=label,
            unit="step",
            dynamic_ncols=True,
            disable=None,
        )
        self._last_line = time.monotonic()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        status = f"loss {loss:.3f}"
        if tokens_per_second:  # unknown at the first step, which compiles
            status += f", {tokens_per_second:,.0f} tokens/s"
        if not self._bar.disable:
            self._bar.set_postfix_str(status, refresh=False)
            self._bar.update(step - self._bar.n)
        elif step == self._steps or time.monotonic() - self._last_line > self.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            logger.info("%s: step %d/%d, %s", self._label, step, self._steps, status)

    def close(self) -> None:
        self._bar.close()


class Profile:
    """Records some steps with jax's profiler, into WORKDIR/profile, for TensorBoard; none if
    `steps` is empty.
    """

    def __init__(self, workdir: pathlib.Path, steps: range):
        self._folder, self._steps, self._recording = workdir / "profile", steps, False

    def step(self, number: int) -> None:
        """Called before a step is dispatched."""
        if self._recording and number not in self._steps:
            self.close()
        elif number in self._steps and not self._recording:
            jax.profiler.start_trace(self._folder)
            self._recording = True

    def close(self) -> None:
        if self._recording:
            jax.profiler.stop_trace()
            self._recording = False
            logger.info(
                "profile of steps %d to %d: %s", self._steps[0], self._steps[-1], self._folder
            )
