"""Prompts as rows padded on the right. B prompts, T positions."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import PADDING, AnyTokenizer


class Prompts(NamedTuple):
    """int32 (B, T); `last`, int32 (B,), is the position that predicts. Padding has segment 0."""

    tokens: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    last: np.ndarray

    def take(self, rows) -> "Prompts":
        """Selects rows."""
        return Prompts(*(part[rows] for part in self))

    def cropped(self) -> "Prompts":
        """Truncates rows after the longest prompt, rounded up to a multiple of 4 positions."""
        places = -(-(int(self.last.max()) + 1) // 4) * 4
        return Prompts(*(part[:, :places] for part in self[:3]), self.last)


def encode(
    tokenizer: AnyTokenizer,
    texts: list[str],
    context: int,
    opening: bool = True,
    room: int = 0,
    multiple: int = 4,
) -> Prompts:
    """Encodes texts as rows.

    Args:
      context: upper limit of T.
      opening: start every prompt as documents start in training, with the tokenizer's
        `begin_of_text`.
      room: positions to leave free after the longest prompt.
      multiple: round T up to a multiple of this. Larger values compile fewer programs for prompts
        of different lengths.
    Raises:
      InputError: there are no texts, or one is empty or does not fit.
    """
    if not texts:
        raise InputError("there is no prompt; give at least one")
    rows = []
    for text in texts:
        tokens = tokenizer.encode(text)
        if not len(tokens):
            raise InputError(f"the prompt {text!r} has no tokens; give a text")
        rows.append(np.concatenate([[tokenizer.begin_of_text], tokens]) if opening else tokens)
        if len(rows[-1]) + room > context:
            raise InputError(
                f"the prompt {text!r:.60} has {len(rows[-1])} tokens and {room} are to follow, "
                f"but the context is {context}; shorten it"
            )
    longest = max(map(len, rows)) + room
    length = min(-(-longest // multiple) * multiple, context)
    tokens_BT = np.full((len(rows), length), PADDING, np.int32)
    known_B = np.array([len(row) for row in rows], np.int32)
    for place, row in zip(tokens_BT, rows, strict=True):
        place[: len(row)] = row
    places_BT = np.broadcast_to(np.arange(length, dtype=np.int32), tokens_BT.shape)
    return Prompts(
        tokens_BT, (places_BT < known_B[:, None]).astype(np.int32), places_BT, known_B - 1
    )


def target_token(tokenizer: AnyTokenizer, prompt: str, target: str) -> int:
    """The first token of `target` after `prompt`. Raises InputError if there is none."""
    if not target.strip():
        raise InputError("--target is empty; give the new answer, for example --target=' Paris'")
    before, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + target)
    if not np.array_equal(whole[: len(before)], before):
        raise InputError(
            f"the tokens of {prompt!r} change when {target!r} follows; begin the target with a "
            "space, or where a word begins"
        )
    added = whole[len(before) :]
    if tokenizer.decode(whole) != prompt + target or not len(added):
        raise InputError(
            f"the target {target!r} is not in the vocabulary of this model; give another"
        )
    return int(added[0])
