"""Rows and batches of any documents: nothing lost, nothing merged, the same order whoever reads. Found by hypothesis."""

import collections
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memsinks_jax.config import Config, DataConfig, TrainingConfig
from memsinks_jax.data import ids, mixture
from memsinks_jax.data.best_fit import best_fit
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import batches

END = 3
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


LONGEST = 60
NO_DOCUMENT = -1  # the address of end of text


class Lazy(collections.abc.Sequence):
    """Documents that are read when asked, as those of a prepared corpus."""

    def __init__(self, documents):
        self._documents, self.reads = documents, 0

    def __len__(self):
        return len(self._documents)

    def __getitem__(self, index):
        self.reads += 1
        return self._documents[index]


@st.composite
def corpora(draw):
    """-> (rows, the same rows with every token's address in its place, documents, plan).

    Tokens are of six values: documents hold the separator, and parts of each other. An address is a number that says
    document and offset.
    """
    length = draw(st.integers(2, 24))
    sizes = draw(st.lists(st.integers(1, LONGEST) | st.sampled_from([1, length]), min_size=4, max_size=12))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    documents = [random.integers(0, 6, size).astype(np.int32) for size in sizes]
    data = DataConfig(
        unique_documents=-1, repeated_documents=draw(st.integers(0, 2)), repetitions=draw(st.integers(1, 4)),
        held_out_documents=1, row_length=length, rows=draw(st.sampled_from(["one_document", "packed", "best_fit"])),
        repeats=draw(st.sampled_from(["keep", "once", "remove"])),
    )  # fmt: skip
    config = Config(data=data, training=TrainingConfig(batch_size=4), seed=draw(st.integers(0, 2**32 - 1)))
    plan = mixture.plan_mixture(data, np.ones(len(sizes), int), config.seed)
    identities = np.stack([ids.index_id(i) for i in range(len(sizes))])
    addresses = [np.arange(n, dtype=np.int32) + LONGEST * i for i, n in enumerate(sizes)]
    tokens = Lazy(documents)
    rows = Rows(config, plan, tokens, np.array(sizes), identities, END)
    assert tokens.reads == 0  # lengths are enough to know how many rows there are
    return rows, Rows(config, plan, addresses, np.array(sizes), identities, NO_DOCUMENT), documents, plan, data


def value_of(addresses, documents):
    home = np.concatenate([np.pad(document, (0, LONGEST - len(document))) for document in documents])
    return np.where(addresses == NO_DOCUMENT, END, home[addresses])


@quick
@given(corpora(), st.integers(0, 2))
def test_every_token_leads_back_to_its_document_and_offset(made, epoch):
    rows, addressed, documents, plan, data = made
    predicted = collections.Counter()
    for number in range(epoch * rows.rows_per_epoch, (epoch + 1) * rows.rows_per_epoch):
        row, places = rows[number], addressed[number]
        used = row["segments"] > 0
        for name in ("inputs", "targets"):  # no value decides anything
            assert (row[name][used] == value_of(places[name][used], documents)).all()
        for name in ("segments", "positions", "weights", "identities"):
            assert (row[name] == places[name]).all()
        assert (row["weights"][~used] == 0).all()
        owners = row["identities"][row["segments"][used] - 1][:, 1].astype(int) - 1
        pairs = zip(owners, places["inputs"][used], places["targets"][used], strict=True)
        for place, (owner, at, target) in enumerate(pairs):
            if at == NO_DOCUMENT:  # it opens its document
                assert target == LONGEST * owner
                assert row["positions"][place] == 0
            else:
                assert at // LONGEST == owner
                ends = at % LONGEST == len(documents[owner]) - 1
                assert target == (NO_DOCUMENT if ends else at + 1)
            predicted[int(target) if target != NO_DOCUMENT else -1 - owner] += 1
            new = not place or row["segments"][place] != row["segments"][place - 1]
            assert row["positions"][place] == (0 if new else row["positions"][place - 1] + 1)
        assert (row["weights"][used] == 1).all()
    expected = collections.Counter()
    for document, times in enumerate(np.bincount(plan.encounters, minlength=len(documents)).tolist()):
        size = len(documents[document])
        for offset in range(min(size, data.row_length) if data.rows == "one_document" else size):
            expected[LONGEST * document + offset] += times
        if size < data.row_length or data.rows != "one_document":
            expected[-1 - document] += times
    assert predicted == expected


@quick
@given(corpora(), st.data())
def test_the_global_batch_of_a_step_is_a_function_of_the_step(made, data):
    """Hosts, threads, prefetching and the step that a run resumes at change nothing, over the border of an epoch."""
    rows, *_ = made
    steps = rows.rows_per_epoch // 4 + 2
    straight = [[rows[4 * step + place] for place in range(4)] for step in range(steps)]
    step = 0
    while step < steps:  # a run that stops again and again, and goes on with other hosts
        hosts = data.draw(st.sampled_from([1, 2, 4]))
        until = data.draw(st.integers(step + 1, steps))
        options = {"threads": data.draw(st.integers(1, 4)), "prefetch": data.draw(st.integers(1, 16))}
        streams = [batches(rows, 4, step, share, **options) for share in np.split(np.arange(4), hosts)]
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
@given(st.integers(1, 6), st.integers(1, 3), st.sampled_from(["one_document", "packed", "best_fit"]), st.integers(0, 9))
def test_scheduled_documents_come_at_their_steps_and_the_rest_is_not_disturbed(every, count, kind, seed):
    """Whatever the batch: documents 40 steps apart come at steps 40, 80, ..., and no other row is lost or doubled."""
    sizes = np.array([5, 3, 9, 1, 7, 2, 8, 4, 6, 11])
    made = {}
    for batch_size in (3, 4):
        if every * batch_size <= count * 2:
            continue
        for schedule in (every, 0):
            data = DataConfig(
                unique_documents=-1, repeated_documents=count, held_out_documents=1, row_length=12, rows=kind,
                repeat_every=schedule, repetitions=1, repeats="keep" if schedule else "remove",
            )  # fmt: skip
            config = Config(data=data, training=TrainingConfig(batch_size=batch_size), seed=seed)
            plan = mixture.plan_mixture(data, np.ones(len(sizes), int), seed)
            tokens = [np.full(n, 10 + i, np.int32) for i, n in enumerate(sizes)]
            made[schedule] = Rows(config, plan, tokens, sizes, np.stack([ids.index_id(i) for i in range(10)]), END)
        others = (made[0][n] for n in itertools.count())
        for number in range(4 * every * batch_size):
            row, step = made[every][number], number // batch_size + 1
            if step % every == 0 and number % batch_size < count:
                document = int(plan.repeated[number % batch_size])
                assert (row["identities"][0] == ids.index_id(document)).all()
                assert row["inputs"].tolist()[: sizes[document] + 1] == [END] + [10 + document] * sizes[document]
                assert row["weights"].sum() == sizes[document] + 1
            else:
                other = next(others)
                assert all((row[name] == other[name]).all() for name in other if name != "identities")
