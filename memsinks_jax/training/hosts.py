"""Runs on several hosts: how they connect, collective calls, and what is reported when one is
lost.
"""

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys

import numpy as np

from memsinks_jax import private_interfaces
from memsinks_jax.config import InputError, setting
from memsinks_jax.runs.interruption import EXIT_INTERRUPTED, Interruption
from memsinks_jax.training import rendezvous

_CHILD = "MEMSINKS_JAX_HOST_CHILD"
_START_SECONDS = 120  # to wait for a host that does not connect
_SILENCE_SECONDS = 30  # without a heartbeat until a host counts as lost
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def supervise(module: str, arguments: list[str], interruption: Interruption) -> int | None:
    """Runs the same command in a child process and waits for it -> its exit code. In that child:
    None, at once.

    When another host dies, jax aborts the process from C++ with only a stack trace. The parent
    remains to report what happened. The child dies with its parent, and gets its signals.
    """
    if os.environ.get(_CHILD) == str(os.getppid()):
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return None
    environment = os.environ | {_CHILD: str(os.getpid())}
    child = subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment)
    interruption.save_first()  # the child stops, once it has saved
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: child.send_signal(signal.SIGTERM))
    code = child.wait()
    if code in (0, 1, 2, EXIT_INTERRUPTED):
        return code
    print(
        f"interrupted: this process ended with code {code}, as it does when another host of the "
        "run is lost (see the logs "
        "of all); run the same command again on all hosts to resume from the last checkpoint",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The options of a command that runs on several hosts, as `start` takes them."""

    coordinator: str = setting(
        "",
        "For several hosts: HOST:PORT of process 0, or auto (TPU pods, Slurm, Kubernetes, "
        "Open MPI).",
    )
    processes: int = setting(1, "Number of processes, with --coordinator=HOST:PORT.", 1)
    process: int = setting(0, "Rank of this process, from 0.", 0)

    def __post_init__(self):
        if not self.coordinator and (self.processes, self.process) != (1, 0):
            raise InputError(
                f"flags {', '.join(f'{name}={value}' for name, value in vars(self).items())}: "
                "several hosts need --coordinator=HOST:PORT, the address of process 0"
            )


def start(coordinator: str, processes: int, process: int) -> None:
    """Joins the run's other hosts. Call it before anything asks jax for its devices.

    Args:
      coordinator: HOST:PORT of process 0, or 'auto' if jax can find it (TPU pods, Slurm, Open MPI,
        Kubernetes). processes, process: the number of processes, and the index of this one from 0;
        ignored with 'auto'.
    Raises:
      InputError: the hosts did not all connect in time.
    """
    if coordinator != "auto" and process >= processes:
        raise InputError(
            f"--process={process}: of --processes={processes} the last is --process={processes - 1}"
        )
    import jax

    where = (
        (coordinator, processes, process)
        if coordinator != "auto"
        else private_interfaces.find_cluster(_START_SECONDS)
    )
    try:
        missing = rendezvous.missing_hosts(*where, _START_SECONDS) if where else []
        if missing != []:
            who = (
                f"process 0 at {where[0]}"
                if missing is None
                else f"process {', '.join(map(str, missing))}"
            )
            raise InputError(
                f"--coordinator={coordinator}: {who} of {where[1]} did not connect within "
                f"{_START_SECONDS} s; start the "
                "same command on every host, --process from 0 on, and check that they reach each "
                "other"
            )
        named = dict(
            zip(("coordinator_address", "num_processes", "process_id"), where or (), strict=False)
        )
        jax.distributed.initialize(
            **(named if coordinator != "auto" else {}),
            initialization_timeout=_START_SECONDS,
            heartbeat_timeout_seconds=_SILENCE_SECONDS,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise InputError(
            f"--coordinator={coordinator} --processes={processes} --process={process}: the hosts "
            "did not connect "
            f"({' '.join(str(error).split())[:300]}); start the same command on every host, "
            "--process from 0 on"
        ) from None


def broadcast(value: int) -> int:
    """Process 0's value, on every host. Also a barrier."""
    return int(all_gather(value)[0])


def all_gather(value: float) -> list[float]:
    """Every host's value, on every host, in order. Also a barrier. Exact for times and for whole
    numbers.
    """
    import jax

    if jax.process_count() == 1:
        return [value]
    from jax.experimental import multihost_utils

    # As bytes: jax would make a float32 of it.
    gathered = multihost_utils.process_allgather(
        np.frombuffer(np.float64(value).tobytes(), np.uint8)
    )
    return np.ascontiguousarray(gathered).view(np.float64)[:, 0].tolist()


def all_equal(digest: str) -> bool:
    """Whether every host has the same hexadecimal digest, by its first 48 bits."""
    return len(set(all_gather(int(digest[:12], 16)))) == 1
