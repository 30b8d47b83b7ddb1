"""The group that a text is about is the one with most of its words, by weight."""

import numpy as np
import pytest

from memsinks_jax.config import InputError
from memsinks_jax.data import nearest

CATS, DOGS, BIRDS = np.arange(10, 40), np.arange(110, 140), np.arange(210, 240)
COMMON = np.arange(300, 330)


@pytest.fixture
def known():
    return nearest.of_groups([nearest.words_of(np.concatenate([COMMON, of])) for of in (CATS, DOGS, BIRDS)])


def test_a_text_is_about_the_group_that_shares_its_rare_words(known):
    for number, of in enumerate((CATS, DOGS, BIRDS)):
        assert known(np.concatenate([COMMON, of[5:9]])) == number


def test_words_of_many_groups_count_less_than_those_of_one():
    known = nearest.of_groups([*[nearest.words_of(COMMON)] * 5, nearest.words_of(DOGS)])
    assert known(np.concatenate([COMMON[:3], DOGS[:2]])) == 5  # though the others have more of its words


def test_a_text_of_unknown_words_is_about_nobody(known):
    assert known(np.arange(500, 520)) is None
    assert known(np.zeros(0, np.int32)) is None
    assert nearest.of_groups([])(CATS) is None


def test_a_group_that_is_taken_out_is_found_no_more_and_the_rest_as_before(known):
    left = known.without(np.array([False, True, False]))
    assert left(DOGS) is None and left(CATS) == 0 and left(BIRDS) == 2
    assert not len(left.of(1))
    np.testing.assert_array_equal(left.of(0), known.of(0))
    never = nearest.of_groups([nearest.words_of(np.concatenate([COMMON, of])) for of in (CATS, BIRDS)])
    text = np.concatenate([COMMON[:5], CATS[3:9], np.arange(500, 505)])
    np.testing.assert_array_equal(left.shares(text)[[0, 2]], never.shares(text))


def test_too_many_words_are_sampled_by_their_hashes(monkeypatch):
    monkeypatch.setattr(nearest, "WORDS", 50)
    words = [nearest.words_of(np.arange(n, n + 1000)) for n in (0, 5000)]
    of_few = nearest.of_groups(words)
    np.testing.assert_array_equal(of_few.of(1), np.sort(words[1])[:50])
    assert of_few.shares(np.arange(5000, 6000))[1] > 0 == of_few.shares(np.arange(5000, 6000))[0]


def test_it_is_written_and_read_again(known, tmp_path):
    assert nearest.read(tmp_path, 3) is None
    known.written(tmp_path)
    again = nearest.read(tmp_path, 3)
    np.testing.assert_array_equal(again.shares(DOGS[3:9]), known.shares(DOGS[3:9]))
    (tmp_path / nearest.FILE).write_bytes((tmp_path / nearest.FILE).read_bytes()[:100])
    with pytest.raises(InputError, match="words.npy cannot be read"):
        nearest.read(tmp_path, 3)
