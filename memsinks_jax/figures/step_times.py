"""Times the training steps of several runs, side by side in one process."""

import dataclasses
import time
from collections.abc import Callable

from memsinks_jax.figures.runs import Run
from memsinks_jax.runs import workdir as workdirs

ROUNDS, SECONDS = 11, 0.5  # a turn takes about so long
_BATCHES = 16  # of the middle of the run, in turns


def measure(runs: list[Run]) -> list[Run]:
    """The same runs; `details` get "step_ms", the milliseconds of a step, a value a round. All take turns."""
    sides = [_steps_of(run) for run in runs]
    found = take_turns(sides, ROUNDS, SECONDS)
    return [
        dataclasses.replace(run, details=run.details | {"step_ms": of_run})
        for run, of_run in zip(runs, found, strict=True)
    ]


def take_turns(sides: list[Callable[[int], None]], rounds: int, seconds: float) -> list[list[float]]:
    """Milliseconds of a step of each side, by rounds: what else a machine does is then the same for all.

    Args:
      sides: functions that make that many steps and wait for them.
      seconds: about how long a turn takes. The order is turned round in every other round.
    """
    for side in sides:
        side(2)  # compiled, and once warm
    steps = [max(round(seconds / _seconds(side, 2)), 1) for side in sides]
    found = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides))[:: 1 if number % 2 else -1]:
            found[place].append(1e3 * _seconds(sides[place], steps[place]))
    return found


def _seconds(side: Callable[[int], None], steps: int) -> float:
    """Of one step."""
    began = time.perf_counter()
    side(steps)
    return (time.perf_counter() - began) / steps


def _steps_of(run: Run) -> Callable[[int], None]:
    """Makes steps of the run's program on batches of its middle, from a fresh state."""
    # Imported here: jax takes seconds to import, and only measuring needs it.
    import itertools

    import jax
    import numpy as np

    from memsinks_jax.data.pipeline import batches, steps_of
    from memsinks_jax.training import sharding
    from memsinks_jax.training.program import train_program

    config, rows = workdirs.read_config(run.workdir), workdirs.read_corpus(run.workdir).rows()
    steps, mesh = steps_of(config, rows), sharding.make_mesh(config.mesh)
    stream = batches(rows, config.training.batch_size, steps // 2, sharding.own_rows(config.training.batch_size, mesh))
    with jax.set_mesh(mesh):
        program = train_program(config, steps, mesh, rows.documents_per_row)
        state, seed = program.init(), np.uint32(config.seed)
        ready = [sharding.put_batch(batch, program.batch) for batch in itertools.islice(stream, _BATCHES)]

    def make(count: int) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            for number in range(count):
                state, metrics = program.step(state, ready[number % _BATCHES], seed)
            metrics["train_loss"].block_until_ready()

    return make
