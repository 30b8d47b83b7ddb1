"""The Grain pipeline: batches of rows; each host gets the rows it needs. The only state is the
step.
"""

import collections.abc

import grain
import numpy as np

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
    """Yields this host's rows of the global batch of step `start_step`, then of the next,
    endlessly.

    The global batch of step s holds rows s * batch_size to (s + 1) * batch_size - 1. So a step sees
    the same rows for any number of hosts, threads, prefetching, and after any resume.

    Args:
      offsets: int (K,), the rows of the global batch to yield, see `sharding.own_rows`; None: all.
    Yields:
      The arrays of data/packing.py with a leading axis of these rows: inputs (K, T), ...
    """
    offsets = np.arange(batch_size) if offsets is None else offsets

    def local_batch(step: int) -> dict[str, np.ndarray]:
        # One Grain element is a whole batch, so that fewer elements pass between threads.
        made = [rows[number] for number in ((start_step + step) * batch_size + offsets).tolist()]
        return {name: np.stack([row[name] for row in made]) for name in made[0]}

    dataset = grain.MapDataset.range(2**62 // batch_size).map(local_batch)
    return iter(
        dataset.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
        )
    )
