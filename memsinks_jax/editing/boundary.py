"""Sweeps the bound of a memory, and chooses one: how far the memory reaches.

After P positive prompts the target should follow, after Q negative ones the old answer. N bounds.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from memsinks_jax.editing.memory import Memory
from memsinks_jax.editing.probe import Answers, Probe
from memsinks_jax.editing.prompts import Prompts

BOUNDS = 10.0 ** np.linspace(-2, 2, 21)  # those of the article
FOLDS = 10  # of the cross-validation over prompts
REFINED = 11  # bounds that are added between the neighbours of the best one


class Sweep(NamedTuple):
    """Answers at each bound, int (N, P) and (N, Q); int (Q,) answers to negative prompts before."""

    bounds: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    before: np.ndarray
    target: int

    def on_target(self, rows=slice(None)) -> np.ndarray:
        """Share of positive prompts that are answered with the target -> (N,)."""
        return (self.positive[:, rows] == self.target).mean(axis=1)

    def off_target(self) -> np.ndarray:
        """Share of negative prompts not answered with the target, as in the article -> (N,)."""
        return (self.negative != self.target).mean(axis=1)

    def unchanged(self, rows=slice(None)) -> np.ndarray:
        """Share of negative prompts whose answer stays the same -> (N,)."""
        return (self.negative[:, rows] == self.before[rows]).mean(axis=1)


def sweep(
    probe: Probe,
    memory: Memory,
    target: int,
    prompts: Prompts,
    positives: int,
    bounds: np.ndarray = BOUNDS,
) -> Sweep:
    """Measures all bounds in one batch. The first `positives` prompts are the positive ones."""
    before = probe.answers(prompts).tokens[positives:]
    tokens = probe.answers_over_bounds(prompts, target, memory, bounds).tokens
    return Sweep(np.asarray(bounds), tokens[:, :positives], tokens[:, positives:], before, target)


def refined(probe: Probe, memory: Memory, rough: Sweep, prompts: Prompts) -> Sweep:
    """Repeats the sweep with more bounds between the neighbours of the best one."""
    best = int(np.argmax(_scores(rough)))
    low, high = rough.bounds[max(best - 1, 0)], rough.bounds[min(best + 1, len(rough.bounds) - 1)]
    between = np.geomspace(low, high, REFINED + 2)[1:-1]
    fine = sweep(probe, memory, rough.target, prompts, rough.positive.shape[1], between)
    order = np.argsort(np.concatenate([rough.bounds, fine.bounds]), kind="stable")
    joined = [
        np.concatenate([one, other])[order] for one, other in zip(rough[:3], fine[:3], strict=True)
    ]
    return Sweep(*joined, rough.before, rough.target)


def choose_bound(swept: Sweep, positive_rows=slice(None), negative_rows=slice(None)) -> float:
    """The bound with the best mean of `on_target` and `unchanged` over the given prompts.

    Of equally good ones, the middle (in logarithms) of the longest run: it leaves room on both
    sides.
    """
    scores = _scores(swept, positive_rows, negative_rows)
    good = np.flatnonzero(scores >= scores.max() - 1e-9)
    stretches = np.split(good, np.flatnonzero(np.diff(good) > 1) + 1)
    logs = [np.log(swept.bounds[[stretch[0], stretch[-1]]]) for stretch in stretches]
    low, high = max(logs, key=lambda ends: ends[1] - ends[0])
    return float(np.exp((low + high) / 2))


def cross_validated(swept: Sweep) -> dict[str, float]:
    """Tests each prompt at the bound that is chosen without its fold -> {"on_target", "unchanged",
    "off_target": shares}. The first positive prompt, the one to edit, is in every choice. So is a
    single negative one.
    """
    positives, negatives = (
        np.arange(tokens.shape[1]) for tokens in (swept.positive, swept.negative)
    )
    found: dict[str, list] = {"on_target": [], "unchanged": [], "off_target": []}
    for fold in range(FOLDS):
        others = negatives[negatives % FOLDS != fold]
        mine = positives[(positives % FOLDS != fold) | (positives == 0)]
        bound = choose_bound(swept, mine, others if len(others) else negatives)
        at = np.abs(np.log(swept.bounds / bound)).argmin()
        held = slice(fold, None, FOLDS)
        found["on_target"] += (swept.positive[at, held] == swept.target).tolist()
        found["unchanged"] += (swept.negative[at, held] == swept.before[held]).tolist()
        found["off_target"] += (swept.negative[at, held] != swept.target).tolist()
    return {name: float(np.mean(hits)) for name, hits in found.items() if hits}


def halves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Halves of the prompts, to choose the bound and to test it. A few prompts serve for both."""
    rows = np.arange(count)
    return (rows[::2], rows[1::2]) if count > 3 else (rows, rows)


def divergence(before: Answers, after: Answers) -> np.ndarray:
    """KL divergence of the next-token distribution after an edit from that before, in nats ->
    (B,).
    """
    first, second = (
        log_softmax(answers.logits.astype(np.float64), axis=-1) for answers in (before, after)
    )
    return (np.exp(first) * (first - second)).sum(axis=-1)


def _scores(swept: Sweep, positive_rows=slice(None), negative_rows=slice(None)) -> np.ndarray:
    return (swept.on_target(positive_rows) + swept.unchanged(negative_rows)) / 2
