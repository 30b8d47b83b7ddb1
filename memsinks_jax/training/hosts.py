"""Several hosts, one run: how they find each other, agree, and what is told when one is lost."""

import ctypes
import os
import signal
import subprocess
import sys

from memsinks_jax.config import InputError
from memsinks_jax.interruption import EXIT_INTERRUPTED, Interruption

_CHILD = "MEMSINKS_JAX_HOST_CHILD"
_START_SECONDS = 120  # until a host that does not come is given up
_SILENCE_SECONDS = 30  # until a host that is not heard of counts as lost
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def supervise(module: str, arguments: list[str], interruption: Interruption) -> int | None:
    """Runs the same command in a child process and waits for it -> its exit code. In that child: None, at once.

    When another host dies, jax aborts the process from C++ with nothing but a stack trace. Someone must be left to say
    what happened; the child dies with its parent, and gets its signals.
    """
    if os.environ.get(_CHILD) == str(os.getppid()):
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return None
    environment = os.environ | {_CHILD: str(os.getpid())}
    child = subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment)
    interruption.save_first()  # it is the child that stops, when it has saved
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: child.send_signal(signal.SIGTERM))
    code = child.wait()
    if code in (0, 1, 2, EXIT_INTERRUPTED):
        return code
    print(
        f"interrupted: this process ended with code {code}, as it does when another host of the run is lost (see the logs "
        "of all); run the same command again on all hosts to go on from the last checkpoint",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED


def start(coordinator: str, processes: int, process: int, interruption: Interruption) -> None:
    """Joins the run's other hosts. Must come before anything asks jax for its devices.

    Args:
      coordinator: HOST:PORT of process 0, or 'auto' where jax finds it (TPU pods, Slurm, Open MPI, Kubernetes).
      processes, process: how many there are and which this is, from 0; ignored with 'auto'.
      interruption: from now on a SIGTERM at any host is known to all.
    Raises:
      InputError: the hosts did not all come together in time.
    """
    import jax
    from jax.experimental import multihost_utils

    where = {} if coordinator == "auto" else {
        "coordinator_address": coordinator, "num_processes": processes, "process_id": process,
    }  # fmt: skip
    try:
        jax.distributed.initialize(
            **where, initialization_timeout=_START_SECONDS, heartbeat_timeout_seconds=_SILENCE_SECONDS
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"--coordinator={coordinator} --processes={processes} --process={process}: the hosts did not come together "
            f"({' '.join(str(error).split())[:300]}); start the same command on every host, --process from 0 on"
        ) from None
    interruption.use_preemption_service(multihost_utils.reached_preemption_sync_point)


def agree(value: int) -> int:
    """Process 0's value, on every host; a barrier besides."""
    import jax

    if jax.process_count() == 1:
        return value
    import numpy as np
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int64(value).astype(np.int32)))


def all_equal(digest: str) -> bool:
    """Whether every host has the same hexadecimal digest."""
    import jax

    if jax.process_count() == 1:
        return True
    import numpy as np
    from jax.experimental import multihost_utils

    mine = np.frombuffer(bytes.fromhex(digest), np.uint8)
    return bool((multihost_utils.process_allgather(mine) == mine).all())
