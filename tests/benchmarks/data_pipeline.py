"""Speed of making batches, and the cost of ids and masks: python tests/benchmarks/data_pipeline.py

Documents with lengths of web text (log-normal, 660 tokens on average) in rows of 2048, batches of 128, on one host. The
goal for the loader is 50 times what a 135M model reads on H200s at 40% MFU (1.23 GFLOPs a token, 989 TFLOP/s: 322,000
tokens/s), over 8 hosts. The cost of ids and masks is relative to the same rows without segments, positions, weights and
identities. Both sides alternate in one run; medians.
"""

import itertools
import statistics
import sys
import time

import numpy as np

from memsinks_jax.config import Config, DataConfig, TrainingConfig
from memsinks_jax.data import mixture, packing
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches

T, BATCH, DOCUMENTS, REPEATS, TAKEN = 2048, 128, 20_000, 7, 8
TARGET = 50 * 0.4 * 989e12 / 1.23e9 / 8  # tokens a second of a host


def bare_row(pieces, identities, row_length, end_of_text, documents_per_row=1, across=False):
    """packing.row_of without ids and masks."""
    inputs, targets = np.full(row_length, packing.PADDING, np.int32), np.full(row_length, packing.PADDING, np.int32)
    at = 0
    for tokens, start, stop in pieces:
        end, opens, closes = at + stop - start, start == 0, stop > len(tokens)
        inputs[at + opens : end] = tokens[start - 1 + opens : stop - 1]
        targets[at : end - closes] = tokens[start : stop - closes]
        at = end
    return {"inputs": inputs, "targets": targets}


def rows_of(kind):
    random = np.random.default_rng(0)
    lengths = np.maximum(random.lognormal(6, 1, DOCUMENTS).astype(int), 1)
    tokens = [random.integers(3, 49_000, n).astype(np.int32) for n in lengths]
    identities = random.integers(1, 2**32, (DOCUMENTS, 2), np.uint32)
    data = DataConfig(unique_documents=-1, repeated_documents=100, repetitions=20, row_length=T, rows=kind)
    config = Config(data=data, training=TrainingConfig(batch_size=BATCH))
    return Rows(config, mixture.plan_mixture(data, np.ones(DOCUMENTS, int), 0), tokens, lengths, identities, 1)


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
        rows, pairs = rows_of(kind), []
        for turn in range(REPEATS):
            pair = []
            for function in (whole, bare_row):
                packing.row_of = function
                pair.append(seconds(rows, turn * (TAKEN + 10)))
            pairs.append(pair)
        packing.row_of = whole
        speed = TAKEN * BATCH * T / statistics.median(pair[0] for pair in pairs)
        added = statistics.median(one / bare for one, bare in pairs) - 1
        print(
            f"{kind:9s} {speed / 1e6:6.1f} million tokens/s, {speed / TARGET:5.1f} times the target of "
            f"{TARGET / 1e6:.1f} ({TARGET / speed:.2f} such cores a host); ids and masks add {added:.0%} to the loader, "
            f"{added / (1 + added) * TARGET / speed:.1%} of a core at the target"
        )
        reached &= speed >= TARGET
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
