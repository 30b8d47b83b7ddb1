"""Contexts: their keys, where they are found, and which of them have sinks."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error, tiny_config
from hypothesis import given
from hypothesis import strategies as st

from memsinks_jax.config import ContextsConfig, with_fields
from memsinks_jax.data import contexts
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.model.context_rows import Lookup
from memsinks_jax.sinks.kinds import NONE

OPENS, CLOSES, SPACED, BEHIND_A_BREAK = 1, 2, 4, 5
TEXTS = ["a", "", "", ".", " ab", "ab", "\n", "\n#", " ba", "b", "語", "\ufffd", " a.", "語b"]
DOCUMENT = st.lists(st.integers(3, len(TEXTS) - 1), max_size=40)
LENGTHS = st.integers(1, 6)


class InPieces:
    """A tokenizer whose tokens have these texts."""

    vocabulary_size = len(TEXTS)

    def encode(self, text):
        return [TEXTS.index(text)]

    def decode(self, tokens):
        return "".join(TEXTS[token] for token in tokens)


LETTERS = contexts.letters_of(InPieces())


def keys_of(tokens, length):
    places = np.arange(len(tokens), dtype=np.int32)
    return contexts.keys_of(np.array(tokens, np.int32), places, length, LETTERS)


def words_of(tokens):
    """[(the token with which each begins, its letters)], as the definition has it."""
    words, before = [], True
    for place, token in enumerate(tokens):
        text = TEXTS[token]
        letters = f"<{token}>" if "\ufffd" in text else "".join(filter(str.isalnum, text))
        opens = before or not text[:1].isalnum() or text[:1] in "語\ufffd"
        if letters and opens:
            words.append((place, letters))
        elif letters:
            words[-1] = words[-1][0], words[-1][1] + letters
        before = "\ufffd" not in text and not text[-1:].isalnum()
    return words


def context(tokens, place, length):
    """The letters of the last words, and what comes behind them."""
    first = max(place + 1 - contexts.LONGEST * length, 0)
    before = tokens[first - 1 : first] or [OPENS]
    words = [letters for at, letters in words_of([*before, *tokens[first : place + 1]])]
    # the token before the window says whether a word begins, and is not in it
    if first and words_of(before):
        whole = words_of(before)[0][1]
        words[0] = words[0].removeprefix(whole)
    has_letters = [bool(words_of([token])) for token in tokens[: place + 1]]
    behind = has_letters[::-1].index(True) if any(has_letters) else place + 1
    tail = (tokens[place], min(behind, contexts.LONGEST)) if behind else ()
    return "".join(words[-length:]), tail


def test_keys_are_what_they_were():
    """Corpora and models hold them."""
    assert [f"{key:016x}" for key in keys_of([OPENS, 4, 6, 5, 3, 9, 10, 11], 2)] == [
        "7c435df03d913c9f",
        "017c771f64836163",
        "7fca4bfa1204ad53",
        "334b7dc211db94b8",
        "9aa874669c7e5583",
        "109dd9dbd9042704",
        "caafcc6d884dea6c",
        "011d30fa7738f75f",
    ]


def test_a_text_has_the_same_contexts_however_it_is_wrapped_or_quoted():
    plain = keys_of([OPENS, SPACED, 8, SPACED, SPACED, 8], 3)
    wrapped = keys_of([OPENS, 7, BEHIND_A_BREAK, 8, 6, BEHIND_A_BREAK, 7, BEHIND_A_BREAK, 8], 3)
    np.testing.assert_array_equal(plain[1:], wrapped[[2, 3, 5, 7, 8]])
    assert len(np.unique(plain)) == len(plain)


@given(DOCUMENT.filter(len), LENGTHS)
def test_keys_are_equal_where_contexts_are(tokens, length):
    of_context, tokens = collections.defaultdict(set), [OPENS, *tokens]
    for place, key in enumerate(keys_of(tokens, length).tolist()):
        of_context[context(tokens, place, length)].add(key)
    assert all(len(keys) == 1 for keys in of_context.values())
    assert len(set.union(*of_context.values())) == len(of_context)


@given(DOCUMENT, LENGTHS, st.data())
def test_rows_of_a_piece_are_those_of_its_document(tokens, length, data):
    whole = keys_of([OPENS, *tokens], length)
    known = Contexts(np.unique(whole[::2]), length, LETTERS)
    start = data.draw(st.integers(0, len(tokens)))
    stop = data.draw(st.integers(start + 1, len(tokens) + 1))
    rows = known.rows(np.array(tokens, np.int32), start, stop, OPENS)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, contexts.rows_of(known.keys, whole)[start:stop])


@pytest.mark.parametrize("length", [1, 2, 6, 8])
def test_devices_find_the_same_rows(length):
    random = np.random.default_rng(length)
    tokens = random.integers(3, len(TEXTS), (3, 60)).astype(np.int32)
    places = np.broadcast_to(np.arange(60, dtype=np.int32), tokens.shape)
    keys = contexts.keys_of(tokens, places, length, LETTERS)
    known = Contexts(np.unique(keys[:, ::3]), length, LETTERS)
    found = Lookup.of(known)
    rows = jax.jit(lambda *of: found.rows(*of, length))(jnp.array(tokens), jnp.array(places))
    np.testing.assert_array_equal(rows, contexts.rows_of(known.keys, keys))
    assert (rows != NONE).any() and (rows == NONE).any()


def test_devices_tell_keys_with_one_high_lane_apart():
    keys = (np.uint64(7) << np.uint64(32)) + np.arange(5, dtype=np.uint64) * np.uint64(3)
    keys = np.concatenate([[np.uint64(1)], keys, [np.uint64(9) << np.uint64(32)]])
    found = Lookup.of(Contexts(keys, 1, LETTERS))
    asked = np.concatenate([keys, keys + np.uint64(1)])
    high, low = ((asked >> np.uint64(32)).astype(np.uint32), asked.astype(np.uint32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memsinks_jax.model.context_rows.lanes", lambda *_: (high[None], low[None]))
        rows = found.rows(None, None, 1)[0]
    np.testing.assert_array_equal(rows, contexts.rows_of(keys, asked))


def by_definition(documents, times, settings):
    """{context: (how often it comes in repeated text, how often anywhere)}"""
    grams, spans = collections.Counter(), {}
    for number, tokens in enumerate(documents):
        whole, spans[number] = [OPENS, *tokens, CLOSES], []
        for place in range(len(whole)):
            words = words_of(whole[: place + 1])
            of_whole = len(words) >= settings.stretch
            ends = words_of([whole[place]]) and (
                place + 1 == len(whole)
                or len(words_of(whole[: place + 2])) > len(words)
                or not words_of([whole[place + 1]])
                or TEXTS[whole[place]] == " a."
            )
            if (of_whole and ends) or place == len(whole) - 1:
                first = words[-settings.stretch][0] if of_whole else 0
                first = max(first, place + 1 - contexts.LONGEST * settings.stretch)
                spans[number].append((first, place, context(whole, place, settings.stretch)))
                grams[spans[number][-1][-1]] += times[number]
    repeated, anywhere = collections.Counter(), collections.Counter()
    for number, tokens in enumerate(documents):
        whole = [OPENS, *tokens, CLOSES]
        there = {
            place
            for first, last, gram in spans[number]
            if grams[gram] >= settings.times
            for place in range(first, last + 1)
        }
        for place in range(len(whole) - 1):
            anywhere[context(whole, place, settings.length)] += times[number]
            repeated[context(whole, place, settings.length)] += times[number] * (place + 1 in there)
    return repeated, anywhere


@given(
    st.lists(st.lists(st.integers(3, 9), max_size=12), min_size=1, max_size=6).map(
        lambda of: [*of, of[0]]
    ),
    st.builds(
        ContextsConfig,
        st.integers(1, 5),
        st.integers(2, 9),
        st.integers(2, 3),
        st.sampled_from([0.0, 0.5, 1.0]),
    ),
    st.data(),
)
def test_what_is_found_is_what_the_definition_says(documents, settings, data):
    times = data.draw(st.lists(st.integers(1, 3), min_size=len(documents), max_size=len(documents)))
    text = contexts.side_by_side(
        [np.array(of, np.int32) for of in documents], [(OPENS, CLOSES)] * len(documents), times
    )
    repeated, anywhere = by_definition(documents, times, settings)
    counts = contexts.find(text, settings, LETTERS)
    key_of = {}
    for tokens in documents:
        whole = [OPENS, *tokens, CLOSES]
        for place, key in enumerate(keys_of(whole, settings.length).tolist()):
            key_of[context(whole, place, settings.length)] = key
    wanted = {key_of[of]: (repeated[of], anywhere[of]) for of in anywhere}
    assert (
        dict(
            zip(
                counts.keys.tolist(),
                zip(*(of.tolist() for of in counts[1:]), strict=True),
                strict=True,
            )
        )
        == wanted
    )
    enough = [
        key
        for key, (often, all_of_it) in wanted.items()
        if often >= settings.times and often >= settings.share * all_of_it
    ]
    assert contexts.chosen(counts, settings).tolist() == sorted(enough)


def test_of_too_many_the_most_frequent_have_rows():
    counts = contexts.Counts(
        np.array([3, 5, 8, 9], np.uint64), np.array([2, 4, 3, 9]), np.array([2, 4, 3, 40])
    )
    # 9 comes mostly in other text
    assert contexts.chosen(counts, ContextsConfig(rows=2)).tolist() == [5, 8]
    assert contexts.chosen(counts, ContextsConfig(rows=3, share=0.0)).tolist() == [5, 8, 9]
    equal = counts._replace(repeated=np.array([4, 4, 4, 9]))
    assert contexts.chosen(equal, ContextsConfig(rows=3, share=0.0)).tolist() == [3, 5, 9]


def test_epochs_are_no_repeats_and_held_out_text_has_no_rows():
    config = with_fields(tiny_config(), {"sinks.kind": "by_context", "training.epochs": 3})
    corpus = load_corpus(config)
    first, *_ = corpus.mixture.repeated.tolist()
    tokens = corpus.tokens(first)
    stop = min(len(tokens) + 1, config.data.row_length)
    rows = corpus.contexts.rows(tokens, 8, stop, corpus.tokenizer.begin_of_text)
    assert (rows != NONE).mean() > 0.8  # of some the other stories have more than a tenth
    once = with_fields(config, {"data.repeats_at_most": 1, "contexts.stretch": 40})
    with expect_input_error("no text of 40 words comes 2 times .* lower config.contexts.stretch"):
        load_corpus(once)
