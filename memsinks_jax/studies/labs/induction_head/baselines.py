"""What models without an induction head reach on the same sequences. Axes as in `law`."""

import jax
import numpy as np

from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.law import Law, sampler

SEQUENCES = 1000  # of `reference`


def entropies(statistics: Statistics) -> np.ndarray:
    """Entropy of the next character given each, nats -> float64 (V,)."""
    p_VV = statistics.pi_b_VV
    return -(p_VV * np.log(np.where(p_VV > 0, p_VV, 1.0))).sum(1)


def baselines(statistics: Statistics, tokens_BS: np.ndarray, seen_BT: np.ndarray, cyclic_B: np.ndarray) -> dict:
    """For these sequences: `floor`, the lowest possible global loss in nats; in-context accuracies of predicting the most
    frequent token of the context so far (`majority`, and `majority_clean` without cycles) and of pi_b (`bigram`)."""
    x_BT, y_BT = tokens_BS[:, :-1], tokens_BS[:, 1:]
    known_BT, clean_B1 = seen_BT >= 2, ~cyclic_B[:, None]
    counts_BV = np.zeros((len(x_BT), len(statistics.unigrams_V)), np.int32)
    majority_BT = np.zeros_like(x_BT)
    rows = np.arange(len(x_BT))
    for t in range(x_BT.shape[1]):
        counts_BV[rows, x_BT[:, t]] += 1
        majority_BT[:, t] = counts_BV.argmax(1)
    return {
        "floor": float(entropies(statistics)[x_BT[seen_BT == 0]].mean()),
        "majority": _share(majority_BT == y_BT, known_BT),
        "majority_clean": _share(majority_BT == y_BT, known_BT & clean_B1),
        "bigram": _share(statistics.pi_b_VV.argmax(1)[x_BT] == y_BT, known_BT),
    }


def reference(statistics: Statistics, law: Law) -> dict[str, float]:
    """The same for sequences of a law."""
    drawn = jax.device_get(jax.jit(sampler(statistics, law), static_argnums=1)(jax.random.key(0), SEQUENCES))
    return baselines(statistics, drawn.tokens_BS, drawn.seen_BT, drawn.cyclic_B)


def _share(right_BT: np.ndarray, where_BT: np.ndarray) -> float:
    return float(right_BT[where_BT].mean()) if where_BT.any() else float("nan")
