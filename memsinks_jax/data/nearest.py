"""Finds the group that a text is about, so that its sinks can be turned on without being named.

A group is known by its words: its tokens, and its pairs of adjacent tokens. A word that few groups
have counts more, by its inverse document frequency (Spärck Jones 1972) with groups as documents. A
text is about the group that has the largest share of the weight of the text's words, if this is
`AT_LEAST`. It is also about a second one, if the words that the first does not have give that a
share of `SECOND`. Nothing is trained, so a removed group leaves nothing behind.
"""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.ids import ngram_hashes

FILE = "words.npy"
_KIND = np.dtype([("word", "<u8"), ("group", "<i4")])
# Chosen on the articles of WikiText-2's validation split, 30 of which are the sources. Here the
# sentences that find their article exceed those of other articles that find one by most: 0.58 -
# 0.23, at 0.2 0.67 - 0.41, at 0.3 0.48 - 0.13. TOFU's authors played no part; docs/sources.md has
# what it does on them. Both are measured by `tests/benchmarks/nearest_source.py`.
AT_LEAST = 0.25
SECOND = 0.15  # there too, of two sentences beside one
# of a group, at most: documents that are read, and words that are remembered
DOCUMENTS, WORDS = 1_000, 65_536


class Nearest:
    """Answers whose words a text has.

    Args:
      words: uint64 (n,), hashes, those of one group after those of another, without duplicates
        within a group.
      groups: int32 (n,), the number of the group that each is of.
      count: of all groups.
    """

    def __init__(self, words: np.ndarray, groups: np.ndarray, count: int):
        order = np.lexsort((groups, words))
        self.words, self.groups, self.count = words[order], groups[order], count
        self.known = len(np.unique(groups))  # as if those that were taken out had never been there

    def __call__(self, words: np.ndarray) -> list[int]:
        """The numbers of the groups that a text with these words (`words_of`) is about: of none, or
        of one, or of several that have equal shares.
        """
        shares_G = shares(words, self.words, self.groups, self.count, self.known)
        most = max(shares_G.max(initial=0), AT_LEAST)
        return np.flatnonzero(shares_G >= most).tolist()

    def second(self, words: np.ndarray, first: int) -> list[int]:
        """The groups, as above, that the words are about which `first` does not have. The shares
        are of all words.
        """
        about = self.words, self.groups, self.count, self.known
        rest = 1 - shares(words, *about)[first]
        shares_G = rest * shares(np.setdiff1d(words, self.of(first)), *about)
        return np.flatnonzero(shares_G >= max(shares_G.max(), SECOND)).tolist()

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


def words_of(tokens: np.ndarray, special: Sequence[int] = ()) -> np.ndarray:
    """The words of a text, int (tokens,) -> uint64 (n,), ascending, distinct.

    Args:
      special: tokens that are no text. A tokenizer or a chat template puts them around one.
    """
    tokens = np.asarray(tokens)
    tokens = tokens[~np.isin(tokens, list(special))]
    return np.unique(np.concatenate([ngram_hashes(tokens, 1), ngram_hashes(tokens, 2)]))


def shares(
    text: np.ndarray, words: np.ndarray, groups: np.ndarray, count: int, known: int
) -> np.ndarray:
    """The share of the weight of a text's words that each group has -> float64 (count,), from 0 to
    1.

    Args:
      text: uint64 (n,), its words, distinct.
      words, groups: of all groups, as in `Nearest`, ascending by word.
      count: of the groups. known: how many of them have words.
    """
    first, last = (np.searchsorted(words, text, side) for side in ("left", "right"))
    found, whole = np.zeros(count), 0.0
    # Words of one weight are counted, not added one by one: groups with equally many are equal to
    # the bit, whatever the order of their words.
    for holders in np.unique(last - first).tolist():
        weight = math.log((known + 1) / (holders + 0.5))
        places = np.flatnonzero(last - first == holders).tolist()
        had = [groups[first[place] : last[place]] for place in places]
        found += weight * np.bincount(np.concatenate(had), minlength=count)
        whole += weight * len(places)
    return found / max(whole, 1e-9)


def of_groups(words: Sequence[np.ndarray]) -> Nearest:
    """From the words of every group, by number, each uint64 (n,). Of too many the lowest hashes are
    remembered.
    """
    words = [np.unique(each)[:WORDS] for each in words]
    groups = np.repeat(np.arange(len(words), dtype=np.int32), list(map(len, words)))
    return Nearest(np.concatenate([np.zeros(0, np.uint64), *words]), groups, len(words))


def read(folder: pathlib.Path, count: int) -> Nearest:
    """What `written` wrote, of `count` groups. Raises InputError if it cannot be read."""
    path = folder / FILE
    try:
        content = np.load(path)
        return Nearest(content["word"], content["group"], count)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it, or train again") from None
