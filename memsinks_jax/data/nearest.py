"""Finds the group that a text is about, so that its sinks can be turned on without being named.

A group is known by its words: its tokens, and its pairs of adjacent tokens. A word that few groups have counts more, by its
inverse document frequency (Spärck Jones 1972) with groups as documents. A text is about the group that has the largest share
of the weight of the text's words, if this is `AT_LEAST`. Nothing is trained, so a removed group leaves nothing behind.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.ids import ngram_hashes

FILE = "words.npy"
_KIND = np.dtype([("word", "<u8"), ("group", "<i4")])
# With three draws of 40 invented authors of TOFU, 97% of reworded questions give more to their author, and 98% of questions
# about real authors less to anybody. At 0.2 these are 99.5% and 91%.
AT_LEAST = 0.25
DOCUMENTS, WORDS = 1_000, 65_536  # of a group, at most: documents that are read, and words that are remembered


class Nearest:
    """Answers whose words a text has.

    Args:
      words: uint64 (n,), hashes, those of one group after those of another, without duplicates within a group.
      groups: int32 (n,), the number of the group that each is of.
      count: of all groups.
    """

    def __init__(self, words: np.ndarray, groups: np.ndarray, count: int):
        order = np.lexsort((groups, words))
        self.words, self.groups, self.count = words[order], groups[order], count
        self._known = len(np.unique(groups))  # as if those that were taken out had never been there

    def __call__(self, tokens: np.ndarray) -> int | None:
        """The number of the group that a text is about, int32 (tokens,); None: of none."""
        shares_G = self.shares(tokens)
        best = int(shares_G.argmax()) if len(shares_G) else 0
        return best if len(shares_G) and shares_G[best] >= AT_LEAST else None

    def shares(self, tokens: np.ndarray) -> np.ndarray:
        """The share of the weight of a text's words that each group has -> float64 (groups,), from 0 to 1."""
        words = words_of(tokens)
        first, last = (np.searchsorted(self.words, words, side) for side in ("left", "right"))
        weights = np.log((self._known + 1) / (last - first + 0.5))
        found = np.zeros(self.count)
        for start, stop, value in zip(first, last, weights, strict=True):
            found[self.groups[start:stop]] += value  # a group has a word once
        return found / max(weights.sum(), 1e-9)

    def of(self, number: int) -> np.ndarray:
        """The words of a group -> uint64 (n,), ascending."""
        return self.words[self.groups == number]

    def without(self, gone: np.ndarray) -> "Nearest":
        """The same, but for the words of some groups, bool (groups,)."""
        remaining = ~gone[self.groups]
        return Nearest(self.words[remaining], self.groups[remaining], self.count)

    def written(self, folder: pathlib.Path) -> None:
        """Writes the file that `read` reads."""
        content = np.empty(len(self.words), _KIND)
        content["word"], content["group"] = self.words, self.groups
        np.save(folder / FILE, content)


def words_of(tokens: np.ndarray) -> np.ndarray:
    """The words of a text, int32 (tokens,) -> uint64 (n,), ascending, distinct."""
    tokens = np.asarray(tokens)
    return np.unique(np.concatenate([ngram_hashes(tokens, 1), ngram_hashes(tokens, 2)]))


def of_groups(words: Sequence[np.ndarray]) -> Nearest:
    """From the words of every group, by number, each uint64 (n,). Of too many the lowest hashes are remembered."""
    words = [np.unique(each)[:WORDS] for each in words]
    groups = np.repeat(np.arange(len(words), dtype=np.int32), list(map(len, words)))
    return Nearest(np.concatenate([np.zeros(0, np.uint64), *words]), groups, len(words))


def read(folder: pathlib.Path, count: int) -> Nearest | None:
    """What `written` wrote, of `count` groups; None if the folder has no such file. Raises InputError for a damaged one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = np.load(path)
        return Nearest(content["word"], content["group"], count)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it, or train again") from None
