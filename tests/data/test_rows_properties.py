"""Properties of rows and batches, by hypothesis: nothing lost, nothing merged, the same order for
all readers.
"""

import collections
import itertools
from unittest import mock

import numpy as np
import pytest
from documents import Source
from hypothesis import given, settings
from hypothesis import strategies as st

from memsinks_jax.config import (
    Config,
    DataConfig,
    GeneralConfig,
    InputError,
    TrainingConfig,
    with_fields,
)
from memsinks_jax.data import epochs, prepared
from memsinks_jax.data.best_fit import best_fit
from memsinks_jax.data.ids import as_lanes, as_numbers
from memsinks_jax.data.mixture import plan_mixture
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches
from memsinks_jax.data.table import Table

END = -1
KINDS = ["one_document", "packed", "best_fit"]
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    """As many blocks as a large corpus has."""
    with mock.patch.object(prepared, "RUN", 3), mock.patch.object(epochs, "BLOCK", 8):
        yield


class Recorded(Source):
    """Every token of a record is another, copies of a document included: a row says which record it
    is of.
    """

    reads = 0

    def __init__(self, sizes, start, *columns):
        super().__init__([np.zeros(size, np.int32) for size in sizes], *columns)
        starts = start + np.cumsum([0, *sizes])
        self.addresses = [np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(starts)]
        self.identities = as_lanes((start + self.firsts + 1).astype(np.uint64))

    def read(self, record):
        self.reads += 1
        return self.addresses[record]


@st.composite
def corpora(draw, sharing=False, **fixed):
    """-> (config, sources): one or two, copies, near-duplicates and groups, documents of any
    length.
    """
    length, random = draw(st.integers(2, 24)), np.random.default_rng(draw(st.integers(0, 999)))
    kind = draw(st.sampled_from(["content", "near_duplicate", "group"]))

    def source(start):
        size = st.integers(1, 60) | st.sampled_from([1, length])
        sizes = np.array(draw(st.lists(size, min_size=6, max_size=30)))
        first_copies = np.arange(len(sizes))
        for copy in np.flatnonzero(random.random(len(sizes)) < 0.3):
            first_copies[copy] = first_copies[random.integers(0, copy + 1)]
        clusters = random.integers(0, len(sizes), len(sizes))
        groups = [f"group {number}" for number in random.integers(0, 5, len(sizes))]
        return Recorded(sizes[first_copies], start, first_copies, clusters, groups)

    sources = [source(0)] + ([source(10_000)] if sharing or draw(st.booleans()) else [])
    shared = sharing or (draw(st.booleans()) and len(sources) == 2)
    if shared:  # a document that the second source holds too
        place, there = sources[1].firsts[0], sources[0].firsts[-1]
        copies = np.flatnonzero(sources[1].firsts == place)
        for copy in copies:
            tokens = np.arange(sources[0].lengths[there], dtype=np.int32)
            sources[1].addresses[copy] = 20_000 + 100 * int(copy) + tokens
        sources[1].lengths[copies] = sources[0].lengths[there]
        is_first = sources[1].firsts == np.arange(len(sources[1]))
        sources[1].runs = prepared.run_sums(sources[1].lengths, is_first)
        sources[1].histogram = prepared.histogram(sources[1].lengths, is_first)
        sources[1].identities[copies] = sources[0].identities[there]
    choices = {
        "unique_documents": [-1, -1, 0, 2],
        "rows": KINDS,
        "repeats_at_most": [-1, 1, 0],
        "copies": ["keep", "once"],
        "held_out_by": ["cluster", "document"],
    }
    options = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    options |= {"repeated_documents": draw(st.integers(-1, 2)), "held_out_documents": 1}
    options |= {"repetitions": draw(st.integers(1, 5)), "row_length": length, "ids": kind} | fixed
    training, seed = TrainingConfig(batch_size=4, epochs=4), draw(st.integers(0, 2**32 - 1))
    config = Config(data=DataConfig(**options), training=training, seed=seed)
    if len(sources) == 2:
        fields = {"general": GeneralConfig("general" if draw(st.booleans()) else "general=3", 0)}
        config = with_fields(config, fields)
    return config, sources


def made(config, sources):
    """-> (rows, plan), or None where there are too few documents for the plan."""
    try:
        plan = plan_mixture(config, Table(sources, config.data.ids))
    except InputError:
        return None
    rows = Rows(config, plan, END)
    # lengths are enough to know how many rows there are
    assert not any(source.reads for source in sources)
    return rows, plan


def expected_encounters(plan):
    """{first copy: how often an epoch has it}, counted one by one."""
    table, data = plan.table, plan.data
    first_copies = table.first_copies(np.arange(len(table)))
    injected = plan.repeated.tolist() if plan.injected else []
    apart = {*plan.held_out.tolist(), *plan.left_out.tolist(), *injected}
    times = collections.Counter()
    for first, copies in collections.Counter(first_copies.tolist()).items():
        source = int(table.source_of(np.array([first]))[0])
        window, natural = plan.windows[source], 1 if data.copies == "once" else copies
        again = not plan.injected and source == 0 and copies > 1
        if first in apart or (window and not again and not window.holds(np.array([first]))[0]):
            continue
        times[first] = data.repeats_at_most if again and data.repeats_at_most >= 0 else natural
    return times + collections.Counter(
        dict(zip(injected, plan.epoch_counts.tolist(), strict=False))
    )


def listed_in_one_block(config):
    """A schedule that lists encounters takes one block."""
    return mock.patch.object(epochs, "BLOCK", 2**20 if config.data.schedule else epochs.BLOCK)


WRONG = "memsinks_jax.studies.schedules:WrongIds,rate="
NOISY = {"unique_documents": -1, "repeats_at_most": -1, "repetitions": 4, "schedule": f"{WRONG}0.5"}
CASES = {
    "any": {},
    "noise": NOISY | {"repeated_documents": 2},
    "nothing but noise": NOISY | {"repeated_documents": 2, "schedule": f"{WRONG}1"},
    "noise on copies": NOISY | {"repeated_documents": -1},
    "two sources": {"sharing": True, "ids": "content", "unique_documents": -1}
    | {"repeated_documents": 0, "copies": "keep"},
}


@pytest.mark.parametrize("case", CASES)
@quick
@given(st.data())
def test_every_token_of_an_epoch_is_predicted_once_and_encounters_of_every_id_are_counted(
    case, data
):
    """Over three epochs; pieces of an id that say the same `seen` are one encounter: they make up
    one document.
    """
    config, sources = data.draw(corpora(**CASES[case]))
    with listed_in_one_block(config):
        found = made(config, sources)
    if found is None:
        return
    rows, plan = found
    table, length = plan.table, config.data.row_length
    owner = {int(token): record for record in range(len(table)) for token in table.tokens(record)}
    expected, own = expected_encounters(plan), as_numbers(table.identities(np.arange(len(table))))
    counted = collections.Counter()
    for epoch in range(3):
        times, pieces, opened = collections.Counter(), collections.defaultdict(list), {}
        for number in range(epoch * rows.rows_per_epoch, (epoch + 1) * rows.rows_per_epoch):
            row = rows[number]
            assert row["seen"].dtype == np.int32 and row["seen"].shape == (rows.documents_per_row,)
            used = row["segments"] > 0
            assert (row["weights"] == used).all()
            assert not row["repeated"][row["segments"].max(initial=0) :].any()
            for segment in range(1, row["segments"].max(initial=0) + 1):
                there = np.flatnonzero(row["segments"] == segment)
                inputs, targets = row["inputs"][there], row["targets"][there]
                assert (np.diff(there) == 1).all()
                assert (row["positions"][there] == np.arange(len(there))).all()
                record = owner[next(t for t in (*targets.tolist(), *inputs.tolist()) if t != END)]
                document = table.tokens(record)
                whole = [END, *document.tolist(), END]
                start = 0 if inputs[0] == END else int(inputs[0] - document[0]) + 1
                assert inputs.tolist() == whole[start : start + len(there)]
                assert targets.tolist() == whole[start + 1 : start + 1 + len(there)]
                first = int(table.first_copies(np.array([record]))[0])
                key = int(as_numbers(row["identities"][[segment - 1]])[0])
                seen = int(row["seen"][segment - 1])
                assert row["repeated"][segment - 1] == (first in plan.repeated)
                if key == own[record]:
                    assert not config.data.schedule.endswith("rate=1") or first not in plan.repeated
                    pieces[key, seen].append((first, start, start + len(there)))
                    opened.setdefault((key, seen), (number, segment))
                else:
                    assert config.data.schedule and first in plan.repeated and not seen
                    counted[key] += start == 0
                    assert counted[key] <= 1
                times[first] += start == 0
        assert times == expected
        for key in {key for key, _ in pieces}:
            seen = sorted(each for other, each in pieces if other == key)
            assert seen == list(range(counted[key], counted[key] + len(seen)))
            places = [opened[key, each] for each in seen]
            assert places == sorted(places)
            counted[key] += len(seen)
        for parts in pieces.values():
            (first,) = {first for first, _, _ in parts}
            size = int(table.lengths[first]) + 1
            joined = sorted((start, stop) for _, start, stop in parts)
            assert joined[0][0] == 0
            assert all(one[1] == other[0] for one, other in itertools.pairwise(joined))
            read = min(size, length) if config.data.rows == "one_document" else size
            assert joined[-1][1] == read


@pytest.mark.parametrize("case", ["any", "noise"])
@quick
@given(st.data())
def test_the_ids_whose_sinks_opened_are_those_of_the_rows_so_far(case, data):
    """As `opening.opened` decides it row by row, wherever a run ends, over several epochs."""
    config, sources = data.draw(corpora(**CASES[case]))
    config = with_fields(config, {"sinks.opens_at": data.draw(st.integers(2, 4))})
    with listed_in_one_block(config):
        found = made(config, sources)
    if found is None:
        return
    rows, _ = found
    ends = {2 * rows.rows_per_epoch}
    ends |= set(data.draw(st.lists(st.integers(0, 3 * rows.rows_per_epoch), max_size=3)))
    opened, found = set(), {}
    for number in range(max(ends) + 1):
        if number in ends:
            found[number] = rows.opened(number).tolist()
            assert found[number] == sorted(opened)
        row = rows[number]
        encounters = row["seen"] - row["epoch"] + 1
        opens = row["identities"][encounters >= config.sinks.opens_at]
        opened |= set(as_numbers(opens).tolist()) - {0}
    # what is kept of later epochs says nothing of earlier ones
    for number in sorted(ends, reverse=True):
        assert rows.opened(number).tolist() == found[number]


@quick
@given(corpora(rows="packed") | corpora(rows="one_document"), st.integers(1, 9))
def test_what_a_run_of_few_steps_says_of_its_documents_is_what_it_reads(drawn, steps):
    """Where a document is read from its start on."""
    config, sources = drawn
    found = made(with_fields(config, {"training.steps": steps}), sources)
    if found is None:
        return
    rows, plan = found
    table, read = plan.table, collections.Counter()
    owner = {int(token): record for record in range(len(table)) for token in table.tokens(record)}
    for number in range(min(rows.end, rows.rows_per_epoch)):
        row = rows[number]
        opens = np.flatnonzero((row["inputs"] == END) & (row["segments"] > 0))
        records = np.array([owner[int(token)] for token in row["targets"][opens]], np.int64)
        read.update(table.first_copies(records).tolist())
    every = np.unique(table.first_copies(np.arange(len(table))))[::-1]
    assert rows.encounters(every) == [read[first] for first in every.tolist()]


@quick
@given(corpora(), st.data())
def test_the_global_batch_of_a_step_is_a_function_of_the_step(drawn, data):
    """Hosts, threads, prefetching and the step that a run resumes at change nothing, over the
    border of an epoch.
    """
    found = made(*drawn)
    if found is None:
        return
    rows, plan = found
    steps = rows.rows_per_epoch // 4 + 2
    straight = [[rows[4 * step + place] for place in range(4)] for step in range(steps)]
    step = 0
    while step < steps:  # a run that stops again and again, and goes on with other hosts
        hosts = data.draw(st.sampled_from([1, 2, 4]))
        until = data.draw(st.integers(step + 1, steps))
        threads = data.draw(st.integers(1, 4))
        options = {"threads": threads, "prefetch": data.draw(st.integers(threads, 16))}
        again = Rows(drawn[0], plan, END)
        shares = np.split(np.arange(4), hosts)
        streams = [batches(again, 4, step, share, **options) for share in shares]
        for at in range(step, until):
            shares = [next(stream) for stream in streams]
            for name in shares[0]:
                whole = np.concatenate([share[name] for share in shares])
                assert (whole == np.stack([row[name] for row in straight[at]])).all()
        step = until


@quick
@given(st.lists(st.integers(2, 50), min_size=1, max_size=60), st.integers(2, 24))
def test_best_fit_fills_rows_and_splits_only_what_is_longer(sizes, length):
    slots = best_fit(np.array(sizes), length)
    falling, pieces = sorted(sizes, reverse=True), collections.defaultdict(list)
    rows = []
    for first, last in itertools.pairwise(slots.first.tolist()):
        assert last > first
        taken = 0
        for slot in range(first, last):
            rank, start, stop = int(slots.rank[slot]), int(slots.start[slot]), int(slots.stop[slot])
            pieces[rank].append((start, stop))
            taken += stop - start
        rows.append(taken)
        assert taken <= length
    for rank, size in enumerate(falling):
        joined = sorted(pieces[rank])
        assert joined[0][0] == 0
        assert joined[-1][1] == size
        assert all(one[1] == other[0] for one, other in itertools.pairwise(joined))
        assert len(joined) == -(-size // length)
    assert sum(taken <= length / 2 for taken in rows) <= 1  # or two of them would have shared a row


@quick
@given(st.lists(st.integers(2, 60), min_size=1, max_size=12), st.integers(2, 24), st.integers(0, 3))
def test_best_fit_fills_as_many_rows_as_it_is_given(sizes, length, more):
    """Where a block has as many rows as another needed: nothing is lost, no row is too full, no
    piece is empty.
    """
    rows = -(-sum(sizes) // length) + more
    slots = best_fit(np.array(sizes), length, rows)
    assert len(slots.first) == rows + 1
    row = np.repeat(np.arange(rows), np.diff(slots.first))
    taken = np.bincount(row, slots.stop - slots.start, minlength=rows)
    assert (taken <= length).all()
    assert (slots.stop > slots.start).all()
    for rank, size in enumerate(sorted(sizes, reverse=True)):
        there = slots.rank == rank
        joined = sorted(zip(slots.start[there].tolist(), slots.stop[there].tolist(), strict=True))
        assert (joined[0][0], joined[-1][1]) == (0, size)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(joined))
