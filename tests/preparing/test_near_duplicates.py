"""From pairs of near-duplicates to clusters: arrays give the same as datatrove."""

import contextlib
import io
import tracemalloc

import numpy as np
import pytest
import scipy.sparse.csgraph  # noqa: F401  what importing takes is not counted
from datatrove.pipeline.dedup import MinhashDedupCluster

from memsinks_jax.preparing import near_duplicates

SHARDS = 5


def write_pairs(work, pairs, buckets):
    """(n, 4): shard and document of either end, in so many files."""
    (work / "pairs").mkdir(parents=True)
    for bucket, part in enumerate(np.array_split(pairs, buckets)):
        part.astype("<u4").tofile(work / "pairs" / f"{bucket:05d}_00.dups")


def random_pairs(documents, count, seed):
    """Chains, stars, circles, the same pair twice; the last shard is in none."""
    random = np.random.default_rng(seed)
    first, second = random.integers(0, documents, (2, count))
    second = np.where(first == second, (second + 1) % documents, second)
    ends = np.stack([first, second], axis=1)
    ends = np.concatenate([ends, ends[: count // 10]])
    return np.stack([ends % (SHARDS - 1), ends // (SHARDS - 1)], axis=2).reshape(-1, 4)


@pytest.mark.parametrize("documents, count", [(4000, 900), (4000, 2200), (300, 3000), (50, 0)])
def test_clusters_are_datatroves(tmp_path, documents, count):
    config = near_duplicates.minhash_config("close")
    write_pairs(tmp_path, random_pairs(documents, count, seed=count), config.num_buckets)
    theirs = MinhashDedupCluster(
        str(tmp_path / "pairs"),
        str(tmp_path / "theirs"),
        config=config,
        save_cluster_id=True,
        lines_to_buffer=64,
    )
    with contextlib.redirect_stderr(io.StringIO()):
        theirs.run(None, 0, 1)
    near_duplicates.Clusters(tmp_path, SHARDS).run()
    canonical, found = {}, 0
    for rank in range(SHARDS):
        path = tmp_path / "theirs" / f"{rank:06d}.clusters"
        expected = np.fromfile(path, "<u4").reshape(-1, 2).tolist() if path.exists() else []
        expected = [
            [document, *canonical.setdefault(cluster, (rank, document))]
            for document, cluster in expected
        ]
        assert near_duplicates.read_clusters(tmp_path, rank).tolist() == expected
        found += len(expected)
    assert found > documents / 4 or not count


def test_clusters_of_many_pairs_are_found_in_arrays(tmp_path):
    """In datatrove's dictionaries a document takes 175 bytes."""
    pairs = random_pairs(400_000, 200_000, seed=1)
    write_pairs(tmp_path, pairs, 28)
    documents = len(np.unique(pairs.reshape(-1, 2), axis=0))
    tracemalloc.start()
    near_duplicates.Clusters(tmp_path, SHARDS).run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 * documents
