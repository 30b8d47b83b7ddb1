"""The table of documents, against a plain implementation record by record."""

import itertools
from unittest import mock

import numpy as np
import pytest
from conftest import expect_input_error
from documents import Source

from memsinks_jax.config import Config, DataConfig, GeneralConfig
from memsinks_jax.data import ids, mixture, prepared
from memsinks_jax.data.table import Table


def source(random, records, texts):
    """Documents that are each a number, of which several sources hold some; near-duplicates and
    groups at random.
    """
    numbers = random.choice(texts, records)
    first_copies = np.array([np.flatnonzero(numbers == number)[0] for number in numbers])
    tokens = [np.array([number] * (number % 5 + 1), np.int32) for number in numbers.tolist()]
    clusters = random.integers(0, records // 2, records)
    # copies may be in several
    groups = [f"group {number}" for number in random.integers(0, 7, records)]
    return Source(tokens, first_copies, clusters, groups), numbers


@pytest.fixture(params=range(6))
def world(request):
    """-> (sources, the document's number of every record)"""
    random = np.random.default_rng(request.param)
    asked = ((40, 0, 30), (25, 20, 60), (30, 0, 90))[: request.param % 3 + 1]
    sources, numbers = zip(*(source(random, n, np.arange(a, b)) for n, a, b in asked), strict=True)
    return list(sources), np.concatenate(numbers)


def test_a_document_is_known_by_its_first_copy_wherever_it_is(world):
    sources, numbers = world
    table, every = Table(sources), np.arange(len(numbers))
    first_copies = np.array([np.flatnonzero(numbers == number)[0] for number in numbers])
    assert (table.first_copies(every) == first_copies).all()
    assert (table.copies(every) == [(numbers == number).sum() for number in numbers]).all()
    of = table.source_of(every)
    assert (of == np.repeat(np.arange(len(sources)), list(map(len, sources)))).all()
    tokens = [[n] * (n % 5 + 1) for n in numbers.tolist()]
    assert [table.tokens(i).tolist() for i in every] == tokens
    assert (table.lengths[every] == numbers % 5 + 1).all()
    assert len(table.cross_source_copies) == sum(table.source_of(first_copies) != of)
    clusters = table.clusters(every)
    assert (clusters == clusters[first_copies]).all()
    for wanted in (np.unique(clusters), np.unique(clusters)[::3][::-1]):
        which, records = table.cluster_members(wanted)
        assert (clusters[records] == wanted[which]).all()
        assert sorted(records) == np.flatnonzero(np.isin(clusters, wanted)).tolist()
        assert (np.diff(which) >= 0).all()
    for start, stop in itertools.pairwise(table.bounds.tolist()):
        assert (table.lengths[start:stop] == table.lengths[every[start:stop]]).all()


@pytest.mark.parametrize("kind", ["content", "near_duplicate", "group"])
def test_documents_are_found_by_the_ids_of_every_kind(kind, world):
    sources, numbers = world
    table, every = Table(sources, kind), np.arange(len(numbers))
    first_copies, of = table.first_copies(every), table.identities(every)
    if kind == "group":  # a document of several groups is one of each
        names = [each.group_names[n] for each in sources for n in each.groups.tolist()]
        places = list(zip(numbers.tolist(), names, strict=True))
        first_copies = np.array([places.index(place) for place in places])
        assert (table.first_in_groups(every) == first_copies).all()
        assert (table.first_copies(every) != first_copies).any()
    assert (of == of[first_copies]).all()
    expected = {
        "content": lambda i: ids.content_id(table.tokens(i)),
        "near_duplicate": lambda i: ids.content_id(table.tokens(table.clusters(every)[i])),
        "group": lambda i: prepared.group_id(names[i]),
    }[kind]
    assert (of == [expected(i) for i in every.tolist()]).all()
    assert (table.identities(5) == of[5]).all()
    asked = np.unique(np.concatenate([of[::4], [[123, 456]]]), axis=0).astype(np.uint32)
    assert [len(each) for each in table.documents_of(asked[:0])] == [0, 0]
    which, documents = table.documents_of(asked)
    found = set(zip(which.tolist(), documents.tolist(), strict=True))
    assert len(found) == len(which)
    is_first = first_copies == every
    there = [np.flatnonzero((of == one).all(axis=1) & is_first).tolist() for one in asked]
    assert found == {(place, i) for place, which in enumerate(there) for i in which}


def test_ids_that_a_source_has_not_are_refused():
    sources = [Source([np.arange(3)] * 2, groups=["a", "b"]), Source([np.arange(3)] * 2)]
    with expect_input_error("made up was prepared without --group_field"):
        Table(sources, "group")
    sources[0].manifest = {"settings": {"near_duplicates": "none"}}
    with expect_input_error("made up was prepared without near-duplicates"):
        Table(sources, "near_duplicate")


@pytest.mark.parametrize("longest", [6, prepared.LONGEST])
def test_what_a_row_has_no_room_for_is_counted(longest, world):
    """Also beyond the lengths that a histogram distinguishes."""
    with mock.patch.object(prepared, "LONGEST", longest):
        (one, *_), _ = world
        again = Source(one.all_tokens, one.firsts)
        for row_length, first_only in itertools.product((2, 4, 6, 9), (True, False)):
            lengths = one.lengths[one.firsts == np.arange(len(one))] if first_only else one.lengths
            beyond = np.maximum(lengths + 1 - row_length, 0)
            counted = Table([again]).truncated(0, row_length, first_only)
            assert counted == ((beyond > 0).sum(), beyond.sum())


@pytest.mark.parametrize("unique", [-1, 12])
@pytest.mark.parametrize("copies", ["keep", "once"])
@pytest.mark.parametrize("by", ["cluster", "document"])
def test_sums_are_those_of_the_records_that_are_read(unique, copies, by, world):
    """Whether they come from the table's own sums or from its records."""
    sources, numbers = world
    options = {"unique_documents": unique, "repeated_documents": 3, "held_out_documents": 4}
    options |= {"repetitions": 1, "row_length": 4, "rows": "packed"}
    data = DataConfig(copies=copies, held_out_by=by, **options)
    with mock.patch.object(prepared, "RUN", 7):
        sources = [Source(each.all_tokens, each.firsts, each.clusters) for each in sources]
        general = GeneralConfig(*[("", 0), ("a", 0), ("a=3,b=20%", 250)][len(sources) - 1])
        plan = mixture.plan_mixture(Config(data=data, general=general), Table(sources))
        table, every = plan.table, np.arange(len(numbers))
        reads, first_copies = plan.reads(every), plan.table.first_copies(every)
        for run, (start, stop, _) in enumerate(table.runs.tolist()):
            there = np.arange(start, stop)[reads[start:stop]]
            assert plan.sums.slots[run] == len(there)
            assert plan.sums.tokens[run] == (table.lengths[there] + 1).sum()
        for number in range(len(sources)):
            there = every[reads & (table.source_of(every) == number)]
            assert plan.sums.documents[number] == (first_copies[there] == there).sum()
            beyond = np.maximum(table.lengths[there] + 1 - 4, 0)
            assert plan.sums.longer[number] == (beyond > 0).sum()
            assert plan.sums.beyond[number] == beyond.sum()
