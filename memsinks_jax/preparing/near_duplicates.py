"""Clusters of near-duplicate documents: datatrove's MinHash stages, on n-grams of tokens instead of
words.

Tokens need no rules for words, case and punctuation in every language, and are already there.
"""

import itertools
import pathlib

import numpy as np
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashConfig, MinhashDedupBuckets
from datatrove.utils.hashing import HashConfig

from memsinks_jax.data.ids import as_numbers, ngram_hashes

NGRAM = 3
# Two documents match if all hashes of one bucket agree. At Jaccard similarity s this has the
# probability 1 - (1 - s^hashes)^buckets. `loose` finds more edited copies, but also matches stories
# of one kind by chance (s around 0.02, one pair in 90,000), so beyond ten thousand documents or so,
# clusters grow together.
BUCKETS = {"close": (28, 8), "loose": (28, 4)}


def minhash_config(closeness: str) -> MinhashConfig:
    buckets, hashes = BUCKETS[closeness]
    return MinhashConfig(
        n_grams=NGRAM,
        num_buckets=buckets,
        hashes_per_bucket=hashes,
        hash_config=HashConfig(32, hash_fc="sha1"),
    )


class Signatures(PipelineStep):
    """Stage 1, for documents with metadata["answers"]. Writes what datatrove's own does: signatures
    sorted by bucket.

    Prompts are not compared: they are not learnt.

    datatrove's own takes three times as long, since it packs and counts every hash in Python.
    """

    type, name = "memsinks_jax", "signatures"

    def __init__(self, folder: pathlib.Path, config: MinhashConfig):
        super().__init__()
        self.folder, self.config = str(folder), config

    def run(self, data, rank: int = 0, world_size: int = 1):
        buckets, hashes = self.config.num_buckets, self.config.hashes_per_bucket
        a, b = np.random.RandomState(self.config.seed).randint(
            0, 2**63, (2, 1, buckets * hashes), np.uint64
        )
        numbers, signatures = [], []
        for number, document in enumerate(data):
            answers = document.metadata["answers"]
            shingles = np.unique(
                np.concatenate([ngram_hashes(tokens, NGRAM) for tokens in answers])
            )
            if len(shingles):
                numbers.append(number)
                signatures.append(_signature(shingles, a | np.uint64(1), b))
        signatures = np.reshape(np.array(signatures, "<u4"), (len(numbers), buckets, hashes))
        for bucket in range(buckets):
            records = np.column_stack([signatures[:, bucket], np.array(numbers, "<u4")])
            path = pathlib.Path(self.folder) / f"bucket_{bucket:03d}" / f"{rank:05d}.minhash.sig"
            path.parent.mkdir(parents=True, exist_ok=True)
            records[np.lexsort(records.T[::-1])].tofile(path)


def _signature(shingles: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The minimum of every hash over the shingles -> uint32 (hashes,). A hash is the upper half of
    a * x + b, a odd.
    """
    lowest = np.full(a.shape[1], 2**64 - 1, np.uint64)
    for at in range(0, len(shingles), 4096):  # constant memory for any length of document
        lowest = np.minimum(lowest, np.min(shingles[at : at + 4096, None] * a + b, axis=0))
    return (lowest >> np.uint64(32)).astype(np.uint32)


class Clusters(PipelineStep):
    """Stage 3, a single task: the connected components of all buckets' pairs are the clusters, as
    in datatrove's own.

    datatrove's own holds every document of a pair in Python dictionaries. Here a document takes
    about 40 bytes, and a pair about 100 while its bucket is read.
    """

    type, name = "memsinks_jax", "clusters"

    def __init__(self, work: pathlib.Path, shards: int):
        super().__init__()
        self.work, self.shards = str(work), shards

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        files = sorted((work / "pairs").glob("*.dups"))
        documents = np.zeros(0, np.uint64)
        for path in files:
            documents = union(documents, _pairs(path))
        canonical = np.arange(len(documents))  # first document of the cluster of each
        for path in files:
            ends, inverse = np.unique(_pairs(path), return_inverse=True)
            # Looks them up in order: at random in a large table, every lookup would wait for
            # memory.
            canonical = connected(canonical, np.searchsorted(documents, ends)[inverse])
        (work / "clusters").mkdir(exist_ok=True)
        cuts = np.searchsorted(
            documents, np.arange(self.shards + 1, dtype=np.uint64) << np.uint64(32)
        )
        for shard, (start, stop) in enumerate(itertools.pairwise(cuts)):
            first = documents[canonical[start:stop]]
            rows = np.stack([documents[start:stop], first >> np.uint64(32), first], axis=1)
            np.save(clusters_file(work, shard), rows.astype("<u4"))  # lower half of the number


def _pairs(path: pathlib.Path) -> np.ndarray:
    """-> uint64 (pairs, 2): shard << 32 | number in it, of both documents."""
    return as_numbers(np.fromfile(path, "<u4").reshape(-1, 2)).reshape(-1, 2)


def union(documents: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Sorted union. np.union1d hashes, which takes ten times as long."""
    joined = np.append(documents, more)
    joined.sort(kind="stable")  # merges the sorted parts
    fresh = np.ones(len(joined), bool)
    np.not_equal(joined[1:], joined[:-1], out=fresh[1:])
    return joined[fresh]


def connected(canonical: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Updates `canonical` (n,), the least member of each cluster, after joining the clusters of
    each pair in (m, 2).
    """
    # takes a quarter of a second to import, only needed for clusters
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = canonical[pairs]
    ends = ends[ends[:, 0] != ends[:, 1]]
    if not len(ends):
        return canonical
    clusters, ends = np.unique(ends, return_inverse=True)
    edges = coo_array((np.ones(len(ends)), tuple(ends.T)), shape=(len(clusters), len(clusters)))
    _, first, component = np.unique(
        connected_components(edges, directed=False)[1], return_index=True, return_inverse=True
    )
    moved = np.arange(len(canonical))
    moved[clusters] = clusters[first[component]]
    return moved[canonical]


def bucket_step(work: pathlib.Path, config: MinhashConfig) -> MinhashDedupBuckets:
    """Stage 2, one task per bucket: pairs of documents that agree in it."""
    return MinhashDedupBuckets(
        str(work / "signatures"), str(work / "pairs"), config=config, lines_to_buffer=1024
    )


def clusters_file(work: pathlib.Path, shard: int) -> pathlib.Path:
    return work / "clusters" / f"{shard:05d}.npy"


def read_clusters(work: pathlib.Path, shard: int) -> np.ndarray:
    """-> uint32 (documents of `shard` in a cluster, 3): number in the shard, then shard and number
    of the first.
    """
    return np.load(clusters_file(work, shard))
