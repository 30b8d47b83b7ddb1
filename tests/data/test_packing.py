"""Rows: every token's id leads back to its document, for any lengths."""

import numpy as np
import pytest
from documents import plan_of

from memsinks_jax.config import Config, DataConfig, TrainingConfig
from memsinks_jax.data.packing import Piece, Rows, row_of, windows

T = 16
GOLDFISH = "memsinks_jax.studies.methods.goldfish:Goldfish,every=4,context=1"
END = 5  # of text; no document holds it, and neither it nor padding is known by its value


def make(
    lengths,
    seed=0,
    end_of_text=END,
    method="",
    most=-1,
    spans=None,
    epochs=9,
    training=(),
    **options,
):
    """Rows of documents of the given lengths; every token value is unique, so a token has one
    source.
    """
    settings = {"repeated_documents": 2, "repetitions": 3, "held_out_documents": 1, "row_length": T}
    settings |= {"rows": "one_document", "repeats_at_most": most} | options
    fixed = {"batch_size": 4, "epochs": epochs, "method": method}
    training = TrainingConfig(**fixed | dict(training))
    config = Config(data=DataConfig(unique_documents=-1, **settings), training=training, seed=seed)
    plan, tokens = plan_of(config, lengths, spans=spans)
    identities = plan.table.identities(np.arange(len(lengths)))
    return Rows(config, plan, end_of_text), plan, tokens, identities


def token_ids(row):
    """The id of every position that is not padding."""
    return row["identities"][row["segments"][row["segments"] > 0] - 1]


def test_a_document_alone_in_its_row():
    tokens, identity = np.array([7, 8, 9], np.int32), np.array([1, 2], np.uint32)
    row = row_of([Piece(tokens, 0, 4)], identity[None], 6, END)
    assert row["inputs"].tolist() == [END, 7, 8, 9, 0, 0]
    assert row["targets"].tolist() == [7, 8, 9, END, 0, 0]
    assert row["weights"].tolist() == [1, 1, 1, 1, 0, 0]
    assert row["segments"].tolist() == [1, 1, 1, 1, 0, 0]
    assert row["positions"].tolist() == [0, 1, 2, 3, 0, 0]
    assert row["identities"].tolist() == [[1, 2]]


def test_only_answers_count():
    """In whole documents and in every piece of them, next to others of which all counts."""
    tokens, answers = np.arange(10, 16, dtype=np.int32), np.array([[1, 3], [5, 7]])
    expected, identities = [0, 1, 1, 0, 0, 1, 1], np.ones((2, 2), np.uint32)
    for start in range(7):
        for stop in range(start + 1, 8):
            row = row_of([Piece(tokens, start, stop, answers)], identities[:1], 9, END)
            assert row["weights"].tolist() == expected[start:stop] + [0] * (9 - stop + start)
    pieces = [Piece(tokens[:1], 0, 2), Piece(tokens, 2, 6, answers)]
    row = row_of(pieces, identities, 7, END, documents_per_row=2)
    assert row["weights"].tolist() == [1, 1, 1, 0, 0, 1, 0]
    assert row["segments"].tolist() == [1, 1, 2, 2, 2, 2, 0]


@pytest.mark.parametrize("rows", ["one_document", "packed", "best_fit"])
def test_rows_of_a_run_count_answers_alone(rows):
    """Whatever else the rows are, goldfish included: their weights are those without answers, times
    these.
    """
    random = np.random.default_rng(0)
    lengths = random.integers(3, 2 * T, 30)
    spans = [np.array([[n // 3, n // 2], [n // 2 + 1, n + 1]]) for n in lengths.tolist()]
    plain, *_ = make(lengths, rows=rows, method=GOLDFISH)
    some, _, tokens, _ = make(lengths, rows=rows, method=GOLDFISH, spans=spans)
    inside = {END: True, 0: False}  # end of text is in the last answer of all; padding is in none
    for of, document in zip(spans, tokens, strict=True):
        inside |= {
            int(token): any(a <= i < b for a, b in of.tolist()) for i, token in enumerate(document)
        }
    for number in range(plain.rows_per_epoch):
        expected, found = plain[number], some[number]
        whole = np.array([inside[token] for token in found["targets"].tolist()])
        assert (found["weights"] == expected["weights"] * whole).all()
        assert all((found[name] == expected[name]).all() for name in found if name != "weights")


def test_a_token_of_its_own_may_open_documents():
    """Whole documents open with it and close with end of text; a piece from the middle has
    neither.
    """
    tokens = [np.array([7, 8, 9], np.int32), np.array([6], np.int32)]
    identities = np.ones((2, 2), np.uint32)
    row = row_of([Piece(tokens[0], 0, 4)], identities[:1], 6, END, 4)
    assert row["inputs"].tolist() == [4, 7, 8, 9, 0, 0]
    assert row["targets"].tolist() == [7, 8, 9, END, 0, 0]
    parts = [Piece(tokens[0], *part) for part in windows(4, 2, whole=True)]
    first, second = (row_of([part], identities[:1], 2, END, 4) for part in parts)
    assert (first["inputs"].tolist(), second["inputs"].tolist()) == ([4, 7], [8, 9])
    pieces = [Piece(tokens[0], 0, 4), Piece(tokens[1], 0, 2)]
    row = row_of(pieces, identities, 6, END, 4, documents_per_row=2)
    assert row["inputs"].tolist() == [4, 7, 8, 9, 4, 6]
    assert row["targets"].tolist() == [7, 8, 9, END, 6, END]
    usual, plan, all_tokens, _ = make([5, 30, 7] * 5, rows="packed")
    rows = Rows(usual._config, plan, END, 4)
    for number in range(rows.rows_per_epoch):
        here, there = rows[number], usual[number]
        opens = (there["inputs"] == END) & (there["segments"] > 0)
        assert opens.any() or number and (here["inputs"] == there["inputs"]).all()
        assert (here["inputs"] == np.where(opens, 4, there["inputs"])).all()
        assert all((here[name] == there[name]).all() for name in there if name != "inputs")


@pytest.mark.parametrize(("length", "weight"), [(1, 2), (5, 6), (6, 6), (50, 6)])
def test_long_documents_are_cut(length, weight):
    (place,) = windows(length + 1, 6, whole=False)
    piece = Piece(np.arange(10, 10 + length, dtype=np.int32), *place)
    row = row_of([piece], np.array([[1, 2]], np.uint32), 6, END)
    assert row["weights"].sum() == weight
    counts = row["weights"][1:] > 0
    assert (row["targets"][:-1][counts] == row["inputs"][1:][counts]).all()


def test_packed_rows_are_full():
    rows, *_ = make(range(1, 25), rows="packed")
    *used, _ = (int(rows[number]["weights"].sum()) for number in range(rows.rows_per_epoch))
    assert set(used) == {T}


def test_epochs_have_orders_of_their_own():
    rows, *_ = make([5] * 12)
    size = rows.rows_per_epoch
    first, second = ([rows[at + n]["inputs"].tolist() for n in range(size)] for at in (0, size))
    assert first != second and sorted(first) == sorted(second)


@pytest.mark.parametrize("rows_kind", ["one_document", "packed"])
def test_only_weights_and_segments_say_what_is_padding(rows_kind):
    """Rows whose end of text is 0, the value that padding has too, differ from others in that value
    alone.
    """
    lengths = [5, 9, 2, 20, 7, 3, 3, 8]
    rows, *_ = make(lengths, rows=rows_kind)
    with_zero, *_ = make(lengths, rows=rows_kind, end_of_text=0)
    for number in range(rows.rows_per_epoch):
        row, other = rows[number], with_zero[number]
        assert (row["targets"] == END).any() or row["targets"][-1] > END
        for name in row:
            of_tokens = name in ("inputs", "targets")
            expected = np.where(row[name] == END, 0, row[name]) if of_tokens else row[name]
            assert (other[name] == expected).all()


@pytest.mark.parametrize("rows_kind", ["one_document", "packed"])
def test_any_row_is_reached_at_once(rows_kind):
    forward, *_ = make([5, 9, 2, 20, 7, 3, 3, 8], rows=rows_kind)
    rows, *_ = make([5, 9, 2, 20, 7, 3, 3, 8], rows=rows_kind)
    numbers = list(range(3 * forward.rows_per_epoch))
    expected = [forward[n] for n in numbers]
    for number in reversed(numbers):
        found, wanted = rows[number], expected[number]
        assert all((found[name] == wanted[name]).all() for name in wanted)


def test_what_opened_in_past_epochs_is_not_counted_again(monkeypatch):
    """Whatever the epoch, a save costs the same; a run that resumes there knows the same."""
    rows, *_ = make([5] * 12, rows="packed", epochs=99)
    asked, count, size = [], rows._counts, rows.rows_per_epoch
    monkeypatch.setattr(rows, "_counts", lambda *about: asked.append(about[0]) or count(*about))
    found = []
    for number in range(20 * size, 40 * size, size):
        before = len(asked)
        found.append(rows.opened(number + 1).tolist())
        assert number == 20 * size or len(asked) - before <= 4
    assert len(found[-1]) == 2
    assert found[-1] == make([5] * 12, rows="packed", epochs=99)[0].opened(number + 1).tolist()
