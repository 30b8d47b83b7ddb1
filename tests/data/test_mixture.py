"""Who is seen how often: the index table, and the orders drawn from it."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from memsinks_jax.config import Config, DataConfig, GeneralConfig, InputError
from memsinks_jax.data import ids, mixture

PLAN = DataConfig(unique_documents=30, repeated_documents=5, repetitions=7, held_out_documents=4)
ONCE = np.ones(50, int)  # how often the files hold each


def test_every_document_has_one_role_and_is_seen_as_often_as_planned():
    plan = mixture.plan_mixture(PLAN, ONCE, seed=0)
    seen = collections.Counter(plan.encounters.tolist())
    assert all(seen[i] == 7 for i in plan.repeated)
    assert all(seen[i] == 1 for i in plan.unique)
    assert all(seen[i] == 0 for i in plan.held_out)
    assert len(set(plan.repeated) | set(plan.unique) | set(plan.held_out)) == 5 + 30 + 4
    assert len(plan.encounters) == 5 * 7 + 30


@pytest.mark.parametrize(("repeats", "times"), [("keep", 7), ("once", 1), ("remove", 0)])
def test_variants_share_the_split(repeats, times):
    plan = mixture.plan_mixture(PLAN, ONCE, seed=3)
    other = mixture.plan_mixture(DataConfig(**{**vars(PLAN), "repeats": repeats}), ONCE, seed=3)
    for role in ("repeated", "unique", "held_out"):
        assert (getattr(plan, role) == getattr(other, role)).all()
    assert collections.Counter(other.encounters.tolist())[int(plan.repeated[0])] == times


def test_a_ladder_goes_down_by_halves_and_begins_again():
    plan = mixture.plan_mixture(DataConfig(**{**vars(PLAN), "repeats": "ladder"}), ONCE, seed=3)
    seen = collections.Counter(plan.encounters.tolist())
    assert [seen[i] for i in plan.repeated.tolist()] == [7, 3, 1, 7, 3]
    assert all(seen[i] == 1 for i in plan.unique)


def test_roles_are_drawn_at_random():
    one, two = (mixture.plan_mixture(PLAN, ONCE, seed=seed) for seed in (0, 1))
    assert set(one.held_out) != set(two.held_out)
    often = np.bincount(
        np.concatenate([mixture.plan_mixture(PLAN, ONCE, s).repeated for s in range(2000)]), minlength=50
    )
    assert abs(often.mean() - 200) < 1e-9
    assert often.min() > 140
    assert often.max() < 260


def test_all_that_are_left():
    data = DataConfig(unique_documents=-1, repeated_documents=5, held_out_documents=4)
    assert len(mixture.plan_mixture(data, ONCE, 0).unique) == 41
    with pytest.raises(InputError, match="8 distinct documents, but the plan needs 9"):
        mixture.plan_mixture(data, ONCE[:8], 0)


def test_copies_are_encounters_or_left_out():
    """Of a document that is seen once as of one that is repeated besides."""
    copies = ONCE.copy()
    copies[::3] = np.arange(2, 19)
    for kept in ("keep", "once"):
        data = DataConfig(**{**vars(PLAN), "unique_documents": -1, "copies": kept})
        plan = mixture.plan_mixture(data, copies, seed=0)
        natural = copies if kept == "keep" else ONCE
        seen = np.bincount(plan.encounters, minlength=50)
        assert (seen[plan.unique] == natural[plan.unique]).all()
        assert (seen[plan.repeated] == 7 * natural[plan.repeated]).all()
        assert not seen[plan.held_out].any()
        for role in ("repeated", "unique", "held_out"):  # who has which role is not for the copies to say
            assert (getattr(plan, role) == getattr(mixture.plan_mixture(data, ONCE, seed=0), role)).all()


@pytest.mark.parametrize(("repeats", "copied"), [("keep", 4), ("once", 1), ("remove", 0)])
def test_what_the_files_repeat_are_the_repeated_documents(repeats, copied):
    copies = ONCE.copy()
    copies[::5] = 4
    data = DataConfig(repeated_documents=-1, unique_documents=-1, held_out_documents=4, repeats=repeats)
    plan = mixture.plan_mixture(data, copies, seed=1)
    assert set(plan.repeated) == set(range(0, 50, 5)) - set(plan.held_out)
    assert sorted([*plan.repeated, *plan.unique, *plan.held_out]) == list(range(50))
    seen = np.bincount(plan.encounters, minlength=50)
    assert (seen[plan.repeated] == copied).all()
    assert (plan.times == 4).all()
    assert (seen[plan.unique] == 1).all()
    few = dataclasses.replace(data, unique_documents=3)
    assert len(mixture.plan_mixture(few, copies, seed=1).unique) == 3


@pytest.mark.parametrize("unique", [-1, 12])
@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_has_one_role(seed, unique):
    """And documents that no other is near keep the role that they had."""
    clusters = np.repeat(np.arange(0, 50, 2), 2)  # two and two
    data = DataConfig(unique_documents=unique, repeated_documents=3, repetitions=2, held_out_documents=7)
    plan = mixture.plan_mixture(data, ONCE, seed, clusters)
    roles = [plan.repeated, plan.unique, plan.held_out]
    assert [len(role) for role in roles] == [3, 38 if unique < 0 else 12, 7]
    for one in range(3):
        for other in range(one):
            assert not set(clusters[roles[one]]) & set(clusters[roles[other]])
    alone, without = (mixture.plan_mixture(data, ONCE, seed, which) for which in (np.arange(50), None))
    for role in ("repeated", "unique", "held_out"):
        assert (getattr(alone, role) == getattr(without, role)).all()
    with pytest.raises(
        InputError, match="50 distinct documents in 2 clusters, each of one role, but the plan needs 32"
    ):
        mixture.plan_mixture(dataclasses.replace(data, unique_documents=22), ONCE, seed, np.repeat([0, 25], 25))


def test_too_few_documents_and_nothing_to_train_on():
    with pytest.raises(InputError, match=r"38 distinct documents, but the plan needs 39 .*lower config.data"):
        mixture.plan_mixture(PLAN, ONCE[:38], 0)
    with pytest.raises(InputError, match="holds no training document"):
        mixture.plan_mixture(DataConfig(unique_documents=0, repeats="remove"), np.ones(300, int), 0)


def test_permutations_are_fair_and_independent():
    first = [int(mixture.permutation(5, seed, "order")[0]) for seed in range(5000)]
    assert max(abs(np.bincount(first) - 1000)) < 150
    orders = [
        mixture.permutation(1000, 0, "order"), mixture.permutation(1000, 0, "order", epoch=1),
        mixture.permutation(1000, 1, "order"), mixture.permutation(1000, 0, "roles"),
    ]  # fmt: skip
    for one in range(4):
        assert sorted(orders[one]) == list(range(1000))
        assert all((orders[one] == orders[two]).mean() < 0.02 for two in range(one))


def test_golden_order():
    """Resuming an old run needs the old order: do not update the values, mend the code."""
    assert mixture.permutation(8, 5, "order", epoch=2).tolist() == [7, 6, 5, 1, 4, 0, 2, 3]


def test_the_table_can_be_inspected():
    plan = mixture.plan_mixture(PLAN, ONCE, seed=0)
    identities = np.stack([ids.index_id(i) for i in range(50)])
    lines = [json.loads(x) for x in mixture.table(plan, identities, [9] * 50, ["s"] * 50).splitlines()]
    assert collections.Counter((x["role"], x["encounters"]) for x in lines) == {
        ("repeated", 7): 5, ("unique", 1): 30, ("held_out", 0): 4,
    }  # fmt: skip
    assert lines[0]["id"] == f"{lines[0]['index'] + 1:016x}"


def test_copies_take_their_share_of_the_budget():
    data = DataConfig(unique_documents=0, repeated_documents=0, held_out_documents=4, row_length=100, rows="packed")
    config = Config(data=data, general=GeneralConfig("a", 450))
    plan = mixture.plan_mixture(data, np.ones(20, int), seed=0, more_to_come=True)
    copies, sources = np.repeat([1, 5], [20, 40]), np.repeat([0, 1], [20, 40])
    plan = mixture.fill_up(plan, config, sources, np.full(60, 8), copies)
    assert len(plan.unique) == 10
    assert len(plan.encounters) == 50


def general(amounts, token_budget, **options):
    """A plan over 20 documents of the rare domain, 30 and 10 general ones, of 9 tokens each with end of text."""
    data = DataConfig(
        unique_documents=0, repeated_documents=5, repetitions=7, held_out_documents=4, row_length=100, rows="packed",
        **options,
    )  # fmt: skip
    sources = np.repeat([0, 1, 2], [20, 30, 10])
    config = Config(data=data, general=GeneralConfig(amounts, token_budget))
    plan = mixture.plan_mixture(data, np.ones(20, int), seed=0, more_to_come=True)
    return mixture.fill_up(plan, config, sources, np.full(60, 8), np.ones(60, int)), sources


def test_a_general_corpus_fills_the_budget():
    """35 encounters of the rare domain are 315 tokens; 5 documents of one source come first, the other fills up."""
    plan, sources = general("a=75%,b=5", token_budget=720)
    seen = np.bincount(plan.encounters, minlength=60)
    assert [int(seen[sources == n].sum()) for n in range(3)] == [35, 30, 5]
    assert sorted(seen[sources > 0]) == [0] * 5 + [1] * 35
    assert set(plan.unique) == set(np.flatnonzero(seen == 1))
    less, _ = general("a=50%,b=50%", token_budget=451)
    assert len(less.unique) == 7 + 7  # 68 of 136 tokens each
    whole, _ = general("a", token_budget=0)
    assert len(whole.unique) == 30
    assert (plan.held_out < 20).all()


def test_variants_share_the_general_documents():
    kept, _ = general("a=100%,b=2", token_budget=500)
    for repeats in ("once", "remove"):
        other, _ = general("a=100%,b=2", token_budget=500, repeats=repeats)
        assert (other.unique == kept.unique).all()


@pytest.mark.parametrize(
    ("amounts", "budget", "problem"),
    [
        ("a,b", 500, "several globs need an amount each"), ("a=60%,b=50%", 500, "100% in all at most"),
        ("a=50%", 0, r"token_budget \(0\)"), ("a=1,b=11", 500, "b holds 10 distinct documents, not 11"),
        ("a", 314, "already has 315 tokens"), ("a", 1000, "a holds 270 tokens, but its share .* is 685"),
    ],
)  # fmt: skip
def test_a_general_corpus_that_cannot_be(amounts, budget, problem):
    with pytest.raises(InputError, match=problem):
        general(amounts, token_budget=budget)
