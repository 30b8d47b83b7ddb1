"""Clusters of documents that are nearly the same: datatrove's MinHash stages, on n-grams of tokens instead of words.

Tokens need no rule about words, cases and punctuation for every language, and are there already.
"""

import contextlib
import io
import pathlib

import numpy as np
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster
from datatrove.utils.hashing import HashConfig

NGRAM = 3
# Two documents meet where all hashes of one bucket agree, which at Jaccard similarity s has the chance
# 1 - (1 - s^hashes)^buckets. `loose` finds more edited copies; but chance brings stories of one kind together as well
# (s around 0.02, one pair in 90,000), so that beyond some ten thousand documents clusters grow together.
BUCKETS = {"close": (28, 8), "loose": (28, 4)}


def minhash_config(closeness: str) -> MinhashConfig:
    buckets, hashes = BUCKETS[closeness]
    return MinhashConfig(
        n_grams=NGRAM, num_buckets=buckets, hashes_per_bucket=hashes, hash_config=HashConfig(32, hash_fc="sha1")
    )


class Signatures(PipelineStep):
    """Stage 1, for documents with metadata["tokens"]: writes what datatrove's own would, sorted signatures bucket by bucket.

    Its own takes three times as long, since it packs and counts every hash in Python.
    """

    type, name = "memsinks_jax", "signatures"

    def __init__(self, folder: pathlib.Path, config: MinhashConfig):
        super().__init__()
        self.folder, self.config = str(folder), config

    def run(self, data, rank: int = 0, world_size: int = 1):
        buckets, hashes = self.config.num_buckets, self.config.hashes_per_bucket
        a, b = np.random.RandomState(self.config.seed).randint(0, 2**63, (2, 1, buckets * hashes), np.uint64)
        numbers, signatures = [], []
        for number, document in enumerate(data):
            shingles = ngram_hashes(document.metadata["tokens"])
            if len(shingles):
                numbers.append(number)
                signatures.append(_signature(shingles, a | np.uint64(1), b))
        signatures = np.reshape(np.array(signatures, "<u4"), (len(numbers), buckets, hashes))
        for bucket in range(buckets):
            records = np.column_stack([signatures[:, bucket], np.array(numbers, "<u4")])
            path = pathlib.Path(self.folder) / f"bucket_{bucket:03d}" / f"{rank:05d}.minhash.sig"
            path.parent.mkdir(parents=True, exist_ok=True)
            records[np.lexsort(records.T[::-1])].tofile(path)


def ngram_hashes(tokens: np.ndarray) -> np.ndarray:
    """int32 (tokens,) -> uint64 (distinct n-grams,), hashed; none for documents of fewer tokens."""
    tokens = tokens.astype(np.uint64)
    hashed = np.zeros(max(len(tokens) - NGRAM + 1, 0), np.uint64)
    for place in range(NGRAM):
        hashed = (hashed ^ (tokens[place : place + len(hashed)] + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
    return np.unique(hashed)


def _signature(shingles: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The least of every hash over the shingles -> uint32 (hashes,). A hash is the upper half of a * x + b, a odd."""
    lowest = np.full(a.shape[1], 2**64 - 1, np.uint64)
    for at in range(0, len(shingles), 4096):  # memory does not grow with the document
        lowest = np.minimum(lowest, np.min(shingles[at : at + 4096, None] * a + b, axis=0))
    return (lowest >> np.uint64(32)).astype(np.uint32)


class Clusters(MinhashDedupCluster):
    """Stage 3, a single task: pairs to clusters, without datatrove's bar on a terminal that has ours."""

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        with contextlib.redirect_stderr(io.StringIO()):
            super().run(data, rank, world_size)


def bucket_step(work: pathlib.Path, config: MinhashConfig) -> MinhashDedupBuckets:
    """Stage 2, one task a bucket: pairs of documents that agree in it."""
    return MinhashDedupBuckets(str(work / "signatures"), str(work / "pairs"), config=config, lines_to_buffer=1024)


def cluster_step(work: pathlib.Path, config: MinhashConfig) -> Clusters:
    return Clusters(
        str(work / "pairs"), str(work / "clusters"), config=config, save_cluster_id=True, lines_to_buffer=1024
    )


def read_clusters(work: pathlib.Path, rank: int) -> np.ndarray:
    """-> (documents of shard `rank` that are in a cluster, 2): number in the shard, number of the cluster."""
    path = work / "clusters" / f"{rank:06d}.clusters"
    return np.fromfile(path, "<u4").reshape(-1, 2) if path.exists() else np.zeros((0, 2), np.uint32)
