"""Trains a model: python -m memsinks_jax.train --config=configs/smoke.py --workdir=runs/smoke

The same command again resumes where the newest checkpoint left off, and ends in bitwise the same parameters.
"""

import contextlib
import logging
import pathlib
import signal
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import flags

from memsinks_jax import command_line
from memsinks_jax import workdir as workdirs
from memsinks_jax.config import Config, InputError
from memsinks_jax.data.corpus import Corpus, entropy_floor, load_corpus
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches, steps_of
from memsinks_jax.evals.memorization import Memorization
from memsinks_jax.training import sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.metrics import MetricWriter, Progress, read_metrics
from memsinks_jax.training.step import init_state, make_train_step

logger = logging.getLogger("memsinks_jax.train")


def train_and_evaluate(config: Config, workdir: pathlib.Path, should_stop: Callable[[int], bool] = lambda step: False):
    """Trains to the last step, or resumes and trains to the last step.

    Args:
      config: validated.
      workdir: made if it does not exist; else it must hold a run with the same config.
      should_stop: asked after every step, with the number of finished steps; True saves and raises Interrupted.
    Returns:
      {"step", "train_loss", "tokens", "tokens_per_second", and the last evaluation's losses}.
    """
    # What can be refused is refused before anything is written.
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_batch(config.training.batch_size, mesh)
    workdirs.refuse_other_config(workdir, config)

    # Data.
    resuming = (workdir / "config.json").exists()
    corpus = workdirs.read_corpus(workdir) if resuming else load_corpus(config)
    rows = Rows(config.data, config.seed, corpus.mixture, corpus.tokens, corpus.identities)
    steps = steps_of(config, rows)

    # State: shapes give shardings, shardings place what is initialised or restored.
    shapes = jax.eval_shape(lambda: init_state(config, steps))
    shardings = sharding.shardings(shapes, mesh)
    if not resuming and jax.process_index() == 0:
        workdirs.create(workdir, config, corpus)
    checkpoints = Checkpoints(workdir, config.training.checkpoints_to_keep)
    if checkpoints.latest() == steps:
        checkpoints.close()
        return _summary(workdir)
    if checkpoints.latest() is None:
        state, tokens = jax.jit(lambda: init_state(config, steps), out_shardings=shardings)(), 0
    else:
        state, tokens = checkpoints.restore(shapes, shardings)
    start = int(state.step)
    _log_start(config, workdir, corpus, shapes, mesh, start, steps)

    # The step.
    train_step = jax.jit(
        make_train_step(config, steps),
        in_shardings=(shardings, jax.sharding.NamedSharding(mesh, sharding.BATCH), sharding.replicated(mesh)),
        out_shardings=(shardings, sharding.replicated(mesh)),
        donate_argnums=0,
    )
    seed = np.uint32(config.seed)
    memorization = Memorization(config, corpus, lambda batch: sharding.put_batch(batch, mesh))
    stream = batches(rows, config.training.batch_size, start, jax.process_index(), jax.process_count())

    # The loop: step t is dispatched before the metrics of t - 1 are fetched, so the device never waits for Python.
    writer = MetricWriter(workdir, start)
    progress = Progress(f"{config.variant}, seed {config.seed}", steps, start)
    clock = _Clock()
    pending = None

    def fetch() -> None:
        nonlocal tokens, pending
        step, values = pending
        pending = None
        values = {name: float(value) for name, value in jax.device_get(values).items()}
        tokens += int(values["tokens"])
        values |= {"tokens": tokens, "tokens_per_second": clock.tokens_per_second(tokens)}
        progress.update(step, values["train_loss"], values["tokens_per_second"])
        if step % config.training.log_every == 0 or step == steps:
            writer.write(step, values)

    try:
        for step in range(start + 1, steps + 1):
            state, metrics = train_step(state, sharding.put_batch(next(stream), mesh), seed)
            if pending:
                fetch()
            pending = (step, metrics)
            stop = should_stop(step)
            if step % config.training.evaluate_every == 0 or step == steps:
                fetch()
                with clock.paused():
                    writer.write(step, dict(memorization.run(state.params)))
            if step % config.training.checkpoint_every == 0 or step == steps or stop:
                if pending:
                    fetch()
                checkpoints.save(step, state, tokens)
            if stop and step < steps:
                raise command_line.Interrupted(f"saved step {step} of {steps} in {workdir}")
    finally:
        progress.close()
        writer.close()
        checkpoints.close()
    return _summary(workdir)


class _Clock:
    """Tokens a second of this process, without the first step, which compiles, and without evaluations."""

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


def _log_start(config, workdir, corpus: Corpus, shapes, mesh, start: int, steps: int) -> None:
    parameters = sum(a.size for a in jax.tree.leaves(shapes.params))
    floor = entropy_floor(corpus, corpus.mixture.held_out, config.data.row_length)
    plan = corpus.mixture
    logger.info(
        "%s, seed %d: %d parameters, %d steps of %d rows from step %d, %d %s device(s), %s",
        config.variant, config.seed, parameters, steps, config.training.batch_size, start,
        mesh.size, jax.default_backend(), workdir,
    )  # fmt: skip
    logger.info(
        "documents: %d unique, %d repeated (%d encounters an epoch in all), %d held out, %d exact copies left out%s",
        len(plan.unique), len(plan.repeated), len(plan.encounters), len(plan.held_out), corpus.duplicates,
        "" if floor is None else f"; entropy floor {floor:.3f} nats per token",
    )  # fmt: skip


def _summary(workdir: pathlib.Path) -> dict:
    """The last value of everything that was written, as the command's JSON."""
    latest = {}
    for line in read_metrics(workdir):
        latest |= line
    return {name: latest[name] for name in latest if name not in ("gradient_norm", "learning_rate")}


def _stop_on_signals() -> Callable[[int], bool]:
    """SIGTERM and Ctrl-C ask the run to save and end; a second Ctrl-C ends it at once."""
    asked = []

    def ask(number, frame):
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return lambda step: bool(asked)


def main() -> None:
    config_flag = command_line.define_config()
    workdir_flag = flags.DEFINE_string("workdir", None, "Folder of the run; made if missing, resumed if it exists.")

    def run() -> dict:
        config = command_line.read_config(config_flag)
        if not workdir_flag.value:
            raise InputError("--workdir is missing; give a folder for the run, for example --workdir=runs/first")
        result = train_and_evaluate(config, pathlib.Path(workdir_flag.value), _stop_on_signals())
        logger.info("%s", ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()))
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
