"""Measured values with 95% intervals over documents. An interval covers other documents, not other
seeds.
"""

import math
from typing import NamedTuple

import numpy as np

from memsinks_jax.reporting import claims

Z = 1.959963984540054  # 97.5% of a normal distribution
_TINY = 1e-9


class Measured(NamedTuple):
    """`ci95` is [low, high], None for a single document."""

    value: float
    ci95: list[float] | None


def mean(values: np.ndarray, lowest: float = -math.inf, highest: float = math.inf) -> Measured:
    """Student's interval of a mean over documents (documents,), clipped to the range of the
    values.
    """
    bounds = claims.interval([float(value) for value in values])
    return Measured(
        float(np.mean(values)), bounds and [max(bounds[0], lowest), min(bounds[1], highest)]
    )


def share(hits: np.ndarray) -> Measured:
    """Wilson's interval of a share of documents, from (documents,) values 0 or 1 or probabilities
    of 1. Also right if none or all of a few documents count.
    """
    count, value = len(hits), float(np.mean(hits))
    middle = (value + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * math.sqrt(value * (1 - value) / count + Z**2 / (4 * count**2))
    return Measured(value, [max(middle - reach, 0.0), min(middle + reach, 1.0)])


def mean_and_error(nats: np.ndarray, tokens: np.ndarray) -> tuple[float, float | None]:
    """Nats per token over documents, with equal weight for every token -> (mean, standard error).

    The error is that of a ratio of two sums over documents; None for one document.
    """
    value, count = nats.sum() / tokens.sum(), len(nats)
    if count < 2:
        return float(value), None
    rest = nats - value * tokens
    return float(value), float(math.sqrt(count / (count - 1) * (rest**2).sum()) / tokens.sum())


def normal(value: float, error: float | None) -> Measured:
    return Measured(value, None if error is None else [value - Z * error, value + Z * error])


def auc(members: np.ndarray, non_members: np.ndarray) -> Measured:
    """Probability that a member's score is above a non-member's; a tie counts half (Mann and
    Whitney).

    The interval is Newcombe's (2006, method 5): all AUCs within Hanley and McNeil's error (for that
    AUC) of the measured one. DeLong's error and the bootstrap's are 0 if all members are above all
    others, and their interval would be a single point, even for few documents.
    """
    from scipy.optimize import brentq  # takes a quarter of a second, and only this measure needs it

    above = (members[:, None] > non_members).mean() + 0.5 * (members[:, None] == non_members).mean()
    value, pairs = float(above), len(members) * len(non_members)
    more = (len(members) + len(non_members)) / 2 - 1

    def beyond(guess: float) -> float:
        variance = (
            guess
            * (1 - guess)
            * (1 + more * (1 - guess) / (2 - guess) + more * guess / (1 + guess))
            / pairs
        )
        return abs(guess - value) - Z * math.sqrt(variance)

    # One root on either side of the measured value. At 0 and 1 the error is 0: a value of 1 would
    # be its own root.
    low = brentq(beyond, 0.0, min(value, 1 - _TINY)) if value > 0 else 0.0
    high = brentq(beyond, max(value, _TINY), 1.0) if value < 1 else 1.0
    return Measured(value, [low, high])


def either(auc: Measured) -> Measured:
    """The larger of an AUC and that of the same score turned around: always wrong is as good as
    always right.
    """
    if auc.value >= 0.5:
        return auc
    return Measured(1 - auc.value, auc.ci95 and [1 - auc.ci95[1], 1 - auc.ci95[0]])
