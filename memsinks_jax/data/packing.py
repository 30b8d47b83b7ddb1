"""Packs documents into rows of fixed length. The order is a function of (seed, row), so any row is
computed directly.

A row is a dict of numpy arrays; T is the row length, S the most documents any row can hold:
  inputs (T,) int32, targets (T,) int32    the next token at every position
  weights (T,) float32                     1 if the target counts; not in padding, nor in a prompt,
                                           nor if the run's method excludes it
  segments (T,) int32                      the document's number in the row, from 1; 0 is padding
  positions (T,) int32                     place within the document's part of the row (or within
                                           the row), from 0
  identities (S, 2) uint32                 id of segment s at [s - 1]; (0, 0) if there is none
  repeated (S,) bool                       whether it is one of the repeated documents; in rows of a
                                           run only
  seen (S,) int32                          how often the id was seen before, over all epochs; in
                                           rows of a run only
  epoch () int32                           from 0; in rows of a run only
  contexts (T,) int32                      the row of the context of every position,
                                           sinks.kinds.NONE for none; with sinks by context
So the id of position t is identities[segments[t] - 1]: one lane pair per document instead of one
per token. In every kind of row, the tokenizer's `begin_of_text` opens the document that follows
(end of text, unless the tokenizer has another token for it), and end of text closes it. Of a
conversation both are what its chat template writes. So a document's first token is predicted under
its own id, and a document reads the same in a row with others, alone in an evaluation, and in
generation.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax import plugin
from memsinks_jax.config import Config, DataConfig, TrainingConfig
from memsinks_jax.data.best_fit import Slots, best_fit, merged, shortest_rest
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.epochs import Epochs, epochs_of
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.mixture import Mixture
from memsinks_jax.data.order import permutation
from memsinks_jax.data.prepared import LONGEST
from memsinks_jax.data.table import is_in
from memsinks_jax.data.tokenizer import PADDING
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.sinks.opening import are_open, numbered


class Piece(NamedTuple):
    """Targets `start` to `stop` - 1 of a document of n tokens: its tokens, then end of text, n + 1
    in all.

    The input at a target is the token before it. At the first token it is what opens the document.
    """

    tokens: np.ndarray  # int32 (n,), of the whole document, without end of text
    start: int
    stop: int
    # int64 (answers, 2), see `Table.answers`; None: all targets count
    answers: np.ndarray | None = None
    # what opens and closes the document; None: the tokenizer's
    around: tuple[int, int] | None = None


def counted(answers: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Which of a document's targets `start` to `stop` - 1 are in an answer -> bool (stop -
    start,).
    """
    size = stop - start
    begin, end = (np.bincount(at, minlength=size + 1) for at in np.clip(answers - start, 0, size).T)
    return np.cumsum(begin - end)[:size] > 0


def answering(answers: Sequence[np.ndarray | None], row_length: int) -> np.ndarray:
    """Which documents, by their `answers`, have anything that counts in a row that truncates them
    -> bool (documents,).
    """
    return np.array([of is None or of[0, 0] < row_length for of in answers], bool)


def reads_whole(data: DataConfig) -> bool:
    """Whether a run's rows hold whole documents, over several rows if one is too short. Evaluations
    then do the same.
    """
    return data.rows != "one_document"


def windows(size: int, row_length: int, whole: bool) -> list[tuple[int, int]]:
    """Start and stop of the rows for a document alone, of `size` targets: all of them, or one row
    that truncates it.
    """
    if not whole:
        return [(0, min(size, row_length))]
    return [(start, min(start + row_length, size)) for start in range(0, size, row_length)]


def row_of(
    pieces: list[Piece],
    identities: np.ndarray,
    row_length: int,
    end_of_text: int,
    begin_of_text: int | None = None,
    documents_per_row: int = 1,
    across: bool = False,
    contexts: Contexts | None = None,
    **of_documents: np.ndarray,
) -> dict[str, np.ndarray]:
    """Pieces of documents side by side, with the ids of their documents, uint32 (pieces, 2): every
    row is made here.

    A piece from the middle of a document opens with the token before it, at position 0. With
    `across`, positions count over the whole row.

    Args:
      end_of_text: closes documents, unless `Piece.around` has another token.
      begin_of_text: opens them likewise; None: end of text does.
      contexts: those that have sinks; None: none have.
      of_documents: further arrays (pieces,) of their documents, to be padded.
    """
    usual = end_of_text if begin_of_text is None else begin_of_text, end_of_text
    inputs, targets = np.full(row_length, PADDING, np.int32), np.full(row_length, PADDING, np.int32)
    segments, positions = np.zeros(row_length, np.int32), np.zeros(row_length, np.int32)
    weights, counting = np.zeros(row_length, np.float32), _counting(row_length)
    rows = None if contexts is None else np.full(row_length, NONE, np.int32)
    at = 0
    for segment, (tokens, start, stop, answers, around) in enumerate(pieces, 1):
        end, (opening, closing) = at + stop - start, around or usual
        opens, closes = start == 0, stop > len(tokens)
        inputs[at + opens : end] = tokens[start - 1 + opens : stop - 1]
        targets[at : end - closes] = tokens[start : stop - closes]
        if opens:
            inputs[at] = opening
        if closes:
            targets[end - 1] = closing
        segments[at:end] = segment
        weights[at:end] = 1 if answers is None else counted(answers, start, stop)
        positions[at:end] = counting[at:end] if across else counting[: end - at]
        if contexts is not None:
            rows[at:end] = contexts.rows(tokens, start, stop, opening)
        at = end
    row = {
        "inputs": inputs,
        "targets": targets,
        "weights": weights,
        "segments": segments,
        "positions": positions,
        "identities": _filled(identities, documents_per_row),
    }
    if contexts is not None:
        row["contexts"] = rows
    return row | {name: _filled(values, documents_per_row) for name, values in of_documents.items()}


def _filled(values: np.ndarray, count: int) -> np.ndarray:
    """The values, (n, ...), and zeros behind them -> (count, ...)."""
    found = np.zeros((count, *values.shape[1:]), values.dtype)
    found[: len(values)] = values
    return found


@functools.cache
def _counting(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)


class Rows:
    """All rows of a run in order, a random-access source; `[n]` is row n counted over all epochs.

    `rows_per_epoch` rows hold every encounter of the plan once; `rows_per_epoch_with_repeats` would
    hold them with every repeat kept. Each epoch has an order of its own, and the next one begins in
    the batch in which it ends. The run reads the first `end` rows; those after them, which fill up
    its last batch, are padding.

    Args:
      end_of_text, begin_of_text: the tokenizer's.
      contexts: those that have sinks; None: none have.
    """

    def __init__(
        self,
        config: Config,
        mixture: Mixture,
        end_of_text: int,
        begin_of_text: int | None = None,
        contexts: Contexts | None = None,
    ):
        self._contexts, self._counted = contexts, plugin.counted(config)
        self._config, self._data, self._mixture, self._table = (
            config,
            config.data,
            mixture,
            mixture.table,
        )
        self._end_of_text, self._begin_of_text = end_of_text, begin_of_text
        self._length, self._batch_size = config.data.row_length, config.training.batch_size
        self.epochs = epochs_of(config, mixture)
        self._best_fit, self._laid_out = _cached(self._fit), _cached(self._lay_out)
        self._rows_of_block = self._count_rows(self.epochs)
        self._order = _cached(self._order_blocks)
        self.documents_per_row = self._most_documents()
        self._cached_epochs = 0, None  # that are whole, and which ids that come back opened in them
        self.rows_per_epoch = int(self._rows_of_block.sum())
        self.rows_per_epoch_with_repeats = self.rows_per_epoch
        if self._data.repeats_at_most >= 0:
            data = dataclasses.replace(self._data, repeats_at_most=-1)
            counts = mixture.times * mixture.schedule.shuffles
            whole = epochs_of(config, dataclasses.replace(mixture, data=data, epoch_counts=counts))
            self.rows_per_epoch_with_repeats = int(self._count_rows(whole).sum())
        self.end = self._count_run(config.training)

    def __len__(self) -> int:
        return self.end

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return -(-self.end // self._batch_size)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        if number >= self.end:
            return self._padding
        epoch, block, place = self._place(int(number))
        there = self._laid_out((epoch, block))
        pieces = slice(*there.slots.first[place : place + 2].tolist())
        which = there.slots.rank[pieces]
        starts, stops = there.slots.start[pieces], there.slots.stop[pieces]
        return self._row(
            there.records[which],
            starts,
            stops,
            there.identities[which],
            there.repeated[which],
            there.seen[which],
            epoch,
        )

    def encounters(self, documents: np.ndarray) -> list[int]:
        """How often the first epoch has some documents, as far as the run goes."""
        planned, first_copies = self.epochs.often(documents), self._table.first_copies(documents)
        if self.end >= self.rows_per_epoch:
            return planned
        asked, place = np.unique(first_copies, return_inverse=True)
        _, block, row = self._place(self.end)
        there = self._laid_out((0, block))
        counts = self.epochs.documents_before(block, asked)
        begun = self._table.first_copies(there.records[there.rows < row])
        np.add.at(counts, np.searchsorted(asked, begun[is_in(begun, asked)]), 1)
        return [often and read for often, read in zip(planned, counts[place].tolist(), strict=True)]

    def opened(self, number: int) -> np.ndarray:
        """The ids whose sinks open in the first `number` rows -> uint64 (n,), ascending; see
        `data.opened`.

        Time and memory grow with the ids that may come back, not with the corpus. What whole epochs
        gave is kept from one call to the next: a byte for each.
        """
        number = min(number, self.end)
        keys, records = self.epochs.returning()
        if not len(keys) or not number:
            return keys[:0]
        epoch, found = self._cached_epochs
        if not epoch or number < epoch * self.rows_per_epoch:
            epoch, found = 0, np.zeros(len(keys), bool)
        while (epoch + 1) * self.rows_per_epoch <= number:
            epoch, found = epoch + 1, found | self._open_in(epoch, number, keys, records)
        self._cached_epochs = epoch, found
        return keys[found | self._open_in(epoch, number, keys, records)]

    def _open_in(
        self, epoch: int, number: int, keys: np.ndarray, records: np.ndarray
    ) -> np.ndarray:
        """Which ids have come to the encounter that opens them in an epoch, within the first
        `number` rows.
        """
        # Encounters are numbered one by one: who comes to a number has had all before it.
        end = max(min((epoch + 1) * self.rows_per_epoch, number), 1)
        seen = self._counts(end, keys, records) - 1  # before the last one
        return are_open(numbered(seen, (end - 1) // self.rows_per_epoch), self._config.sinks)

    def _order_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """(the blocks of an epoch in order, the row at which each starts)"""
        order = self.epochs.order(epoch)
        return order, np.concatenate([[0], np.cumsum(self._rows_of_block[order])])

    def _place(self, number: int) -> tuple[int, int, int]:
        """(epoch, block, place in it) of a row."""
        epoch, place = divmod(number, self.rows_per_epoch)
        order, starts = self._order(epoch)
        at = int(np.searchsorted(starts, place, side="right")) - 1
        return epoch, int(order[at]), place - int(starts[at])

    # How many rows.

    def _count_run(self, training: TrainingConfig) -> int:
        if training.steps:
            return training.steps * self._batch_size
        if (
            training.count_removed_repeats
            and self.rows_per_epoch < self.rows_per_epoch_with_repeats
        ):
            return training.epochs * self.rows_per_epoch_with_repeats
        return training.epochs * self.rows_per_epoch

    def _count_rows(self, epochs: Epochs) -> np.ndarray:
        """int64 (blocks,)"""
        if self._data.rows == "one_document":
            return epochs.slots
        if self._data.rows == "packed" or not epochs.tokens[0]:
            return -(-epochs.tokens // self._length)
        # Packing all blocks would take hours if there are many. They are alike, so the first one is
        # enough.
        needed = len(best_fit(epochs.sizes(0), self._length).first) - 1
        return -(-epochs.tokens * needed // epochs.tokens[0])

    def _most_documents(self) -> int:
        """Upper limit for any row: the shortest documents side by side, rests of longer ones, a
        split one at either end.
        """
        if self._data.rows == "one_document":
            return 1
        if self.epochs.blocks == 1 and self._data.rows == "best_fit":
            return int(np.diff(self._best_fit(0).first).max(initial=1))
        if self.epochs.blocks == 1:
            counts = np.bincount(np.minimum(self.epochs.sizes(0), LONGEST), minlength=2)
        else:
            column, plan = int(self._data.copies == "once"), self._mixture
            counts = sum(source.histogram[column] for source in self._table.sources)
            repeated = np.minimum(self._table.lengths[plan.repeated] + 1, LONGEST)
            counts = counts + np.bincount(
                repeated, plan.epoch_counts, minlength=LONGEST + 1
            ).astype(np.int64)
        sizes = np.arange(len(counts))
        through = np.cumsum(counts * sizes)
        # the shortest of which not all fit
        size = int(np.searchsorted(through, self._length, side="right"))
        fitting = int(counts[:size].sum())
        if size < len(counts):
            fitting += (self._length - int(through[size - 1])) // size
        if self._data.rows == "best_fit":
            fitting += self._length // shortest_rest(self._length)
        return min(fitting + 2, self._length)

    # A block in the order of an epoch.

    def _lay_out(self, at: tuple[int, int]) -> "_Block":
        epoch, block = at
        encounters = self.epochs.encounters(epoch, block)
        if self._data.rows == "best_fit":
            # at random among equally long documents
            by_rank = np.argsort(-encounters.sizes, kind="stable")
            slots = self._best_fit(block)
            order = permutation(
                len(slots.first) - 1,
                self._config.seed,
                "row order",
                epoch * self.epochs.blocks + block,
            )
            slots = slots.in_order(order)
            slots = slots._replace(rank=by_rank[slots.rank])
        else:
            slots = {"one_document": one_document, "packed": packed}[self._data.rows](
                encounters.sizes, self._length
            )
        opens = np.empty(len(encounters.slots), np.int64)
        opens[slots.rank[::-1]] = np.arange(len(slots.rank))[::-1]  # the first piece of each
        return _Block(
            slots,
            encounters.records,
            self.epochs.identities(epoch, encounters),
            self._mixture.is_repeated(self._table.first_copies(encounters.records)),
            self.epochs.seen(epoch, block, encounters, opens),
            np.searchsorted(slots.first, opens, side="right") - 1,
        )

    def _fit(self, block: int) -> Slots:
        return best_fit(self.epochs.sizes(block), self._length, int(self._rows_of_block[block]))

    def _counts(self, number: int, keys: np.ndarray, records: np.ndarray) -> np.ndarray:
        """How often ids were seen in the first `number` rows -> int64 (n,). Arguments as in
        `Epochs.counts_before`.
        """
        epoch, block, place = self._place(number)
        counts = self.epochs.counts_before(epoch, block, keys, records)
        if place:
            there = self._laid_out((epoch, block))
            earlier = as_numbers(there.identities[there.rows < place])
            np.add.at(counts, np.searchsorted(keys, earlier[is_in(earlier, keys)]), 1)
        return counts

    @functools.cached_property
    def _padding(self) -> dict[str, np.ndarray]:
        """A row of no document.

        The loss is a mean over tokens, so those of the last batch weigh more than others, at the
        lowest learning rate. Rows of another epoch would show some documents more often than
        planned.
        """
        none, nobody = np.zeros(0, np.int64), np.zeros((0, 2), np.uint32)
        return self._row(none, none, none, nobody, np.zeros(0, bool), np.zeros(0, np.int32), 0)

    def _row(
        self,
        records: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        identities: np.ndarray,
        repeated: np.ndarray,
        seen: np.ndarray,
        epoch: int,
    ) -> dict[str, np.ndarray]:
        """A row of pieces of documents side by side."""
        table = self._table
        pieces = [
            Piece(table.tokens(record), start, stop, table.answers(record), table.around(record))
            for record, start, stop in zip(
                records.tolist(), starts.tolist(), stops.tolist(), strict=True
            )
        ]
        row = row_of(
            pieces,
            identities,
            self._length,
            self._end_of_text,
            self._begin_of_text,
            self.documents_per_row,
            self._data.across_documents,
            self._contexts,
            repeated=repeated,
            seen=seen,
        )
        row["epoch"] = np.int32(epoch)
        if self._counted and pieces:
            unmasked = np.concatenate([self._unmasked(piece) for piece in pieces])
            row["weights"][: len(unmasked)] *= unmasked
        return row

    def _unmasked(self, piece: Piece) -> np.ndarray:
        closes = piece.around[1] if piece.around else self._end_of_text
        whole = np.append(piece.tokens, np.int32(closes))
        return self._counted(whole, piece.start, piece.stop)


class _Block(NamedTuple):
    """A block in the order of an epoch; `[i]` of all but `slots` belongs to encounter i."""

    slots: Slots  # the pieces of every row; `rank` is the encounter of each
    records: np.ndarray  # int64 (n,)
    identities: np.ndarray  # uint32 (n, 2)
    repeated: np.ndarray  # bool (n,)
    seen: np.ndarray  # int32 (n,), counted where each begins: all of its pieces have the same
    rows: np.ndarray  # int64 (n,), the row in which each begins


def one_document(sizes: np.ndarray, row_length: int) -> Slots:
    """Each document alone in a row, truncated to it."""
    places = np.arange(len(sizes))
    return Slots(np.arange(len(sizes) + 1), places, 0 * places, np.minimum(sizes, row_length))


def packed(sizes: np.ndarray, row_length: int) -> Slots:
    """Rows are windows over concatenated documents; those at the ends of a window are split."""
    ends = np.cumsum(sizes)
    begins = merged(ends - sizes, np.arange(0, int(sizes.sum()), row_length))
    rank = np.searchsorted(ends, begins, side="right")
    stops = np.append(begins[1:], sizes.sum())
    opens = (ends - sizes)[rank]
    first = np.searchsorted(begins, np.arange(0, int(sizes.sum()) + row_length, row_length))
    return Slots(first, rank, begins - opens, stops - opens)


def _cached(of_epoch: Callable) -> Callable:
    """Caches a function's results for two epochs: that of this row and, while prefetching, the
    next.

    If several loader threads ask at once, one computes and the others wait: the result is as large
    as the epoch.
    """
    cached, lock = functools.lru_cache(maxsize=2)(of_epoch), threading.Lock()

    def ask(epoch: int):
        with lock:
            return cached(epoch)

    return ask
