"""How often each document is seen: roles, and the orders drawn from the seed."""

import collections
import dataclasses
import json

import numpy as np
import pytest
from conftest import expect_input_error
from documents import Source

from memsinks_jax.config import Config, DataConfig, GeneralConfig
from memsinks_jax.data import mixture
from memsinks_jax.data.order import Bijection, permutation
from memsinks_jax.data.table import Table

AMOUNTS = {"unique_documents": 30, "repeated_documents": 5, "held_out_documents": 4}
PLAN = DataConfig(repetitions=7, row_length=100, rows="packed", **AMOUNTS)
ONCE = np.ones(50, int)  # how often the files hold each


def source(copies, clusters=None, tokens=8):
    """Documents of so many tokens, so many copies of each side by side; `clusters` by document."""
    of = np.repeat(np.arange(len(copies)), copies)
    first_copies = np.searchsorted(of, of)
    documents = [np.full(tokens, each, np.int32) for each in of.tolist()]
    return Source(documents, first_copies, None if clusters is None else np.asarray(clusters)[of])


def plan_of(data, copies=ONCE, seed=0, clusters=None, **sections):
    config = Config(data=data, seed=seed, **sections)
    return mixture.plan_mixture(config, Table([source(copies, clusters)]))


def seen_in(plan, of=None):
    """{document: how often an epoch has it}; the documents are numbered by their first copies."""
    first_copies = plan.table.first_copies(np.arange(len(plan.table)))
    every = np.unique(first_copies)
    return dict(zip(every.tolist(), plan.encounters(every), strict=True))


def roles_of(plan):
    return [set(plan.documents(role).tolist()) for role in ("repeated", "unique", "held_out")]


def test_every_document_has_one_role_and_is_seen_as_often_as_planned():
    plan = plan_of(PLAN)
    seen, (repeated, unique, held_out) = seen_in(plan), roles_of(plan)
    assert [len(repeated), len(unique), len(held_out)] == [5, 30, 4]
    assert len(repeated | unique | held_out) == 39
    assert seen == {i: 7 * (i in repeated) + (i in unique) for i in range(50)}
    assert plan.sums.slots.sum() == plan.sums.documents.sum() == 30
    assert plan.sums.tokens.sum() == 30 * 9


@pytest.mark.parametrize(("most", "times"), [(-1, 7), (2, 2), (1, 1), (0, 0)])
def test_variants_share_the_split(most, times):
    plan = plan_of(PLAN, seed=3)
    other = plan_of(dataclasses.replace(PLAN, repeats_at_most=most), seed=3)
    assert roles_of(plan) == roles_of(other)
    assert seen_in(other)[int(plan.repeated[0])] == times


@pytest.mark.parametrize(
    ("most", "counts"), [(-1, [7, 3, 1, 7, 3]), (2, [2, 2, 1, 2, 2]), (9, [7, 3, 1, 7, 3])]
)
def test_repeats_are_capped_and_all_else_stays(most, counts):
    data = dataclasses.replace(PLAN, schedule="memsinks_jax.studies.schedules:Ladder")
    capped = dataclasses.replace(data, repeats_at_most=most)
    plan, whole = plan_of(capped, seed=3), plan_of(data, seed=3)
    assert plan.encounters(plan.repeated) == counts
    assert (plan.times.tolist(), roles_of(plan)) == (whole.times.tolist(), roles_of(whole))


def test_roles_are_drawn_at_random():
    assert roles_of(plan_of(PLAN))[2] != roles_of(plan_of(PLAN, seed=1))[2]
    drawn = np.concatenate([plan_of(PLAN, seed=s).repeated for s in range(1000)])
    often = np.bincount(drawn, minlength=50)
    assert abs(often.mean() - 100) < 1e-9
    assert often.min() > 65
    assert often.max() < 140


def test_all_that_are_left():
    data = dataclasses.replace(PLAN, unique_documents=-1)
    assert len(plan_of(data).documents("unique")) == 41
    with expect_input_error("8 distinct documents, but the plan needs 9"):
        plan_of(data, ONCE[:8])


@pytest.mark.parametrize("unique", [-1, 30])
def test_copies_are_encounters_or_left_out(unique):
    """Of a document that is seen once as of one that is repeated besides."""
    copies, found = ONCE.copy(), []
    copies[::3] = np.arange(2, 19)
    for which in ("keep", "once"):
        plan = plan_of(dataclasses.replace(PLAN, unique_documents=unique, copies=which), copies)
        natural = plan.table.copies(np.arange(len(plan.table))) ** (which == "keep")
        seen, (repeated, once, held_out) = seen_in(plan), roles_of(plan)
        assert seen == {i: natural[i] * (7 * (i in repeated) + (i in once)) for i in seen}
        assert plan.sums.slots.sum() == sum(natural[i] for i in once)
        assert plan.sums.documents.sum() == len(once)
        found.append((repeated, once, held_out))
    assert found[0] == found[1]


@pytest.mark.parametrize(("most", "copied"), [(-1, 4), (1, 1), (0, 0)])
def test_what_the_files_repeat_are_the_repeated_documents(most, copied):
    copies = ONCE.copy()
    copies[::5] = 4
    data = dataclasses.replace(
        PLAN, repeated_documents=-1, unique_documents=-1, repeats_at_most=most
    )
    plan = plan_of(data, copies, seed=1)
    repeated, unique, held_out = roles_of(plan)
    of_four = {i for i in seen_in(plan) if plan.table.copies(np.array([i]))[0] == 4}
    assert repeated == of_four - held_out
    assert sorted([*repeated, *unique, *held_out]) == sorted(seen_in(plan))
    assert seen_in(plan) == {i: copied if i in repeated else i in unique for i in seen_in(plan)}
    assert (plan.times == 4).all()
    few = plan_of(dataclasses.replace(data, unique_documents=3), copies, seed=1)
    assert len(few.documents("unique")) == 3


@pytest.mark.parametrize("unique", [-1, 12])
@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_has_one_role(seed, unique):
    """And documents that no other is near keep the role that they had."""
    clusters = np.repeat(np.arange(0, 50, 2), 2)  # two and two
    amounts = {"repeated_documents": 3, "repetitions": 2, "held_out_documents": 7}
    data = dataclasses.replace(PLAN, unique_documents=unique, **amounts)
    plan = plan_of(data, seed=seed, clusters=clusters)
    roles = roles_of(plan)
    assert [len(role) for role in roles] == [3, 38 if unique < 0 else 12, 7]
    for one in range(3):
        for other in range(one):
            assert not {clusters[i] for i in roles[one]} & {clusters[i] for i in roles[other]}
    plain, by_document = plan_of(data, seed=seed), dataclasses.replace(data, held_out_by="document")
    for other, of in ((data, np.arange(50)), (by_document, clusters)):
        assert roles_of(plan_of(other, seed=seed, clusters=of)) == roles_of(plain)
    fewer = dataclasses.replace(data, unique_documents=22)
    with expect_input_error(
        "50 distinct documents in 2 clusters, each of one role, but the plan needs 32"
    ):
        plan_of(fewer, seed=seed, clusters=np.repeat([0, 25], 25))


def test_too_few_documents_and_nothing_to_train_on():
    with expect_input_error(r"38 distinct documents, but the plan needs 39 .*lower config.data"):
        plan_of(PLAN, ONCE[:38])
    with expect_input_error("holds no training document"):
        plan_of(dataclasses.replace(PLAN, unique_documents=0, repeats_at_most=0))


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 2**16, 2**16 + 1, 100_003])
def test_a_bijection_is_an_order_that_is_known_without_a_list(count):
    """Small ones have that of a list; large ones are as even as one."""
    one, other = Bijection(count, 7, "roles"), Bijection(count, 8, "roles")
    everyone = np.arange(count)
    stands = one.at(everyone)
    assert (np.sort(stands) == everyone).all()
    assert (one.place_of(stands) == everyone).all()
    if count <= 2**16:
        assert (stands == permutation(count, 7, "roles")).all()
    if count >= 1000:
        assert (stands == other.at(everyone)).mean() < 0.01
        assert abs(np.corrcoef(stands, everyone)[0, 1]) < 4 / count**0.5
        steps = np.diff(stands), np.diff(stands, prepend=0)[:-1]
        assert abs(np.corrcoef(*steps)[0, 1] + 0.5) < 8 / count**0.5


def test_permutations_are_fair_and_independent():
    first = [int(permutation(5, seed, "order")[0]) for seed in range(5000)]
    assert max(abs(np.bincount(first) - 1000)) < 150
    orders = [permutation(1000, 0, "order"), permutation(1000, 0, "order", epoch=1)]
    orders += [permutation(1000, 1, "order"), permutation(1000, 0, "roles")]
    for one in range(4):
        assert sorted(orders[one]) == list(range(1000))
        assert all((orders[one] == orders[two]).mean() < 0.02 for two in range(one))


def test_golden_order():
    """Resuming an old run needs the old order: do not update the values, mend the code."""
    assert permutation(8, 5, "order", epoch=2).tolist() == [7, 6, 5, 1, 4, 0, 2, 3]


def test_documents_can_be_inspected():
    plan = plan_of(PLAN)
    lines = []
    for role in ("repeated", "unique"):
        of = plan.documents(role)
        listed = mixture.listing(plan.table, of, plan.encounters(of), role, True)
        lines += map(json.loads, listed)
    counted = collections.Counter((x["role"], x["encounters"], x["tokens"]) for x in lines)
    assert counted == {("repeated", 7, 8): 5, ("unique", 1, 8): 30}
    assert lines[0]["source"] == f"made up:{lines[0]['index']}"


def test_copies_take_their_share_of_the_budget():
    data = dataclasses.replace(PLAN, unique_documents=0, repeated_documents=0)
    config = Config(data=data, general=GeneralConfig("a", 450))
    plan = mixture.plan_mixture(config, Table([source(ONCE[:20]), source(5 * ONCE[:40])]))
    assert plan.sums.documents.tolist() == [0, 10]
    assert plan.sums.slots.sum() == 50


def general(amounts, token_budget, **options):
    """A plan over 20 documents of the rare domain, 30 and 10 general ones, of 9 tokens each with
    end of text.
    """
    data = dataclasses.replace(PLAN, unique_documents=0, **options)
    config = Config(data=data, general=GeneralConfig(amounts, token_budget))
    sources = [source(ONCE[:count]) for count in (20, 30, 10)]
    for number, one in enumerate(sources):  # no document is in two
        one.identities = one.identities + np.uint32(number)
    return mixture.plan_mixture(config, Table(sources[: 1 + len(amounts.split(","))]))


def test_a_general_corpus_fills_the_budget():
    """35 encounters of the rare domain are 315 tokens; 5 documents of one source come first, the
    other fills up.
    """
    plan = general("a=75%,b=5", token_budget=720)
    assert plan.sums.documents.tolist() == [0, 30, 5]
    assert plan.encounters(plan.repeated) == [7] * 5
    assert len(plan.documents("unique")) == 35
    # 68 of 136 tokens each
    assert general("a=50%,b=50%", token_budget=451).sums.documents.tolist() == [0, 7, 7]
    whole = general("a", token_budget=0)
    assert whole.sums.documents.tolist() == [0, 30]
    assert (plan.held_out < 20).all()


def test_what_two_sources_hold_is_a_document_of_the_first():
    """So what is held out of the first is not read from the second."""
    data = dataclasses.replace(PLAN, unique_documents=-1)
    config = Config(data=data, general=GeneralConfig("a", 0))
    plan = mixture.plan_mixture(config, Table([source(ONCE), source(np.repeat([2, 1], [25, 50]))]))
    assert plan.sums.documents.tolist() == [41, 25]  # of 75, 50 are documents of the first
    held_out = plan.table.identities(plan.held_out)
    read = np.flatnonzero(plan.reads(np.arange(len(plan.table))))
    assert not np.isin(plan.table.identities(read)[:, 0], held_out[:, 0]).any()
    assert plan.sums.slots.sum() == len(read)
    assert sum(plan.encounters(plan.documents("unique"))) == len(read)


def test_variants_share_the_general_documents():
    budgeted = general("a=100%,b=2", token_budget=500)
    for most in (1, 0):
        other = general("a=100%,b=2", token_budget=500, repeats_at_most=most)
        assert (other.documents("unique") == budgeted.documents("unique")).all()


@pytest.mark.parametrize(
    ("amounts", "budget", "problem"),
    [
        ("a,b", 500, "several globs need an amount each"),
        ("a=60%,b=50%", 500, "100% in all at most"),
        ("a=50%", 0, r"token_budget \(0\)"),
        ("a=1,b=11", 500, "b holds 10 distinct documents, not 11"),
        ("a", 314, "already has 315 tokens"),
        ("a", 1000, "a holds 270 tokens, but its share .* is 685"),
    ],
)
def test_a_general_corpus_that_cannot_be(amounts, budget, problem):
    with expect_input_error(problem):
        general(amounts, token_budget=budget)
