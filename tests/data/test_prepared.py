"""Reading a prepared corpus of many shards: however few files a process may open, every document is read as it is."""

import gc
import hashlib
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from memsinks_jax.config import InputError
from memsinks_jax.data import ids, prepared
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["a few words to learn pieces from", "and a few more of them"], 300)


def write_prepared(folder, tokens, shards):
    """What `memsinks_jax.prepare` would write of these documents, in so many shards of equal size."""
    from array_record.python.array_record_module import ArrayRecordWriter

    (folder / "shards").mkdir(parents=True)
    index = np.zeros(len(tokens), prepared.INDEX)
    index["length"], index["identity"] = [len(t) for t in tokens], [ids.content_id(t) for t in tokens]
    index["group"], index["near_duplicate"] = prepared.NO_GROUP, np.arange(len(tokens))
    parts = np.array_split(np.arange(len(tokens)), shards)
    for rank, part in enumerate(parts):
        writer = ArrayRecordWriter(str(folder / "shards" / f"{rank:05d}.array_record"), "group_size:1,uncompressed")
        for number in part:
            record = tokens[number].astype(prepared.token_type(TOKENIZER.vocabulary_size))
            writer.write(prepared.pack_record(record, index["identity"][number], ids.PADDING, 0, number, number + 1))
        writer.close()
    np.save(folder / "index.npy", index)
    (folder / "groups.json").write_text("[]")
    (folder / "tokenizer.model").write_bytes(TOKENIZER.model)
    settings = {"near_duplicates": "none", "tokenizer_sha256": prepared.sha256(TOKENIZER.model)}
    manifest = {
        "format": prepared.FORMAT, "settings": settings, "tokenizer": "tokenizer.model", "end_of_text": 1,
        "vocabulary_size": TOKENIZER.vocabulary_size, "sources": [{"path": "input.jsonl"}],
        "shards": [{"documents": len(part)} for part in parts],
    }  # fmt: skip
    (folder / prepared.MANIFEST).write_text(json.dumps(manifest))


def random_tokens(documents, seed=0):
    random = np.random.default_rng(seed)
    return [
        random.integers(3, TOKENIZER.vocabulary_size, n).astype(np.int32) for n in random.integers(4, 40, documents)
    ]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A corpus of 600 documents in 300 shards -> (folder, tokens)."""
    folder, tokens = tmp_path_factory.mktemp("many") / "corpus", random_tokens(600)
    write_prepared(folder, tokens, 300)
    return folder, tokens


READ = """
import concurrent.futures, hashlib, os, sys
import numpy as np
from memsinks_jax.config import Config
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.pipeline import batches

config = Config()
config.data.files, config.data.unique_documents, config.data.held_out_documents = sys.argv[1], -1, 1
config.training.batch_size = 16
corpus = load_corpus(config)
stream = batches(corpus.rows(), 16)
for _ in range(60):
    next(stream)
order = np.random.default_rng(1).integers(0, 600, 4000).tolist()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(corpus.tokens.__getitem__, order))
print(len(os.listdir("/proc/self/fd")), hashlib.sha256(b"".join(t.tobytes() for t in found)).hexdigest())
"""


@pytest.mark.parametrize("limit", ["ulimit -n 128", "ulimit -Sn 128"])
def test_many_shards_are_read_with_few_open_files(many, limit):
    """Rows in random order by the loader's threads and by eight of our own; a soft limit is raised first."""
    folder, tokens = many
    command = ["bash", "-c", f'{limit}; exec "$@"', "_", sys.executable, "-c", READ, str(folder)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    files, digest = done.stdout.split()
    assert int(files) < 128 if limit == "ulimit -n 128" else int(files) > 300
    order = np.random.default_rng(1).integers(0, 600, 4000).tolist()
    assert digest == hashlib.sha256(b"".join(tokens[i].tobytes() for i in order)).hexdigest()


def test_too_many_open_files_are_told_as_such(many):
    """Not as damage, by whatever is opened first."""
    corpus, limits = Prepared(many[0]), resource.getrlimit(resource.RLIMIT_NOFILE)
    assert len(corpus.tokens[0])  # modules are imported
    try:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        with pytest.raises(InputError, match=r"00299.array_record: .*[Tt]oo many open files.* limit is \d+.*ulimit -n"):
            corpus.tokens[599]
        with pytest.raises(OSError, match="Too many open files"):
            Prepared(many[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (corpus.tokens[599] == many[1][599]).all()


def test_readers_go_with_their_corpus(many):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    corpus = Prepared(many[0])
    assert [len(tokens) for tokens in corpus.tokens] == corpus.lengths.tolist()
    assert len(os.listdir("/proc/self/fd")) >= before + 300
    del corpus
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
