"""Was a document read in training? Scores that rise with a model's knowledge of a document.

Loss (Yeom et al. 2018), zlib and reference (Carlini et al. 2021), Min-K% (Shi et al. 2024),
Min-K%++ (Zhang et al. 2025).
"""

import zlib

import numpy as np

from memsinks_jax.measures.forced import Reading

LOWEST_SHARE = 0.4  # of a document's tokens: Min-K%'s k
SCORES = {  # with their labels
    "loss": "loss",
    "zlib": "zlib",
    "min_k": "min-k",
    "min_k_plus": "min-k++",
    "reference": "reference",
}


def scores(
    readings: list[Reading], texts: list[str], reference: list[Reading] | None
) -> dict[str, np.ndarray]:
    """{name of SCORES: float64 (documents,)}; without a reference model, without its score.

    Args:
      texts: of the documents, as far as they were read: zlib measures their information.
      reference: readings of the same documents by a model that knows none of them.
    """
    loss = np.array([reading.nats.mean() for reading in readings])
    nats = np.array([reading.nats.sum() for reading in readings])
    found = {
        "loss": -loss,
        "zlib": -nats / np.array([len(zlib.compress(text.encode())) for text in texts]),
        "min_k": -np.array([highest(reading.nats) for reading in readings]),
        "min_k_plus": -np.array([highest(reading.standardized) for reading in readings]),
    }
    if reference is not None:
        found["reference"] = np.array([reading.nats.mean() for reading in reference]) - loss
    return found


def highest(costs: np.ndarray) -> float:
    """Mean of the `LOWEST_SHARE` of the tokens that are least likely: Min-K%."""
    return float(np.sort(costs)[-max(round(LOWEST_SHARE * len(costs)), 1) :].mean())
