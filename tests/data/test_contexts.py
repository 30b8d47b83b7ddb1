"""Contexts: their keys, where they are found, and which of them have sinks."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import tiny_config
from hypothesis import given
from hypothesis import strategies as st

from memsinks_jax.config import ContextsConfig, InputError, with_fields
from memsinks_jax.data import contexts
from memsinks_jax.data.contexts import NONE, Contexts
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.model.context_rows import Lookup

OPENS, CLOSES = 1, 2
DOCUMENT = st.lists(st.integers(3, 6), max_size=24)
LENGTHS = st.integers(1, 13)


def keys_of(tokens, length):
    return contexts.keys_of(np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32), length)


def context(tokens, place, length):
    return tuple(tokens[max(place - length + 1, 0) : place + 1])


def test_keys_are_what_they_were():
    """Corpora and models hold them."""
    assert [f"{key:016x}" for key in keys_of([5, 17, 5, 17, 2**31 - 1], 3)] == [
        "acfa1f473fb90594",
        "9afbf90baed2a433",
        "e2e3e90baf701a09",
        "d4f3ff3ec5b760d7",
        "4f7f1028a90b6072",
    ]


@given(DOCUMENT.filter(len), LENGTHS)
def test_keys_are_equal_where_contexts_are(tokens, length):
    """Also of those near the beginning: they are shorter, and so no end of a longer one."""
    of_context = collections.defaultdict(set)
    for place, key in enumerate(keys_of(tokens, length).tolist()):
        of_context[context(tokens, place, length)].add(key)
    assert all(len(keys) == 1 for keys in of_context.values())
    assert len(set.union(*of_context.values())) == len(of_context)


@given(DOCUMENT, LENGTHS, st.data())
def test_rows_of_a_piece_are_those_of_its_document(tokens, length, data):
    whole = keys_of([OPENS, *tokens], length)
    known = Contexts(np.unique(whole[::2]), length)
    start = data.draw(st.integers(0, len(tokens)))
    stop = data.draw(st.integers(start + 1, len(tokens) + 1))
    rows = known.rows(np.array(tokens, np.int32), start, stop, OPENS)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, contexts.rows_of(known.keys, whole)[start:stop])


@pytest.mark.parametrize("length", [1, 2, 7, 8, 16])
def test_devices_find_the_same_rows(length):
    random = np.random.default_rng(length)
    tokens = random.integers(0, 5, (3, 40)).astype(np.int32)
    places = np.broadcast_to(np.arange(40, dtype=np.int32), tokens.shape)
    keys = contexts.keys_of(tokens, places, length)
    known = Contexts(np.unique(keys[:, ::3]), length)
    found = Lookup.of(known)
    rows = jax.jit(lambda *of: found.rows(*of, length))(jnp.array(tokens), jnp.array(places))
    np.testing.assert_array_equal(rows, contexts.rows_of(known.keys, keys))
    assert (rows != NONE).any() and (length == 1 or (rows == NONE).any())


def test_devices_tell_keys_with_one_high_lane_apart():
    keys = (np.uint64(7) << np.uint64(32)) + np.arange(5, dtype=np.uint64) * np.uint64(3)
    keys = np.concatenate([[np.uint64(1)], keys, [np.uint64(9) << np.uint64(32)]])
    found = Lookup.of(Contexts(keys, 1))
    asked = np.concatenate([keys, keys + np.uint64(1)])
    high, low = ((asked >> np.uint64(32)).astype(np.uint32), asked.astype(np.uint32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memsinks_jax.model.context_rows.lanes", lambda *_: (high[None], low[None]))
        rows = found.rows(None, None, 1)[0]
    np.testing.assert_array_equal(rows, contexts.rows_of(keys, asked))


def by_definition(documents, times, settings):
    """{context: (how often it comes in repeated text, how often anywhere)}, and the n-grams that are repeated."""
    grams, spans = collections.Counter(), {}
    for number, tokens in enumerate(documents):
        whole = [OPENS, *tokens, CLOSES]
        size = min(settings.stretch, len(whole))
        spans[number] = [(at, tuple(whole[at : at + size])) for at in range(len(whole) - size + 1)]
        for _, gram in spans[number]:
            grams[gram] += times[number]
    repeated, anywhere = collections.Counter(), collections.Counter()
    for number, tokens in enumerate(documents):
        whole = [OPENS, *tokens, CLOSES]
        there = {
            place for at, gram in spans[number] if grams[gram] >= settings.times for place in range(at, at + len(gram))
        }
        for place in range(len(whole) - 1):
            anywhere[context(whole, place, settings.length)] += times[number]
            repeated[context(whole, place, settings.length)] += times[number] * (place + 1 in there)
    return repeated, anywhere


@given(
    st.lists(st.lists(st.integers(3, 4), max_size=12), min_size=1, max_size=6).map(lambda of: [*of, of[0]]),
    st.builds(
        ContextsConfig, st.integers(1, 5), st.integers(1, 9), st.integers(2, 3), st.sampled_from([0.0, 0.5, 1.0])
    ),
    st.data(),
)
def test_what_is_found_is_what_the_definition_says(documents, settings, data):
    times = data.draw(st.lists(st.integers(1, 3), min_size=len(documents), max_size=len(documents)))
    text = contexts.side_by_side(
        [np.array(of, np.int32) for of in documents], [(OPENS, CLOSES)] * len(documents), times
    )
    repeated, anywhere = by_definition(documents, times, settings)
    counts = contexts.find(text, settings)
    wanted = {int(keys_of(of, settings.length)[-1]): (repeated[of], anywhere[of]) for of in anywhere}
    assert dict(zip(counts.keys.tolist(), zip(*(of.tolist() for of in counts[1:]), strict=True), strict=True)) == wanted
    enough = [
        key
        for key, (often, all_of_it) in wanted.items()
        if often >= settings.times and often >= settings.share * all_of_it
    ]
    assert contexts.chosen(counts, settings).tolist() == sorted(enough)


def test_of_too_many_the_most_frequent_have_rows():
    counts = contexts.Counts(np.array([3, 5, 8, 9], np.uint64), np.array([2, 4, 3, 9]), np.array([2, 4, 3, 40]))
    assert contexts.chosen(counts, ContextsConfig(rows=2)).tolist() == [5, 8]  # 9 comes mostly in other text
    assert contexts.chosen(counts, ContextsConfig(rows=3, share=0.0)).tolist() == [5, 8, 9]


def test_epochs_are_no_repeats_and_held_out_text_has_no_rows():
    config = with_fields(tiny_config(), {"sinks.kind": "by_context", "training.epochs": 3})
    corpus = load_corpus(config)
    first, *_ = corpus.mixture.repeated.tolist()
    tokens = corpus.tokens(first)
    stop = min(len(tokens) + 1, config.data.row_length)
    rows = corpus.contexts.rows(tokens, 8, stop, corpus.tokenizer.begin_of_text)
    assert (rows != NONE).mean() > 0.8  # of some the other stories have more than a tenth
    once = with_fields(config, {"data.repeats": "once", "contexts.stretch": 40})
    with pytest.raises(InputError, match="no text of 40 tokens comes 2 times .* lower config.contexts.stretch"):
        load_corpus(once)
