"""Checks a machine before a long run: python -m memsinks_jax.doctor [--config=FILE] [--workdir=D]

Prints versions, devices, memory, mesh, attention kernel and clock, whether the workdir is writable
and shared by all hosts, and its newest checkpoint. Takes train's flags for several hosts and checks
all of them. Exit code 2 if it finds a problem.
"""

import dataclasses
import logging
import os
import pathlib
import platform
import secrets
import shutil
import time

import jax

from memsinks_jax.config import Config, InputError
from memsinks_jax.model.attention import choose_kernel
from memsinks_jax.models.initial import inherit
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import option
from memsinks_jax.training import hosts, memory, sharding
from memsinks_jax.training.checkpoint import bytes_of, library_versions, steps_in
from memsinks_jax.training.memory import readable
from memsinks_jax.training.seal import find_damage
from memsinks_jax.training.step import init_state

logger = logging.getLogger("memsinks_jax.doctor")

_CLOCK_SECONDS = 5.0  # a larger difference between hosts is reported


def examine(
    config: Config | None, workdir: pathlib.Path | None
) -> tuple[dict[str, str], list[str]]:
    """-> ({check: result}, [problems that would stop a run])."""
    found, problems = {}, []
    found["versions"] = ", ".join(
        f"{name} {version}" for name, version in library_versions().items()
    )
    found["machine"] = (
        f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores, "
        f"{readable(memory.of_host())} memory"
    )
    found["devices"] = (
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, {jax.process_count()} host(s)"
    )
    limit = memory.limit(jax.local_devices())
    found["device memory"] = f"{readable(limit)} each" if limit else "that of the host"
    clocks = hosts.all_gather(time.time())
    spread = max(clocks) - min(clocks)
    found["clock"] = (
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()) + f", hosts within {spread:.1f} s"
    )
    if spread > _CLOCK_SECONDS:
        problems.append(f"clock: the hosts differ by {spread:.0f} s; set their clocks")
    needed = 0
    if config is not None:
        try:
            mesh = sharding.make_mesh(config.mesh)
            sharding.check_batch(
                config.training.batch_size, mesh, microbatches=config.compute.accumulate
            )
            found["attention"] = choose_kernel(config, jax.default_backend())
            shapes = jax.eval_shape(lambda: init_state(config, 1))
            a_device = memory.on_a_device(sharding.placed(shapes, mesh))
            needed = bytes_of(shapes)
            parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes.params))
            found["mesh"] = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
            found["model"] = (
                f"{parameters:,} parameters; parameters and optimizer take {readable(a_device)} "
                "a device"
            )
            memory.check_memory(config, mesh)
        except InputError as error:
            found.setdefault("mesh", "refused")
            problems.append(f"{'memory' if 'model' in found else 'mesh'}: {error}")
    if workdir is not None:
        _examine_workdir(workdir, needed, found, problems)
    return found, problems


def _examine_workdir(workdir: pathlib.Path, needed: int, found: dict, problems: list) -> None:
    folder = next(
        path for path in (workdir.absolute(), *workdir.absolute().parents) if path.exists()
    )
    probe = folder / f".doctor-{hosts.broadcast(secrets.randbits(40))}"
    try:
        if jax.process_index() == 0:
            probe.write_text("doctor")
        hosts.broadcast(0)
        seen = hosts.all_gather(float(probe.exists()))
        missing = [str(host) for host, sees in enumerate(seen) if not sees]
        if missing:
            problems.append(
                f"workdir: host {', '.join(missing)} does not see {folder}; put it on a shared "
                "file system"
            )
        free = shutil.disk_usage(folder).free
        found["workdir"] = (
            f"{folder} is writable, {len(seen) - len(missing)} of {len(seen)} hosts share it, "
            f"{readable(free)} free"
        )
        if free < 3 * needed:
            problems.append(
                f"workdir: {readable(free)} are free and a run needs {readable(3 * needed)}: two "
                "checkpoints and a third"
            )
    except OSError as error:
        found["workdir"] = f"{folder} cannot be written"
        problems.append(f"workdir: {error}; choose another --workdir")
    finally:
        if jax.process_index() == 0:
            probe.unlink(missing_ok=True)
    steps = steps_in(workdir / "checkpoints")
    if not steps:
        found["checkpoints"] = "none"
        return
    damage = find_damage(workdir / "checkpoints" / str(steps[-1]))
    found["checkpoints"] = (
        f"of steps {', '.join(map(str, steps))}; the newest is "
        f"{'sound' if damage is None else 'damaged'}"
    )
    if damage:
        problems.append(
            f"checkpoints: {steps[-1]} is damaged ({damage}); training sets it aside and uses "
            "the one before"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    config: Config | None = None
    workdir: pathlib.Path | None = option(None, "Folder of the run; need not exist.")
    hosts: hosts.Hosts


def main(options: Options) -> dict:
    config = options.config and inherit(options.config, given=command_line.given())
    if options.hosts.coordinator:
        hosts.start(**vars(options.hosts))
    found, problems = examine(config, options.workdir)
    if jax.process_index() == 0:
        for what, text in found.items():
            logger.info("%-14s %s", what, text)
    if problems:
        raise InputError("; ".join(problems))
    return found


if __name__ == "__main__":
    command_line.run(main, Options)
