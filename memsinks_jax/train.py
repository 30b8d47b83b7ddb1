"""Trains a model: python -m memsinks_jax.train --config=configs/smoke.py --workdir=runs/smoke

The same command resumes at the newest checkpoint. The result is bitwise that of an uninterrupted
run. On several hosts the same command runs on each, with --coordinator=auto (TPU pods, Slurm) or
--coordinator=HOST:PORT --processes=N --process=0 to N - 1.
With --plan it prints how often each document would be read, and exits: nothing is trained or
written.
"""

import logging
import pathlib
import sys

from memsinks_jax.runs.interruption import Interruption


def main() -> None:
    # before the imports below, which take seconds: no signal may be lost
    interruption = Interruption()
    from absl import flags

    from memsinks_jax.config import InputError
    from memsinks_jax.runs import command_line
    from memsinks_jax.training import hosts

    config_flag = command_line.define_config()
    workdir_flag = flags.DEFINE_string(
        "workdir", None, "Folder of the run; created if missing, resumed if it exists."
    )
    host_flags = hosts.define_flags()
    profile_flag = flags.DEFINE_string(
        "profile", "", "Steps to profile with JAX, FIRST:LAST, for example 10:14."
    )
    wandb_flag = flags.DEFINE_string("wandb", "", "Weights & Biases project to log the metrics to.")
    plan_flag = flags.DEFINE_bool(
        "plan", False, "Print how often documents would be read; train nothing."
    )
    logger = logging.getLogger("memsinks_jax.train")

    def run() -> dict:
        config = command_line.read_config(config_flag)
        if plan_flag.value:
            from memsinks_jax.data.corpus import load_corpus
            from memsinks_jax.data.counts import as_text, counts
            from memsinks_jax.models.initial import inherit

            config = inherit(config, given=command_line.given(config_flag))
            counted = counts(load_corpus(config))
            logger.info("%s", "\n".join(as_text(counted, config.data.row_length)))
            return counted
        command_line.require(workdir_flag)
        first, _, last = profile_flag.value.partition(":")
        if profile_flag.value and not (
            first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)
        ):
            raise InputError(
                f"--profile={profile_flag.value} is not FIRST:LAST; give two steps, for example "
                "10:14"
            )
        coordinator, processes, process = (flag.value for flag in host_flags)
        if coordinator:
            code = hosts.supervise("memsinks_jax.train", sys.argv[1:], interruption)
            if code is not None:
                sys.exit(code)
            hosts.start(coordinator, processes, process)
            from jax.experimental.multihost_utils import reached_preemption_sync_point

            interruption.use_preemption_service(reached_preemption_sync_point)
        # imports jax, which asks for its devices
        from memsinks_jax.loop import train_and_evaluate

        result = train_and_evaluate(
            config,
            pathlib.Path(workdir_flag.value),
            lambda step: interruption.requested(),
            interruption.save_first,
            profiled=range(int(first), int(last) + 1) if first else range(0),
            wandb=wandb_flag.value,
            given=command_line.given(config_flag),
        )
        logger.info(
            "%s",
            ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()
            ),
        )
        return result

    command_line.run(run)


if __name__ == "__main__":
    main()
