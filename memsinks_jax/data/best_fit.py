"""Best-fit packing: chooses which documents share a row. It needs few rows, and splits only
documents longer than a row.

After "Fewer Truncations Improve Language Modeling" (Ding et al., 2024): from the longest document
on, each goes to the row where it leaves the least room. Only the sizes matter, so every epoch has
the same number of rows.
"""

from typing import NamedTuple

import numpy as np


class Slots(NamedTuple):
    """Pieces of documents, row after row. A piece is [start, stop) of a document's tokens followed
    by end of text.
    """

    first: np.ndarray  # int64 (rows + 1,): row r holds the slots first[r] to first[r + 1] - 1
    # int64 (slots,): the document, counted from the longest; equally long ones in the given order
    rank: np.ndarray
    start: np.ndarray  # int64 (slots,)
    stop: np.ndarray  # int64 (slots,)

    def in_order(self, rows: np.ndarray) -> "Slots":
        """The same rows in another order."""
        counts = np.diff(self.first)[rows]
        first = np.concatenate([[0], np.cumsum(counts)])
        slots = np.arange(first[-1]) + np.repeat(self.first[:-1][rows] - first[:-1], counts)
        return Slots(first, self.rank[slots], self.start[slots], self.stop[slots])


def shortest_rest(row_length: int) -> int:
    """The minimum length of the rest of a split document; the rest is packed like a document."""
    return max(row_length // 16, 1)


def best_fit(sizes: np.ndarray, row_length: int, rows: int | None = None) -> Slots:
    """Packs documents of int (documents,) `sizes`, end of text included, into rows of `row_length`
    targets.

    A longer document is split into rows of its own and a rest, which is packed like a document. A
    short rest takes tokens from the row before, so that no row has very many rests. O(documents),
    about two seconds for a million.

    Args:
      rows: the number of rows to fill, with room for all tokens. Documents that fit no row whole
        are split over the remaining room, and spare rows stay empty. None: as many as needed.
    """
    sizes = np.sort(sizes)[::-1].astype(np.int64)
    full = sizes // row_length  # rows of their own
    starts = full * row_length  # of the rests
    starts -= np.where(
        (sizes > starts) & (full > 0),
        np.maximum(shortest_rest(row_length) - (sizes - starts), 0),
        0,
    )
    owners = np.repeat(np.arange(len(sizes)), full)
    begins = (np.arange(len(owners)) - np.repeat(np.cumsum(full) - full, full)) * row_length
    ends = np.minimum(begins + row_length, starts[owners])
    rests = np.flatnonzero(sizes > starts)
    rests = rests[np.argsort(starts[rests] - sizes[rests], kind="stable")]
    needed = sizes[rests] - starts[rests]
    room = row_length - (ends - begins)
    home, count = _assign(needed.tolist(), row_length, room.tolist(), rows)
    home, count = np.array(home, np.int64), count if rows is None else rows
    whole = np.flatnonzero(home >= 0)
    room = np.concatenate([room, np.full(count - len(room), row_length)])
    np.subtract.at(room, home[whole], needed[whole])
    which, begin, end, there = _split(needed, np.flatnonzero(home < 0), room)
    which, there = np.concatenate([whole, which]), np.concatenate([home[whole], there])
    begin, end = np.concatenate([0 * whole, begin]), np.concatenate([needed[whole], end])
    rank = np.concatenate([owners, rests[which]])
    start = np.concatenate([begins, starts[rests[which]] + begin])
    stop = np.concatenate([ends, starts[rests[which]] + end])
    row = np.concatenate([np.arange(len(owners)), there])
    order = np.argsort(row, kind="stable")
    return Slots(
        np.searchsorted(row[order], np.arange(count + 1)), rank[order], start[order], stop[order]
    )


def merged(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """All values of two arrays, ascending, each once. For a million, numpy's union1d takes ten
    times as long.
    """
    both = np.sort(np.concatenate([one, other]))
    return both[np.diff(both, prepend=-1) > 0]


def _split(needed: np.ndarray, which: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, ...]:
    """Splits documents without a row over the remaining room of the rows -> document, start, stop,
    row.
    """
    behind, through = np.cumsum(needed[which]), np.cumsum(room)
    cuts = merged(behind, through[(through > 0) & (through < needed[which].sum())])
    begins = np.concatenate([[0], cuts])[: len(cuts)].astype(np.int64)
    document = np.searchsorted(behind, begins, side="right")
    opens = behind[document] - needed[which[document]]
    return (
        which[document],
        begins - opens,
        cuts - opens,
        np.searchsorted(through, begins, side="right"),
    )


def _assign(
    needed: list[int], row_length: int, room: list[int], most: int | None
) -> tuple[list[int], int]:
    """Descending sizes -> (the row of each, -1 if none of `most` rows has room for it; the number
    of rows).

    `room` is the remaining room of the first rows.
    """
    with_room = [[] for _ in range(row_length + 1)]  # rows by their remaining room
    # bit r is set if with_room[r] is not empty, to find the least sufficient room at once
    rooms = 0
    for row, left in enumerate(room):
        with_room[left].append(row)
        rooms |= 1 << left
    rows, count = [], len(room)
    for size in needed:
        enough = rooms >> size
        if enough:
            left = size + (enough & -enough).bit_length() - 1
            row = with_room[left].pop()
            if not with_room[left]:
                rooms ^= 1 << left
        elif count == most:
            rows.append(-1)
            continue
        else:
            left, row, count = row_length, count, count + 1
        rows.append(row)
        left -= size
        if not with_room[left]:
            rooms |= 1 << left
        with_room[left].append(row)
    return rows, count
