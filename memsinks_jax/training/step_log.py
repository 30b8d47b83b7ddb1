"""Logs the steps of a run."""

import contextlib
import logging
import math
import pathlib
import time
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from memsinks_jax.config import Config, InputError, flatten
from memsinks_jax.data import ids
from memsinks_jax.data.packing import Rows
from memsinks_jax.training.flops import utilization
from memsinks_jax.training.metrics import MetricWriter, Progress, open_wandb

logger = logging.getLogger(__name__)


class StepLog:
    """Writes and shows a run's metrics, on one host. `tokens` counts those of all steps so far,
    `clock` times them.

    `wandb` is a project of Weights & Biases that also gets the metrics.
    """

    def __init__(
        self,
        config: Config,
        workdir: pathlib.Path,
        rows: Rows,
        mesh: Mesh,
        start: int,
        steps: int,
        tokens: int,
        wandb: str = "",
    ):
        self._config, self._workdir, self._rows, self._steps = config, workdir, rows, steps
        self._devices, self._utilized = (
            mesh.size,
            utilization(config, mesh.devices.flat[0].device_kind),
        )
        self.tokens, self.clock, self._bar, self._writer = tokens, Clock(), None, None
        if jax.process_index() == 0:
            opened = open_wandb(wandb, workdir, flatten(config)) if wandb else None
            self._writer = MetricWriter(workdir, start, opened)
            self._bar = Progress(f"{config.variant}, seed {config.seed}", steps, start)

    def step(self, number: int, metrics: dict) -> None:
        """Records the metrics of a train step. Raises InputError on every host if too many updates
        in a row were skipped.
        """
        training = self._config.training
        values = {name: float(value) for name, value in metrics.items()}
        self.tokens += int(values["tokens"])
        in_a_row = int(values.pop("skipped_in_a_row"))
        speed = self.clock.tokens_per_second(self.tokens)
        values |= {
            "tokens": self.tokens,
            "tokens_per_second": speed,
            **self._utilized(speed / self._devices),
        }
        if self._writer:
            self._bar.update(number, values["train_loss"], values["tokens_per_second"])
            if number % training.log_every == 0 or number == self._steps:
                self._writer.write(number, {n: v for n, v in values.items() if math.isfinite(v)})
            if values["invalid_labels"]:
                logger.warning(
                    "step %d: %d invalid labels left out of the loss",
                    number,
                    values["invalid_labels"],
                )
            if in_a_row:
                self._writer.write_skipped(
                    number, values, _documents_of(self._rows, number, training.batch_size)
                )
                logger.warning(
                    "step %d: update skipped, loss %g, gradient norm %g",
                    number,
                    values["train_loss"],
                    values["gradient_norm"],
                )
        if in_a_row >= training.skips_in_a_row:
            raise InputError(
                f"{in_a_row} consecutive updates were skipped, the last at step {number} (loss "
                f"{values['train_loss']:g}, "
                f"gradient norm {values['gradient_norm']:g}); the documents of their batches are "
                "in "
                f"{self._workdir / 'skipped.jsonl'}; remove them or lower "
                "config.optimizer.learning_rate in another "
                "--workdir, or go on past them with a higher config.training.skips_in_a_row"
            )

    def measured(self, step: int, values: dict[str, float]) -> None:
        """Records measurements of the model after a step."""
        if self._writer:
            self._writer.write(step, values)

    def sync(self) -> None:
        """Flushes the files. Called before a checkpoint that counts their lines as written."""
        if self._writer:
            self._writer.sync()

    def close(self) -> None:
        if self._writer:
            self._writer.close()
            self._bar.close()


class Clock:
    """Tokens/s of this process, without the first step, which compiles, and without evaluations."""

    def __init__(self):
        self._start, self._tokens_at_start = None, 0

    def tokens_per_second(self, tokens: int) -> float:
        if self._start is None:
            self._start, self._tokens_at_start = time.monotonic(), tokens
            return 0.0
        return (tokens - self._tokens_at_start) / (time.monotonic() - self._start)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        if self._start is not None:
            self._start += time.monotonic() - before


def _documents_of(rows: Rows, step: int, batch_size: int) -> list[str]:
    """Ids of the documents that a step saw, on all hosts."""
    batch = [
        rows[number]["identities"] for number in range((step - 1) * batch_size, step * batch_size)
    ]
    return sorted({ids.to_hex(identity) for row in batch for identity in row if identity.any()})
