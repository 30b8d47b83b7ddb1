"""Finds the contexts that have sinks (data/contexts.py) in a corpus. Four stages sort on disk
(sorted_files.py).
"""

import pathlib

import numpy as np
from datatrove.pipeline.base import PipelineStep

from memsinks_jax.config import ContextsConfig
from memsinks_jax.data import prepared
from memsinks_jax.data.contexts import (
    Counts,
    Text,
    begins,
    chosen,
    count,
    covered,
    merged,
    side_by_side,
)
from memsinks_jax.data.contexts import stretches as stretches_of
from memsinks_jax.data.table import is_in
from memsinks_jax.preparing import sorted_files
from memsinks_jax.preparing.columns import Column
from memsinks_jax.preparing.sorted_files import part_of
from memsinks_jax.preparing.steps import answers_file, shard_tokens

LETTERS = "letters.npy"  # in the folder of what is unfinished
# n-grams of a range of hashes, among which the report seeks the most frequent ones
_CANDIDATES = 4096


def stages(
    out: pathlib.Path,
    kind: np.dtype,
    around: tuple[int, int],
    shards: int,
    ranges: int,
    settings: ContextsConfig,
) -> dict[str, tuple[list, int]]:
    """{stage: its steps, and the number of its tasks}. LETTERS is there.

    Args:
      kind: of the tokens in a shard.
      around: what opens and closes documents; of conversations the index has what opens each.
      ranges: of hashes, see `sorted_files.tasks`.
    """
    read, work = Shard(out, kind, around), out / "work"
    return {
        "stretches": ([Stretches(read, settings)], shards),
        "repeated": ([Repeated(work, shards, settings)], ranges),
        "counts": ([Counted(read, ranges, settings)], shards),
        "contexts": ([Chosen(work, shards, settings)], ranges),
    }


class Shard:
    """Reads the documents of a shard."""

    def __init__(self, out: pathlib.Path, kind: np.dtype, around: tuple[int, int]):
        self.out, self.kind, self.around = str(out), kind, around

    @property
    def work(self) -> pathlib.Path:
        return pathlib.Path(self.out) / "work"

    def letters(self) -> np.ndarray:
        """Of `contexts.letters_of`."""
        return np.load(self.work / LETTERS)

    def text(self, rank: int) -> Text:
        index = np.load(self.work / f"{rank:05d}.npy")
        shard = pathlib.Path(self.out) / "shards" / f"{rank:05d}.array_record"
        opens, closes = self.around
        opening = index["opens"].tolist() if "opens" in index.dtype.names else [opens] * len(index)
        around = [(each, closes) for each in opening]
        return side_by_side(
            list(shard_tokens(shard, len(index), self.kind)), around, np.ones(len(index), np.int64)
        )

    def counted(self, rank: int, text: Text) -> np.ndarray | None:
        """Which tokens of a shard's text count in the loss, bool (n,); None: all."""
        file = answers_file(self.work, rank)
        if not file.exists():
            return None
        document, starts, stops = np.load(file).astype(np.int64).T
        firsts = np.flatnonzero(text.places == 0)[document] + 1  # the opening token is no target
        change = np.zeros(len(text.tokens) + 1, np.int64)
        np.add.at(change, firsts + starts, 1)
        np.add.at(change, firsts + stops, -1)
        return np.cumsum(change[:-1]) > 0


class Stretches(PipelineStep):
    """Stage 1, one task per shard: its n-grams of `stretch` words, sorted, with the place of the
    last token of each.
    """

    type, name = "memsinks_jax", "stretches"

    def __init__(self, shard: Shard, settings: ContextsConfig):
        super().__init__()
        self.shard, self.settings = shard, settings

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        ends, keys = stretches_of(
            self.shard.text(rank), self.settings.stretch, self.shard.letters()
        )
        sorted_files.save(self.shard.work / "stretches", rank, keys, ends.astype(np.uint64))


class Repeated(PipelineStep):
    """Stage 2, one task per range of hashes: the n-grams that come `times` times, ascending; and
    how often and where the most frequent ones come.
    """

    type, name = "memsinks_jax", "repeated"

    def __init__(self, work: pathlib.Path, shards: int, settings: ContextsConfig):
        super().__init__()
        self.work, self.shards, self.settings = str(work), shards, settings

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work, found = pathlib.Path(self.work), [np.zeros((0, 3), np.uint64)]
        stretches = sorted_files.read_repeated(work / "stretches", self.shards, rank, world_size)
        for shard, (keys, ends) in enumerate(stretches):
            found.append(np.stack([keys, np.full(len(keys), shard, np.uint64), ends], axis=1))
        found = np.concatenate(found)
        again, first, times = np.unique(found[:, 0], return_index=True, return_counts=True)
        first, times = (of[times >= self.settings.times] for of in (first, times))
        (work / "repeated").mkdir(exist_ok=True)
        np.save(work / "repeated" / f"{rank:05d}.npy", found[first, 0])
        most = np.argsort(-times, kind="stable")[:_CANDIDATES]
        places = np.column_stack([times[most], found[first[most], 1:].astype(np.int64)])
        np.save(work / "repeated" / f"{rank:05d}.most.npy", places)


class Counted(PipelineStep):
    """Stage 3, one task per shard: its contexts, sorted, with how often each comes in repeated
    text, and anywhere.
    """

    type, name = "memsinks_jax", "counts"

    def __init__(self, shard: Shard, ranges: int, settings: ContextsConfig):
        super().__init__()
        self.shard, self.ranges, self.settings = shard, ranges, settings

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work, text, letters = self.shard.work, self.shard.text(rank), self.shard.letters()
        keys, ends = sorted_files.load(work / "stretches", rank)
        again = []
        for part in range(self.ranges):
            there = part_of(keys, part, self.ranges)
            again.append(
                ends[there][is_in(keys[there], np.load(work / "repeated" / f"{part:05d}.npy"))]
            )
        is_repeated = covered(
            text, np.concatenate(again).astype(np.int64), self.settings.stretch, letters
        )
        counts = count(
            text, is_repeated, self.settings.length, letters, self.shard.counted(rank, text)
        )
        sorted_files.save(
            work / "counts", rank, counts.keys, np.stack(counts[1:], axis=1).astype(np.uint32)
        )


class Chosen(PipelineStep):
    """Stage 4, one task per range of hashes: the contexts that have sinks, ascending, with their
    counts in repeated text.
    """

    type, name = "memsinks_jax", "contexts"

    def __init__(self, work: pathlib.Path, shards: int, settings: ContextsConfig):
        super().__init__()
        self.work, self.shards, self.settings = str(work), shards, settings

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        keys, values = sorted_files.read_range(
            work / "counts", self.shards, rank, world_size, columns=2
        )
        counts = merged(Counts(keys, *values.astype(np.int64).T))
        counts = counts.at(chosen(counts, self.settings))
        (work / "contexts").mkdir(exist_ok=True)
        np.save(
            work / "contexts" / f"{rank:05d}.npy",
            np.stack([counts.keys, counts.repeated.astype(np.uint64)]),
        )


def most_frequent(
    out: pathlib.Path, corpus: prepared.Prepared, ranges: int, settings: ContextsConfig, most: int
) -> list[dict]:
    """For the report, n-grams of repeated text that come most often and do not overlap where they
    come first.

    Returns:
      [{"times", "tokens", "first": where the input has its document, "text"}], at most `most`.
    """
    work, tokenizer, found, shown = out / "work", corpus.tokenizer(), [], {}
    letters = np.load(work / LETTERS)
    places = np.concatenate(
        [np.load(work / "repeated" / f"{rank:05d}.most.npy") for rank in range(ranges)]
    )
    for times, shard, place in places[
        np.lexsort((places[:, 2], places[:, 1], -places[:, 0]))
    ].tolist():
        if any(abs(place - other) < size for other, size in shown.get(shard, ())):
            continue
        before = sum(of["documents"] for of in corpus.manifest["shards"][:shard])
        lengths = np.load(work / f"{shard:05d}.npy", mmap_mode="r")["length"].astype(np.int64)
        ends = np.cumsum(lengths + 2)  # with what opens and closes it
        document = int(np.searchsorted(ends, place, side="right"))
        last = place - int(ends[document] - lengths[document] - 2)
        tokens = corpus.read(before + document)
        whole = np.concatenate([[tokenizer.begin_of_text], tokens, [tokenizer.end_of_text]])
        first = int(begins(whole, np.arange(len(whole)), settings.stretch, letters)[last])
        shown.setdefault(shard, []).append((place, last - first + 1))
        text = tokenizer.decode(tokens[max(first - 1, 0) : last])
        found.append(
            {
                "times": times,
                "tokens": last - first + 1,
                "first": corpus.source(before + document),
                "text": text,
            }
        )
        if len(found) == most:
            break
    return found


def write_columns(out: pathlib.Path, ranges: int) -> tuple[dict[str, str], dict[str, int]]:
    """Writes the columns `prepared.CONTEXTS`, a range at a time -> (the hash of each, numbers for
    the report).
    """
    files = {name: prepared.column_file(out, name) for name in prepared.context_columns()}
    columns = {
        name: Column(files[name], kind, ())
        for name, (kind, _) in prepared.context_columns().items()
    }
    contexts = places = 0
    for rank in range(ranges):
        keys, counts = np.load(out / "work" / "contexts" / f"{rank:05d}.npy")
        columns["context_keys"].append(keys)
        columns["context_counts"].append(np.minimum(counts, 2**32 - 1))
        contexts, places = contexts + len(keys), places + int(counts.sum())
    hashes = {name: column.close() for name, column in columns.items()}
    return hashes, {"contexts": contexts, "repeated_tokens": places}
