"""Batches: a step's global batch depends only on the step, not on hosts or resumption."""

import itertools

import numpy as np
import pytest
from test_packing import make

from memsinks_jax.config import Config, with_fields
from memsinks_jax.data.pipeline import batches, steps_of

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


@pytest.mark.parametrize(("rows_kind", "with_repeats", "without"), [("one_document", 15, 9), ("packed", 6, 4)])
def test_steps(rows_kind, with_repeats, without):
    """9 unique documents and 2 repeated 3 times, of 6 tokens with end of text: 90 tokens or 54 in rows of 16."""
    config = with_fields(Config(), {"training.batch_size": 4})
    rows, *_ = make([5] * 12, rows=rows_kind)
    assert steps_of(config, rows) == with_repeats // 4
    config = with_fields(config, {"training.epochs": 7})
    assert steps_of(config, rows) == 7 * with_repeats // 4
    rows, *_ = make([5] * 12, rows=rows_kind, repeats="remove")
    assert steps_of(config, rows) == 7 * without // 4
    rows, *_ = make([5] * 12, rows=rows_kind, cap=1)
    assert steps_of(config, rows) == 7 * (11 if rows_kind == "one_document" else 5) // 4
    config = with_fields(config, {"training.count_removed_repeats": True})
    assert steps_of(config, rows) == 7 * with_repeats // 4
    config = with_fields(config, {"training.steps": 9})
    assert steps_of(config, rows) == 9
