"""Trains a model: python -m memsinks_jax.train --config=configs/smoke.py --workdir=runs/smoke

The same command resumes at the newest checkpoint. The result is bitwise that of an uninterrupted
run. On several hosts the same command runs on each, with --coordinator=auto (TPU pods, Slurm) or
--coordinator=HOST:PORT --processes=N --process=0 to N - 1.
With --plan it prints how often each document would be read, and exits: nothing is trained or
written.
"""

import dataclasses
import logging
import pathlib
import sys

from memsinks_jax.runs.interruption import Interruption


def main() -> None:
    # before the imports below, which take seconds: no signal may be lost
    interruption = Interruption()
    from memsinks_jax.config import Config, InputError
    from memsinks_jax.runs import command_line
    from memsinks_jax.runs.command_line import option
    from memsinks_jax.training.hosts import Hosts, start, supervise

    logger = logging.getLogger("memsinks_jax.train")

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options:
        config: Config
        workdir: pathlib.Path | None = option(
            None, "Folder of the run; created if missing, resumed if it exists."
        )
        profile: str = option("", "Steps to profile with JAX, FIRST:LAST, for example 10:14.")
        wandb: str = option("", "Weights & Biases project to log the metrics to.")
        plan: bool = option(False, "Print how often documents would be read; train nothing.")
        hosts: Hosts

    def run(options: Options) -> dict:
        config = options.config
        if options.plan:
            from memsinks_jax.data.corpus import load_corpus
            from memsinks_jax.data.counts import as_text, counts
            from memsinks_jax.models.initial import inherit

            config = inherit(config, given=command_line.given(), parts=config.compute.accumulate)
            counted = counts(load_corpus(config))
            logger.info("%s", "\n".join(as_text(counted, config.data.row_length)))
            return counted
        command_line.require(options, "workdir")
        first, _, last = options.profile.partition(":")
        if options.profile and not (
            first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)
        ):
            raise InputError(
                f"--profile={options.profile} is not FIRST:LAST; give two steps, for example 10:14"
            )
        if options.hosts.coordinator:
            code = supervise("memsinks_jax.train", sys.argv[1:], interruption)
            if code is not None:
                sys.exit(code)
            start(**vars(options.hosts))
            from jax.experimental.multihost_utils import reached_preemption_sync_point

            interruption.use_preemption_service(reached_preemption_sync_point)
        # imports jax, which asks for its devices
        from memsinks_jax.loop import train_and_evaluate

        result = train_and_evaluate(
            config,
            options.workdir,
            lambda step: interruption.requested(),
            interruption.save_first,
            profiled=range(int(first), int(last) + 1) if first else range(0),
            wandb=options.wandb,
            given=command_line.given(),
        )
        logger.info(
            "%s",
            ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()
            ),
        )
        return result

    command_line.run(run, Options)


if __name__ == "__main__":
    main()
