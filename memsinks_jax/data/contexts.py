"""Contexts: the tokens before a position, by which memory is found (`sinks.kind=by_context`). Never jax.

The context of a position is its input token and those before it, `contexts.length` of them; near a document's beginning all
of them, from what opens it. Its key is a hash of 64 bits. A context of text that comes several times has a row in the
model's table. Rows are numbered by ascending keys, so a sorted array of keys is all that a lookup needs.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import ContextsConfig, InputError
from memsinks_jax.data.table import is_in

FILE = "contexts.npy"
_NO_KEYS = np.zeros(0, np.uint64)
NONE = np.iinfo(np.int32).max  # stands for no row, as sinks.NONE for no sink

# Of the hash, for each of its two lanes: JAX has no 64-bit integers by default. Odd numbers without a pattern.
SEEDS = (np.uint32(0x9E3779B9), np.uint32(0x7F4A7C15))
MULTIPLIERS = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


def lanes(tokens, places, length: int, xp=np) -> tuple:
    """The key of the context of every position, as two arrays uint32 (..., T).

    Written once for NumPy and for jax.numpy, as `xp`. It doubles the number of hashed tokens in each step, so
    its time grows with the logarithm of the length.

    Args:
      tokens: int32 (..., T), inputs side by side.
      places: int32 (..., T), how many tokens of its document are before each.
    """
    return tuple(_lane(tokens, places, length, *of, xp) for of in zip(SEEDS, MULTIPLIERS, strict=True))


def _lane(tokens, places, length, seed, multiplier, xp):
    def mixed(x):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))

    def behind(last, hashed, size):
        """The hash of the last tokens -> that of them and of `hashed`, which ended `size` tokens earlier."""
        before = min(size, hashed.shape[-1])
        earlier = xp.concatenate([xp.zeros_like(hashed[..., :before]), hashed[..., : hashed.shape[-1] - before]], -1)
        return mixed(last + xp.where(places >= size, earlier, np.uint32(0)) * multiplier)

    one = mixed(tokens.astype(np.uint32) ^ seed)
    found, size = one, 1
    for digit in f"{length:b}"[1:]:
        found, size = behind(found, found, size), 2 * size
        if digit == "1":
            found, size = behind(found, one, size), size + 1
    return found


def keys_of(tokens: np.ndarray, places: np.ndarray, length: int) -> np.ndarray:
    """`lanes` as one number, uint64 (..., T)."""
    high, low = lanes(tokens, places, length)
    return high.astype(np.uint64) << np.uint64(32) | low


def rows_of(known: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The place of each key, uint64 (...), among the known ones, ascending uint64 (n,) -> int32 (...), NONE for others."""
    if not len(known):
        return np.full(keys.shape, NONE, np.int32)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[places] == keys, places, NONE).astype(np.int32)


class Contexts:
    """The contexts that have a row.

    Args:
      keys: uint64 (n,), ascending; the row of keys[i] is i.
      length: `contexts.length`.
    """

    def __init__(self, keys: np.ndarray, length: int):
        self.keys, self.length = keys, length

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, tokens: np.ndarray, start: int, stop: int, opening: int) -> np.ndarray:
        """The rows of the inputs at targets `start` to `stop` - 1 of a document -> int32 (stop - start,), NONE for none.

        Args:
          tokens: int32 (n,), the whole document without end of text; its targets are numbered as in packing.Piece.
          opening: the token that opens it, the input at target 0.
        """
        first = max(start - self.length + 1, 0)
        inputs = tokens[max(first - 1, 0) : stop - 1]
        if first == 0 < stop:
            inputs = np.concatenate([[opening], inputs])
        keys = keys_of(inputs, np.arange(len(inputs)), self.length)[start - first :]
        return rows_of(self.keys, keys)


class Counts(NamedTuple):
    """How often contexts come, by ascending keys; `[i]` of every field belongs to one of them."""

    keys: np.ndarray  # uint64 (n,)
    repeated: np.ndarray  # int64 (n,), in repeated text
    all: np.ndarray  # int64 (n,), anywhere

    def at(self, keys: np.ndarray) -> "Counts":
        """Those of some of the keys, ascending."""
        return Counts(*(of[np.searchsorted(self.keys, keys)] for of in self))


class Text(NamedTuple):
    """Documents side by side, each with what opens and closes it."""

    tokens: np.ndarray  # int32 (n,)
    places: np.ndarray  # int32 (n,), place in the document
    times: np.ndarray  # int64 (n,), how often its document is read
    closes: np.ndarray  # bool (n,), the last token of a document, which is a target and no input


def side_by_side(
    documents: Sequence[np.ndarray], around: Sequence[tuple[int, int]], times: Sequence[int], most: int = 2**62
) -> Text:
    """Documents -> Text.

    Args:
      documents: int32 (tokens,) of each.
      around: what opens and closes each.
      times: how often each is read.
      most: targets of a document that are read.
    """
    whole = [
        np.concatenate([[opens], tokens, [closes]])[: most + 1]
        for tokens, (opens, closes) in zip(documents, around, strict=True)
    ]
    sizes = np.array([len(each) for each in whole], np.int64)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    places = (np.arange(total) - np.repeat(ends - sizes, sizes)).astype(np.int32)
    closes = np.zeros(total, bool)
    closes[ends - 1] = True
    tokens = np.concatenate([np.zeros(0, np.int32), *whole]).astype(np.int32)
    return Text(tokens, places, np.repeat(np.asarray(times, np.int64), sizes), closes)


def stretches(text: Text, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-grams of `length` tokens that show whether text repeats. A shorter document is one n-gram.

    Returns:
      (int64 (m,), the last token of each; uint64 (m,), their keys)
    """
    ends = np.flatnonzero((text.places >= length - 1) | text.closes)
    return ends, keys_of(text.tokens, text.places, length)[ends]


def covered(text: Text, ends: np.ndarray, length: int) -> np.ndarray:
    """Which tokens are in one of the n-grams with these ends -> bool (n,)."""
    begins = np.maximum(ends - length + 1, ends - text.places[ends])
    change = np.zeros(len(text.tokens) + 1, np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, ends + 1, -1)
    return np.cumsum(change[:-1]) > 0


def count(text: Text, is_repeated: np.ndarray, length: int, counted: np.ndarray | None = None) -> Counts:
    """Counts the contexts of a text.

    Args:
      is_repeated: bool (n,), which tokens are in repeated text, of `covered`. A context counts where its next token is.
      counted: bool (n,), which tokens count in the loss. Contexts of others are left out. None: all do.
    """
    inputs = np.flatnonzero(~text.closes if counted is None else np.append(counted[1:], False))
    keys, times = keys_of(text.tokens, text.places, length)[inputs], text.times[inputs]
    return merged(Counts(keys, times * is_repeated[inputs + 1], times))


def merged(counts: Counts) -> Counts:
    """Sums the counts of equal keys, which may be in any order."""
    order = np.argsort(counts.keys, kind="stable")
    keys = counts.keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    sums = (np.add.reduceat(of[order], first) if len(first) else of for of in counts[1:])
    return Counts(keys[first], *sums)


def repeated_keys(keys: np.ndarray, times: np.ndarray, least: int) -> np.ndarray:
    """The keys, int (n,), that come at least so often in all -> uint64, ascending."""
    counts = merged(Counts(keys, times, times))
    return counts.keys[counts.all >= least]


def chosen(counts: Counts, settings: ContextsConfig, before: np.ndarray = _NO_KEYS) -> np.ndarray:
    """The keys that get a row -> uint64 (m,), ascending: those that have one `before`, and new ones.

    A context that mostly comes in other text gets none, however often it comes in repeated text: what the model learns
    there is not of the repeated text alone. Of more than `settings.rows` the most frequent new ones win.
    """
    enough = (counts.repeated >= settings.times) & (counts.repeated >= settings.share * counts.all)
    enough &= ~is_in(counts.keys, before)
    keys, times = counts.keys[enough], counts.repeated[enough]
    room = max(settings.rows - len(before), 0) if settings.rows else len(keys)
    if room < len(keys):
        keys = keys[np.argsort(-times, kind="stable")[:room]]
    return np.union1d(before, keys)


def find(text: Text, settings: ContextsConfig) -> Counts:
    """Counts the contexts of a text that fits in memory."""
    ends, keys = stretches(text, settings.stretch)
    again = repeated_keys(keys, text.times[ends], settings.times)
    return count(text, covered(text, ends[is_in(keys, again)], settings.stretch), settings.length)


def read(folder: pathlib.Path, length: int) -> Contexts:
    """Those of a workdir, a folder or a prepared corpus, memory-mapped. Raises InputError for a missing or damaged file."""
    path = folder / FILE
    try:
        keys = np.load(path, mmap_mode="r" if path.stat().st_size > 2**12 else None)
        if keys.ndim != 1 or keys.dtype != np.uint64:
            raise ValueError("it holds no keys")
        return Contexts(np.asarray(keys), length)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} is missing or damaged ({error}); put a copy in its place") from None


def write(folder: pathlib.Path, contexts: Contexts) -> None:
    np.save(folder / FILE, contexts.keys)
