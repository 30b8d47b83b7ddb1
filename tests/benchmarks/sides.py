"""Runs the sides of a benchmark in turns, each in a process of its own; the others wait meanwhile.

A side is a function that builds it and returns (run, what it says of itself); `run(steps)` makes so
many steps and returns a number, such as the last loss.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import statistics

from memsinks_jax.studies.figures import step_times

THREADS = 2
_WARM = 3  # more steps, until the heap has grown to what it needs


class SideError(Exception):
    """A side could not be built, or run."""


@dataclasses.dataclass
class Result:
    """Of one side: what it says of itself, the number that its first step returned, seconds of a
    step by rounds, and its peak of resident memory.
    """

    about: object
    first: float
    seconds: list[float]
    peak_gib: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def two_threads() -> None:
    """For this process and all that it starts. XLA makes as many threads as it may use cores."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(THREADS)}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


def take_turns(sides: dict[str, tuple], rounds: int, seconds: float = 0.0) -> dict[str, Result]:
    """{name: (builds it, its arguments...)} -> {name: its result}.

    Args:
      seconds: of a turn, about; 0: one step.
    Raises:
      SideError: a side could not be built, or failed.
    """
    with contextlib.ExitStack() as held:
        asks = [held.enter_context(_process(name, *side)) for name, side in sides.items()]
        said = [ask() for ask in asks]
        by_side = step_times.take_turns(asks, rounds, seconds)
        return {
            name: Result(*about, [1e-3 * ms for ms in of], ask(None))
            for name, about, of, ask in zip(sides, said, by_side, asks, strict=True)
        }


def ratio(one: Result, other: Result) -> tuple[float, float, float]:
    """Of the time of a step of one over the other's, by rounds: (median, lower, upper quartile)."""
    ratios = [a / b for a, b in zip(one.seconds, other.seconds, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return median, low, high


@contextlib.contextmanager
def _process(name: str, build, *arguments):
    """A function that asks `_serve`; the first answer needs no question."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, build, *arguments), daemon=True)
    process.start()
    there.close()

    def ask(*question):
        with contextlib.suppress(BrokenPipeError):  # it has said why
            for steps in question:
                here.send(steps)
        try:
            answer = here.recv()
        except (EOFError, ConnectionError):
            raise SideError(f"{name}: its process ended") from None
        if isinstance(answer, str):
            raise SideError(f"{name}: {answer}")
        return answer

    try:
        yield ask
    finally:
        here.close()  # for which it waits
        process.join(timeout=10)
        process.terminate()


def _serve(pipe, build, *arguments):
    """Says (about, first number) when it is ready. Answers a number of steps after it made them, and
    None with the peak of memory in GiB; with a line if something failed.
    """
    try:
        run, about = build(*arguments)
        first = run(1)
        run(_WARM)
        pipe.send((about, first))
        while (steps := pipe.recv()) is not None:
            run(steps)
            pipe.send(None)
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        pipe.recv()
    except (EOFError, KeyboardInterrupt):
        pass  # who asked has ended
    except Exception as error:  # `_process` raises it
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
