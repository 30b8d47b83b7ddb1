"""The goldfish loss (Hans et al. 2024): some tokens never count in the loss, so that no text is
learned word for word.

A hash of the preceding tokens selects them. So a passage loses the same tokens at every repeat,
whatever its document and row. Random selection would mask a token at one repeat and train it at the
next.
"""

import numpy as np

from memsinks_jax.data.order import mix

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


def counted(tokens: np.ndarray, start: int, stop: int, every: int, context: int) -> np.ndarray:
    """Which of a document's tokens count in the loss -> bool (stop - start,).

    The first `context` tokens always count. Of the others, one in `every` on average does not.

    Args:
      tokens: int32 (n,), the whole document; the result covers `start` to before `stop`.
      every: the paper's k; 0: all count.
      context: the paper's h, the number of preceding tokens that decide about a token. The token
      itself does not
        matter: what is excluded must be unknown, not unlikely.
    """
    mask = np.ones(stop - start, bool)
    first = max(start, context)
    if every and first < stop:
        hashes = np.zeros(stop - first, np.uint64)
        for before in range(context, 0, -1):
            # Order counts, zeros too.
            hashes = mix(
                (hashes ^ tokens[first - before : stop - before].astype(np.uint64)) + _STEP
            )
        mask[first - start :] = hashes % np.uint64(every) != 0
    return mask
