"""Documents to rows of fixed length. Any row of any epoch is reached at once: order is a function of (seed, row).

A row is a dict of numpy arrays; T is the row length, S the most documents any row can hold:
  inputs (T,) int32, targets (T,) int32    the next token at every position
  weights (T,) float32                     1 where the target counts, 0 in the padding and where goldfish leaves it out
  segments (T,) int32                      which document of the row, from 1; 0 is padding
  positions (T,) int32                     place within the document's part of the row, from 0
  identities (S, 2) uint32                 id of segment s at [s - 1]; (0, 0) where there is none
  repeated (S,) bool                       whether it is one of the repeated documents; in rows of a run only
So the id of position t is identities[segments[t] - 1]: one lane pair a document instead of one a token.
"""

import functools

import numpy as np

from memsinks_jax.config import DataConfig
from memsinks_jax.data import goldfish, ids, mixture
from memsinks_jax.data.tokenizer import PADDING


def document_row(tokens: np.ndarray, identity: np.ndarray, row_length: int, end_of_text: int) -> dict[str, np.ndarray]:
    """One document alone: end of text opens the row, so that the first token is predicted too, and closes it.

    Every position carries the document's own id. What does not fit in the row is cut off at its end.
    """
    stream = np.concatenate([[end_of_text], tokens, [end_of_text]])[: row_length + 1]
    return _row(stream, np.zeros(len(stream), np.int64), identity[None], row_length, documents_per_row=1)


def _row(stream, owner, identities, row_length, documents_per_row):
    """Row of a stream (n <= T + 1 tokens); `owner` (n,) counts its documents from 0, `identities` (documents, 2)."""
    used = len(stream) - 1
    inputs, targets, segments, positions = (np.zeros(row_length, np.int32) for _ in range(4))
    inputs[:], targets[:] = PADDING, PADDING
    inputs[:used], targets[:used], segments[:used] = stream[:-1], stream[1:], owner[:-1] + 1
    starts = np.flatnonzero(np.diff(owner[:-1], prepend=-1))
    positions[:used] = np.arange(used) - starts[owner[:-1]]
    padded = np.tile(ids.PADDING, (documents_per_row, 1))
    padded[: len(starts)] = identities[: len(starts)]
    weights = (segments > 0).astype(np.float32)
    return {
        "inputs": inputs, "targets": targets, "weights": weights, "segments": segments, "positions": positions,
        "identities": padded,
    }  # fmt: skip


class Rows:
    """All rows of a run in their order: a random-access source without end, `[n]` is row n counted over all epochs.

    `rows_per_epoch` rows hold every encounter of the plan once; `rows_per_epoch_with_repeats` would hold them with every
    repeat kept. Each epoch has an order of its own. `end_of_text` is the tokenizer's.
    """

    def __init__(
        self,
        data: DataConfig,
        seed: int,
        plan: mixture.Mixture,
        tokens: list[np.ndarray],
        identities: np.ndarray,
        end_of_text: int,
    ):
        self._data, self._seed, self._plan = data, seed, plan
        self._tokens, self._identities, self._end_of_text = tokens, identities, end_of_text
        self._repeated = set(plan.repeated.tolist())
        # Two epochs are kept: that of this row and, while prefetching, the next.
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)
        self._offsets = functools.lru_cache(maxsize=2)(self._lay_out)
        self.rows_per_epoch = self._rows_of(plan.encounters)
        with_repeats = mixture.encounters_of(plan.repeated, data.repetitions, plan.unique)
        self.rows_per_epoch_with_repeats = self._rows_of(with_repeats)
        self.documents_per_row = 1
        if data.rows == "packed":
            # The shortest documents side by side, and one cut off at either end.
            shortest = np.sort([len(tokens[i]) + 1 for i in plan.encounters])
            fitting = np.searchsorted(np.cumsum(shortest), data.row_length, side="right")
            self.documents_per_row = min(int(fitting) + 2, data.row_length)

    def _rows_of(self, encounters: np.ndarray) -> int:
        if self._data.rows == "one_document":
            return len(encounters)
        stream = sum(len(self._tokens[i]) + 1 for i in encounters)
        return -(-(stream - 1) // self._data.row_length)

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        epoch, place = divmod(int(number), self.rows_per_epoch)
        cut = self._packed_row if self._data.rows == "packed" else self._document_row
        return cut(epoch, place)

    def identity(self, epoch: int, encounter: int) -> np.ndarray:
        """Id under which encounter `encounter` of the plan is met in this epoch -> uint32 (2,).

        Only repeated documents can come under a wrong id (paper section 5.3: "whenever a repeated sequence is
        encountered"); the wrong id is fresh at every encounter.
        """
        document = int(self._plan.encounters[encounter])
        if not self._data.id_noise or document not in self._repeated:
            return self._identities[document]
        fresh = mixture.bits(self._seed, "id noise", epoch * len(self._plan.encounters) + encounter)
        per_document = self._data.id_noise_per == "document"
        decider = mixture.bits(self._seed, "noisy documents", document) if per_document else fresh
        noisy = decider.random_raw() < self._data.id_noise * 2.0**64
        return ids.random_id(fresh.random_raw()) if noisy else self._identities[document]

    def _shuffle(self, epoch: int) -> np.ndarray:
        return mixture.permutation(len(self._plan.encounters), self._seed, "order", epoch)

    def _lay_out(self, epoch: int) -> np.ndarray:
        """Where in the epoch's stream each document starts, in the epoch's order, and the stream's end."""
        lengths = [len(self._tokens[self._plan.encounters[i]]) + 1 for i in self._order(epoch)]
        return np.concatenate([[0], np.cumsum(lengths)])

    def _document_row(self, epoch: int, place: int) -> dict[str, np.ndarray]:
        encounter = int(self._order(epoch)[place])
        document = int(self._plan.encounters[encounter])
        tokens, length = self._tokens[document], self._data.row_length
        row = document_row(tokens, self.identity(epoch, encounter), length, self._end_of_text)
        used = min(len(tokens) + 1, length)
        row["weights"][:used] = self._counted(np.append(tokens, self._end_of_text), 0, used)
        return row | {"repeated": np.array([document in self._repeated])}

    def _counted(self, document: np.ndarray, start: int, stop: int) -> np.ndarray:
        return goldfish.counted(document, start, stop, self._data.goldfish_every, self._data.goldfish_context)

    def _packed_row(self, epoch: int, place: int) -> dict[str, np.ndarray]:
        """A window of the epoch's stream `document, end of text, document, end of text, ...`.

        Windows overlap in one token, so every token but the first of an epoch is predicted once. End of text belongs to
        the document it ends: the position that predicts a document's first token carries the previous document's id.
        """
        offsets, order = self._offsets(epoch), self._order(epoch)
        start = place * self._data.row_length
        end = min(start + self._data.row_length + 1, int(offsets[-1]))
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, end, side="left"))
        pieces, counted, owner, identities, repeated = [], [], [], [], []
        for slot in range(first, last):
            encounter = int(order[slot])
            index = int(self._plan.encounters[encounter])
            document = np.append(self._tokens[index], self._end_of_text)
            part = max(start - offsets[slot], 0), min(end - offsets[slot], len(document))
            pieces.append(document[slice(*part)])
            counted.append(self._counted(document, *part))
            owner.append(np.full(len(pieces[-1]), slot - first))
            identities.append(self.identity(epoch, encounter))
            repeated.append(index in self._repeated)
        row = _row(
            np.concatenate(pieces), np.concatenate(owner), np.stack(identities), self._data.row_length,
            self.documents_per_row,
        )  # fmt: skip
        row["weights"][: end - start - 1] = np.concatenate(counted)[1:]
        return row | {"repeated": np.resize(repeated + [False] * self.documents_per_row, self.documents_per_row)}
