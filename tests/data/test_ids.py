"""Ids depend only on the tokens."""

import numpy as np

from memsinks_jax.data import ids


def test_golden_id():
    """Ids of documents already trained must never change: do not update the value, mend the
    code.
    """
    assert ids.to_hex(ids.content_id(np.array([3, 1, 4, 1, 5], np.int32))) == "8f27eef3b2c143fa"


def test_dtype_and_memory_layout_do_not_count():
    tokens = np.arange(20, dtype=np.int32)
    for same in (
        tokens.astype(np.int64),
        np.arange(40, dtype=np.int32)[::2] // 2,
        tokens.astype(">i4"),
    ):
        assert (ids.content_id(same) == ids.content_id(tokens)).all()


def test_one_token_or_a_swap_changes_the_id():
    tokens = np.arange(20, dtype=np.int32)
    changed, swapped = tokens.copy(), tokens.copy()
    changed[7], swapped[[3, 4]] = 99, swapped[[4, 3]]
    seen = {
        ids.to_hex(ids.content_id(t))
        for t in (tokens, changed, swapped, tokens[:-1], np.append(tokens, 0))
    }
    assert len(seen) == 5


def test_ids_do_not_collide_and_fill_both_lanes():
    many = np.stack([ids.content_id(np.array([n], np.int32)) for n in range(20_000)])
    assert len(np.unique(many, axis=0)) == 20_000
    assert len(np.unique(many[:, 0])) > 19_990
    assert len(np.unique(many[:, 1])) > 19_990
    assert many.dtype == np.uint32


def test_zero_is_reserved_for_padding():
    assert (ids._lanes(0) == [0, 1]).all()
    assert (ids._lanes(2**64 - 1) == 2**32 - 1).all()
