"""All methods that find the neurons of memorized documents, by name.

Each is a function (config, params, batches, ...) -> float32 (documents, L, F). A higher score means
that the hidden neuron belongs more to the document. `batches` come from
`documents.document_batches`; positions with positive weight are the targets.
"""

from collections.abc import Callable

import numpy as np

from memsinks_jax.studies.baselines.heuristics import activation, random, zero_out
from memsinks_jax.studies.baselines.integrated_gradients import integrated_gradients
from memsinks_jax.studies.baselines.learned_masks import hard_concrete, slimming

METHODS: dict[str, Callable[..., np.ndarray]] = {
    "hard_concrete": hard_concrete,
    "integrated_gradients": integrated_gradients,
    "slimming": slimming,
    "zero_out": zero_out,
    "activation": activation,
    "random": random,
}


def over_documents(scores_RLF: np.ndarray) -> np.ndarray:
    """Averages the scores over documents, for one score per neuron -> (L, F)."""
    return scores_RLF.mean(axis=0)
