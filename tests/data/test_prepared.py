"""Reading a prepared corpus of many shards: documents are intact, even with few open files
allowed.
"""

import gc
import hashlib
import json
import os
import pathlib
import pickle
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, expect_input_error

from memsinks_jax.data import ids, prepared
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["a few words to learn pieces from", "and a few more of them"], 300)


def columns_of(lengths, identities, groups, clusters):
    """All columns of records of which these four are known, all in memory."""
    numbers = ids.as_numbers(identities)
    distinct, first, inverse, copies = np.unique(
        numbers, return_index=True, return_inverse=True, return_counts=True
    )
    first_copies, clusters = first[inverse], clusters[first[inverse]]
    shared = np.flatnonzero(np.bincount(clusters, minlength=len(clusters))[clusters] > 1)
    members = np.stack([clusters[shared], shared], axis=1)
    is_first = first_copies == np.arange(len(first_copies))
    values = {"lengths": lengths, "identities": identities, "groups": groups}
    values |= {"firsts": first_copies, "clusters": clusters, "copies": copies[inverse]}
    values |= {"sorted_identities": distinct, "sorted_numbers": first}
    values |= {"members": members[np.lexsort(members.T[::-1])]}
    values |= {"runs": prepared.run_sums(lengths, is_first)}
    values |= {"histogram": prepared.histogram(lengths, is_first)}
    return {
        name: np.asarray(values[name], kind)
        for name, (kind, _) in prepared.columns(len(lengths)).items()
    }


def write_columns(folder, columns):
    """-> SHA-256 of each file."""
    (folder / "columns").mkdir()
    for name, column in columns.items():
        np.save(prepared.column_file(folder, name), column)
    return {
        name: prepared.sha256(prepared.column_file(folder, name).read_bytes()) for name in columns
    }


def write_prepared(folder, tokens, shards):
    """What `memsinks_jax.prepare` would write of these documents, in so many shards of equal
    size.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    (folder / "shards").mkdir(parents=True)
    lengths = np.array([len(t) for t in tokens])
    identities = np.stack([ids.content_id(t) for t in tokens])
    no_groups = np.full(len(tokens), prepared.NO_GROUP)
    parts = np.array_split(np.arange(len(tokens)), shards)
    for rank, part in enumerate(parts):
        writer = ArrayRecordWriter(
            str(folder / "shards" / f"{rank:05d}.array_record"), "group_size:1,uncompressed"
        )
        for number in part:
            record = tokens[number].astype(prepared.token_type(TOKENIZER.vocabulary_size))
            writer.write(
                prepared.pack_record(
                    record, identities[number], np.zeros(2, np.uint32), 0, number, number + 1
                )
            )
        writer.close()
    columns = columns_of(lengths, identities, no_groups, np.arange(len(tokens)))
    (folder / "groups.json").write_text("[]")
    (folder / "tokenizer.model").write_bytes(TOKENIZER.model)
    settings = {"near_duplicates": "none", "tokenizer_sha256": prepared.sha256(TOKENIZER.model)}
    manifest = {"format": prepared.FORMAT, "settings": settings, "tokenizer": "tokenizer.model"}
    manifest |= {"end_of_text": 1, "vocabulary_size": TOKENIZER.vocabulary_size}
    manifest |= {"sources": [{"path": "input.jsonl"}]}
    manifest |= {"shards": [{"documents": len(part)} for part in parts], "documents": len(tokens)}
    manifest |= {"tokens": int(lengths.sum()), "columns": write_columns(folder, columns)}
    (folder / prepared.MANIFEST).write_text(json.dumps(manifest))


def random_tokens(documents, seed=0):
    random = np.random.default_rng(seed)
    return [
        random.integers(3, TOKENIZER.vocabulary_size, n).astype(np.int32)
        for n in random.integers(4, 40, documents)
    ]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A corpus of 600 documents in 300 shards -> (folder, tokens)."""
    folder, tokens = tmp_path_factory.mktemp("many") / "corpus", random_tokens(600)
    write_prepared(folder, tokens, 300)
    return folder, tokens


def resident():
    """Bytes of this process that are in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_columns_are_mapped_and_not_read(tmp_path):
    """Of ten million records: opening them and looking into every column takes next to none of
    their memory.
    """
    write_prepared(tmp_path / "one", random_tokens(1), 1)
    records = 10**7
    for name, (kind, shape) in prepared.columns(records).items():
        shape = tuple(records if size is None else size for size in shape)
        # sparse files
        np.lib.format.open_memmap(prepared.column_file(tmp_path / "one", name), "w+", kind, shape)
    manifest = json.loads((tmp_path / "one" / prepared.MANIFEST).read_text())
    (tmp_path / "one" / prepared.MANIFEST).write_text(json.dumps(manifest | {"documents": records}))
    assert (
        sum(path.stat().st_size for path in (tmp_path / "one" / "columns").iterdir())
        < 48.1 * records + 2**22
    )
    before = resident()
    corpus = Prepared(tmp_path / "one")
    for name in prepared.columns(records):
        assert not getattr(corpus, name)[-1].any()
    assert len(corpus) == records
    assert resident() - before < 10 * 2**20
    assert len(pickle.dumps(corpus)) < 1000


def test_columns_that_do_not_fit_are_refused(tmp_path):
    tokens = random_tokens(20)
    write_prepared(tmp_path / "a", tokens, 2)
    write_prepared(tmp_path / "b", tokens[:19], 1)
    path = prepared.column_file(tmp_path / "a", "lengths")
    whole = path.read_bytes()
    for damaged, message in (
        (
            prepared.column_file(tmp_path / "b", "lengths").read_bytes(),
            "lengths.npy does not fit manifest.json",
        ),
        (
            prepared.column_file(tmp_path / "a", "identities").read_bytes(),
            "lengths.npy does not fit manifest.json",
        ),
        (whole[:-1], "lengths.npy: damaged .*run memsinks_jax.prepare anew"),
        (b"text", "lengths.npy: damaged .*run memsinks_jax.prepare anew"),
        (b"", "lengths.npy: damaged .*run memsinks_jax.prepare anew"),
    ):
        path.write_bytes(damaged)
        with expect_input_error(message) as refused:
            Prepared(tmp_path / "a")
        assert "\n" not in str(refused.value)
    path.unlink()
    with expect_input_error("not a whole prepared corpus .*lengths.npy.*run memsinks_jax.prepare"):
        Prepared(tmp_path / "a")
    path.write_bytes(whole)
    assert len(Prepared(tmp_path / "a")) == 20
    manifest = json.loads((tmp_path / "a" / prepared.MANIFEST).read_text())
    (tmp_path / "a" / prepared.MANIFEST).write_text(json.dumps(manifest | {"format": 1}))
    shutil.rmtree(tmp_path / "a" / "columns")
    with expect_input_error(
        "prepared by another version; run memsinks_jax.prepare into a new folder"
    ):
        Prepared(tmp_path / "a")


def test_sums_of_runs_and_histogram_by_hand():
    random = np.random.default_rng(0)
    records = 2 * prepared.RUN + 3
    lengths = random.integers(0, 9, records).astype(np.uint32)
    is_first = random.random(records) < 0.7
    # the second has no room for its end of text in 32 bits
    lengths[[5, 9]] = prepared.LONGEST - 1, 2**32 - 1
    is_first[[5, 9]] = True, False
    sums = prepared.run_sums(lengths, is_first)
    assert sums.shape == (3, 2, 2) and sums.dtype == np.int64
    last = slice(2 * prepared.RUN, None)
    assert sums[2].tolist() == [
        [3, int(lengths[last].sum()) + 3],
        [
            int(is_first[last].sum()),
            sum(
                int(n) + 1
                for n, is_counted in zip(lengths[last], is_first[last], strict=True)
                if is_counted
            ),
        ],
    ]
    assert sums[:, 0, 1].sum() == lengths.astype(np.int64).sum() + records
    counted = prepared.histogram(lengths, is_first)
    assert counted.shape == (2, prepared.LONGEST + 1) and counted.dtype == np.int64
    assert counted[0, :10].tolist() == [0, *np.bincount(lengths[lengths < 9], minlength=9)]
    assert counted[1, :10].tolist() == [
        0,
        *np.bincount(lengths[is_first & (lengths < 9)], minlength=9),
    ]
    assert counted[:, -1].tolist() == [2, 1]
    parts = [slice(0, prepared.RUN), slice(prepared.RUN, None)]
    assert (
        np.concatenate([prepared.run_sums(lengths[part], is_first[part]) for part in parts]) == sums
    ).all()


READ = """
import concurrent.futures, hashlib, os, sys
import numpy as np
from memsinks_jax.config import Config, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.pipeline import batches

data = {"data.files": sys.argv[1], "data.unique_documents": -1, "data.held_out_documents": 1}
config = with_fields(Config(), data | {"training.batch_size": 16})
corpus = load_corpus(config)
stream = batches(corpus.rows(), 16)
for _ in range(60):
    next(stream)
order = np.random.default_rng(1).integers(0, 600, 4000).tolist()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(corpus.tokens, order))
print(len(os.listdir("/proc/self/fd")), hashlib.sha256(b"".join(t.tobytes() for t in found)).hexdigest())
"""


@pytest.mark.parametrize("limit", ["ulimit -n 128", "ulimit -Sn 128"])
def test_many_shards_are_read_with_few_open_files(many, limit):
    """Rows in random order by the loader's threads and by eight of our own; a soft limit is raised
    first.
    """
    folder, tokens = many
    command = ["bash", "-c", f'{limit}; exec "$@"', "_", sys.executable, "-c", READ, str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    files, digest = done.stdout.split()
    assert int(files) < 128 if limit == "ulimit -n 128" else int(files) > 256
    order = np.random.default_rng(1).integers(0, 600, 4000).tolist()
    assert digest == hashlib.sha256(b"".join(tokens[i].tobytes() for i in order)).hexdigest()


def test_too_many_open_files_are_reported_as_such(many):
    """Not as damage, by whatever is opened first."""
    corpus, limits = Prepared(many[0]), resource.getrlimit(resource.RLIMIT_NOFILE)
    assert len(corpus.read(0))  # modules are imported
    try:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        with expect_input_error(
            r"00299.array_record: .*[Tt]oo many open files.* limit is \d+.*ulimit -n"
        ):
            corpus.read(599)
        with pytest.raises(OSError, match="Too many open files"):
            Prepared(many[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (corpus.read(599) == many[1][599]).all()


def test_readers_go_with_their_corpus(many):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    corpus = Prepared(many[0])
    assert [len(corpus.read(record)) for record in range(600)] == corpus.lengths.tolist()
    assert (
        before + 256 <= len(os.listdir("/proc/self/fd")) < before + 300
    )  # an open reader has its records' places in memory
    del corpus
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
