"""Finds common text: n-grams that documents of several ids contain. Marks the last token of each.

What several sources state in the same words stays when one of them is withdrawn. Three stages find it by sorting on disk:
every n-gram goes to the task for its range of hashes, which counts ids; the common ones go back to the shards.
"""

import pathlib
from collections.abc import Iterator

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from datatrove.pipeline.base import PipelineStep

from memsinks_jax.data import prepared
from memsinks_jax.data.ids import as_numbers, ngram_hashes
from memsinks_jax.data.table import is_in
from memsinks_jax.preparing import sorted_files
from memsinks_jax.preparing.near_duplicates import read_clusters
from memsinks_jax.preparing.sorted_files import is_new, part_of
from memsinks_jax.preparing.steps import answers_file, shard_writer

_TASK_BYTES = 2**26  # of input per range of hashes: its n-grams take about 0.2 GiB, of C source
_READ = 1024  # records at a time


def tasks(bytes_of_pieces: list[int]) -> int:
    """The number of ranges of hashes. The size of a dataset of the hub is not known, so there is one per piece at least."""
    return max(-(-sum(bytes_of_pieces) // _TASK_BYTES), len(bytes_of_pieces))


class Ngrams(PipelineStep):
    """Stage 1, one task per shard: its n-grams, sorted by hash, with the id and the place of each. Only those in answers, if
    documents have prompts.

    The id is that of the group; without one, that of the near-duplicate cluster; without one, that of the content. A place
    is the number of the n-gram's last token in the shard. What closes a document is its last token.
    """

    type, name = "memsinks_jax", "ngrams"

    def __init__(self, out: pathlib.Path, length: int, kind: np.dtype, closes: int, clustered: bool):
        super().__init__()
        self.out, self.length, self.kind = str(out), length, kind
        self.closes, self.clustered = closes, clustered

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.out) / "work"
        index = np.load(work / f"{rank:05d}.npy")
        clusters = read_clusters(work, rank) if self.clustered else np.zeros((0, 3), np.uint32)
        identities = _identities(index, clusters)
        shard = pathlib.Path(self.out) / "shards" / f"{rank:05d}.array_record"
        hashes, numbers, at = [], [], 0
        answers = answers_file(work, rank)
        answers = np.load(answers) if answers.exists() else None
        for document, tokens in enumerate(shard_tokens(shard, len(index), self.kind)):
            found = ngram_hashes(np.append(tokens, self.closes), self.length)
            places = np.arange(len(found), dtype=np.uint64) + np.uint64(at + self.length - 1)
            if answers is not None:
                first, last = np.searchsorted(answers[:, 0], [document, document + 1])
                inside = _inside(answers[first:last, 1:], len(tokens) + 1, self.length)
                found, places = found[inside], places[inside]
            hashes.append(found)
            numbers.append(np.stack([np.full_like(places, identities[document]), places], axis=1))
            at += len(tokens) + 1
        hashes = np.concatenate([np.zeros(0, np.uint64), *hashes])
        numbers = np.concatenate([np.zeros((0, 2), np.uint64), *numbers])
        sorted_files.save(work / "ngrams", rank, hashes, numbers)


def _inside(answers: np.ndarray, size: int, length: int) -> np.ndarray:
    """Which n-grams of a document of `size` tokens are inside of one answer -> bool (n-grams,)."""
    of = np.zeros(size, np.int64)  # the number of the answer that a token is of
    for number, (start, stop) in enumerate(answers.tolist(), 1):
        of[start:stop] = number
    first, last = of[: max(size - length + 1, 0)], of[length - 1 :]
    return (first == last) & (first > 0)  # answers do not overlap


def shard_tokens(shard: pathlib.Path, records: int, kind: np.dtype) -> Iterator[np.ndarray]:
    """The tokens of every record of a shard."""
    reader = ArrayRecordReader(str(shard))
    for start in range(0, records, _READ):
        for record in reader.read(start, min(start + _READ, records)):
            yield prepared.tokens_of(record, kind)
    reader.close()


def _identities(index: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """The id of every document, from a shard's index and its `read_clusters` -> uint64 (documents,)."""
    identities, groups = as_numbers(index["identity"]), as_numbers(index["group"])
    identities[clusters[:, 0]] = as_numbers(clusters[:, 1:])
    return np.where(groups != 0, groups, identities)


class Common(PipelineStep):
    """Stage 2, one task per range of hashes: the n-grams, sorted, that have at least `at` ids.

    An n-gram that all documents contain has as many ids. So at most `at` of them are read in each shard.
    """

    type, name = "memsinks_jax", "common"

    def __init__(self, work: pathlib.Path, shards: int, at: int):
        super().__init__()
        self.work, self.shards, self.at = str(work), shards, at

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work, of_shards = pathlib.Path(self.work), []
        for hashes, numbers in sorted_files.read_repeated(work / "ngrams", self.shards, rank, world_size):
            hashes, identities, _ = _different(hashes, numbers[:, 0], self.at)
            of_shards.append((hashes, identities))
        hashes, _, number = _different(*map(np.concatenate, zip(*of_shards, strict=True)), self.at)
        (work / "common").mkdir(exist_ok=True)
        np.save(work / "common" / f"{rank:05d}.npy", hashes[number == self.at - 1])


def _different(hashes: np.ndarray, identities: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different ids of each n-gram, at most `most` -> sorted hashes and ids, and the number of each id in its n-gram."""
    order = np.lexsort((identities, hashes))
    hashes, identities = hashes[order], identities[order]
    new = is_new(hashes) | is_new(identities)
    hashes, identities = hashes[new], identities[new]
    first = np.flatnonzero(is_new(hashes))
    number = np.arange(len(hashes)) - np.repeat(first, np.diff(np.append(first, len(hashes))))
    few = number < most
    return hashes[few], identities[few], number[few]


class Marks(PipelineStep):
    """Stage 3, one task per shard: the marks of every record, as `Prepared.common` reads them."""

    type, name = "memsinks_jax", "marks"

    def __init__(self, out: pathlib.Path, ranges: int):
        super().__init__()
        self.out, self.ranges = str(out), ranges

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        out = pathlib.Path(self.out)
        ends = np.cumsum(np.load(out / "work" / f"{rank:05d}.npy")["length"].astype(np.int64) + 1)
        common = np.zeros(ends[-1] if len(ends) else 0, bool)
        hashes, numbers = sorted_files.load(out / "work" / "ngrams", rank)
        for part in range(self.ranges):
            there = part_of(hashes, part, self.ranges)
            found = is_in(hashes[there], np.load(out / "work" / "common" / f"{part:05d}.npy"))
            common[numbers[there][found, 1].astype(np.int64)] = True
        np.save(out / "work" / "common" / f"{rank:05d}.tokens.npy", common.sum())
        (out / "common").mkdir(exist_ok=True)
        with shard_writer(out / "common" / f"{rank:05d}.array_record", ends) as writer:
            for of_record in np.split(common, ends[:-1]) if len(ends) else ():
                writer.write(np.packbits(of_record).tobytes())


def count(work: pathlib.Path) -> int:
    """The number of marks that stage 3 wrote."""
    return sum(int(np.load(path)) for path in (work / "common").glob("*.tokens.npy"))
