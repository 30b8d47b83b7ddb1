"""The table of documents: what a run knows of each without reading its text. Large columns are
memory-mapped.

A *record* is a document as the files hold it, including exact copies. Records are numbered over all
sources: those of `data.files` (or the embedded stories) first, then those of each of
`general.files`. A document is identified by its first copy. Only `Listed`, and copies that two
sources share, grow with the number of documents.
"""

import bisect
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data import ids, prepared
from memsinks_jax.data.documents import Document
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.prepared import (
    NO_NUMBER,
    Prepared,
    group_id,
    histogram,
    numbered_ids,
    run_sums,
)
from memsinks_jax.data.tokenizer import AnyTokenizer

_SCANNED = 2**20  # records read at a time in a pass over all


class Listed:
    """A source in memory, with the columns of a `Prepared` one.

    Args:
      tokens: int32 (tokens,) of each record, without end of text.
      first_copies: int (records,), the first exact copy of each; None: no two are equal.
      documents: their texts and places, if there are any.
    """

    group_names: Sequence[str] = ()
    has_answers = False

    def __init__(
        self, tokens: Sequence[np.ndarray], first_copies=None, documents: Sequence[Document] = ()
    ):
        self.all_tokens, self.documents = tokens, documents
        self.lengths = np.array([len(each) for each in tokens], np.int64)
        self.firsts = np.arange(len(tokens)) if first_copies is None else np.asarray(first_copies)
        self.clusters, self.groups = self.firsts, np.zeros(len(tokens), np.int64)
        self.copies = np.bincount(self.firsts, minlength=len(tokens))[self.firsts]
        clustered = np.flatnonzero(self.copies > 1)
        members = np.stack([self.firsts[clustered], clustered], axis=1)
        self.members = members[np.lexsort(members.T[::-1])]
        is_first = self.firsts == np.arange(len(tokens))
        self.runs, self.histogram = (
            run_sums(self.lengths, is_first),
            histogram(self.lengths, is_first),
        )

    def __len__(self) -> int:
        return len(self.all_tokens)

    @property
    def digest(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(
            self.identities.tobytes() + self.firsts.astype(np.int64).tobytes()
        ).hexdigest()

    @functools.cached_property
    def identities(self) -> np.ndarray:
        return np.stack([ids.content_id(each) for each in self.all_tokens])

    @functools.cached_property
    def sorted_numbers(self) -> np.ndarray:
        first_copies = np.flatnonzero(self.firsts == np.arange(len(self)))
        return first_copies[np.argsort(as_numbers(self.identities[first_copies]), kind="stable")]

    @property
    def sorted_identities(self) -> np.ndarray:
        return as_numbers(self.identities[self.sorted_numbers])

    def read(self, record: int) -> np.ndarray:
        return self.all_tokens[record]

    def answers(self, record: int) -> None:
        """As `Prepared.answers`: everything counts."""

    def around(self, record: int) -> None:
        """As `Prepared.around`: the tokens of the tokenizer."""

    def document(self, record: int, tokenizer: AnyTokenizer) -> Document:
        return self.documents[record]

    def place(self, record: int) -> str:
        return self.documents[record].source

    def origin(self, record: int, read: bool) -> dict[str, str]:
        return {}


class Column:
    """A column of all sources; `[]` takes an int, a slice within one source, or int (n,).

    Args:
      parts: the column of each source.
      converted: converts an entry of a source to one of the table.
    """

    def __init__(self, parts: Sequence[np.ndarray], converted: Sequence[Callable]):
        self._parts, self._converted = parts, converted
        self._starts = np.cumsum([0, *map(len, parts)]).tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, at):
        if len(self._parts) == 1:
            return self._converted[0](self._parts[0][at])
        if isinstance(at, slice):
            part = bisect.bisect_right(self._starts, at.start) - 1
            start = self._starts[part]
            return self._converted[part](self._parts[part][at.start - start : at.stop - start])
        at = np.asarray(at)
        part = np.searchsorted(self._starts, at, side="right") - 1
        if not at.ndim:
            return self._converted[part](self._parts[part][at - self._starts[part]])
        found = self._converted[0](self._parts[0][:0])
        found = np.empty((len(at), *found.shape[1:]), found.dtype)
        for number in np.unique(part).tolist():
            there = part == number
            found[there] = self._converted[number](
                self._parts[number][at[there] - self._starts[number]]
            )
        return found


class Table:
    """All records of a run.

    Attributes:
      bounds      int64 (sources + 1,): source s holds the records from bounds[s] up to bounds[s +
                  1]
      lengths     Column of int64, tokens without end of text
      content     Column of uint32 (2,), content ids
      runs        int64 (runs, 3): first record, last + 1, source; prepared.RUN adjacent records of
                  a source
      cross_source_copies  int64 (n,), ascending: records of later sources whose document is also in
                           an earlier one
    """

    def __init__(
        self,
        sources: Sequence[Prepared | Listed],
        kind: str = "content",
        numbered: Sequence[str] | None = None,
    ):
        """Puts sources together.

        Args:
          kind: a value of config.data.ids.
          numbered: the groups known so far, if groups have sinks by their numbers: new ones are
            numbered after them, and sources after the first may have no groups. None: ids of groups
            are hashes of their names.
        Raises:
          InputError: a source has no ids of this kind.
        """
        self.sources, self._kind = sources, kind
        self.bounds = np.cumsum([0, *map(len, sources)])
        self.lengths, self._copies = self._numbers("lengths"), self._numbers("copies")
        self._first_copies = self._numbers("firsts", shifted=True)
        self._clusters = self._numbers("clusters", shifted=True)
        self.content = Column(
            [source.identities for source in sources], [np.asarray] * len(sources)
        )
        self.runs = np.concatenate(
            [
                _runs(*bounds, number)
                for number, bounds in enumerate(itertools.pairwise(self.bounds))
            ]
        )
        if kind == "group":
            self.group_names, self.group_ids, self.groups = self._join_groups(numbered)
        elif kind == "near_duplicate":
            self._check_clusters()
        # Documents that sources share: their first copies in the later source and in the earlier
        # one.
        self._later, self._earlier = self._shared()
        _, records = self._listed_members(self._clusters[self._later])
        near = np.unique(np.concatenate([self._later, records]))
        self.cross_source_copies = near[self.first_copies(near) != self._first_copies[near]]
        self._moved = near[self.clusters(near) != self._clusters[near]]

    def _numbers(self, name: str, shifted: bool = False) -> Column:
        shifts = self.bounds[:-1] if shifted else np.zeros(len(self.sources), np.int64)
        converted = [
            lambda part, shift=shift: np.asarray(part).astype(np.int64) + shift for shift in shifts
        ]
        return Column([getattr(source, name) for source in self.sources], converted)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    # Records. All functions take and return int64 (n,).

    def source_of(self, records: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.bounds, records, side="right") - 1

    def first_copies(self, records: np.ndarray) -> np.ndarray:
        """The first exact copy of each, over all sources."""
        return self._patched(self._first_copies[records])

    def clusters(self, records: np.ndarray) -> np.ndarray:
        """The first record of the near-duplicates of each; without any, its first copy."""
        clusters = self._clusters[self.first_copies(records)]
        # A cluster whose first document is in an earlier source belongs to that source's cluster.
        for _ in self.sources[1:]:
            clusters = self._clusters[self._patched(clusters)]
        return clusters

    def _patched(self, first_copies: np.ndarray) -> np.ndarray:
        shared = np.flatnonzero(is_in(first_copies, self._later))
        if len(shared):
            first_copies = first_copies.copy()
            first_copies[shared] = self._earlier[np.searchsorted(self._later, first_copies[shared])]
        return first_copies

    def first_in_groups(self, records: np.ndarray) -> np.ndarray:
        """The first exact copy of each among those of its own group."""
        first_copies = self.first_copies(records)
        elsewhere = np.flatnonzero(self.groups[first_copies] != self.groups[records])
        if len(elsewhere):
            _, copies = self.cluster_members(np.unique(self.clusters(first_copies[elsewhere])))
            copies = np.sort(copies)
            numbers = len(self.group_ids)
            keys, first = np.unique(
                self.first_copies(copies) * numbers + self.groups[copies], return_index=True
            )
            wanted = first_copies[elsewhere] * numbers + self.groups[records[elsewhere]]
            first_copies = first_copies.copy()
            first_copies[elsewhere] = copies[first[np.searchsorted(keys, wanted)]]
        return first_copies

    def is_first_of_source(self, records: np.ndarray) -> np.ndarray:
        return self._first_copies[records] == records

    def documents(self, source: int) -> int:
        """The distinct documents of a source."""
        return int(self.sources[source].runs[:, 1, 0].sum())

    def copies(self, records: np.ndarray) -> np.ndarray:
        """The number of copies of each record's document in all sources."""
        first_copies = self.first_copies(records)
        copies = self._copies[first_copies]
        if len(self._later):
            order = np.argsort(self._earlier, kind="stable")
            through = np.concatenate([[0], np.cumsum(self._copies[self._later[order]])])
            low, high = (
                np.searchsorted(self._earlier[order], first_copies, side=side)
                for side in ("left", "right")
            )
            copies = copies + through[high] - through[low]
        return copies

    def identities(self, records: np.ndarray) -> np.ndarray:
        """The ids of the documents of some records in a run, int (...,) -> uint32 (..., 2)."""
        shape, records = np.shape(records), np.asarray(records, np.int64).reshape(-1)
        return self._identities(records).reshape(*shape, 2)

    def _identities(self, records: np.ndarray) -> np.ndarray:
        if self._kind == "near_duplicate":
            return self.content[self.clusters(records)]
        if self._kind == "group":
            return self.group_ids[self.groups[records]]
        return self.content[records]

    def cluster_members(self, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every record of some clusters, given by their first records -> (place in `clusters`,
        record), int64 (n,) each.
        """
        which, records = self._listed_members(clusters)
        alone = np.flatnonzero(np.bincount(which, minlength=len(clusters)) == 0)
        which, records = np.concatenate([which, alone]), np.concatenate([records, clusters[alone]])
        if len(self._moved):
            selected = ~is_in(records, self._moved)
            clusters_of_moved = self.clusters(self._moved)
            order = np.argsort(clusters_of_moved, kind="stable")
            there, place = _ranges(clusters_of_moved[order], clusters)
            which = np.concatenate([which[selected], there])
            records = np.concatenate([records[selected], self._moved[order[place]]])
        order = np.lexsort((records, which))
        return which[order], records[order]

    def _listed_members(self, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = [(clusters[:0], clusters[:0])]
        for number, source in enumerate(self.sources):
            shift = self.bounds[number]
            there = np.flatnonzero(self.source_of(clusters) == number)
            which, place = _ranges(source.members[:, 0], clusters[there] - shift)
            found.append(
                (there[which], np.asarray(source.members[place, 1]).astype(np.int64) + shift)
            )
        return tuple(np.concatenate(each) for each in zip(*found, strict=True))

    def clustered(self) -> np.ndarray:
        """Records that are not the only one of their document, or of their near-duplicates."""
        members = [np.asarray(source.members[:, 1]).astype(np.int64) for source in self.sources]
        within = [each + shift for each, shift in zip(members, self.bounds, strict=False)]
        return np.concatenate([*within, self._later, self._earlier])

    def of_groups(self) -> np.ndarray:
        """A record of each group, in a pass over the whole table."""
        found = {}
        for start, stop, _ in self.runs.tolist():
            groups, first = np.unique(self.groups[np.arange(start, stop)], return_index=True)
            found = dict(zip(groups.tolist(), (first + start).tolist(), strict=True)) | found
        return np.array(list(found.values()), np.int64)

    def truncated(self, source: int, row_length: int, first_only: bool = True) -> tuple[int, int]:
        """(records longer than a row, their tokens that do not fit it), end of text included."""
        column, source = int(first_only), self.sources[source]
        if row_length >= prepared.LONGEST:
            lengths = np.asarray(source.lengths)
            return truncated(
                lengths[source.firsts == np.arange(len(source))] if first_only else lengths,
                row_length,
            )
        fitting = np.asarray(source.histogram[column][: row_length + 1])
        longer = int(source.histogram[column].sum() - fitting.sum())
        return longer, int(
            source.runs[:, column, 1].sum() - fitting @ np.arange(row_length + 1)
        ) - longer * row_length

    def documents_of(self, identities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All documents with some distinct ids, uint32 (n, 2) -> (place in `identities`, first
        copy), int64 each.

        With ids by group, a document that several groups have is one of each: its first copy there.
        They need a pass over the whole table.
        """
        keys = as_numbers(identities)
        if self._kind == "group":
            order = np.argsort(keys, kind="stable")
            found = [(order[:0], order[:0])]
            for start, stop, _ in self.runs.tolist():
                records = np.arange(start, stop)
                of_groups = as_numbers(self.identities(records))
                there = np.flatnonzero(is_in(of_groups, keys[order]))
                there = there[self.first_in_groups(records[there]) == records[there]]
                found.append(
                    (order[np.searchsorted(keys[order], of_groups[there])], records[there])
                )
            return tuple(np.concatenate(each) for each in zip(*found, strict=True))
        found = [_found(source.sorted_identities, keys) for source in self.sources]
        numbers = [
            np.asarray(source.sorted_numbers[place])
            for source, (_, place) in zip(self.sources, found, strict=True)
        ]
        which = np.concatenate([there for there, _ in found])
        first_copies = np.concatenate(
            [
                each.astype(np.int64) + shift
                for each, shift in zip(numbers, self.bounds, strict=False)
            ]
        )
        if self._kind == "near_duplicate":
            place, first_copies = self.cluster_members(first_copies)
            which = which[place]
        selected = (self.first_copies(first_copies) == first_copies) & (
            as_numbers(self.identities(first_copies)) == keys[which]
        )
        return tuple(np.unique(np.stack([which[selected], first_copies[selected]]), axis=1))

    # One document.

    def home(self, record: int) -> tuple[Prepared | Listed, int]:
        """The document's source, and its number there."""
        source = bisect.bisect_right(self.bounds, record) - 1
        return self.sources[source], int(record - self.bounds[source])

    def place(self, record: int) -> str:
        """FILE:LINE, or FOLDER:NUMBER in a prepared corpus."""
        source, number = self.home(record)
        return source.place(number)

    def origin(self, record: int, read: bool) -> dict[str, str]:
        """In a prepared corpus, where `prepare` read it: see Prepared.origin; else nothing more
        than `place`.
        """
        source, number = self.home(record)
        return source.origin(number, read)

    def tokens(self, record: int) -> np.ndarray:
        """-> int32 (tokens,), without end of text."""
        source, number = self.home(record)
        return source.read(number)

    def answers(self, record: int) -> np.ndarray | None:
        """What of it counts in the loss: start and stop of every answer, int64 (answers, 2); None:
        everything.
        """
        source, number = self.home(record)
        return source.answers(number)

    def around(self, record: int) -> tuple[int, int] | None:
        """The tokens that open and close it; None: those of the tokenizer do."""
        source, number = self.home(record)
        return source.around(number)

    def without_answer(self, row_length: int) -> int:
        """How many records have a prompt that fills a row, or more (of prepared.LONGEST tokens or
        more: all).
        """
        sources = (source for source in self.sources if source.has_answers)
        return sum(
            int(source.openings[min(row_length, prepared.LONGEST) :].sum()) for source in sources
        )

    # Putting sources together.

    def _shared(self) -> tuple[np.ndarray, np.ndarray]:
        """First copies of later sources, ascending, that are also in an earlier source; and those
        in the earliest one.
        """
        earliest = {}
        for later in range(1, len(self.sources)):
            for earlier in reversed(range(later)):
                one, other = self.sources[earlier], self.sources[later]
                of_one, of_other = _shared(one, other)
                pairs = zip(
                    of_other + self.bounds[later], of_one + self.bounds[earlier], strict=True
                )
                earliest.update((int(number), int(first)) for number, first in pairs)
        both = np.array(sorted(earliest.items()), np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _join_groups(self, numbered: Sequence[str] | None) -> tuple[list[str], np.ndarray, Column]:
        """(names of the groups of all sources; their ids, uint32 (groups, 2); a Column of the
        records' numbers there)
        """
        for source in self.sources[: 1 if numbered is not None else None]:
            if not source.group_names:
                raise InputError(
                    f"{source.folder} was prepared without --group_field; choose other "
                    "config.data.ids"
                )
        names = [
            *dict.fromkeys(
                [
                    *(numbered or ()),
                    *(name for source in self.sources for name in source.group_names),
                ]
            )
        ]
        number = {name: place for place, name in enumerate(names)}
        if numbered is None:
            identities = np.stack([*map(group_id, names)])
        else:
            identities = np.concatenate([numbered_ids(names), NO_NUMBER[None]])
        converted = []
        for source in self.sources:
            if source.group_names:
                numbers = np.array([number[name] for name in source.group_names])
                converted.append(lambda part, numbers=numbers: numbers[part])
            else:
                converted.append(lambda part: np.full(np.shape(part), len(names)))
        return names, identities, Column([s.groups for s in self.sources], converted)

    def _check_clusters(self) -> None:
        for source in self.sources:
            if source.manifest["settings"]["near_duplicates"] == "none":
                raise InputError(
                    f"{source.folder} was prepared without near-duplicates; choose other "
                    "config.data.ids"
                )


def truncated(lengths: np.ndarray, row_length: int) -> tuple[int, int]:
    """(documents longer than a row, their tokens that do not fit it), end of text included."""
    beyond = np.maximum(lengths + 1 - row_length, 0)
    return int((beyond > 0).sum()), int(beyond.sum())


def is_in(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Whether each of `values` is one of `ascending`: bool (n,)."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    return ascending[np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)] == values


def _runs(start: int, stop: int, source: int) -> np.ndarray:
    starts = np.arange(start, stop, prepared.RUN)
    return np.stack(
        [starts, np.minimum(starts + prepared.RUN, stop), np.full(len(starts), source)], axis=1
    )


def _ranges(ascending: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All places in `ascending` of each of `wanted` -> (which of `wanted`, place)."""
    wanted = wanted.astype(ascending.dtype)  # else numpy would convert the whole column
    low, high = (np.searchsorted(ascending, wanted, side=side) for side in ("left", "right"))
    which = np.repeat(np.arange(len(wanted)), high - low)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(high - low) - high, high - low)


def _found(ascending: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of `wanted` are in `ascending`, and where."""
    wanted = wanted.astype(ascending.dtype)
    place = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    there = np.flatnonzero(np.asarray(ascending[place]) == wanted)
    return there, place[there]


def _shared(one, other) -> tuple[np.ndarray, np.ndarray]:
    """Documents in both of two sources -> (numbers in the one, in the other). Looks the smaller up
    in the larger.
    """
    few, many = sorted((one, other), key=len)
    found = []
    for start in range(0, len(few.sorted_identities), _SCANNED):
        there, place = _found(
            many.sorted_identities, np.asarray(few.sorted_identities[start : start + _SCANNED])
        )
        found.append(
            (few.sorted_numbers[start : start + _SCANNED][there], many.sorted_numbers[place])
        )
    both = [np.concatenate(each).astype(np.int64) for each in zip(*found, strict=True)]
    return tuple(both if few is one else both[::-1])
