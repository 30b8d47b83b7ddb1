"""Speed of making batches, and the cost of ids and masks: python tests/benchmarks/data_pipeline.py

Documents with lengths of web text (log-normal, 660 tokens on average) in rows of 2048, batches of
128, on one host. The goal for the loader is 50 times what a 135M model reads on H200s at 40% MFU
(1.23 GFLOPs a token, 989 TFLOP/s: 322,000 tokens/s), over 8 hosts. The cost of ids and masks is
relative to the same rows without segments, positions, weights and identities; that of contexts is
of their lookup among 10^7 keys. All sides alternate in one run; medians.
"""

import itertools
import statistics
import sys
import time

import numpy as np

from memsinks_jax.config import Config, DataConfig, TrainingConfig
from memsinks_jax.data import packing
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.mixture import plan_mixture
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches
from memsinks_jax.data.table import Listed, Table

T, BATCH, DOCUMENTS, REPEATS, TAKEN, KEYS = 2048, 128, 20_000, 5, 32, 10**7
TARGET = 50 * 0.4 * 989e12 / 1.23e9 / 8  # tokens a second of a host


def bare_row(pieces, identities, row_length, *_, **__):
    """packing.row_of without ids and masks."""
    inputs, targets = (
        np.full(row_length, packing.PADDING, np.int32),
        np.full(row_length, packing.PADDING, np.int32),
    )
    at = 0
    for tokens, start, stop, *_ in pieces:
        end, opens, closes = at + stop - start, start == 0, stop > len(tokens)
        inputs[at + opens : end] = tokens[start - 1 + opens : stop - 1]
        targets[at : end - closes] = tokens[start : stop - closes]
        at = end
    return {"inputs": inputs, "targets": targets}


def rows_of(kind):
    """The rows of a run without sinks by context, and with them."""
    random = np.random.default_rng(0)
    lengths = np.maximum(random.lognormal(6, 1, DOCUMENTS).astype(int), 1)
    table = Table([Listed([random.integers(3, 49_000, n).astype(np.int32) for n in lengths])])
    data = DataConfig(
        unique_documents=-1,
        repeated_documents=100,
        repetitions=20,
        held_out_documents=0,
        row_length=T,
        rows=kind,
    )
    config = Config(data=data, training=TrainingConfig(batch_size=BATCH))
    mixture = plan_mixture(config, table)
    keys = np.unique(random.integers(2**64, size=KEYS, dtype=np.uint64))
    # all have some
    letters = random.integers(2**32, size=(49_000, 7), dtype=np.uint32) | np.uint32(1)
    return Rows(config, mixture, 1), Rows(
        config, mixture, 1, contexts=Contexts(keys, config.contexts.length, letters)
    )


def seconds(rows, start):
    stream = batches(rows, BATCH, start)
    next(stream)
    began = time.perf_counter()
    for _ in itertools.islice(stream, TAKEN):
        pass
    return time.perf_counter() - began


def main():
    whole, reached = packing.row_of, True
    for kind in ("packed", "best_fit"):
        (plain, with_contexts), measured = rows_of(kind), []
        for turn in range(REPEATS):
            times = []
            for rows, function in ((plain, whole), (plain, bare_row), (with_contexts, whole)):
                packing.row_of = function
                times.append(seconds(rows, turn * (TAKEN + 10)))
            measured.append(times)
        packing.row_of = whole
        speed = TAKEN * BATCH * T / statistics.median(times[0] for times in measured)
        added = statistics.median(one / bare for one, bare, _ in measured) - 1
        contexts = statistics.median(found / one for one, _, found in measured) - 1
        print(
            f"{kind:9s} {speed / 1e6:6.1f} million tokens/s, {speed / TARGET:5.1f} times the "
            "target of "
            f"{TARGET / 1e6:.1f} ({TARGET / speed:.2f} such cores a host); ids and masks add "
            f"{added:.0%} to the loader, "
            f"{added / (1 + added) * TARGET / speed:.1%} of a core at the target; contexts add "
            f"{contexts:.0%}"
        )
        reached &= speed >= TARGET
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
