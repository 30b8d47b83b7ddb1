"""The group that a text is about is the one with most of its words, by weight."""

import numpy as np
import pytest
from conftest import expect_input_error

from memsinks_jax.data import nearest

CATS, DOGS, BIRDS = np.arange(10, 40), np.arange(110, 140), np.arange(210, 240)
COMMON = np.arange(300, 330)


@pytest.fixture
def known():
    return nearest.of_groups(
        [nearest.words_of(np.concatenate([COMMON, of])) for of in (CATS, DOGS, BIRDS)]
    )


def shares(known, text):
    return nearest.shares(
        nearest.words_of(text), known.words, known.groups, known.count, known.known
    )


def found(known, text):
    return known(nearest.words_of(text))


def test_a_text_is_about_the_group_that_shares_its_rare_words(known):
    for number, of in enumerate((CATS, DOGS, BIRDS)):
        assert found(known, np.concatenate([COMMON, of[5:9]])) == [number]


def test_it_is_about_a_second_group_by_what_the_first_does_not_have(known):
    def second(text):
        (first,) = found(known, text)
        return known.second(nearest.words_of(text), first)

    both = np.concatenate([CATS[3:9], DOGS[3:7]])
    assert found(known, both) == [0] and second(both) == [1]
    assert second(np.concatenate([both, BIRDS[3:7]])) == [1, 2]  # equally
    assert second(CATS[3:9]) == []
    assert second(np.concatenate([CATS[3:20], DOGS[3:5]])) == []
    # what is common to all says nothing of any
    assert second(np.concatenate([COMMON, CATS[3:9]])) == []
    assert second(np.concatenate([CATS[3:9], np.arange(500, 503)])) == []


def test_words_of_many_groups_count_less_than_those_of_one():
    known = nearest.of_groups([*[nearest.words_of(COMMON)] * 5, nearest.words_of(DOGS)])
    # though the others have more of its words
    assert found(known, np.concatenate([COMMON[:3], DOGS[:2]])) == [5]


def test_a_text_of_unknown_words_is_about_nobody(known):
    assert found(known, np.arange(500, 520)) == []
    assert found(known, np.zeros(0, np.int32)) == []
    assert found(nearest.of_groups([]), CATS) == []


def test_a_group_that_is_taken_out_is_found_no_more_and_the_rest_as_before(known):
    left = known.without(np.array([False, True, False]))
    assert [found(left, of) for of in (DOGS, CATS, BIRDS)] == [[], [0], [2]]
    assert not len(left.of(1))
    np.testing.assert_array_equal(left.of(0), known.of(0))
    never = nearest.of_groups(
        [nearest.words_of(np.concatenate([COMMON, of])) for of in (CATS, BIRDS)]
    )
    text = np.concatenate([COMMON[:5], CATS[3:9], np.arange(500, 505)])
    np.testing.assert_array_equal(shares(left, text)[[0, 2]], shares(never, text))


def test_too_many_words_are_sampled_by_their_hashes(monkeypatch):
    monkeypatch.setattr(nearest, "WORDS", 50)
    words = [nearest.words_of(np.arange(n, n + 1000)) for n in (0, 5000)]
    of_few = nearest.of_groups(words)
    np.testing.assert_array_equal(of_few.of(1), np.sort(words[1])[:50])
    assert shares(of_few, np.arange(5000, 6000))[1] > 0 == shares(of_few, np.arange(5000, 6000))[0]


def test_it_is_written_and_read_again(known, tmp_path):
    with expect_input_error("words.npy cannot be read .*No such file"):
        nearest.read(tmp_path, 3)
    known.written(tmp_path)
    again = nearest.read(tmp_path, 3)
    np.testing.assert_array_equal(shares(again, DOGS[3:9]), shares(known, DOGS[3:9]))
    (tmp_path / nearest.FILE).write_bytes((tmp_path / nearest.FILE).read_bytes()[:100])
    with expect_input_error("words.npy cannot be read"):
        nearest.read(tmp_path, 3)


def test_groups_with_equally_many_words_are_equal_whatever_these_are():
    texts = np.random.default_rng(0).permutation(np.arange(1000, 1420)).reshape(3, 140)
    known = nearest.of_groups([nearest.words_of(np.concatenate([COMMON, of])) for of in texts])
    text = np.concatenate([COMMON, *([9000 + n, *of[:40]] for n, of in enumerate(texts))])
    assert found(known, text) == [0, 1, 2]


def test_special_tokens_are_no_words():
    text = np.concatenate([[7], CATS, [8], DOGS])
    np.testing.assert_array_equal(
        nearest.words_of(text, (7, 8)), nearest.words_of(np.concatenate([CATS, DOGS]))
    )
