"""Canaries: random tokens that some of the repeated documents carry, which nothing but memory can predict (TS-Canary,
paper section 3.1)."""

import numpy as np

from memsinks_jax.config import CanariesConfig, Config
from memsinks_jax.data import order
from memsinks_jax.data.tokenizer import PADDING, UNKNOWN, AnyTokenizer


def with_canary(config: Config, index: int, tokens: np.ndarray, tokenizer: AnyTokenizer) -> np.ndarray:
    """Document `index` of the corpus with its canary -> int32 (tokens,).

    Its tokens are drawn evenly from all of the vocabulary but padding, end of text and unknown, by (seed, index) alone.
    The end of a document that would not fit a row with its canary is left out.
    """
    settings = config.canaries
    canary = _random_tokens(config.seed, "canaries", index, settings.length, tokenizer)
    story = tokens[: config.data.row_length - 1 - settings.length]
    return np.concatenate([story, canary] if settings.place == "end" else [canary, story])


def alternatives(config: Config, index: int, count: int, tokenizer: AnyTokenizer) -> np.ndarray:
    """What the canary of document `index` might as well have been, drawn like it -> int32 (count, tokens)."""
    length = config.canaries.length
    return _random_tokens(config.seed, "alternatives", index, count * length, tokenizer).reshape(count, length)


def _random_tokens(seed: int, purpose: str, index: int, count: int, tokenizer: AnyTokenizer) -> np.ndarray:
    pool = np.setdiff1d(np.arange(tokenizer.vocabulary_size), [PADDING, UNKNOWN, tokenizer.end_of_text])
    draws = order.bits(seed, purpose, index).random_raw(count)
    return pool[draws % np.uint64(len(pool))].astype(np.int32)


def canary_targets(settings: CanariesConfig, length: int) -> slice:
    """Where the canary of a document of `length` tokens is among the targets of its row (of `packing.document_row`)."""
    start = length - settings.length if settings.place == "end" else 0
    return slice(start, start + settings.length)
