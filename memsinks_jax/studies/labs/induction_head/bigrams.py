"""Character statistics of a text: counts of characters and of pairs of neighbours. numpy only.

The package includes those of tiny Shakespeare (65 characters) in bigrams.json. A row of its
bigrams is [second, count, second, count, ...], without zero counts.

Axes: V characters of the vocabulary, sorted by code point.
"""

import dataclasses
import functools
import json
import pathlib

import numpy as np

from memsinks_jax.config import InputError

BUNDLED = pathlib.Path(__file__).with_name("bigrams.json")
LARGEST_VOCABULARY = 2048


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """Counts of a text, int64: `unigrams_V` of characters, `bigrams_VV` of neighbours, [first,
    second]. Compares by identity, so that compiled functions can be cached by it.
    """

    characters: str
    unigrams_V: np.ndarray
    bigrams_VV: np.ndarray

    @functools.cached_property
    def pi_u_V(self) -> np.ndarray:
        """Distribution of a character -> float64 (V,)."""
        return self.unigrams_V / self.unigrams_V.sum()

    @functools.cached_property
    def pi_b_VV(self) -> np.ndarray:
        """Distribution of the next character, [given, next], without smoothing -> float64 (V, V).

        Only the last character of a text can have no successor: its row is that of any character.
        """
        totals_V1 = self.bigrams_VV.sum(1, keepdims=True)
        return np.where(totals_V1 > 0, self.bigrams_VV / np.maximum(totals_V1, 1), self.pi_u_V)


def count(text: str, where: str) -> Statistics:
    """Statistics of a text, which `where` names in messages. Raises InputError for too few
    characters, or more than a table can hold.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    vocabulary, ids = np.unique(codes, return_inverse=True)
    if not 2 <= len(vocabulary) <= LARGEST_VOCABULARY:
        raise InputError(
            f"{where}: has {len(vocabulary)} different characters; the table of bigrams holds 2 to "
            f"{LARGEST_VOCABULARY}"
        )
    size = len(vocabulary)
    pairs = np.bincount(ids[:-1] * size + ids[1:], minlength=size * size)
    return Statistics(
        "".join(map(chr, vocabulary)), np.bincount(ids, minlength=size), pairs.reshape(size, size)
    )


def read_text(path: str | pathlib.Path) -> Statistics:
    """Statistics of a UTF-8 file. Raises InputError if it is not one, or has too few characters."""
    try:
        return count(pathlib.Path(path).read_bytes().decode("utf-8"), f"--text={path}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--text={path}: cannot be read ({error}); give a text file in UTF-8"
        ) from None


def bundled() -> Statistics:
    """The statistics of tiny Shakespeare, from the table next to this file."""
    table = json.loads(BUNDLED.read_text(encoding="utf-8"))
    size = len(table["characters"])
    bigrams_VV = np.zeros((size, size), np.int64)
    for first, row in enumerate(table["bigrams"]):
        bigrams_VV[first, row[::2]] = row[1::2]
    return Statistics(table["characters"], np.array(table["unigrams"], np.int64), bigrams_VV)
