"""How many steps a run has, and what it reads in them. That a batch is a function of its step:
test_rows_properties.py.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from test_packing import END, make

from memsinks_jax.data.pipeline import batches

LENGTHS = [5, 9, 2, 20, 7, 3, 3, 8, 11, 4]


@pytest.mark.parametrize(
    ("rows_kind", "with_repeats", "without"), [("one_document", 15, 9), ("packed", 6, 4)]
)
def test_steps(rows_kind, with_repeats, without):
    """9 unique documents and 2 repeated 3 times, of 6 tokens with end of text: 90 tokens or 54 in
    rows of 16.
    """

    def steps(**options):
        rows, *_ = make([5] * 12, rows=rows_kind, **options)
        assert all(rows[number]["weights"].any() for number in (0, rows.end - 1))
        last = rows[rows.end]
        first, after = ({name: of.shape for name, of in row.items()} for row in (rows[0], last))
        assert first == after
        assert not any(array.any() for array in last.values())
        return rows.steps

    assert steps(epochs=1) == -(-with_repeats // 4)
    assert steps(epochs=7) == -(-7 * with_repeats // 4)
    assert steps(epochs=7, most=0) == -(-7 * without // 4)
    assert steps(epochs=7, most=1) == -(-7 * (11 if rows_kind == "one_document" else 5) // 4)
    as_many = {"count_removed_repeats": True}
    assert steps(epochs=7, most=1, training=as_many) == -(-7 * with_repeats // 4)
    assert steps(epochs=7, training={"steps": 9}) == 9


@pytest.mark.parametrize("rows_kind", ["one_document", "packed", "best_fit"])
@pytest.mark.parametrize("size", [1, 3, 4, 7, 64])
def test_a_run_reads_all_of_its_epochs_and_no_more(rows_kind, size):
    """Whatever the batch: its last one is filled up with rows of no document, on any host."""
    rows, plan, *_ = make(LENGTHS, rows=rows_kind, epochs=2, training={"batch_size": size})
    stream = itertools.islice(batches(rows, size), rows.steps)
    found = [batch["targets"][batch["weights"] > 0] for batch in stream]
    assert all(map(len, found))
    read = Counter(np.concatenate(found).tolist())
    times = np.array(plan.encounters(np.arange(len(LENGTHS))))
    assert read.pop(END) == 2 * times.sum() if rows_kind != "one_document" else read.pop(END)
    starts = 10 + np.cumsum([0, *LENGTHS])
    for start, often in zip(starts, times.tolist(), strict=False):
        assert read[start] == 2 * often
