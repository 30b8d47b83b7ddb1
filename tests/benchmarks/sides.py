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
import time

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
    peak_gib: float = 0.0

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
      seconds: a turn takes about this many, with as many steps for all, so that short pauses weigh
        the same; 0: one step. Every other round reverses the order.
    Raises:
      SideError: a side could not be built.
    """
    with contextlib.ExitStack() as held:
        asks = {name: held.enter_context(_process(name, *side)) for name, side in sides.items()}
        found = {name: Result(*ask(0), []) for name, ask in asks.items()}
        steps = 1
        if seconds:
            steps = max(3, round(seconds / min(ask(3)[0] / 3 for ask in asks.values())))
        for number in range(rounds):
            for name in list(asks)[:: 1 if number % 2 else -1]:
                found[name].seconds.append(asks[name](steps)[0] / steps)
        for name, ask in asks.items():
            found[name].peak_gib = ask(None)
    return found


def ratio(one: Result, other: Result) -> tuple[float, float, float]:
    """Of the time of a step of one over the other's, by rounds: (median, lower, upper quartile)."""
    ratios = [a / b for a, b in zip(one.seconds, other.seconds, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return median, low, high


@contextlib.contextmanager
def _process(name: str, build, *arguments):
    """A function (steps) -> what `_serve` answers."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, build, *arguments), daemon=True)
    process.start()
    there.close()

    def ask(steps):
        with contextlib.suppress(BrokenPipeError):  # it has said why
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
    """Answers 0 with (about, first number), a number of steps with (seconds, last number), and None
    with the peak of memory in GiB; with a line if something failed.
    """
    try:
        run, about = build(*arguments)
        first = run(1)
        run(_WARM)
        while (steps := pipe.recv()) is not None:
            start = time.perf_counter()
            number = run(steps) if steps else first
            pipe.send((time.perf_counter() - start, number) if steps else (about, first))
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        pipe.recv()
    except (EOFError, KeyboardInterrupt):
        pass  # who asked has ended
    except Exception as error:  # `_process` raises it
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
