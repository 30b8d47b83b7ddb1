"""Best-fit packing: which documents share a row, so that few rows are needed and no document is cut that fits one.

After "Fewer Truncations Improve Language Modeling" (Ding et al., 2024): from the longest document on, each goes to the row
where it leaves the least room. Only the sizes decide, so every epoch has the same number of rows.
"""

from typing import NamedTuple

import numpy as np


class Slots(NamedTuple):
    """Pieces of documents, row after row. A piece is [start, stop) of a document's tokens with end of text behind them."""

    first: np.ndarray  # int64 (rows + 1,): row r holds the slots first[r] to first[r + 1] - 1
    rank: np.ndarray  # int64 (slots,): which document, counted from the longest; equally long ones in the given order
    start: np.ndarray  # int64 (slots,)
    stop: np.ndarray  # int64 (slots,)


def best_fit(sizes: np.ndarray, row_length: int) -> Slots:
    """Packs documents of int (documents,) `sizes`, end of text included, into rows of `row_length` targets.

    A longer document is split: whole rows of it, and a rest that is packed as a document. O(documents), some two seconds
    for a million.
    """
    sizes = np.sort(sizes)[::-1].astype(np.int64)
    full = sizes // row_length  # whole rows of the long ones
    of_full = np.repeat(np.arange(len(sizes)), full)
    starts_of_full = (np.arange(len(of_full)) - np.repeat(np.cumsum(full) - full, full)) * row_length
    rests = np.flatnonzero(sizes > full * row_length)
    needed = sizes[rests] - full[rests] * row_length
    by_need = np.argsort(-needed, kind="stable")
    rows, count = _assign(needed[by_need].tolist(), row_length)
    rank = np.concatenate([of_full, rests[by_need]])
    start = np.concatenate([starts_of_full, full[rests][by_need] * row_length])
    stop = np.concatenate([starts_of_full + row_length, sizes[rests][by_need]])
    row = np.concatenate([np.arange(len(of_full)), len(of_full) + np.array(rows, np.int64)])
    order = np.argsort(row, kind="stable")
    first = np.searchsorted(row[order], np.arange(len(of_full) + count + 1))
    return Slots(first, rank[order], start[order], stop[order])


def _assign(needed: list[int], row_length: int) -> tuple[list[int], int]:
    """Falling sizes -> (the row of each, how many rows)."""
    with_room = [[] for _ in range(row_length + 1)]  # rows by the room that is left
    rooms = 0  # bit r is set where with_room[r] is not empty: one look finds the least room that is enough
    rows, count = [], 0
    for size in needed:
        enough = rooms >> size
        if enough:
            room = size + (enough & -enough).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, row, count = row_length, count, count + 1
        rows.append(row)
        left = room - size
        if not with_room[left]:
            rooms |= 1 << left
        with_room[left].append(row)
    return rows, count
