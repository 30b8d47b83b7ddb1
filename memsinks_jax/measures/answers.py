"""Answers to questions, measured as TOFU does (Maini et al. 2024, arXiv:2401.06121).

The definitions are those of open-unlearning (github.com/locuslab/open-unlearning at d3d7cf9). Nats
are means over the tokens of an answer, its end of text included. Our ROUGE-L compares whole words:
theirs cuts off endings first.

Q questions; the wrong answers of each are an array of their own.
"""

import re
import statistics
import warnings
from collections.abc import Sequence

import numpy as np

_TINY = 1e-10  # theirs, added to what divides


def chosen(nats_Q: np.ndarray, wrong_nats: Sequence[np.ndarray]) -> np.ndarray:
    """The probability of the right answer over that of all -> float64 (Q,). Of an answer:
    exp(-nats), by geometric mean.
    """
    right_Q = np.exp(-np.asarray(nats_Q))
    return right_Q / (right_Q + np.array([np.exp(-wrong).sum() for wrong in wrong_nats]) + _TINY)


def truth_ratios(nats_Q: np.ndarray, wrong_nats: Sequence[np.ndarray]) -> np.ndarray:
    """The probability of wrong answers, by geometric mean, over the right one's -> float64 (Q,).
    Small means known.
    """
    return np.exp(-np.array([wrong.mean() for wrong in wrong_nats])) / (
        np.exp(-np.asarray(nats_Q)) + _TINY
    )


def truth(ratios_Q: np.ndarray, forgotten: bool) -> float:
    """One number from 0 to 1 of many truth ratios: how near 1 they are if this is `forgotten`, else
    how far below.
    """
    ratios_Q = np.asarray(ratios_Q)
    scores_Q = (
        np.minimum(ratios_Q, 1 / (ratios_Q + _TINY)) if forgotten else np.maximum(0, 1 - ratios_Q)
    )
    return float(scores_Q.mean())


def forget_quality(ratios_Q: Sequence[float], retrained_Q: Sequence[float]) -> float:
    """P-value of a Kolmogorov-Smirnov test: truth ratios of a model and of one that never read what
    was forgotten.
    """
    from scipy.stats import ks_2samp  # half a second, which no other command needs

    # nearly equal ratios: scipy finds no exact p, warns, and takes the asymptotic one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(ks_2samp(ratios_Q, retrained_Q).pvalue)


def utility(values: Sequence[float]) -> float:
    """Harmonic mean: of probability, ROUGE-L and truth of the authors that stay, real authors and
    facts of the world.
    """
    return statistics.harmonic_mean(map(float, values))  # of numpy's, a 0 would warn


def privleak(auc: float, retrained_auc: float) -> float:
    """How much worse forgotten and unread answers are distinguished than in a retrained model, in
    percent; below 0: better.

    Args:
      auc, retrained_auc: probability that a forgotten answer's score is above an unread one's.
    """
    return 100 * (retrained_auc - auc) / (1 - retrained_auc + _TINY)


def rouge_l(written: str, answer: str) -> float:
    """Recall of ROUGE-L (Lin 2004): longest common subsequence of words, over the words of the
    answer.
    """
    ours, theirs = (re.findall("[a-z0-9]+", text.lower()) for text in (written, answer))
    longest = [0] * (len(ours) + 1)  # with the first words of ours
    for word in theirs:
        before = longest
        longest = [0]
        for place, own in enumerate(ours):
            longest.append(
                before[place] + 1 if own == word else max(longest[place], before[place + 1])
            )
    return longest[-1] / len(theirs) if theirs else 0.0
