"""Tunes Hard Concrete as the paper does: on a few documents, by the held-out loss after
dropping.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from memsinks_jax.config import Config
from memsinks_jax.measures.document_loss import DocumentLoss, mean_loss
from memsinks_jax.studies.baselines.learned_masks import HardConcrete, Slimming, learn
from memsinks_jax.studies.baselines.removal import RATIOS, top_neurons, without
from memsinks_jax.studies.baselines.scores import over_documents

# Appendix C of the paper, on 5 tuning documents.
STRENGTHS = (100.0, 500.0, 1000.0)
ITERATIONS = (1000, 2000, 4000)


class Trial(NamedTuple):
    """Settings, the held-out loss after dropping, and the rise of the tuning documents' loss (nats
    per token), both averaged over the ratios.
    """

    settings: HardConcrete | Slimming
    held_out_loss: float
    forgetting: float


def tune(
    loss: DocumentLoss,
    config: Config,
    params: dict,
    documents: list[dict],
    held_out: list[dict],
    settings: HardConcrete | Slimming | None = None,
    strengths: Sequence[float] = STRENGTHS,
    iterations: Sequence[int] = ITERATIONS,
    ratios: Sequence[float] = RATIOS,
) -> list[Trial]:
    """Tries every strength with every number of iterations -> all trials, lowest held-out loss
    first.

    Learns all of them at once: this takes as long as the most iterations on (documents x strengths)
    documents.

    Args:
      loss: of the model's config.
      documents: batches of the tuning documents. held_out: batches of documents never seen.
      settings: everything that is not tuned. ratios: shares of every layer to drop; the paper does
        not give them.
    Raises:
      InputError: no document has a target.
    """
    settings = settings or HardConcrete()
    before = mean_loss(loss, params, documents)
    trials = []
    found = learn(config, params, documents, settings, tuple(strengths), tuple(iterations))
    for (strength, count), scores_RLF in found.items():
        scores_LF = over_documents(scores_RLF)
        dropped = [without(params, top_neurons(scores_LF, ratio)) for ratio in ratios]
        after, rise = (
            sum(mean_loss(loss, p, batches) for p in dropped) / len(ratios)
            for batches in (held_out, documents)
        )
        tried = dataclasses.replace(settings, strength=strength, iterations=count)
        trials.append(Trial(tried, after, rise - before))
    return sorted(trials, key=lambda trial: trial.held_out_loss)
