"""Documents to rows of fixed length. Any row of any epoch is reached at once: order is a function of (seed, row).

A row is a dict of numpy arrays; T is the row length, S the most documents any row can hold:
  inputs (T,) int32, targets (T,) int32    the next token at every position
  weights (T,) float32                     1 where the target counts, 0 in the padding and where goldfish leaves it out
  segments (T,) int32                      which document of the row, from 1; 0 is padding
  positions (T,) int32                     place within the document's part of the row (or within the row), from 0
  identities (S, 2) uint32                 id of segment s at [s - 1]; (0, 0) where there is none
  repeated (S,) bool                       whether it is one of the repeated documents; in rows of a run only
So the id of position t is identities[segments[t] - 1]: one lane pair a document instead of one a token.
In every kind of row end of text opens the document that it precedes. So a document's first token is predicted under its own
id, and a document reads the same in a row with others as alone, as it is measured and as text is generated.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import Config, DataConfig, InputError
from memsinks_jax.data import goldfish, ids, mixture
from memsinks_jax.data.best_fit import best_fit
from memsinks_jax.data.tokenizer import PADDING

_SCHEDULED = 2**62  # encounters that come every so many steps are numbered from here on


class Piece(NamedTuple):
    """Targets `start` to `stop` - 1 of a document of n tokens: its tokens, then end of text, n + 1 in all.

    The input at a target is the token before it. End of text opens the document: it is the input at its first token.
    """

    tokens: np.ndarray  # int32 (n,), of the whole document, without end of text
    start: int
    stop: int


def reads_whole(data: DataConfig) -> bool:
    """Whether a run's rows hold all of every document, in several rows where one is too short; it is measured so, too."""
    return data.rows != "one_document"


def document_row(tokens: np.ndarray, identity: np.ndarray, row_length: int, end_of_text: int) -> dict[str, np.ndarray]:
    """One document alone, truncated to its first `row_length` targets. Every position carries the document's own id."""
    return row_of([Piece(tokens, 0, min(len(tokens) + 1, row_length))], identity[None], row_length, end_of_text)


def document_windows(
    tokens: np.ndarray, identity: np.ndarray, row_length: int, end_of_text: int
) -> list[dict[str, np.ndarray]]:
    """One document alone, in as many rows of `row_length` as it takes: every target stands in one of them."""
    size = len(tokens) + 1
    pieces = (Piece(tokens, at, min(at + row_length, size)) for at in range(0, size, row_length))
    return [row_of([piece], identity[None], row_length, end_of_text) for piece in pieces]


def row_of(
    pieces: list[Piece],
    identities: np.ndarray,
    row_length: int,
    end_of_text: int,
    documents_per_row: int = 1,
    across: bool = False,
) -> dict[str, np.ndarray]:
    """Pieces of documents side by side, with the ids of their documents, uint32 (pieces, 2).

    A piece from the middle of a document opens with the token before it, at position 0. With `across`, positions count
    over all of the row.
    """
    inputs, targets = np.full(row_length, PADDING, np.int32), np.full(row_length, PADDING, np.int32)
    segments, positions = np.zeros(row_length, np.int32), np.zeros(row_length, np.int32)
    weights, counting = np.zeros(row_length, np.float32), _counting(row_length)
    at = 0
    for segment, (tokens, start, stop) in enumerate(pieces, 1):
        end = at + stop - start
        opens, closes = start == 0, stop > len(tokens)
        inputs[at + opens : end] = tokens[start - 1 + opens : stop - 1]
        targets[at : end - closes] = tokens[start : stop - closes]
        if opens:
            inputs[at] = end_of_text
        if closes:
            targets[end - 1] = end_of_text
        segments[at:end] = segment
        positions[at:end] = counting[at:end] if across else counting[: end - at]
        at = end
    weights[:at] = 1
    padded = np.zeros((documents_per_row, 2), np.uint32)
    padded[: len(pieces)] = identities
    return {
        "inputs": inputs, "targets": targets, "weights": weights, "segments": segments, "positions": positions,
        "identities": padded,
    }  # fmt: skip


@functools.cache
def _counting(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)


class Rows:
    """All rows of a run in their order: a random-access source without end, `[n]` is row n counted over all epochs.

    `rows_per_epoch` rows hold every encounter of the plan once; `rows_per_epoch_with_repeats` would hold them with every
    repeat kept. Each epoch has an order of its own.

    Args:
      tokens: int32 (tokens,) of each document, without end of text; any sequence, also one that reads them when asked.
      lengths: int (documents,), those of `tokens`.
      identities: uint32 (documents, 2).
      end_of_text: the tokenizer's.
    Raises:
      InputError: documents that are to come every so many steps take more rows than a batch has.
    """

    def __init__(
        self,
        config: Config,
        plan: mixture.Mixture,
        tokens: Sequence[np.ndarray],
        lengths: np.ndarray,
        identities: np.ndarray,
        end_of_text: int,
    ):
        self._data, self._goldfish, self._seed, self._plan = config.data, config.goldfish, config.seed, plan
        self._tokens, self._identities, self._end_of_text = tokens, identities, end_of_text
        self._length, self._batch_size = config.data.row_length, config.training.batch_size
        self._sizes = np.asarray(lengths, np.int64) + 1  # with end of text
        self._is_repeated = np.zeros(len(self._sizes), bool)
        self._is_repeated[plan.repeated] = True
        # A number, not a chance for each: of few documents chance may choose none.
        self._noisy_documents = None
        if config.data.id_noise_per == "document":
            shuffled = mixture.permutation(len(plan.repeated), config.seed, "noisy documents")
            noisy = shuffled[: round(config.data.id_noise * len(shuffled))]
            self._noisy_documents = set(plan.repeated[noisy].tolist())
        self._order, self._offsets, self._packing = map(_kept, (self._shuffle, self._lay_out, self._deal))
        self._slots, self.documents_per_row = None, 1
        if config.data.rows == "packed":
            # The shortest documents side by side, and one cut off at either end.
            shortest = np.sort(self._sizes[plan.encounters])
            fitting = np.searchsorted(np.cumsum(shortest), self._length, side="right")
            self.documents_per_row = min(int(fitting) + 2, self._length)
        elif config.data.rows == "best_fit":
            self._slots = best_fit(self._sizes[plan.encounters], self._length)
            self.documents_per_row = int(np.diff(self._slots.first).max(initial=1))
        self._scheduled = self._pieces_of(plan.scheduled)
        self._period = config.data.repeat_every * self._batch_size
        if self._scheduled and len(self._scheduled) >= min(self._batch_size + 1, self._period):
            raise InputError(
                f"config.data.repeat_every: the repeated documents take {len(self._scheduled)} rows of a batch of "
                f"{self._batch_size}, which leaves no room; raise config.training.batch_size or repeat_every"
            )
        self._shuffled_rows = self._rows_of(plan.encounters, self._slots)
        self.rows_per_epoch = self._with_scheduled(self._shuffled_rows, len(self._scheduled))
        self.rows_per_epoch_with_repeats = self.rows_per_epoch
        if config.data.repeats in ("remove", "once"):
            seen_once = plan.encounters[~self._is_repeated[plan.encounters]]
            often = 0 if config.data.repeat_every else plan.times
            kept = np.concatenate([np.repeat(plan.repeated, often), seen_once])
            self.rows_per_epoch_with_repeats = self._with_scheduled(
                self._rows_of(kept), len(self._pieces_of(plan.repeated)) if config.data.repeat_every else 0
            )

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        number = int(number)
        if self._scheduled:
            period, place = divmod(number, self._period)
            due = place - (self._period - self._batch_size)  # in the last batch of the period, before all else
            if 0 <= due < len(self._scheduled):
                return self._scheduled_row(period, due)
            number -= len(self._scheduled) * (period + (due >= 0))
        epoch, place = divmod(number, self._shuffled_rows)
        kinds = {"one_document": self._document_row, "packed": self._packed_row, "best_fit": self._fitted_row}
        return kinds[self._data.rows](epoch, place)

    def identity(self, epoch: int, encounter: int) -> np.ndarray:
        """Id under which encounter `encounter` of the plan is met in this epoch -> uint32 (2,).

        Only repeated documents can come under a wrong id (paper section 5.3: "whenever a repeated sequence is
        encountered"); the wrong id is fresh at every encounter.
        """
        document = int(self._plan.encounters[encounter])
        return self._identity_of(document, epoch * len(self._plan.encounters) + encounter)

    def _identity_of(self, document: int, meeting: int) -> np.ndarray:
        if not self._data.id_noise or not self._is_repeated[document]:
            return self._identities[document]
        fresh = mixture.bits(self._seed, "id noise", meeting)
        if self._noisy_documents is None:
            noisy = fresh.random_raw() < self._data.id_noise * 2.0**64
        else:
            noisy = document in self._noisy_documents
        return ids.random_id(fresh.random_raw()) if noisy else self._identities[document]

    # How many rows.

    def _rows_of(self, encounters: np.ndarray, slots=None) -> int:
        if self._data.rows == "one_document":
            return len(encounters)
        sizes = self._sizes[encounters]
        if self._data.rows == "packed":
            return -(-int(sizes.sum()) // self._length)
        return len((slots or best_fit(sizes, self._length)).first) - 1

    def _with_scheduled(self, rows: int, scheduled: int) -> int:
        """How many rows there are until `rows` others are read, with `scheduled` rows every period."""
        if not scheduled:
            return rows
        periods, rest = divmod(rows, self._period - scheduled)
        return periods * self._period + rest + (scheduled if rest > self._period - self._batch_size else 0)

    def _pieces_of(self, documents: np.ndarray) -> list[tuple[int, int, int]]:
        """(document, start, stop) of the rows that documents take alone."""
        step = self._length
        if self._data.rows == "one_document":
            return [(int(document), 0, step) for document in documents]
        return [(int(i), start, start + step) for i in documents for start in range(0, int(self._sizes[i]), step)]

    # The order of an epoch.

    def _shuffle(self, epoch: int) -> np.ndarray:
        return mixture.permutation(len(self._plan.encounters), self._seed, "order", epoch)

    def _lay_out(self, epoch: int) -> np.ndarray:
        """Where in the epoch's stream each document starts, in the epoch's order, and the stream's end."""
        return np.concatenate([[0], np.cumsum(self._sizes[self._plan.encounters[self._order(epoch)]])])

    def _deal(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Who has which rank in the slots, at random among equally long documents; the order of the rows."""
        order = self._order(epoch)
        by_rank = order[np.argsort(-self._sizes[self._plan.encounters[order]], kind="stable")]
        return by_rank, mixture.permutation(self._shuffled_rows, self._seed, "row order", epoch)

    # The rows.

    def _document_row(self, epoch: int, place: int) -> dict[str, np.ndarray]:
        encounter = int(self._order(epoch)[place])
        document = int(self._plan.encounters[encounter])
        return self._row([(document, 0, self._length)], self.identity(epoch, encounter)[None])

    def _scheduled_row(self, period: int, due: int) -> dict[str, np.ndarray]:
        document, start, stop = self._scheduled[due]
        meeting = _SCHEDULED + period * len(self._sizes) + document
        return self._row([(document, start, stop)], self._identity_of(document, meeting)[None])

    def _packed_row(self, epoch: int, place: int) -> dict[str, np.ndarray]:
        """A window of the epoch's documents one after the other; those at its ends are split."""
        offsets, order = self._offsets(epoch), self._order(epoch)
        start = place * self._length
        end = min(start + self._length, int(offsets[-1]))
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, end, side="left"))
        encounters = order[first:last]
        documents, begins = self._plan.encounters[encounters].tolist(), offsets[first:last].tolist()
        parts = [(document, max(start - at, 0), end - at) for document, at in zip(documents, begins, strict=True)]
        return self._row(parts, self._identities_of(epoch, encounters))

    def _fitted_row(self, epoch: int, place: int) -> dict[str, np.ndarray]:
        by_rank, row_order = self._packing(epoch)
        row = int(row_order[place])
        slots = slice(int(self._slots.first[row]), int(self._slots.first[row + 1]))
        encounters = by_rank[self._slots.rank[slots]]
        documents = self._plan.encounters[encounters].tolist()
        parts = zip(documents, self._slots.start[slots].tolist(), self._slots.stop[slots].tolist(), strict=True)
        return self._row(list(parts), self._identities_of(epoch, encounters))

    def _identities_of(self, epoch: int, encounters: np.ndarray) -> np.ndarray:
        """-> uint32 (encounters, 2)."""
        if not self._data.id_noise:
            return self._identities[self._plan.encounters[encounters]]
        return np.stack([self.identity(epoch, int(encounter)) for encounter in encounters])

    def _row(self, parts: list[tuple[int, int, int]], identities: np.ndarray) -> dict[str, np.ndarray]:
        """Row of parts (document, start, stop) side by side; `stop` may lie behind the document's end."""
        pieces = [Piece(self._tokens[i], start, min(stop, int(self._sizes[i]))) for i, start, stop in parts]
        row = row_of(
            pieces, identities, self._length, self._end_of_text, self.documents_per_row, self._data.across_documents
        )
        if self._goldfish.every:
            counted = np.concatenate([self._counted(*piece) for piece in pieces])
            row["weights"][: len(counted)] *= counted
        row["repeated"] = np.zeros(self.documents_per_row, bool)
        row["repeated"][: len(parts)] = self._is_repeated[[document for document, _, _ in parts]]
        return row

    def _counted(self, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        whole = np.append(tokens, np.int32(self._end_of_text))
        return goldfish.counted(whole, start, stop, self._goldfish.every, self._goldfish.context)


def _kept(of_epoch: Callable) -> Callable:
    """Keeps what a function made for two epochs: that of this row and, while prefetching, the next.

    Loader threads that ask at once wait for one of them: what it makes is as large as the epoch.
    """
    cached, lock = functools.lru_cache(maxsize=2)(of_epoch), threading.Lock()

    def ask(epoch: int):
        with lock:
            return cached(epoch)

    return ask
