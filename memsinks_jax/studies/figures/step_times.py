"""Times the training steps of several runs, side by side in one process."""

import dataclasses
import time
from collections.abc import Callable

from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures.runs import Run

ROUNDS, SECONDS = 11, 0.5  # a turn takes about this many seconds
_BATCHES = 16  # from the middle of the run, cycled


def measure(runs: list[Run]) -> list[Run]:
    """Adds "step_ms" to `details`: milliseconds per step, by rounds. All runs take turns."""
    sides = [_steps_of(run) for run in runs]
    found = take_turns(sides, ROUNDS, SECONDS)
    return [
        dataclasses.replace(run, details=run.details | {"step_ms": of_run})
        for run, of_run in zip(runs, found, strict=True)
    ]


def take_turns(
    sides: list[Callable[[int], None]], rounds: int, seconds: float
) -> list[list[float]]:
    """Milliseconds per step of each side, by rounds. Taking turns exposes all sides to the same
    load on the machine.

    Args:
      sides: functions that run a number of steps and wait for them.
      seconds: approximate duration of a turn. Every other round reverses the order.
    """
    for side in sides:
        side(2)  # compiles, and warms up
    steps = [max(round(seconds / _seconds(side, 2)), 1) for side in sides]
    found = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides))[:: 1 if number % 2 else -1]:
            found[place].append(1e3 * _seconds(sides[place], steps[place]))
    return found


def _seconds(side: Callable[[int], None], steps: int) -> float:
    """Seconds per step."""
    began = time.perf_counter()
    side(steps)
    return (time.perf_counter() - began) / steps


def _steps_of(run: Run) -> Callable[[int], None]:
    """Runs steps of the run's program on batches from its middle, from a fresh state."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    import itertools

    import jax
    import numpy as np

    from memsinks_jax.data.pipeline import batches
    from memsinks_jax.training import sharding
    from memsinks_jax.training.program import train_program

    config, rows = workdirs.read_config(run.workdir), workdirs.read_corpus(run.workdir).rows()
    size, steps, mesh = config.training.batch_size, rows.steps, sharding.make_mesh(config.mesh)
    stream = batches(rows, size, steps // 2, sharding.own_rows(size, mesh))
    with jax.set_mesh(mesh):
        program = train_program(config, steps, mesh, rows.documents_per_row)
        state, seed = program.init(), np.uint32(config.seed)
        taken = itertools.islice(stream, min(_BATCHES, steps - steps // 2))
        ready = [sharding.put_batch(batch, program.batch) for batch in taken]

    def make(count: int) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            for number in range(count):
                state, metrics = program.step(state, ready[number % len(ready)], seed)
            metrics["train_loss"].block_until_ready()

    return make
