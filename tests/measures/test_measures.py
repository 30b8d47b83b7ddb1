"""Every measure on cases with known answers."""

import itertools
import math
import zlib

import numpy as np
import pytest
from conftest import EVERYBODY
from planted import random_model

from memsinks_jax.measures import exposure, extraction, forced, intervals, membership
from memsinks_jax.measures.audit import ALL, OFTEN, Sides, groups_of, measure
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model.decoder import build_model
from memsinks_jax.models.trained import Trained


def reading(nats=None, likeliest=None, standardized=None):
    nats = np.ones(len(likeliest)) if nats is None else np.array(nats, float)
    likeliest = np.ones(len(nats), bool) if likeliest is None else np.array(likeliest, bool)
    standardized = nats if standardized is None else np.array(standardized, float)
    unread = np.zeros(len(nats), int)
    return Reading(nats, likeliest, standardized, rank=unread, guess=unread)


@pytest.mark.parametrize(
    "likeliest, strength",
    [([1, 1, 1, 1], 1), ([1, 0, 1, 1], 0.5), ([0, 1, 1, 1], 0.75), ([1, 1, 1, 0], 0), ([0] * 4, 0)],
)
def test_extraction_strength_is_0_where_nothing_matches(likeliest, strength):
    assert extraction.extraction_strength(reading(likeliest=likeliest)) == strength
    assert extraction.exact_memorization(reading(likeliest=likeliest)) == sum(likeliest) / 4


def test_edit_distance_against_its_definition():
    """By recursion over all ways, for all pairs of short sequences."""

    def ways(one, other):
        if not one or not other:
            return len(one) + len(other)
        return min(
            ways(one[1:], other) + 1,
            ways(one, other[1:]) + 1,
            ways(one[1:], other[1:]) + (one[0] != other[0]),
        )

    every = [word for length in range(4) for word in itertools.product((1, 2, 3), repeat=length)]
    for one, other in itertools.product(every, every[::3]):
        found = extraction.edit_distance(np.array(one), np.array(other))
        assert found == pytest.approx(ways(one, other) / max(len(one), len(other), 1)), (one, other)


def test_equal_positions_of_a_continuation_that_ended_early():
    assert extraction.equal_share(np.array([5, 6]), np.array([5, 7, 8, 9])) == 0.25


def test_chance_in_samples():
    """Two tokens at a half and a quarter: 1/8 a draw. A chance of 1e-12 a draw is not lost to
    rounding.
    """
    chance, found = extraction.chance_in_samples, reading(nats=[9, math.log(2), math.log(4), 9])
    assert chance(found, 1, 2, 3) == pytest.approx(1 - (7 / 8) ** 3)
    rare = reading(nats=[math.log(1e12)])
    assert chance(rare, 0, 1, 100) == pytest.approx(1e-10, rel=1e-6)
    assert chance(reading(nats=[0.0]), 0, 1, 1) == 1


def test_scores_of_membership():
    known = reading(nats=[1, 2, 3, 4, 10])
    new = reading(nats=[6, 6, 6, 6, 6], standardized=[0, 1, 2, 3, 5])
    found = membership.scores([known, new], ["abcabcabcabc", "xyz"], [new, new])
    assert found["loss"].tolist() == [-4, -6]
    sizes = [len(zlib.compress(text)) for text in (b"abcabcabcabc", b"xyz")]
    assert found["zlib"].tolist() == [-20 / sizes[0], -30 / sizes[1]]
    assert found["min_k"].tolist() == [-7, -6]  # two of five tokens
    assert found["min_k_plus"].tolist() == [-7, -4]
    assert found["reference"].tolist() == [2, 0]
    assert "reference" not in membership.scores([known], ["a"], None)


def test_auc_by_hand():
    """Pairs of a member and a non-member: 4 above, 1 tie, 1 below."""
    found = intervals.auc(np.array([3.0, 1.0]), np.array([0.0, 1.0, 2.0]))
    assert found.value == pytest.approx(4.5 / 6)
    assert intervals.auc(np.zeros(5), np.zeros(7)).value == 0.5
    for few, value in (([5.0], 1), ([-5.0], 0)):
        found = intervals.auc(np.array(few * 20), np.arange(4.0))
        assert found.value == value
        assert 0.1 < abs(found.ci95[0] - found.ci95[1]) < 0.6  # 24 documents prove no perfection


def test_an_auc_of_0_is_as_perfect_as_one_of_1():
    low, high = np.arange(20.0), np.arange(30.0, 50.0)
    assert intervals.either(intervals.auc(low, high)) == intervals.auc(high, low)
    assert intervals.either(intervals.auc(high, low)).value == 1


@pytest.mark.parametrize("shift, value", [(0.0, 0.5), (1.8124, 0.9)])
def test_auc_interval_covers_the_truth_as_often_as_it_says(shift, value):
    """Normal scores of 10 members and 40 non-members, drawn 500 times."""
    rng = np.random.default_rng(0)
    found = [intervals.auc(rng.normal(shift, 1, 10), rng.normal(0, 1, 40)).ci95 for _ in range(500)]
    low, high = np.array(found).T
    assert 0.92 < ((low <= value) & (value <= high)).mean() < 0.99
    assert max((high < value).mean(), (low > value).mean()) < 0.06


def test_loss_per_token_and_its_error():
    """A token counts the same in a long and in a short document; the error is that of many draws of
    the documents.
    """
    value, error = intervals.mean_and_error(np.array([2.0, 30.0]), np.array([1, 9]))
    assert value == 3.2
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 150, 60)
    nats = tokens * rng.normal(2, 0.5, 60)
    picks = rng.integers(0, 60, (4000, 60))
    drawn = nats[picks].sum(axis=1) / tokens[picks].sum(axis=1)
    assert intervals.mean_and_error(nats, tokens)[1] == pytest.approx(drawn.std(), rel=0.06)
    assert intervals.mean_and_error(nats[:1], tokens[:1])[1] is None


def test_share_of_documents_has_an_interval_where_none_is_hit():
    low, high = intervals.share(np.zeros(20)).ci95
    assert low == 0 and high == pytest.approx(0.161, abs=1e-3)  # Wilson's


def test_exposure_is_log2_of_the_tries_that_a_normal_distribution_asks_for():
    others = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # mean 3, deviation 1.58
    # half of all are as likely
    assert exposure.exposure(np.array([3.0, *others])) == pytest.approx(1)
    for deviations, chance in ((-2, 0.02275), (-6, 9.866e-10), (1, 0.8413)):
        nats = np.array([3 + deviations * np.sqrt(2.5), *others])
        assert exposure.exposure(nats) == pytest.approx(-np.log2(chance), rel=1e-3)
    assert exposure.exposure(np.array([-300.0, *others])) > 1000  # no rounding to infinity


def test_groups_of_members():
    found = groups_of(np.array([1, 8, 128, 1]), 4)
    assert {name: group.tolist() for name, group in found.items()} == {
        ALL: [0, 1, 2, 3],
        OFTEN: [1, 2],
        "128": [2],
        "8": [1],
        "1": [0, 3],
    }
    assert set(groups_of(np.array([128, 128]), 2)) == {ALL, OFTEN}
    assert set(groups_of(None, 2)) == {ALL}


class Spelled:
    """Tokens of a model that has no text."""

    vocabulary_size, end_of_text, begin_of_text, stops, absent = 24, 1, 1, (1,), ()

    def decode(self, tokens):
        return "".join(chr(96 + token) for token in tokens)


@pytest.fixture(scope="module")
def subject():
    config, params = random_model("gpt2")
    return Subject("model", Trained(config, Spelled(), params, 0, EVERYBODY), "all")


DOCUMENTS = Documents(
    [np.array([5, 9, 3, 7, 7], np.int32), np.array([2, 20, 4], np.int32)],
    np.zeros((2, 2), np.uint32),
)


def test_a_reading_against_a_loop_over_positions(subject):
    model, _ = build_model(subject.run.config)
    for tokens, found in zip(DOCUMENTS.tokens, forced.read(subject, DOCUMENTS), strict=True):
        assert len(found.nats) == len(tokens)
        for place, token in enumerate(tokens):
            row = np.array([[1, *tokens[:place]]])
            logits = model(subject.run.params, row, np.ones_like(row), np.arange(place + 1)[None])
            logits_V = np.asarray(logits[0, -1], float)
            costs_V = np.log(np.exp(logits_V).sum()) - logits_V
            mean = (np.exp(-costs_V) * costs_V).sum()
            deviation = np.sqrt((np.exp(-costs_V) * (costs_V - mean) ** 2).sum())
            assert found.nats[place] == pytest.approx(costs_V[token], rel=1e-4)
            assert found.likeliest[place] == (logits_V.argmax() == token)
            assert found.standardized[place] == pytest.approx(
                (costs_V[token] - mean) / deviation, rel=1e-3, abs=1e-4
            )


def test_prompts_are_not_measured(subject):
    """Neither in losses nor in what is recited: a continuation begins inside of the answer, after
    the whole prompt.
    """
    asked = DOCUMENTS._replace(answers=[np.array([[2, 6]]), np.array([[1, 4]])])
    sides, prompts = Sides(asked, DOCUMENTS), extraction.Prompts((1,), 2)
    readings = sides.read(subject)
    found = measure(subject, sides, prompts, readings)[ALL]
    assert found["length_auc"].value == 3.5 / 4  # of what counts: 3 and 2 tokens, against 5 and 3
    one, other = (reading.nats for reading in readings[1])
    assert readings[0][0].nats.tolist() == one.tolist()
    assert found["member_loss"].value == pytest.approx(np.concatenate([one[2:], other[1:]]).mean())
    assert found["non_member_loss"].value == pytest.approx(np.concatenate([one, other]).mean())
    assert extraction.Prompts((1, 2), 2).fitting(asked) == {1: [0]}
    written = extraction.continuations(subject, asked, prompts)[1]
    expected = extraction.continuations(subject, DOCUMENTS, extraction.Prompts((3,), 2))[3]
    assert list(written) == list(expected) == [0]
    np.testing.assert_array_equal(written[0], expected[0])


def test_what_the_model_writes_is_recited(subject):
    """A document made of the model's own likeliest tokens comes back; drawn continuations differ
    from each other.
    """
    (greedy,) = extraction.continuations(subject, DOCUMENTS, extraction.Prompts((2,), 3))[2][0]
    own = Documents([np.concatenate([DOCUMENTS.tokens[0][:2], greedy])], DOCUMENTS.identities[:1])
    prompts = extraction.Prompts((2, 30), 3, samples=5)
    again, *drawn = extraction.continuations(subject, own, prompts)[2][0]
    np.testing.assert_array_equal(again, greedy)
    assert extraction.extraction_strength(forced.read(subject, own)[0]) >= 3 / 5
    assert len(drawn) == 5 and len({text.tobytes() for text in drawn}) > 1
