"""The goldfish loss: excluded tokens depend only on the tokens before them."""

import itertools

import numpy as np
import pytest
from test_packing import END, T, make

from memsinks_jax.studies.methods.goldfish import Goldfish

pytestmark = pytest.mark.slow

EVERY, CONTEXT = 4, 5
GOLDFISH = "memsinks_jax.studies.methods.goldfish:Goldfish,every={},context={}"


def counted(tokens, start, stop, every=EVERY, context=CONTEXT):
    return Goldfish.counted(Goldfish.Settings(every, context), tokens, start, stop)


def passage(length, seed=0):
    return np.random.default_rng(seed).integers(0, 50, length).astype(np.int32)


def test_one_in_k_is_left_out():
    mask = counted(passage(100_000), 0, 100_000)
    assert mask[CONTEXT:].mean() == pytest.approx(1 - 1 / EVERY, abs=0.01)
    assert mask[:CONTEXT].all()


def test_the_context_alone_decides():
    """Not the token itself, not where it stands; but every token of the context, and their
    order.
    """
    tokens = passage(400)
    mask = counted(tokens, 0, 400)
    moved = counted(np.concatenate([passage(37, seed=1), tokens]), 0, 437)
    assert (moved[37 + CONTEXT :] == mask[CONTEXT:]).all()
    for place in range(CONTEXT, 400):
        changed = tokens.copy()
        changed[place:] += 1
        assert counted(changed, 0, 400)[place] == mask[place]
    starts = range(0, 400 - CONTEXT, CONTEXT + 1)
    for before in range(1, CONTEXT + 1):
        changed = tokens.copy()
        places = np.array([start + CONTEXT for start in starts])
        changed[places - before] += 1
        differing = (counted(changed, 0, 400) != mask)[places].mean()
        assert differing == pytest.approx(2 * (1 / EVERY) * (1 - 1 / EVERY), abs=0.2)
    orders = [
        counted(np.array([*order, 9], np.int32), 0, 4, 2, 3)[3]
        for order in itertools.permutations((0, 7, 8))
    ]
    assert len(set(orders)) == 2


def test_any_part_of_a_document_is_masked_as_the_whole_is():
    tokens = passage(60)
    whole = counted(tokens, 0, 60)
    for start, stop in itertools.combinations(range(0, 61, 3), 2):
        assert (counted(tokens, start, stop) == whole[start:stop]).all()


@pytest.mark.parametrize("rows", ["one_document", "packed"])
def test_rows_leave_out_the_same_tokens_of_a_document_at_every_repeat(rows):
    """Documents cut anywhere: tokens are unique, so each is identified; end of text is not, and is
    left aside.
    """
    made, plan, tokens, _ = make([30, 45, 7, 12, 50, 33], rows=rows, method=GOLDFISH.format(3, 4))
    plain = make([30, 45, 7, 12, 50, 33], rows=rows)[0]
    expected = {}
    for document in tokens:
        mask = counted(np.append(document, END), 0, len(document) + 1, 3, 4)
        expected |= dict(zip(document.tolist(), mask, strict=False))
    left_out = 0
    for number in range(2 * made.rows_per_epoch):
        row, whole = made[number], plain[number]
        assert (row["inputs"] == whole["inputs"]).all()
        for target, weight, before in zip(
            row["targets"], row["weights"], whole["weights"], strict=True
        ):
            if before and target != END:
                assert weight == expected[int(target)]
                left_out += not weight
    assert left_out > T
    assert len(plan.repeated) == 2
