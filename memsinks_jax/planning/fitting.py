"""Looks for settings that fit where those of a plan do not."""

from collections.abc import Callable

from memsinks_jax.config import Config, with_fields
from memsinks_jax.planning.estimate import Estimate, TooBig

_MOST_COMPILES = 3


def settings(config: Config) -> str:
    """The settings that change, as flags."""
    return (
        f"--config.compute.remat={config.compute.remat} "
        f"--config.compute.accumulate={config.compute.accumulate} "
        f"--config.compute.loss_chunks={config.compute.loss_chunks}"
    )


def what_fits(
    config: Config,
    compile_step: Callable[[Config], Estimate],
    parts: int,
    state: float,
    too_big: TooBig,
) -> Config | None:
    """A config of the same batch near one that is too big; None if no tried one fits.

    First all layers are recomputed, then the loss is computed in chunks and the batch in
    microbatches.

    Args:
      parts: devices that the batch is split over.
      state: GiB per chip of parameters, optimizer state and batch, which no change makes smaller.
    """
    for _ in range(_MOST_COMPILES):
        changes = {"compute.remat": "full"}
        if config.compute.remat == "full":
            rows = config.training.batch_size // (parts * config.compute.accumulate)
            over = (
                (too_big.needed - state) / max(too_big.limit - state, 0.1) if too_big.needed else 4
            )
            enough = [
                n for n in range(1, rows + 1) if rows % n == 0 and n >= min(max(over, 2), rows)
            ]
            changes = {
                "compute.loss_chunks": max(config.compute.loss_chunks, 8),
                "compute.accumulate": config.compute.accumulate * enough[0],
            }
        changed = with_fields(config, changes)
        if changed == config:
            return None
        config = changed
        try:
            found = compile_step(config).too_big
        except TooBig as error:
            found = error
        if found is None:
            return config
        too_big = found
    return None
