"""What a run writes down and shows: JSON lines always, TensorBoard events beside them, a progress bar on a terminal."""

import json
import logging
import os
import pathlib
import sys
import time

import tensorboardX
import tqdm

logger = logging.getLogger(__name__)


class MetricWriter:
    """Appends to `metrics.jsonl` and to TensorBoard events under `tensorboard/`.

    A line is {"step": finished steps, name: value, ...}. When a run resumes at `start_step`, later lines of the run
    that was interrupted are taken away first: every step stands in the file once.
    """

    def __init__(self, workdir: pathlib.Path, start_step: int):
        path = workdir / "metrics.jsonl"
        kept = [line for line in _lines(path) if json.loads(line)["step"] <= start_step]
        scratch = path.with_suffix(".jsonl.new")
        scratch.write_text("".join(line + "\n" for line in kept))
        os.replace(scratch, path)
        self._file = path.open("a")
        self._events = tensorboardX.SummaryWriter(str(workdir / "tensorboard"), purge_step=start_step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._events.close()


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    """All lines of a run's `metrics.jsonl`, in order; [] before the first."""
    return [json.loads(line) for line in _lines(workdir / "metrics.jsonl")]


def _lines(path: pathlib.Path) -> list[str]:
    # A killed run may leave half a line at the end: it has no line break and is not a line.
    return (
        [line[:-1] for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


class Progress:
    """A bar with loss, tokens a second and time left on a terminal; plain log lines elsewhere."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, label: str, steps: int, start_step: int):
        self._label, self._steps = label, steps
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm.tqdm(total=steps, initial=start_step, desc=label, unit="step", dynamic_ncols=True)
        self._last_line = time.monotonic()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s", refresh=False)
            self._bar.update(step - self._bar.n)
        elif step == self._steps or time.monotonic() - self._last_line > self.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            logger.info(
                "%s: step %d/%d, loss %.3f, %.0f tokens/s", self._label, step, self._steps, loss, tokens_per_second
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
