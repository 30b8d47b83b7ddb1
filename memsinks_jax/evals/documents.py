"""Documents to measure a trained model on, with their ids."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.evals.document_loss import document_batches, rows_at_once
from memsinks_jax.model import placement


class Documents(NamedTuple):
    """Tokenized documents, truncated to the context; `[i]` of every field belongs to document i."""

    tokens: list[np.ndarray]  # int32 (tokens,), without end of text
    identities: np.ndarray  # uint32 (documents, 2)
    encounters: np.ndarray | None = None  # int64 (documents,): how often an epoch has each; None: not known
    opened: np.ndarray | None = None  # bool (documents,): whose own sinks are on; None: as the model knows

    def chosen(self, which: np.ndarray) -> "Documents":
        """The documents at some indices, or by a bool for each."""
        indices = np.arange(len(self.tokens))[which]
        rest = (None if each is None else each[indices] for each in self[2:])
        return Documents([self.tokens[i] for i in indices], self.identities[indices], *rest)

    def opened_in(self, run) -> np.ndarray:
        return run.opened(self.identities) if self.opened is None else self.opened

    def batches(self, run, size: int | None = None) -> list[dict]:
        """Batches for `DocumentLoss`, of `size` documents; by default `rows_at_once`."""
        config, tokenizer = run.config, run.tokenizer
        size = size or rows_at_once(config, placement.mesh_of(run.params))
        length = config.data.row_length
        about = (self.tokens, self.identities, length, tokenizer.end_of_text, size)
        return document_batches(*about, opened=self.opened_in(run), begin_of_text=tokenizer.begin_of_text)
