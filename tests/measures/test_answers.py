"""Measures of answers, by hand."""

import math

import numpy as np
import pytest

from memsinks_jax.measures import answers

WRONG = [np.log([4.0, 4.0]), np.log([2.0, 8.0])]  # probabilities 1/4, 1/4 and 1/2, 1/8
RIGHT = np.log([2.0, 8.0])  # 1/2, 1/8


def test_the_right_answer_among_all():
    np.testing.assert_allclose(answers.chosen(RIGHT, WRONG), [1 / 2, 1 / 6])
    np.testing.assert_allclose(answers.chosen(RIGHT[:1], [WRONG[0][:1]]), [2 / 3])


def test_truth_ratios_are_of_geometric_means():
    ratios = answers.truth_ratios(RIGHT, WRONG)
    np.testing.assert_allclose(ratios, [1 / 2, 2.0])
    assert answers.truth(ratios, forgotten=True) == pytest.approx(1 / 2)
    assert answers.truth(ratios, forgotten=False) == pytest.approx(1 / 4)


def test_forget_quality_is_the_chance_of_so_large_a_distance():
    # Of all 20 ways to choose 3 of 6 values two are as far apart: one below all others, one above.
    assert answers.forget_quality([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)
    assert answers.forget_quality([1, 2, 3], [1, 2, 3]) == pytest.approx(1)
    ratios_Q = np.arange(80.0)  # of 4 authors, as a withdrawal leaves them: one has moved
    assert answers.forget_quality(
        ratios_Q, np.where(ratios_Q == 40, 41.5, ratios_Q)
    ) == pytest.approx(1)


def test_utility_is_a_harmonic_mean():
    assert answers.utility([1, 1 / 2, 1 / 3]) == pytest.approx(3 / 6)
    assert answers.utility(np.array([1.0, 0.0])) == 0


def test_privleak_is_relative_to_what_is_left_for_the_retrained():
    assert answers.privleak(0.5, 0.5) == 0
    assert answers.privleak(0.9, 0.5) == pytest.approx(-80)
    assert answers.privleak(0.4, 0.6) == pytest.approx(50)


@pytest.mark.parametrize(
    ("written", "share"),
    [
        ("The cat sat on a mat", 4 / 5),  # cat sat on mat, in this order
        ("mat on sat cat", 1 / 5),
        ("THE cat, it sat -- on! my mat.", 4 / 5),
        ("", 0),
        ("a cat sat on mat and more", 1),
    ],
)
def test_rouge_is_the_longest_common_subsequence_over_the_answer(written, share):
    assert answers.rouge_l(written, "a cat sat on mat") == pytest.approx(share)
    assert math.isfinite(answers.rouge_l(written, "..."))
