"""The Grain pipeline: rows to batches, a share for each host. Its whole state is one integer, the step."""

import collections.abc

import grain
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.data.packing import Rows

PREFETCH_BATCHES = 8


def batches(
    rows: Rows, batch_size: int, start_step: int = 0, process: int = 0, processes: int = 1
) -> collections.abc.Iterator[dict[str, np.ndarray]]:
    """This host's part of the global batch of step `start_step`, then of the next, without end.

    The global batch of step s holds rows s * batch_size to (s + 1) * batch_size - 1; host h of n takes the h-th of n
    equal runs of them. So neither hosts, nor threads, nor where a run resumed changes what a step sees.

    Yields:
      The arrays of data/packing.py with a batch axis in front: inputs (B / processes, T), ...
    """
    share = batch_size // processes

    def local_row(index: int) -> dict[str, np.ndarray]:
        step, place = divmod(index, share)
        return rows[(start_step + step) * batch_size + process * share + place]

    dataset = grain.MapDataset.range(2**62).map(local_row).batch(share)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=PREFETCH_BATCHES)))


def steps_of(config: Config, rows: Rows) -> int:
    """Optimizer steps of a run: as the config says, or as many as its epochs take."""
    if config.training.steps:
        return config.training.steps
    counted = rows.rows_per_epoch_with_repeats if config.training.count_removed_repeats else rows.rows_per_epoch
    return max(config.training.epochs * counted // config.training.batch_size, 1)
