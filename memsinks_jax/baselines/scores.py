"""All methods that look for the neurons of memorized documents, by name.

Each is a function of (config, params, batches, ...) -> float32 (documents, L, F): the higher, the more a hidden neuron is
of the document. `batches` are those of `document_loss.document_batches`; their positions of weight over 0 are the targets.
"""

from collections.abc import Callable

import numpy as np

from memsinks_jax.baselines.heuristics import activation, random, zero_out
from memsinks_jax.baselines.integrated_gradients import integrated_gradients
from memsinks_jax.baselines.learned_masks import hard_concrete, slimming

METHODS: dict[str, Callable[..., np.ndarray]] = {
    "hard_concrete": hard_concrete,
    "integrated_gradients": integrated_gradients,
    "slimming": slimming,
    "zero_out": zero_out,
    "activation": activation,
    "random": random,
}


def over_documents(scores_RLF: np.ndarray) -> np.ndarray:
    """One score a neuron for all documents: the mean of those of each -> (L, F)."""
    return scores_RLF.mean(axis=0)
