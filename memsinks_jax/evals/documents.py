"""Documents to measure a trained model on, with their ids."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.data.packing import answering, counted
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.evals.document_loss import document_batches, rows_at_once
from memsinks_jax.model import placement


class Documents(NamedTuple):
    """Tokenized documents, truncated to the context; `[i]` of every field belongs to document i."""

    tokens: list[np.ndarray]  # int32 (tokens,), without end of text
    identities: np.ndarray  # uint32 (documents, 2)
    # int64 (documents,): how often an epoch has each; None: not known
    encounters: np.ndarray | None = None
    # bool (documents,): whose own sinks are on; None: as the model knows
    opened: np.ndarray | None = None
    # what counts of each, see `Table.answers`; None: all of all
    answers: list[np.ndarray | None] | None = None
    # what opens and closes each, see `Table.around`
    around: list[tuple[int, int] | None] | None = None

    def chosen(self, which: np.ndarray) -> "Documents":
        """The documents at some indices, or by a bool for each."""
        indices = np.arange(len(self.tokens))[which]
        rest = (None if each is None else each[indices] for each in self[2:4])
        listed = (each and [each[i] for i in indices] for each in self[4:])
        return Documents(
            [self.tokens[i] for i in indices], self.identities[indices], *rest, *listed
        )

    def counted(self) -> list[np.ndarray]:
        """Which tokens of each count in the loss -> bool (tokens,), without end of text."""
        answers = self.answers or [None] * len(self.tokens)
        return [
            np.ones(len(tokens), bool) if of is None else counted(of, 0, len(tokens))
            for tokens, of in zip(self.tokens, answers, strict=True)
        ]

    def measurable(self, row_length: int) -> np.ndarray:
        """Of which anything counts within a row: not those whose prompts fill it -> bool
        (documents,).
        """
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
        more = {"answers": self.answers, "around": self.around, "contexts": run.contexts}
        return document_batches(
            *about, opened=self.opened_in(run), begin_of_text=tokenizer.begin_of_text, **more
        )
