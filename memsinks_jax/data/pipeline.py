"""The Grain pipeline: batches of rows, on each host those it needs. Its only state is the step."""

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
    offsets: np.ndarray | None = None,
    threads: int = 2,
    prefetch: int = PREFETCH_BATCHES,
) -> collections.abc.Iterator[dict[str, np.ndarray]]:
    """This host's rows of the global batch of step `start_step`, then of the next, without end.

    The global batch of step s holds rows s * batch_size to (s + 1) * batch_size - 1. So neither hosts, nor threads, nor
    prefetching, nor where a run resumed changes what a step sees.

    Args:
      offsets: int (K,), the places in the global batch of the rows to yield, see `sharding.own_rows`; None: all.
    Yields:
      The arrays of data/packing.py with an axis of these rows in front: inputs (K, T), ...
    """
    offsets = np.arange(batch_size) if offsets is None else offsets

    def local_batch(step: int) -> dict[str, np.ndarray]:
        # A batch is one element of Grain's, so that fewer pass between its threads.
        made = [rows[number] for number in ((start_step + step) * batch_size + offsets).tolist()]
        return {name: np.stack([row[name] for row in made]) for name in made[0]}

    dataset = grain.MapDataset.range(2**62 // batch_size).map(local_batch)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)))


def steps_of(config: Config, rows: Rows) -> int:
    """Optimizer steps of a run: as the config says, or as many as its epochs take."""
    if config.training.steps:
        return config.training.steps
    counted = rows.rows_per_epoch_with_repeats if config.training.count_removed_repeats else rows.rows_per_epoch
    return max(config.training.epochs * counted // config.training.batch_size, 1)
