"""Clusters of documents that are nearly the same: datatrove's MinHash stages, on n-grams of tokens instead of words.

Tokens need no rule about words, cases and punctuation for every language, and are there already.
"""

import contextlib
import dataclasses
import io
import pathlib

import numpy as np
from datatrove.pipeline.dedup import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

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


class Signatures(MinhashDedupSignature):
    """Stage 1, for documents with metadata["tokens"]."""

    def __init__(self, folder: pathlib.Path, config: MinhashConfig):
        super().__init__(str(folder), config, language=WhitespaceTokenizer())  # never asked: tokens are our words

    def run(self, data, rank: int = 0, world_size: int = 1):
        # What the stage calls a document's text are its tokens.
        return super().run((dataclasses.replace(d, text=d.metadata["tokens"]) for d in data), rank, world_size)

    def get_shingles(self, text: np.ndarray) -> np.ndarray:
        """int32 (tokens,) -> uint64 (distinct n-grams, 1), hashed; none for documents of fewer tokens."""
        tokens = text.astype(np.uint64)
        hashed = np.zeros(max(len(tokens) - NGRAM + 1, 0), np.uint64)
        for place in range(NGRAM):
            hashed = (hashed ^ (tokens[place : place + len(hashed)] + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
            hashed ^= hashed >> np.uint64(29)
        return np.unique(hashed).reshape(-1, 1)

    def get_signature(self, shingles: np.ndarray) -> list[list[int]]:
        """uint64 (n, 1) -> buckets of hashes: the upper half of a * x + b with odd a, without datatrove's division."""
        a, b = self.parameters
        lowest = np.full(self.num_hashes, 2**64 - 1, np.uint64)
        for at in range(0, len(shingles), 4096):  # memory does not grow with the document
            lowest = np.minimum(lowest, np.min(shingles[at : at + 4096] * (a | np.uint64(1)) + b, axis=0))
        return [part.tolist() for part in np.split((lowest >> np.uint64(32)).astype(np.uint32), self.config.num_buckets)]


class Clusters(MinhashDedupCluster):
    """Stage 3, a single task: pairs to clusters, without datatrove's bar on a terminal that has ours."""

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        with contextlib.redirect_stderr(io.StringIO()):
            super().run(data, rank, world_size)


def bucket_step(work: pathlib.Path, config: MinhashConfig) -> MinhashDedupBuckets:
    """Stage 2, one task a bucket: pairs of documents that agree in it."""
    return MinhashDedupBuckets(str(work / "signatures"), str(work / "pairs"), config=config, lines_to_buffer=1024)


def cluster_step(work: pathlib.Path, config: MinhashConfig) -> Clusters:
    return Clusters(str(work / "pairs"), str(work / "clusters"), config=config, save_cluster_id=True, lines_to_buffer=1024)


def read_clusters(work: pathlib.Path, rank: int) -> np.ndarray:
    """-> (documents of shard `rank` that are in a cluster, 2): number in the shard, number of the cluster."""
    path = work / "clusters" / f"{rank:06d}.clusters"
    return np.fromfile(path, "<u4").reshape(-1, 2) if path.exists() else np.zeros((0, 2), np.uint32)
