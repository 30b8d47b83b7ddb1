"""The paper's two losses: on held-out and on repeated documents, with the sinks dropped (sections 3.1 and 5)."""

from collections.abc import Iterator

import numpy as np

from memsinks_jax import sinks
from memsinks_jax.config import Config
from memsinks_jax.data.corpus import Corpus, entropy_floor
from memsinks_jax.evals.document_loss import BATCH_SIZE, DocumentLoss, document_batches


class Memorization:
    """Measures of a run's own documents.

    `run(params)` yields (name, nats per token):
      held_out_loss, repeated_loss      sinks dropped: the model that is handed over
      held_out_loss_own, repeated_loss_own
                                        the sinks on as in training: each document's own, or all where gradients are
                                        masked; models with sinks
      entropy_floor                     the lowest held_out_loss any model can reach, where it is known
    """

    def __init__(self, config: Config, corpus: Corpus, loss: DocumentLoss, batch_size: int = BATCH_SIZE):
        self._loss = loss
        self._batches = {}
        for name, indices in (("held_out", corpus.mixture.held_out), ("repeated", corpus.mixture.repeated)):
            if len(indices):
                tokens = [corpus.tokens[i] for i in indices]
                identities = corpus.identities[indices]
                self._batches[name] = document_batches(
                    tokens, identities, config.data.row_length, corpus.tokenizer.end_of_text, batch_size
                )
        self._floor = entropy_floor(corpus, corpus.mixture.held_out, config.data.row_length)
        self._own = sinks.has_sinks(config) and config.sinks.kind in ("by_document", *sinks.MASKED)

    def run(self, params: dict) -> Iterator[tuple[str, float]]:
        for name, batches in self._batches.items():
            yield f"{name}_loss", _mean(*self._loss(params, batches, "drop"))
            if self._own:
                yield f"{name}_loss_own", _mean(*self._loss(params, batches, "own"))
        if self._floor is not None:
            yield "entropy_floor", self._floor


def _mean(nats: np.ndarray, tokens: np.ndarray) -> float:
    return float(nats.sum() / tokens.sum())
