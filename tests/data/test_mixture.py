"""Who is seen how often: the index table, and the orders drawn from it."""

import collections
import json

import numpy as np
import pytest

from memsinks_jax.config import Config, DataConfig, GeneralConfig, InputError
from memsinks_jax.data import ids, mixture

PLAN = DataConfig(unique_documents=30, repeated_documents=5, repetitions=7, held_out_documents=4)


def test_every_document_has_one_role_and_is_seen_as_often_as_planned():
    plan = mixture.plan_mixture(PLAN, 50, seed=0)
    seen = collections.Counter(plan.encounters.tolist())
    assert all(seen[i] == 7 for i in plan.repeated)
    assert all(seen[i] == 1 for i in plan.unique)
    assert all(seen[i] == 0 for i in plan.held_out)
    assert len(set(plan.repeated) | set(plan.unique) | set(plan.held_out)) == 5 + 30 + 4
    assert len(plan.encounters) == 5 * 7 + 30


@pytest.mark.parametrize(("repeats", "times"), [("keep", 7), ("once", 1), ("remove", 0)])
def test_variants_share_the_split(repeats, times):
    plan = mixture.plan_mixture(PLAN, 50, seed=3)
    other = mixture.plan_mixture(DataConfig(**{**vars(PLAN), "repeats": repeats}), 50, seed=3)
    for role in ("repeated", "unique", "held_out"):
        assert (getattr(plan, role) == getattr(other, role)).all()
    assert collections.Counter(other.encounters.tolist())[int(plan.repeated[0])] == times


def test_a_ladder_goes_down_by_halves_and_begins_again():
    plan = mixture.plan_mixture(DataConfig(**{**vars(PLAN), "repeats": "ladder"}), 50, seed=3)
    seen = collections.Counter(plan.encounters.tolist())
    assert [seen[i] for i in plan.repeated.tolist()] == [7, 3, 1, 7, 3]
    assert all(seen[i] == 1 for i in plan.unique)


def test_roles_are_drawn_at_random():
    one, two = (mixture.plan_mixture(PLAN, 50, seed=seed) for seed in (0, 1))
    assert set(one.held_out) != set(two.held_out)
    often = np.bincount(np.concatenate([mixture.plan_mixture(PLAN, 50, s).repeated for s in range(2000)]), minlength=50)
    assert abs(often.mean() - 200) < 1e-9
    assert often.min() > 140
    assert often.max() < 260


def test_all_that_are_left():
    data = DataConfig(unique_documents=-1, repeated_documents=5, held_out_documents=4)
    assert len(mixture.plan_mixture(data, 50, 0).unique) == 41
    with pytest.raises(InputError, match="8 distinct documents, but the plan needs 9"):
        mixture.plan_mixture(data, 8, 0)


def test_too_few_documents_and_nothing_to_train_on():
    with pytest.raises(InputError, match=r"38 distinct documents, but the plan needs 39 .*lower config.data"):
        mixture.plan_mixture(PLAN, 38, 0)
    with pytest.raises(InputError, match="holds no training document"):
        mixture.plan_mixture(DataConfig(unique_documents=0, repeats="remove"), 300, 0)


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
    plan = mixture.plan_mixture(PLAN, 50, seed=0)
    identities = np.stack([ids.index_id(i) for i in range(50)])
    lines = [json.loads(x) for x in mixture.table(plan, identities, [9] * 50, ["s"] * 50).splitlines()]
    assert collections.Counter((x["role"], x["encounters"]) for x in lines) == {
        ("repeated", 7): 5, ("unique", 1): 30, ("held_out", 0): 4,
    }  # fmt: skip
    assert lines[0]["id"] == f"{lines[0]['index'] + 1:016x}"


def general(amounts, token_budget, **options):
    """A plan over 20 documents of the rare domain, 30 and 10 general ones, of 9 tokens each with end of text."""
    data = DataConfig(
        unique_documents=0, repeated_documents=5, repetitions=7, held_out_documents=4, row_length=100, rows="packed",
        **options,
    )  # fmt: skip
    sources = np.repeat([0, 1, 2], [20, 30, 10])
    config = Config(data=data, general=GeneralConfig(amounts, token_budget))
    plan = mixture.plan_mixture(data, 20, seed=0, more_to_come=True)
    return mixture.fill_up(plan, config, sources, np.full(60, 8)), sources


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
