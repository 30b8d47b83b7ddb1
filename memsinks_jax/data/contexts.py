"""Contexts: the words before a position, by which memory is found (`sinks.kind=by_context`). Never
jax.

The context of a position is its last `contexts.length` words, up to the end of its input token;
near a document's beginning all of them. White space and marks are left out, so a text that is
wrapped at another width, or quoted, has the same contexts. Its key is a hash of 64 bits. A context
of text that comes several times has a row in the model's table. Rows are numbered by ascending
keys, so a sorted array of keys is all that a lookup needs.
"""

import pathlib
import unicodedata
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import ContextsConfig, InputError
from memsinks_jax.data.table import is_in
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.sinks.kinds import NONE

FILE = "contexts.npz"
_NO_KEYS = np.zeros(0, np.uint64)

# Of the hash, for each of its two lanes: JAX has no 64-bit integers by default. Odd numbers without
# a pattern.
SEEDS = (np.uint32(0x9E3779B9), np.uint32(0x7F4A7C15))
BASES = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))
_ROWS_AT_ONCE = 256
LONGEST = 8  # tokens of a word, on average over a context; what is longer is cut off
_HAS_LETTERS, _OPENS, _CLOSES = 1, 2, 4  # bits of the first column of letters


def window(length: int) -> int:
    """How many tokens decide a context: its own, and one more, which may end a word."""
    return LONGEST * length + 1


def mixed(x):
    """A hash of every number, uint32 (Wellons's lowbias32)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def letters_of(tokenizer: AnyTokenizer) -> np.ndarray:
    """What each token adds to a context, which is all of a tokenizer that contexts depend on ->
    uint32 (V, 7).

    First whether it has letters or digits, whether these begin a word, and whether it ends one, as
    bits. Then for each lane of the hash: that of its letters, as a polynomial of BASES; the power
    of the base that moves what is before them; its inverse. In scripts without spaces every token
    is a word, and so is a part of a character.
    """
    letter = tokenizer.encode("a")  # after it, a token shows its own white space
    shown = tokenizer.decode(letter)
    texts = [
        tokenizer.decode([*letter, token])[len(shown) :]
        for token in range(tokenizer.vocabulary_size)
    ]
    is_part = ["\ufffd" in text for text in texts]
    # A part of a character is one letter, that no text has.
    spelled = [
        [0x110000 + token]
        if part
        else [ord(character) for character in text if character.isalnum()]
        for token, (text, part) in enumerate(zip(texts, is_part, strict=True))
    ]
    sizes = np.array([len(each) for each in spelled], np.int64)
    ends = np.cumsum(sizes)
    flat = np.array([code for each in spelled for code in each], np.uint32)
    behind = np.repeat(ends, sizes) - np.arange(len(flat)) - 1  # letters of the same token
    found = np.zeros((len(texts), 7), np.uint32)
    for token, (text, size, part) in enumerate(zip(texts, sizes.tolist(), is_part, strict=True)):
        opens = part or not text[:1].isalnum() or unicodedata.category(text[0]) == "Lo"
        closes = not part and not text[-1:].isalnum()
        found[token, 0] = _HAS_LETTERS * (size > 0) | _OPENS * opens | _CLOSES * closes
    for lane, (seed, base) in enumerate(zip(SEEDS, BASES, strict=True)):
        powers, inverses = (
            np.cumprod(
                np.append(np.uint32(1), np.full(int(sizes.max()), of, np.uint32)), dtype=np.uint32
            )
            for of in (base, np.uint32(pow(int(base), -1, 2**32)))
        )
        sums = np.append(
            np.uint32(0), np.cumsum(mixed(flat ^ seed) * powers[behind], dtype=np.uint32)
        )
        columns = sums[ends] - sums[ends - sizes], powers[sizes], inverses[sizes]
        found[:, 1 + 3 * lane : 4 + 3 * lane] = np.stack(columns, axis=1)
    return found


def begins(tokens, places, length: int, letters, xp=np):
    """Where the context of every position begins, int32 (..., T). Arguments as of `lanes`."""
    at, flags = xp.arange(tokens.shape[-1], dtype=np.int32), letters[:, 0][tokens]
    has_letters, closes = (flags & _HAS_LETTERS) > 0, (flags & _CLOSES) > 0
    after = xp.concatenate([xp.ones_like(closes[..., :1]), closes[..., :-1]], -1) | (places == 0)
    is_word = has_letters & (((flags & _OPENS) > 0) | after)
    first = _where(is_word, xp.cumsum(is_word, -1) - length, xp)
    return (
        xp.maximum(xp.maximum(first, at - places), at - (LONGEST * length - 1))
        .clip(0)
        .astype(np.int32)
    )


def _where(is_one, number, xp):
    """The place of the true value with a number, from 0, int (..., T); 0 for numbers below."""
    size = is_one.shape[-1]
    places = xp.sort(xp.where(is_one, xp.arange(size), size - 1), -1)
    return xp.where(number < 0, 0, xp.take_along_axis(places, xp.maximum(number, 0), -1))


def lanes(tokens, places, length: int, letters, xp=np) -> tuple:
    """The key of the context of every position, as two arrays uint32 (..., T).

    Written once for NumPy and for jax.numpy, as `xp`: the hash of a stretch is a difference of
    cumulative sums.

    Args:
      tokens: int32 (..., T), inputs side by side. The keys of the first `window(length)` - 1 may be
        others than behind what was before, if it is not given.
      places: int32 (..., T), how many tokens of its document are before each.
      letters: of `letters_of`.
    """
    at, of = xp.arange(tokens.shape[-1], dtype=np.int32), letters[tokens]
    first = begins(tokens, places, length, letters, xp)
    has_letters = (of[..., 0] & _HAS_LETTERS) > 0
    count = xp.cumsum(has_letters, -1)
    last = xp.where(count > 0, _where(has_letters, count - 1, xp), -LONGEST)
    # What is no word counts as the token at hand, and as how many of them there are.
    gap = xp.minimum(xp.minimum(at - last, places + 1), LONGEST).astype(np.uint32)
    tail = xp.where(
        has_letters, 0, (tokens.astype(np.uint32) + 1) * np.uint32(LONGEST + 1) + gap
    ).astype(np.uint32)
    found = []
    for lane, seed in enumerate(SEEDS):
        hashed, power, inverse = (of[..., 1 + 3 * lane + i] for i in range(3))
        sums = xp.cumsum(hashed * xp.cumprod(inverse, -1, dtype=np.uint32), -1, dtype=np.uint32)
        before = xp.where(
            first > 0, xp.take_along_axis(sums, xp.maximum(first - 1, 0), -1), 0
        ).astype(np.uint32)
        stretch = (sums - before) * xp.cumprod(power, -1, dtype=np.uint32)
        found.append(mixed(stretch ^ mixed(tail ^ seed)))
    return tuple(found)


def keys_of(tokens: np.ndarray, places: np.ndarray, length: int, letters: np.ndarray) -> np.ndarray:
    """`lanes` as one number, uint64 (..., T)."""
    high, low = lanes(tokens, places, length, letters)
    return high.astype(np.uint64) << np.uint64(32) | low


def rows_of(known: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The place of each key, uint64 (...), among the known ones, ascending uint64 (n,) -> int32
    (...), NONE for others.
    """
    if not len(known):
        return np.full(keys.shape, NONE, np.int32)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[places] == keys, places, NONE).astype(np.int32)


def table_rows(count: int) -> int:
    """The rows of a table for so many contexts: rounded up, so that a mesh of up to 256 devices
    along fsdp can share it.
    """
    return -(-count // _ROWS_AT_ONCE) * _ROWS_AT_ONCE


class Contexts:
    """The contexts that have a row.

    Args:
      keys: uint64 (n,), ascending; the row of keys[i] is i.
      length: `contexts.length`.
      letters: of `letters_of`.
      places: how many positions of an epoch they have, if they were found just now; of a prepared
        corpus those of held-out documents too.
    """

    def __init__(self, keys: np.ndarray, length: int, letters: np.ndarray, places: int = 0):
        self.keys, self.length, self.letters, self.places = keys, length, letters, places

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, tokens: np.ndarray, start: int, stop: int, opening: int) -> np.ndarray:
        """The rows of the inputs at targets `start` to `stop` - 1 of a document -> int32 (stop -
        start,), NONE for none.

        Args:
          tokens: int32 (n,), the whole document without end of text; its targets are numbered as in
            packing.Piece.
          opening: the token that opens it, the input at target 0.
        """
        first = max(start - window(self.length) + 1, 0)
        inputs = tokens[max(first - 1, 0) : stop - 1]
        if first == 0 < stop:
            inputs = np.concatenate([[opening], inputs])
        places = np.arange(first, first + len(inputs), dtype=np.int32)
        return rows_of(
            self.keys, keys_of(inputs, places, self.length, self.letters)[start - first :]
        )


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
    documents: Sequence[np.ndarray],
    around: Sequence[tuple[int, int]],
    times: Sequence[int],
    most: int = 2**62,
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


def of_whole_length(text: Text, length: int, letters: np.ndarray) -> np.ndarray:
    """At which positions the context does not reach the document's beginning -> bool (n,)."""
    return (
        begins(text.tokens, text.places, length, letters)
        > np.arange(len(text.tokens)) - text.places
    )


def stretches(text: Text, length: int, letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The n-grams of `length` words that show whether text repeats. A shorter document is one
    n-gram.

    Returns:
      (int64 (m,), the last token of each; uint64 (m,), their keys)
    """
    flags = letters[text.tokens, 0]
    behind = np.append(flags[1:], _OPENS)
    ends_word = (behind & _OPENS > 0) | (behind & _HAS_LETTERS == 0) | (flags & _CLOSES > 0)
    ends_word &= (flags & _HAS_LETTERS > 0) & of_whole_length(text, length, letters)
    ends = np.flatnonzero(ends_word | text.closes)
    return ends, keys_of(text.tokens, text.places, length, letters)[ends]


def covered(text: Text, ends: np.ndarray, length: int, letters: np.ndarray) -> np.ndarray:
    """Which tokens are in one of the n-grams with these ends -> bool (n,)."""
    change = np.zeros(len(text.tokens) + 1, np.int64)
    np.add.at(change, begins(text.tokens, text.places, length, letters)[ends], 1)
    np.add.at(change, ends + 1, -1)
    return np.cumsum(change[:-1]) > 0


def count(
    text: Text,
    is_repeated: np.ndarray,
    length: int,
    letters: np.ndarray,
    counted: np.ndarray | None = None,
) -> Counts:
    """Counts the contexts of a text.

    Args:
      is_repeated: bool (n,), which tokens are in repeated text, of `covered`. A context counts
        where its next token is.
      counted: bool (n,), which tokens count in the loss. Contexts of others are left out. None: all
        do.
    """
    inputs = np.flatnonzero(~text.closes if counted is None else np.append(counted[1:], False))
    keys = keys_of(text.tokens, text.places, length, letters)[inputs]
    times = text.times[inputs]
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
    """The keys that get a row -> uint64 (m,), ascending: those that have one `before`, and new
    ones.

    A context that mostly comes in other text gets none, however often it comes in repeated text:
    what the model learns there is not of the repeated text alone. Of more than `settings.rows` the
    most frequent new ones win.
    """
    enough = (counts.repeated >= settings.times) & (counts.repeated >= settings.share * counts.all)
    enough &= ~is_in(counts.keys, before)
    keys, times = counts.keys[enough], counts.repeated[enough]
    room = max(settings.rows - len(before), 0) if settings.rows else len(keys)
    if 0 < room < len(keys):  # without sorting: there may be very many
        least = np.partition(times, -room)[-room]
        often, ties = times > least, np.flatnonzero(times == least)
        often[ties[: room - often.sum()]] = True
        keys = keys[often]
    return np.union1d(before, keys[:room]) if len(before) else keys[:room]


def find(text: Text, settings: ContextsConfig, letters: np.ndarray) -> Counts:
    """Counts the contexts of a text that fits in memory."""
    ends, keys = stretches(text, settings.stretch, letters)
    again = repeated_keys(keys, text.times[ends], settings.times)
    is_repeated = covered(text, ends[is_in(keys, again)], settings.stretch, letters)
    return count(text, is_repeated, settings.length, letters)


def read(folder: pathlib.Path, length: int) -> Contexts:
    """Those of a workdir or a folder. Raises InputError for a missing or damaged file."""
    path = folder / FILE
    try:
        with np.load(path) as file:
            keys, letters = file["keys"], file["letters"]
        if (
            keys.ndim != 1
            or keys.dtype != np.uint64
            or letters.shape[1:] != (7,)
            or letters.dtype != np.uint32
        ):
            raise ValueError("it holds no contexts")
        return Contexts(keys, length, letters)
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is missing or damaged ({error}); put a copy in its place"
        ) from None


def write(folder: pathlib.Path, contexts: Contexts) -> None:
    np.savez(folder / FILE, keys=contexts.keys, letters=contexts.letters)
