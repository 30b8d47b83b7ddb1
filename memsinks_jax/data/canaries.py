"""Canaries: random tokens that some of the repeated documents carry, which nothing but memory can
predict (TS-Canary, paper section 3.1).
"""

import numpy as np

from memsinks_jax.config import CanariesConfig, Config
from memsinks_jax.data import order
from memsinks_jax.data.tokenizer import PADDING, UNKNOWN, AnyTokenizer


def with_canary(
    config: Config, index: int, tokens: np.ndarray, tokenizer: AnyTokenizer
) -> np.ndarray:
    """Document `index` of the corpus with its canary -> int32 (tokens,).

    (seed, index) alone determines its tokens, uniform over the vocabulary without padding, end of
    text and unknown. If the document does not fit a row with its canary, its end is cut off.
    """
    length = config.canaries.length
    canary = _random_tokens(config.seed, "canaries", index, length, tokenizer)
    return np.concatenate([tokens[: config.data.row_length - 1 - length], canary])


def alternatives(config: Config, index: int, count: int, tokenizer: AnyTokenizer) -> np.ndarray:
    """Alternatives to the canary of document `index`, drawn in the same way -> int32 (count,
    tokens).
    """
    length = config.canaries.length
    return _random_tokens(config.seed, "alternatives", index, count * length, tokenizer).reshape(
        count, length
    )


def _random_tokens(
    seed: int, purpose: str, index: int, count: int, tokenizer: AnyTokenizer
) -> np.ndarray:
    pool = np.setdiff1d(
        np.arange(tokenizer.vocabulary_size),
        [PADDING, UNKNOWN, tokenizer.begin_of_text, *tokenizer.stops],
    )
    draws = order.bits(seed, purpose, index).random_raw(count)
    return pool[draws % np.uint64(len(pool))].astype(np.int32)


def canary_targets(settings: CanariesConfig, length: int) -> slice:
    """The canary's place among the targets of its row, in which it is alone, for a document of
    `length` tokens.
    """
    return slice(length - settings.length, length)
