"""Teacher forcing: the loss of each token of given documents, whether it is the most likely one,
and how it compares with the others. All measures that need no generated text are arithmetic on
this.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.measures.document_loss import applied
from memsinks_jax.measures.documents import Documents, rows_at_once
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Interventions
from memsinks_jax.model.losses import logits


class Reading(NamedTuple):
    """Results for one document's tokens, each given those before it, without end of text."""

    nats: np.ndarray  # float64 (tokens,): -log p
    likeliest: np.ndarray  # bool (tokens,): no other token had a higher probability
    # float64 (tokens,): (-log p - its mean over p) / its deviation over p, as in Min-K%++
    standardized: np.ndarray
    rank: np.ndarray  # int32 (tokens,): how many other tokens had a higher probability
    guess: np.ndarray  # int32 (tokens,): the most likely token

    def of(self, tokens: np.ndarray | slice) -> "Reading":
        """Of some of the tokens: a slice, or bool (tokens,)."""
        return Reading(*(field[tokens] for field in self))


def read(
    subject: Subject,
    documents: Documents,
    change: Callable[[dict], Interventions] = lambda batch: {},
    ended: bool = False,
) -> list[Reading]:
    """Reads every document alone in its context, with the sinks in the subject's mode.

    Args:
      change: batch -> interventions besides the sinks.
      ended: end of text is the last token of every document.
    """
    run, config, seed = subject.run, subject.run.config, np.uint32(subject.run.config.seed)
    compiled = _compiled(dataclasses.replace(config, seed=0), subject.mode, change)
    rows = rows_at_once(config, placement.mesh_of(run.params), chunks=1)
    batches = documents.batches(run, rows)
    found = [jax.tree.map(np.asarray, compiled(run.params, batch, seed)) for batch in batches]
    nats, likeliest, standardized, rank, guess = (
        np.concatenate(parts) for parts in zip(*found, strict=True)
    )
    fields = (nats.astype(float), likeliest, standardized.astype(float), rank, guess)
    return [
        Reading(*(field[i, : len(t) + ended] for field in fields))
        for i, t in enumerate(documents.tokens)
    ]


@placement.shared
def _compiled(config: Config, mode: str, change: Callable[[dict], Interventions]) -> Callable:
    """(params, batch, seed) -> the fields of Reading, (B, T) each."""
    apply = applied(config, mode)

    def read_batch(params: dict, batch: dict, seed: jax.Array) -> tuple[jax.Array, ...]:
        def read_out(x_BTD: jax.Array, head_DV: jax.Array) -> tuple[jax.Array, ...]:
            return _token_scores(logits(x_BTD, head_DV), batch["targets"])

        return apply(params, batch, read_out, change(batch), seed=seed)

    return placement.jit(read_batch)


def _token_scores(
    logits_BTV: jax.Array, targets_BT: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The fields of Reading, (B, T) each."""
    costs_BTV = -jax.nn.log_softmax(logits_BTV)
    chances_BTV = jnp.exp(-costs_BTV)
    cost_BT = jnp.take_along_axis(costs_BTV, targets_BT[..., None], axis=-1)[..., 0]
    mean_BT = (chances_BTV * costs_BTV).sum(axis=-1)
    deviation_BT = jnp.sqrt((chances_BTV * (costs_BTV - mean_BT[..., None]) ** 2).sum(axis=-1))
    standardized_BT = (cost_BT - mean_BT) / jnp.maximum(deviation_BT, 1e-6)
    guess_BT = costs_BTV.argmin(axis=-1)
    rank_BT = (costs_BTV < cost_BT[..., None]).sum(axis=-1)
    return cost_BT, guess_BT == targets_BT, standardized_BT, rank_BT, guess_BT
