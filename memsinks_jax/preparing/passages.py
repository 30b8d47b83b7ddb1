"""Finds passages: runs of at least N tokens that stand in several documents, as licences, quotes and mail footers do.

Texts are compared as `data.words` reads them, so a licence is the same at any width and behind any margin, comment or quote.
An n-gram of N tokens is common if two different documents have it. Two n-grams that follow each other somewhere belong to
one passage if this is where most places of either go on: if the first is followed by this token in more than half of its
places, and the second preceded by this one in more than half of its own. So every n-gram has at most one before it and one
after it, a passage is one text, and each n-gram is in the same passage wherever it stands. Its id is a hash of that text:
the least hash of its n-grams. A token belongs to the passage in most documents of those that hold it: what stands before a
licence may be shared by a few, the licence by many.

What a passage in c documents trains the shared neurons, min(1, 2 / c), added up over the places of three sentences in the
copyright files of a Debian system (697,646 tokens), first with tokens as they stand and each in the passage of the n-gram
that it ends:

                                                   places    as they stand    here    here, N = 25
  "Permission is hereby granted, free of charge"      207               96      18              13
  "This program is free software"                     218              121      70              40
  "The software is provided"                          254              104      30              18

Eight stages sort on disk (sorted_files.py). A place is shard << 32 | number of the n-gram's last word token in the
shard. Exact copies are one document, whose copies have the same passages. If documents have prompts, passages are of
answers: no n-gram has a token of a prompt, and none goes on into one.
"""

import functools
import pathlib
from typing import NamedTuple

import numpy as np
from datatrove.pipeline.base import PipelineStep

from memsinks_jax.data import prepared
from memsinks_jax.data.ids import as_lanes, as_numbers, ngram_hashes, to_hex
from memsinks_jax.data.passages import passage_ids
from memsinks_jax.data.table import is_in
from memsinks_jax.data.tokenizer import open_tokenizer
from memsinks_jax.data.words import InWords, Words
from memsinks_jax.preparing import sorted_files
from memsinks_jax.preparing.columns import Column
from memsinks_jax.preparing.near_duplicates import connected, union
from memsinks_jax.preparing.sorted_files import is_new, part_of
from memsinks_jax.preparing.steps import answers_file, shard_tokens

_SHOWN = 10  # longest and most frequent passages on the page
_EXCERPT = 1000  # tokens
_NONE = 2**32 - 1  # no token: the neighbour of an n-gram at the end of a document
_LOW = np.uint64(2**32 - 1)


def stages(
    out: pathlib.Path, tokenizer: str, kind: np.dtype, shards: int, ranges: int, length: int
) -> dict[str, tuple[list, int]]:
    """{stage: its steps, and the number of its tasks}.

    Args:
      kind: of the tokens in a shard. ranges: of hashes, see `sorted_files.tasks`. length: N.
    """
    work = out / "work"
    return {
        "passage_ngrams": ([Ngrams(out, tokenizer, length, kind)], shards),
        "repeats": ([Repeats(work, shards)], ranges),
        "runs": ([Runs(work, ranges)], shards),
        "joins": ([Joins(work, shards)], ranges),
        "names": ([Names(work)], 1),
        "spans": ([Spans(work, length)], shards),
        "places": ([Places(work, shards)], ranges),
        "passages": ([Passages(work, ranges, length)], shards),
    }


class Ngrams(PipelineStep):
    """Stage 1, one task per shard: its n-grams, sorted by hash. Numbers: the document's id, the place, both neighbours.

    Also writes the tokens of words, and where they stand: words/RANK.npy, an `InWords` as one array.
    """

    type, name = "memsinks_jax", "passage_ngrams"

    def __init__(self, out: pathlib.Path, tokenizer: str, length: int, kind: np.dtype):
        super().__init__()
        self.out, self.tokenizer, self.length, self.kind = str(out), tokenizer, length, kind

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        out = pathlib.Path(self.out)
        index = np.load(out / "work" / f"{rank:05d}.npy")
        shard = out / "shards" / f"{rank:05d}.array_record"
        tokens = np.concatenate([np.zeros(0, self.kind), *shard_tokens(shard, len(index), self.kind)])
        lengths = index["length"].astype(np.int64)
        document, opens, sizes = np.arange(len(lengths)), np.cumsum(lengths) - lengths, lengths  # of what is searched
        if (answers := answers_file(out / "work", rank)).exists():
            document, starts, stops = np.load(answers).astype(np.int64).T
            opens, sizes = opens[document] + starts, np.minimum(stops, lengths[document]) - starts
        path = out / self.tokenizer
        tokens, starts, stops = _words(path, path.stat().st_mtime_ns)(tokens, np.append(opens, opens + sizes))
        (out / "work" / "words").mkdir(exist_ok=True)
        np.save(out / "work" / "words" / f"{rank:05d}.npy", np.stack([tokens, starts, stops]).astype(np.int32))
        opens, closes = (np.searchsorted(starts, each) for each in (opens, opens + sizes))
        ngrams = np.maximum(closes - opens - self.length + 1, 0)
        of = np.repeat(np.arange(len(ngrams)), ngrams)
        number = np.arange(len(of)) - (np.cumsum(ngrams) - ngrams)[of]
        first = opens[of] + number
        before, after = (np.full(len(of), _NONE, np.uint64) for _ in range(2))
        has = number > 0
        before[has] = tokens[first[has] - 1]
        has = number + 1 < ngrams[of]
        after[has] = tokens[first[has] + self.length]
        hashes = ngram_hashes(tokens, self.length)[first]
        places = (first + self.length - 1).astype(np.uint64) + np.uint64(rank << 32)
        columns = as_numbers(index["identity"])[document[of]], places, before << np.uint64(32) | after
        sorted_files.save(out / "work" / "passage_ngrams", rank, hashes, np.stack(columns, axis=1))


@functools.lru_cache(maxsize=1)
def _words(path: pathlib.Path, modified: int) -> Words:
    """Once per worker instead of once per shard. `modified` detects a new tokenizer of the same name."""
    return Words(open_tokenizer(path))


class Repeats(PipelineStep):
    """Stage 2, one task per range of hashes: the common n-grams, sorted, and the neighbours that most places of each have.

    An n-gram of a licence has as many places as the corpus has copies. So they are counted a shard at a time. Most n-grams
    have a single place, and are left out first.
    """

    type, name = "memsinks_jax", "repeats"

    def __init__(self, work: pathlib.Path, shards: int):
        super().__init__()
        self.work, self.shards = str(work), shards

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work, of_shards = pathlib.Path(self.work), []
        for hashes, numbers in sorted_files.read_repeated(work / "passage_ngrams", self.shards, rank, world_size):
            documents, _, neighbours = numbers.T
            of_shards.append(_counted(hashes, neighbours, documents, documents, np.ones(len(hashes), np.int64)))
        hashes, neighbours, least, most, places = _counted(*map(np.concatenate, zip(*of_shards, strict=True)))
        first = np.flatnonzero(is_new(hashes))
        common = _reduced(np.minimum, least, first) != _reduced(np.maximum, most, first)
        before, after = (_of_most(hashes, of, places) for of in (neighbours >> np.uint64(32), neighbours & _LOW))
        sorted_files.save(work / "repeats", rank, hashes[first][common], (before << np.uint64(32) | after)[common])


def _counted(
    hashes: np.ndarray, neighbours: np.ndarray, least: np.ndarray, most: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, ...]:
    """An entry for each n-gram and its neighbours: the least and the greatest id of a document, and the number of places."""
    order = np.lexsort((neighbours, hashes))
    hashes, neighbours, least, most, places = (of[order] for of in (hashes, neighbours, least, most, places))
    first = np.flatnonzero(is_new(hashes) | is_new(neighbours))
    counted = ((np.minimum, least), (np.maximum, most), (np.add, places))
    return hashes[first], neighbours[first], *(_reduced(how, of, first) for how, of in counted)


def _reduced(how: np.ufunc, values: np.ndarray, first: np.ndarray) -> np.ndarray:
    return how.reduceat(values, first) if len(first) else values


def _of_most(hashes: np.ndarray, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The token of more than half of the places of each n-gram, _NONE if there is none -> uint64 (n-grams,).

    Args:
      hashes: of the n-grams, sorted; one of them may come several times.
    """
    order = np.lexsort((tokens, hashes))
    new_ngram = is_new(hashes[order])
    new_pair = new_ngram | is_new(tokens[order])
    ngram, pair = np.cumsum(new_ngram) - 1, np.cumsum(new_pair) - 1
    of_pair, of_ngram = (np.bincount(of, places[order]) for of in (pair, ngram))  # exact, below 2**53
    found = np.full(len(of_ngram), _NONE, np.uint64)
    has_most = 2 * of_pair > of_ngram[ngram[new_pair]]
    found[ngram[new_pair][has_most]] = tokens[order][new_pair][has_most]
    return found


class Runs(PipelineStep):
    """Stage 3, one task per shard: runs of n-grams that belong together, each named by the least hash among its own.

    Columns of a run: the numbers of its first and its last place in the shard, its name.
    """

    type, name = "memsinks_jax", "runs"

    def __init__(self, work: pathlib.Path, ranges: int):
        super().__init__()
        self.work, self.ranges = str(work), ranges

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        hashes, at, before, after = self._common(work, rank)
        goes_on = (at[1:] == at[:-1] + np.uint64(1)) & after[:-1] & before[1:]
        first = np.flatnonzero(np.append(True, ~goes_on)[: len(at)])
        names = np.minimum.reduceat(hashes, first) if len(first) else hashes
        last = np.append(first[1:], len(at))[: len(first)] - 1
        (work / "runs").mkdir(exist_ok=True)
        np.save(work / "runs" / f"{rank:05d}.npy", np.stack([at[first], at[last], names], axis=1))
        named = np.unique(np.stack([hashes, np.repeat(names, last - first + 1)], axis=1), axis=0)
        sorted_files.save(work / "named", rank, named[:, 0], named[:, 1])

    def _common(self, work: pathlib.Path, rank: int) -> tuple[np.ndarray, ...]:
        """The common n-grams of a shard by their places there: hash, place, and whether most places of the n-gram have the
        same token before it, and after it."""
        hashes, numbers = sorted_files.load(work / "passage_ngrams", rank)
        found = []
        for part in range(self.ranges):
            there = part_of(hashes, part, self.ranges)
            common, neighbours = sorted_files.load(work / "repeats", part)
            where = np.flatnonzero(is_in(hashes[there], common))
            of, (_, places, own) = hashes[there][where], numbers[there][where].T
            most = neighbours[np.searchsorted(common, of)]
            before = ((own ^ most) >> np.uint64(32) == 0) & (most >> np.uint64(32) != _NONE)
            after = ((own ^ most) & _LOW == 0) & (most & _LOW != _NONE)
            found.append((of, places & _LOW, before, after))
        columns = list(map(np.concatenate, zip(*found, strict=True)))
        order = np.argsort(columns[1], kind="stable")
        return tuple(column[order] for column in columns)


class Joins(PipelineStep):
    """Stage 4, one task per range of hashes: pairs of names that an n-gram has, the lesser first."""

    type, name = "memsinks_jax", "joins"

    def __init__(self, work: pathlib.Path, shards: int):
        super().__init__()
        self.work, self.shards = str(work), shards

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        hashes, names = sorted_files.read_range(work / "named", self.shards, rank, world_size)
        order = np.lexsort((names, hashes))
        new = is_new(hashes[order])
        least = names[order][new][np.cumsum(new) - 1]
        pairs = np.unique(np.stack([least, names[order]], axis=1), axis=0)
        (work / "joins").mkdir(exist_ok=True)
        np.save(work / "joins" / f"{rank:05d}.npy", pairs[pairs[:, 0] != pairs[:, 1]])


class Names(PipelineStep):
    """Stage 5, a single task: (name, least name of the same passage) of those that have another, sorted.

    Takes about 40 bytes per name that has another.
    """

    type, name = "memsinks_jax", "names"

    def __init__(self, work: pathlib.Path):
        super().__init__()
        self.work = str(work)

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        files, names = sorted((work / "joins").glob("*.npy")), np.zeros(0, np.uint64)
        for path in files:
            names = union(names, np.load(path).ravel())
        least = np.arange(len(names))
        for path in files:
            least = connected(least, np.searchsorted(names, np.load(path)))
        np.save(work / "passage_names.npy", np.stack([names, names[least]], axis=1))


class Spans(PipelineStep):
    """Stage 6, one task per shard: its runs, sorted by the ids of their passages. Numbers: document's id, record, span."""

    type, name = "memsinks_jax", "spans"

    def __init__(self, work: pathlib.Path, length: int):
        super().__init__()
        self.work, self.length = str(work), length

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        index = np.load(work / f"{rank:05d}.npy")
        _, starts, stops = _words_of(work, rank)
        first, last, names = np.load(work / "runs" / f"{rank:05d}.npy").T
        start, stop = starts[first.astype(np.int64) - (self.length - 1)], stops[last.astype(np.int64)]
        ends = np.cumsum(index["length"].astype(np.int64))
        document = np.searchsorted(ends, start, side="right")
        opens = (ends - index["length"])[document]
        identities = passage_ids(_named(np.load(work / "passage_names.npy", mmap_mode="r"), names))
        np.save(work / "runs" / f"{rank:05d}.ids.npy", identities)
        spans = (start - opens).astype(np.uint64) << np.uint64(32) | (stop - opens).astype(np.uint64)
        records = document.astype(np.uint64) + np.uint64(rank << 32)
        sorted_files.save(
            work / "spans",
            rank,
            identities,
            np.stack([as_numbers(index["identity"])[document], records, spans], axis=1),
        )


def _named(least: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The least name of the passage of each; `least` is that of `Names`."""
    place = np.minimum(np.searchsorted(least[:, 0], names), max(len(least) - 1, 0))
    return np.where(least[place, 0] == names, least[place, 1], names) if len(least) else names


class Places(PipelineStep):
    """Stage 7, one task per range of ids: in how many different documents each passage stands, and its longest place."""

    type, name = "memsinks_jax", "places"

    def __init__(self, work: pathlib.Path, shards: int):
        super().__init__()
        self.work, self.shards = str(work), shards

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        identities, numbers = sorted_files.read_range(work / "spans", self.shards, rank, world_size, 3)
        documents, records, spans = numbers.T
        order = np.lexsort((documents, identities))
        new = is_new(identities[order])
        of, first = np.cumsum(new) - 1, np.flatnonzero(new)
        places = np.bincount(of[new | is_new(documents[order])], minlength=len(first)).astype(np.uint64)
        sizes = (spans & _LOW) - (spans >> np.uint64(32))
        longest = np.lexsort((records, ~sizes, identities))[first]
        columns = identities[longest], places, sizes[longest], records[longest], spans[longest]
        (work / "places").mkdir(exist_ok=True)
        np.save(work / "places" / f"{rank:05d}.npy", np.stack(columns, axis=1))


class Passages(PipelineStep):
    """Stage 8, one task per shard: the passages of every document, as `Prepared.passages` has them.

    A token belongs to the passage in most documents of those whose n-grams hold it; of several, to the first. White space
    belongs to the passage around it. A part with less than half of an n-gram's tokens belongs to the one before, so a row
    has few of them.
    """

    type, name = "memsinks_jax", "passages"

    def __init__(self, work: pathlib.Path, ranges: int, length: int):
        super().__init__()
        self.work, self.ranges, self.length = str(work), ranges, length

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        work = pathlib.Path(self.work)
        lengths = np.load(work / f"{rank:05d}.npy")["length"].astype(np.int64)
        first, last, _ = np.load(work / "runs" / f"{rank:05d}.npy").T.astype(np.int64)
        identities = np.load(work / "runs" / f"{rank:05d}.ids.npy")
        document = np.repeat(np.arange(len(lengths)), lengths)
        _, *words = _words_of(work, rank)
        run = _of_tokens(
            self._run_of_words(first, last, self._places(work, identities), len(words[0])), *words, document
        )
        owner = np.append(identities, np.uint64(0))[run]  # 0: no passage
        new = is_new(owner) | is_new(document)
        starts = np.flatnonzero(new)
        stops = np.append(starts[1:], len(owner))
        starts, stops = (each[owner[starts] > 0] for each in (starts, stops))
        of, identity = document[starts], owner[starts]
        opens_chain = is_new(of) | (np.append(-1, stops[:-1])[: len(starts)] != starts)
        stays = opens_chain | (stops - starts >= self.length // 2)
        chain = np.cumsum(opens_chain)
        stays[stays] = is_new(chain[stays]) | is_new(identity[stays])
        found = np.zeros(stays.sum(), prepared.PASSAGE)
        found["start"], found["id"] = (starts - (np.cumsum(lengths) - lengths)[of])[stays], identity[stays]
        found["length"] = np.maximum.reduceat(stops, np.flatnonzero(stays)) - starts[stays] if len(stays) else 0
        (work / "passages_of").mkdir(exist_ok=True)
        np.save(work / "passages_of" / f"{rank:05d}.npy", found)
        np.save(work / "passages_of" / f"{rank:05d}.counts.npy", np.bincount(of[stays], minlength=len(lengths)))
        np.save(work / "passages_of" / f"{rank:05d}.ids.npy", np.unique(found["id"]))

    def _places(self, work: pathlib.Path, identities: np.ndarray) -> np.ndarray:
        """In how many documents the passages of some ids stand, uint64 (n,) -> uint64 (n,)."""
        found = np.zeros(len(identities), np.uint64)
        for part in range(self.ranges):
            known = np.load(work / "places" / f"{part:05d}.npy", mmap_mode="r")
            there = np.flatnonzero(is_in(identities, known[:, 0]))
            found[there] = known[np.searchsorted(known[:, 0], identities[there]), 1]
        return found

    def _run_of_words(self, first: np.ndarray, last: np.ndarray, places: np.ndarray, words: int) -> np.ndarray:
        """The number of the run that has each token of a word, int64 (words,); -1 where none has."""
        most, sizes = np.zeros(words, np.uint64), last - first + 1
        at = np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        before = np.arange(len(first), 0, -1).astype(np.uint64)  # of equals, the first is the greatest
        most[at] = np.repeat(places << np.uint64(32) | before, sizes)
        width = 1
        while width < self.length:  # the n-grams that hold a token end at it or at one of the next `length` - 1
            more = min(width, self.length - width)
            most[:-more] = np.maximum(most[:-more], most[more:])
            width += more
        return np.where(most > 0, len(first) - (most & _LOW).astype(np.int64), -1)


def _of_tokens(of_words, starts: np.ndarray, stops: np.ndarray, document: np.ndarray) -> np.ndarray:
    """What each token of a shard has of what tokens of words have, of `document` (tokens,); -1 where none has.

    White space has it from the word before if the next word, of the same document, has some too.
    """
    place = np.arange(len(document))
    before = np.searchsorted(starts, place, side="right") - 1
    found = np.where(place < np.append(stops, 0)[before], np.append(of_words, -1)[before], -1)
    last, following = np.append(stops, 0)[before] - 1, np.append(starts, 0)[before + 1]
    in_one = (last < place) & (last >= 0) & (following > place)
    white = place[in_one & (document[last] == document) & (document[following] == document)]
    found[white] = np.where(found[following[white]] >= 0, found[last[white]], -1)
    return found


def _words_of(work: pathlib.Path, rank: int) -> InWords:
    return InWords(*np.load(work / "words" / f"{rank:05d}.npy", mmap_mode="r"))


class Found(NamedTuple):
    """A summary of the passages of a corpus."""

    hashes: dict[str, str]  # SHA-256 of every column's file
    passages: int
    tokens: int  # inside passages, of all records
    longest: np.ndarray  # uint64 (at most _SHOWN, 5): id, places, tokens, record in its shard, span there
    most_frequent: np.ndarray  # the same


def write_columns(out: pathlib.Path, shards: int, ranges: int) -> Found:
    """Writes the columns `prepared.passage_columns`, a shard and a range of ids at a time."""
    columns = {
        name: Column(prepared.column_file(out, name), kind, ())
        for name, (kind, _) in prepared.passage_columns(0).items()
    }
    through = tokens = passages = 0
    for rank in range(shards):
        counts = np.load(out / "work" / "passages_of" / f"{rank:05d}.counts.npy")
        found = np.load(out / "work" / "passages_of" / f"{rank:05d}.npy")
        columns["passage_ends"].append(through + np.cumsum(counts))
        columns["passages"].append(found)
        through, tokens = through + len(found), tokens + int(found["length"].sum())
    longest = most_frequent = np.zeros((0, 5), np.uint64)
    for rank in range(ranges):
        found = np.load(out / "work" / "places" / f"{rank:05d}.npy")
        has_tokens = np.zeros(len(found), bool)
        for shard in range(shards):
            of_shard = np.load(out / "work" / "passages_of" / f"{shard:05d}.ids.npy", mmap_mode="r")
            has_tokens |= is_in(found[:, 0], of_shard[part_of(of_shard, rank, ranges)])
        found = found[has_tokens]
        columns["passage_ids"].append(found[:, 0])
        columns["passage_places"].append(found[:, 1])
        passages += len(found)
        longest = _most(np.concatenate([longest, found]), 2, 1)
        most_frequent = _most(np.concatenate([most_frequent, found]), 1, 2)
    return Found({name: column.close() for name, column in columns.items()}, passages, tokens, longest, most_frequent)


def _most(found: np.ndarray, column: int, then: int) -> np.ndarray:
    return found[np.lexsort((found[:, 0], ~found[:, then], ~found[:, column]))[:_SHOWN]]


def shown(corpus: prepared.Prepared, offsets: np.ndarray, found: np.ndarray) -> list[dict]:
    """For the report: each of `Found.longest`, with its text where it is longest.

    Args:
      offsets: the number of the first record of each shard.
    """
    tokenizer, entries = corpus.tokenizer(), []
    for identity, places, tokens, place, span in found.tolist():
        record, start = int(offsets[place >> 32]) + place % 2**32, span >> 32
        text = tokenizer.decode(corpus.read(record)[start : start + min(tokens, _EXCERPT)])
        about = {"id": to_hex(as_lanes(np.array([identity], np.uint64))[0]), "places": places, "tokens": tokens}
        entries.append(about | {"longest": corpus.source(record), "text": text})
    return entries
