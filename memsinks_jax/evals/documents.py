"""Documents to measure a trained model on, with their ids."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.ids import as_lanes
from memsinks_jax.data.packing import answering, counted
from memsinks_jax.data.passages import documents_with, longest_places
from memsinks_jax.data.table import Passages, Table
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.evals.document_loss import document_batches, rows_at_once
from memsinks_jax.model import placement


class Documents(NamedTuple):
    """Tokenized documents, truncated to the context; `[i]` of every field belongs to document i."""

    tokens: list[np.ndarray]  # int32 (tokens,), without end of text
    identities: np.ndarray  # uint32 (documents, 2)
    encounters: np.ndarray | None = None  # int64 (documents,): how often an epoch has each; None: not known
    opened: np.ndarray | None = None  # bool (documents,): whose own sinks are on; None: as the model knows
    answers: list[np.ndarray | None] | None = None  # what counts of each, see `Table.answers`; None: all of all
    passages: list[Passages] | None = None  # those of each whose own sinks are on in the mode own; None: of none
    around: list[tuple[int, int] | None] | None = None  # what opens and closes each, see `Table.around`

    def chosen(self, which: np.ndarray) -> "Documents":
        """The documents at some indices, or by a bool for each."""
        indices = np.arange(len(self.tokens))[which]
        rest = (None if each is None else each[indices] for each in self[2:4])
        listed = (each and [each[i] for i in indices] for each in self[4:])
        return Documents([self.tokens[i] for i in indices], self.identities[indices], *rest, *listed)

    def counted(self) -> list[np.ndarray]:
        """Which tokens of each count in the loss -> bool (tokens,), without end of text."""
        answers = self.answers or [None] * len(self.tokens)
        return [
            np.ones(len(tokens), bool) if of is None else counted(of, 0, len(tokens))
            for tokens, of in zip(self.tokens, answers, strict=True)
        ]

    def measurable(self, row_length: int) -> np.ndarray:
        """Of which anything counts within a row: not those whose prompts fill it -> bool (documents,)."""
        return answering(self.answers or [None] * len(self.tokens), row_length)

    @property
    def openings(self) -> np.ndarray:
        """Tokens before the first answer of each, int64 (documents,)."""
        return np.array([int(np.argmax(counted)) for counted in self.counted()])

    def opening(self, place: int, tokenizer: AnyTokenizer) -> int:
        """The token that opens a document."""
        around = self.around and self.around[place]
        return around[0] if around else tokenizer.begin_of_text

    def opened_in(self, run) -> np.ndarray:
        return run.opened(self.identities) if self.opened is None else self.opened

    def batches(self, run, size: int | None = None) -> list[dict]:
        """Batches for `DocumentLoss`, of `size` documents; by default `rows_at_once`."""
        config, tokenizer = run.config, run.tokenizer
        size = size or rows_at_once(config, placement.mesh_of(run.params))
        length = config.data.row_length
        about = (self.tokens, self.identities, length, tokenizer.end_of_text, size)
        more = {"begin_of_text": tokenizer.begin_of_text, "answers": self.answers}
        more |= {"passages": self.passages, "around": self.around, "contexts": run.contexts}
        return document_batches(*about, opened=self.opened_in(run), **more)


def of_passages(corpus: Corpus, keys: np.ndarray, room: int) -> tuple[Documents, list[str]]:
    """Passages as documents, each from the document that the run reads in which it is longest -> (documents, their places).

    `encounters` is the number of documents in which each stands. A passage that no document of the run has is left out.

    Args:
      keys: ids, uint64 (passages,), ascending.
      room: tokens of the context.
    """
    table, where = corpus.table, longest_places(corpus.mixture, keys)
    keys, where = keys[where[:, 2] > 0], where[where[:, 2] > 0].tolist()
    about = {"identities": as_lanes(keys), "encounters": documents_with(table, keys), "opened": None}
    return excerpts(table, where, room)._replace(**about), [table.place(record) for record, *_ in where]


def excerpts(table: Table, where: list[tuple[int, int, int]], room: int) -> Documents:
    """Record, start and stop of tokens of a corpus with passages -> documents without sinks of their own.

    They open with up to as many tokens before these as n-grams of passages have; these do not count, nor does end of text.
    """
    tokens, answers = [], []
    for record, start, stop in where:
        source, _ = table.home(record)
        lead = min(start, source.passage_ngram, room // 2)
        tokens.append(table.tokens(record)[start - lead : stop][:room])
        answers.append(np.array([[lead, len(tokens[-1])]]))
    nobody = np.zeros((len(tokens), 2), np.uint32)
    return Documents(tokens, nobody, opened=np.zeros(len(tokens), bool), answers=answers)
