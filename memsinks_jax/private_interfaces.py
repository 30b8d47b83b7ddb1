"""What is used of other libraries that is not their public interface, each with what makes it
unnecessary.

A new version of a library may break any of these: tests/test_private_interfaces.py has a test for
each. Libraries are imported when they are used, so that every room can import this file.
"""

import traceback
from collections.abc import Callable


def trace_for_cudnn(version: int) -> None:
    """Makes jax trace attention for this version of cuDNN, as cuDNN writes it: 91000 is 9.10.

    jax (0.10 to 0.12) asks the machine for its version when it traces attention. A program that is
    only compiled runs on another machine, and here there may be no cuDNN. Unnecessary once jax
    takes the version from the described topology (`dnn_version_info` of a `target_config`), as XLA
    does.
    """
    from jax._src.cudnn import fused_attention_stablehlo

    fused_attention_stablehlo.check_cudnn_version = lambda: version


def without_preemption(checkpointer) -> None:
    """Keeps the saves of an Orbax checkpointer (version 1) from asking jax's preemption service.

    Orbax (0.12) would ask it with the number of the step, but `interruption.requested` uses other
    numbers, so a SIGTERM during a save would stop the run at neither. Unnecessary once
    `ocp.training.Checkpointer` has an option for it; its saves go through version 0's manager,
    which asks at each (google/orbax issue 3406).
    """
    checkpointer._manager.reached_preemption = lambda step: False


def find_cluster(seconds: int) -> tuple[str, int, int] | None:
    """Coordinator, processes and process of the cluster that jax detects; None if it detects none.

    jax (0.10 to 0.12) does not say what it has detected, so no message could name a missing host.
    Unnecessary once jax.distributed has a function that detects without connecting, or names the
    missing hosts itself. Without this interface `jax.distributed.initialize` detects the cluster
    all the same.
    """
    try:
        from jax._src.clusters import ClusterEnv

        found = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, seconds
        )[:3]
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, RuntimeError, OSError):
        return None
    return found if None not in found else None


def raised_by_devices(error: BaseException) -> bool:
    """Whether jax raised an error while it looked for its devices.

    jax (0.10 to 0.12) raises several types, RuntimeError among them, so they are known by their
    file alone. Unnecessary once there is a type of its own for it.
    """
    return traceback.extract_tb(error.__traceback__)[-1].filename.endswith("jax/_src/xla_bridge.py")


def change_config(flag, change: Callable) -> None:
    """Makes the flag of a config file hold `change(config)` instead of what the file returns.

    ml_collections (1.1) sets the fields that the command line overrides on the very object that the
    file returns, which frozen dataclasses refuse. Unnecessary once it replaces frozen dataclasses,
    or takes such a function.
    """
    read = flag.parser.parse
    flag.parser.parse = lambda path: change(read(path))
