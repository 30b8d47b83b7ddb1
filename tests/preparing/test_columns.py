"""Columns written in parts, as for many records, equal those computed in memory."""

import hashlib
import tracemalloc

import numpy as np
import pytest
from test_prepared import columns_of

from memsinks_jax.data import ids, prepared
from memsinks_jax.preparing import columns
from memsinks_jax.preparing.columns import Columns


@pytest.fixture(autouse=True)
def few_records_at_once(monkeypatch):
    monkeypatch.setattr(columns, "_BITS", 14)
    monkeypatch.setattr(columns, "_ROWS", 2**14)


def records(count, distinct, seed=0):
    """Copies of documents at random, a tenth of which are near others -> (lengths, identities,
    groups, clusters).
    """
    random = np.random.default_rng(seed)
    documents = random.integers(0, distinct, count)
    lengths = random.integers(1, 3000, distinct)
    lengths[random.integers(0, distinct, 5)] = random.integers(2**17 - 2, 2**32 - 1, 5)
    identities = random.integers(0, 2**32, (distinct, 2), np.uint64).astype(np.uint32)
    of = np.where(
        random.random(distinct) < 0.1,
        random.integers(0, distinct // 10, distinct),
        distinct + np.arange(distinct),
    )
    _, first, cluster = np.unique(of[documents], return_index=True, return_inverse=True)
    return (
        lengths[documents].astype(np.uint32),
        identities[documents],
        random.integers(0, 9, count),
        first[cluster],
    )


def write(folder, lengths, identities, groups, clusters, parts=7):
    """In so many shards, one of them empty."""
    folder.mkdir()
    written = Columns(folder, folder / "work", len(lengths), 20)
    of_documents = {}
    for record, identity in enumerate(ids.as_numbers(identities).tolist()):
        of_documents.setdefault(int(clusters[record]), set()).add(identity)
    near = np.array([len(of_documents[cluster]) > 1 for cluster in clusters.tolist()])
    cuts = [0, 0, *(len(lengths) * np.arange(1, parts) // parts).tolist(), len(lengths)]
    for start, stop in zip(cuts, cuts[1:], strict=False):
        here = np.flatnonzero(near[start:stop]) + start
        pairs = np.stack([here, clusters[here]], axis=1)
        written.add(lengths[start:stop], identities[start:stop], groups[start:stop], pairs)
    return written.close()


@pytest.mark.parametrize(
    "count, distinct", [(60_000, 40_000), (50_000, 30), (2**14, 10**5), (3, 40)]
)
def test_columns_are_those_worked_out_in_memory(tmp_path, count, distinct):
    made = records(count, distinct)
    written = write(tmp_path / "out", *made)
    expected = columns_of(*made)
    for name, column in expected.items():
        path = prepared.column_file(tmp_path / "out", name)
        found = np.load(path)
        assert found.dtype == column.dtype and found.shape == column.shape, name
        assert (found == column).all(), name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == written.hashes[name]
    assert not list((tmp_path / "out" / "columns").glob("*.new"))
    lengths = made[0].astype(np.int64)
    first_copies, times = np.unique(expected["firsts"], return_counts=True)
    assert (written.longest, written.median) == (lengths.max(), int(np.median(lengths)))
    assert (
        written.digits.tolist()
        == np.bincount([int(n).bit_length() for n in lengths], minlength=33).tolist()
    )
    assert written.distinct == len(first_copies)
    order = np.argsort(-times, kind="stable")[:20]
    assert written.most_repeated.tolist() == [
        [first_copies[i], times[i]] for i in order if times[i] > 1
    ]
    # A cluster counts as near-duplicates if it holds two different documents.
    clusters, different = np.unique(expected["clusters"][first_copies], return_counts=True)
    several = np.isin(expected["clusters"], clusters[different > 1])
    assert (written.near_duplicate_clusters, written.near_duplicate_documents) == (
        (different > 1).sum(),
        several.sum(),
    )


def test_the_median_of_documents_beyond_the_histogram(tmp_path):
    for number, lengths in enumerate(
        [[5, 2**17 + 1, 2**17 + 4], [2**17 - 2, 2**17 + 3], [2**20, 2**30, 2**31, 2**32 - 1]]
    ):
        identities = np.stack([np.arange(len(lengths))] * 2, axis=1).astype(np.uint32)
        alone = np.arange(len(lengths))
        written = write(
            tmp_path / str(number), np.array(lengths, np.uint32), identities, alone, alone, parts=1
        )
        assert written.median == int(np.median(lengths))


def test_a_killed_writer_leaves_no_column_and_its_files_are_not_taken_for_rows(tmp_path):
    made = records(40_000, 20_000)
    (tmp_path / "out").mkdir()
    killed = Columns(tmp_path / "out", tmp_path / "out" / "work", 40_000, 20)
    killed.add(*made[:3], np.stack([np.arange(40_000)] * 2, axis=1))
    killed._find_copies()
    assert not list((tmp_path / "out" / "columns").glob("*.npy"))
    again = Columns(tmp_path / "out", tmp_path / "out" / "work", 40_000, 20)
    again.add(*made[:3], np.zeros((0, 2), np.uint64))
    hashes = again.close().hashes
    (tmp_path / "straight").mkdir()
    straight = Columns(tmp_path / "straight", tmp_path / "straight" / "work", 40_000, 20)
    straight.add(*made[:3], np.zeros((0, 2), np.uint64))
    assert straight.close().hashes == hashes


def test_memory_does_not_grow_with_the_records(tmp_path):
    peaks = []
    for count in (10**5, 8 * 10**5):
        (tmp_path / str(count)).mkdir()
        made = records(count, count // 2)
        near = np.stack([np.arange(count), made[3]], axis=1)[made[3] != np.arange(count)]
        cuts = list(range(0, count + 1, 10**4))
        tracemalloc.start()
        written = Columns(tmp_path / str(count), tmp_path / str(count) / "work", count, 20)
        for start, stop in zip(cuts, cuts[1:], strict=False):
            written.add(
                *(values[start:stop] for values in made[:3]),
                near[(near[:, 0] >= start) & (near[:, 0] < stop)],
            )
        written.close()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
