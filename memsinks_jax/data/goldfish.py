"""The goldfish loss (Hans et al. 2024): some tokens never count in the loss, so that no text is learned word for word.

A hash of the preceding tokens selects them. So a passage loses the same tokens at every repeat, whatever its document and
row. Random selection would mask a token at one repeat and train it at the next.
"""

import numpy as np


def counted(tokens: np.ndarray, start: int, stop: int, every: int, context: int) -> np.ndarray:
    """Which of a document's tokens count in the loss -> bool (stop - start,).

    The first `context` tokens always count. Of the others, one in `every` on average does not.

    Args:
      tokens: int32 (n,), the whole document; the result covers `start` to before `stop`.
      every: the paper's k; 0: all count.
      context: the paper's h, the number of preceding tokens that decide about a token. The token itself does not
        matter: what is excluded must be unknown, not unlikely.
    """
    kept = np.ones(stop - start, bool)
    first = max(start, context)
    if every and first < stop:
        hashes = np.zeros(stop - first, np.uint64)
        for before in range(context, 0, -1):
            hashes = _mixed(hashes ^ tokens[first - before : stop - before].astype(np.uint64))
        kept[first - start :] = hashes % np.uint64(every) != 0
    return kept


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: every bit of uint64 x reaches every bit of the result. Order counts, zeros too."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
