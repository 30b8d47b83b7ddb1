"""Batches: a step's global batch depends only on the step, not on hosts or resumption."""

import itertools
from collections import Counter

import numpy as np
import pytest
from test_packing import END, make

from memsinks_jax.data.pipeline import batches

LENGTHS = [5, 9, 2, 20, 7, 3, 3, 8, 11, 4]


def take(count, rows_kind="packed", **options):
    rows, *_ = make(LENGTHS, rows=rows_kind)
    return list(itertools.islice(batches(rows, 4, **options), count))


def equal(one, other):
    return all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("rows_kind", ["one_document", "packed"])
def test_batches_hold_the_rows_in_order(rows_kind):
    rows, *_ = make(LENGTHS, rows=rows_kind)
    for step, batch in enumerate(take(6, rows_kind)):
        for place in range(4):
            assert equal(rows[step * 4 + place], {name: batch[name][place] for name in batch})


@pytest.mark.parametrize("start", range(1, 9))
def test_resuming_at_any_step_gives_the_remaining_batches(start):
    straight = take(10)
    assert all(map(equal, take(10 - start, start_step=start), straight[start:]))


@pytest.mark.parametrize("offsets", [[0, 1], [3], [0, 2, 3], [0, 1, 2, 3]])
def test_a_host_gets_its_rows_of_the_global_batch(offsets):
    for own, whole in zip(take(5, offsets=np.array(offsets)), take(5), strict=True):
        assert equal(own, {name: array[offsets] for name, array in whole.items()})


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
        assert {name: array.shape for name, array in last.items()} == {
            name: array.shape for name, array in rows[0].items()
        }
        assert not any(array.any() for array in last.values())
        return rows.steps

    assert steps(epochs=1) == -(-with_repeats // 4)
    assert steps(epochs=7) == -(-7 * with_repeats // 4)
    assert steps(epochs=7, repeats="remove") == -(-7 * without // 4)
    assert steps(epochs=7, cap=1) == -(-7 * (11 if rows_kind == "one_document" else 5) // 4)
    as_many = {"count_removed_repeats": True}
    assert steps(epochs=7, cap=1, training=as_many) == -(-7 * with_repeats // 4)
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
