"""Finds common text: n-grams that documents of several ids contain. Marks the last token of each.

What several sources state in the same words stays when one of them is withdrawn. Three stages find it by sorting on disk:
every n-gram goes to the task for its range of hashes, which counts ids; the places of common ones go back to their shard.
"""

import pathlib
from collections.abc import Iterator

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from datatrove.pipeline.base import PipelineStep

from memsinks_jax.data import prepared
from memsinks_jax.data.ids import as_numbers, ngram_hashes
from memsinks_jax.preparing.near_duplicates import read_clusters
from memsinks_jax.preparing.sorted_files import is_new, part_of
from memsinks_jax.preparing.steps import answers_file, shard_writer

_TASK_BYTES = 2**26  # of input per range of hashes: sorting its n-grams takes about 1 GiB
_READ = 1024  # records at a time


def tasks(bytes_of_pieces: list[int]) -> int:
    """The number of ranges of hashes. The size of a dataset of the hub is not known, so there is one per piece at least."""
    return max(-(-sum(bytes_of_pieces) // _TASK_BYTES), len(bytes_of_pieces))


class Ngrams(PipelineStep):
    """Stage 1, one task per shard: its n-grams, sorted by hash, with the id and the place of each. Only those in answers, if
    documents have prompts.

    The id is that of the group; without one, that of the near-duplicate cluster; without one, that of the content. A place
    is shard << 32 | number of the n-gram's last token in the shard. End of text is the last token of every document.
    """

    type, name = "memsinks_jax", "ngrams"

    def __init__(self, out: pathlib.Path, length: int, kind: np.dtype, end_of_text: int, clustered: bool):
        super().__init__()
        self.out, self.length, self.kind = str(out), length, kind
        self.end_of_text, self.clustered = end_of_text, clustered

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
            found = ngram_hashes(np.append(tokens, self.end_of_text), self.length)
            places = np.arange(len(found), dtype=np.uint64) + np.uint64((rank << 32) + at + self.length - 1)
            if answers is not None:
                first, last = np.searchsorted(answers[:, 0], [document, document + 1])
                inside = _inside(answers[first:last, 1:], len(tokens) + 1, self.length)
                found, places = found[inside], places[inside]
            hashes.append(found)
            numbers.append(np.stack([np.full_like(places, identities[document]), places], axis=1))
            at += len(tokens) + 1
        hashes = np.concatenate([np.zeros(0, np.uint64), *hashes])
        order = np.argsort(hashes, kind="stable")
        folder = work / "ngrams"
        folder.mkdir(exist_ok=True)
        np.save(folder / f"{rank:05d}.hashes.npy", hashes[order])
        np.save(folder / f"{rank:05d}.numbers.npy", np.concatenate([np.zeros((0, 2), np.uint64), *numbers])[order])


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
    """Stage 2, one task per range of hashes: the places, sorted, of n-grams that have at least `at` ids."""

    type, name = "memsinks_jax", "common"

    def __init__(self, work: pathlib.Path, shards: int, at: int):
        super().__init__()
        self.work, self.shards, self.at = str(work), shards, at

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        hashes, numbers = [np.zeros(0, np.uint64)], [np.zeros((0, 2), np.uint64)]
        for shard in range(self.shards):
            sorted_hashes = np.load(work / "ngrams" / f"{shard:05d}.hashes.npy", mmap_mode="r")
            there = part_of(sorted_hashes, rank, world_size)
            hashes.append(sorted_hashes[there])
            numbers.append(np.load(work / "ngrams" / f"{shard:05d}.numbers.npy", mmap_mode="r")[there])
        identities, places = np.concatenate(numbers).T
        places = places[in_several(np.concatenate(hashes), identities, self.at)]
        (work / "common").mkdir(exist_ok=True)
        np.save(work / "common" / f"{rank:05d}.npy", np.sort(places))


def in_several(hashes: np.ndarray, identities: np.ndarray, at: int) -> np.ndarray:
    """Which n-grams have at least `at` different ids -> bool (n,). Both are uint64 (n,)."""
    order = np.lexsort((identities, hashes))
    new_ngram = is_new(hashes[order])
    new_id = new_ngram | is_new(identities[order])
    ngram, found = np.cumsum(new_ngram) - 1, np.zeros(len(hashes), bool)
    found[order] = np.bincount(ngram[new_id])[ngram] >= at
    return found


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
        for part in range(self.ranges):
            places = np.load(out / "work" / "common" / f"{part:05d}.npy", mmap_mode="r")
            first, stop = np.searchsorted(places, [np.uint64(rank << 32), np.uint64(rank + 1 << 32)])
            there = places[first:stop]
            common[(there & np.uint64(2**32 - 1)).astype(np.int64)] = True
        (out / "common").mkdir(exist_ok=True)
        with shard_writer(out / "common" / f"{rank:05d}.array_record", ends) as writer:
            for of_record in np.split(common, ends[:-1]) if len(ends) else ():
                writer.write(np.packbits(of_record).tobytes())


def count(work: pathlib.Path) -> int:
    """The number of marks that stage 2 found."""
    return sum(len(np.load(path, mmap_mode="r")) for path in (work / "common").glob("*.npy"))
