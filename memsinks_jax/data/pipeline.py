"""The Grain pipeline: rows to batches, a share for each host. Its whole state is one integer, the step."""

import collections.abc

import grain
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.data.packing import Rows

PREFETCH_BATCHES = 8


def batches(
    rows: Rows,
    batch_size: int,
    start_step: int = 0,
    process: int = 0,
    processes: int = 1,
    threads: int = 2,
    prefetch: int = PREFETCH_BATCHES,
) -> collections.abc.Iterator[dict[str, np.ndarray]]:
    """This host's part of the global batch of step `start_step`, then of the next, without end.

    The global batch of step s holds rows s * batch_size to (s + 1) * batch_size - 1; host h of n takes the h-th of n
    equal runs of them. So neither hosts, nor threads, nor prefetching, nor where a run resumed changes what a step sees.

    Yields:
      The arrays of data/packing.py with a batch axis in front: inputs (B / processes, T), ...
    """
    share = batch_size // processes

    def local_batch(step: int) -> dict[str, np.ndarray]:
        # A batch is one element of Grain's, so that fewer pass between its threads.
        first = (start_step + step) * batch_size + process * share
        made = [rows[number] for number in range(first, first + share)]
        return {name: np.stack([row[name] for row in made]) for name in made[0]}

    dataset = grain.MapDataset.range(2**62 // batch_size).map(local_batch)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)))


def steps_of(config: Config, rows: Rows) -> int:
    """Optimizer steps of a run: as the config says, or as many as its epochs take."""
    if config.training.steps:
        return config.training.steps
    counted = rows.rows_per_epoch_with_repeats if config.training.count_removed_repeats else rows.rows_per_epoch
    return max(config.training.epochs * counted // config.training.batch_size, 1)
