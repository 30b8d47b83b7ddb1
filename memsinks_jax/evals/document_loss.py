"""Loss of documents, each alone in its context, with the sinks set in one of the four modes."""

from collections.abc import Callable

import jax
import numpy as np

from memsinks_jax import sinks
from memsinks_jax.config import Config
from memsinks_jax.data.packing import document_row
from memsinks_jax.model import build_model, token_losses

BATCH_SIZE = 32


def document_batches(tokens: list, identities: np.ndarray, row_length: int, batch_size: int = BATCH_SIZE) -> list[dict]:
    """Documents -> batches of one-document rows; the last is filled up with rows of weight 0.

    Args:
      tokens: int32 (tokens,) of each document; what is over `row_length` is cut off.
      identities: uint32 (documents, 2).
    """
    rows = [document_row(t, i, row_length) for t, i in zip(tokens, identities, strict=True)]
    empty = jax.tree.map(np.zeros_like, rows[0])
    rows += [empty] * (-len(rows) % batch_size)
    return [
        {name: np.stack([row[name] for row in rows[at : at + batch_size]]) for name in empty}
        for at in range(0, len(rows), batch_size)
    ]


class DocumentLoss:
    """Computes the loss of documents; compiled once for each mode.

    Args:
      put: takes a batch of numpy arrays to the devices; by default jit does.
    """

    def __init__(self, config: Config, put: Callable[[dict], dict] = lambda batch: batch):
        self._config, self._put = config, put
        self._model, self._parts = build_model(config)
        self._compiled = jax.jit(self._sums, static_argnames="mode")

    def _sums(self, params: dict, batch: dict, seed: jax.Array, mode: str) -> tuple[jax.Array, jax.Array]:
        gates = sinks.gates_for_mode(
            mode, batch["identities"], seed, self._parts, self._config.sinks, self._config.model.layers
        )
        interventions = sinks.apply_gates(gates, batch["segments"])
        logits_BTV = self._model.apply(
            {"params": params}, batch["inputs"], batch["segments"], batch["positions"], interventions
        )
        losses_BT = token_losses(logits_BTV, batch["targets"], batch["weights"])
        return losses_BT.sum(axis=1), batch["weights"].sum(axis=1)

    def __call__(self, params: dict, batches: list[dict], mode: str) -> tuple[np.ndarray, np.ndarray]:
        """Batches of `document_batches` -> (nats, tokens), float64 (documents,) each, in order.

        The mean loss of a set is nats.sum() / tokens.sum(): a token counts the same in a long and in a short document.
        """
        seed = np.uint32(self._config.seed)
        # All batches are dispatched before the first result is fetched.
        results = [self._compiled(params, self._put(batch), seed, mode=mode) for batch in batches]
        nats, tokens = (np.concatenate([np.asarray(r[i], np.float64) for r in results]) for i in range(2))
        return nats[tokens > 0], tokens[tokens > 0]
