"""The goldfish loss (Hans et al. 2024): some tokens never count in the loss, so that no text is
learned word for word.

A hash of the preceding tokens selects them. So a passage loses the same tokens at every repeat,
whatever its document and row. Random selection would mask a token at one repeat and train it at the
next.
"""

import dataclasses

import numpy as np

from memsinks_jax.config import setting
from memsinks_jax.data.order import mix
from memsinks_jax.training.method import Method

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


class Goldfish(Method):
    """Plain training on the tokens that count."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        every: int = setting(4, "the paper's k: leave out one token in k", 2)
        context: int = setting(13, "the paper's h: number of preceding tokens to hash", 1)

    @staticmethod
    def counted(settings: Settings, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The first `context` tokens always count. Of the others, one in `every` on average does
        not.

        The token itself does not matter: what is excluded must be unknown, not unlikely.
        """
        mask = np.ones(stop - start, bool)
        first = max(start, settings.context)
        if first < stop:
            hashes = np.zeros(stop - first, np.uint64)
            for before in range(settings.context, 0, -1):
                # Order counts, zeros too. The published code takes the product of the tokens, with
                # the one that is excluded among them.
                hashes = mix(
                    (hashes ^ tokens[first - before : stop - before].astype(np.uint64)) + _STEP
                )
            mask[first - start :] = hashes % np.uint64(settings.every) != 0
        return mask
