"""Random permutations as functions of the seed: any element is computed directly, no list is
kept.
"""

import numpy as np

# Purposes are independent. The order of the names is part of every run: add new ones at the end.
PURPOSES = (
    "roles",
    "order",
    "id noise",
    "noisy documents",
    "general corpus",
    "row order",
    "canaries",
    "alternatives",
    "blocks",
    "block order",
    "repeats",
    "placebos",
)

_ROUNDS = 8
# up to this size a range is shuffled: on small domains a Feistel network does not reach every order
_LISTED = 2**16


def bits(seed: int, purpose: str, index: int = 0) -> np.random.Philox:
    """Independent random bits for (seed, purpose, index). Any index is computed directly."""
    return np.random.Philox(key=[seed, PURPOSES.index(purpose)], counter=[0, 0, index, 0])


def permutation(count: int, seed: int, purpose: str, epoch: int = 0) -> np.ndarray:
    """A random order of range(count), the same on every machine and numpy version -> int64
    (count,).
    """
    # Raw counter bits, not Generator.permutation: only their stability is guaranteed.
    return np.argsort(bits(seed, purpose, epoch).random_raw(count), kind="stable")


def mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al., 2014): uint64 to uint64 that look independent."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Bijection:
    """A keyed random order of range(count), and its inverse, without an array.

    It is a Feistel network over the least power of two that holds `count`; a value outside of the
    range goes through it again. Grain's index_shuffle takes one index per call and has no inverse.
    Small ranges have the order of `permutation`.
    """

    def __init__(self, count: int, seed: int, purpose: str, index: int = 0):
        self._count, self._listed = count, None
        if count <= _LISTED:
            order = permutation(count, seed, purpose, index)
            self._listed = {1: order, -1: np.argsort(order)}
        self._keys = bits(seed, purpose, index).random_raw(_ROUNDS)
        width = max((count - 1).bit_length(), 2)
        self._shift = np.uint64(width // 2)
        self._low, self._high = (
            np.uint64(2 ** (width // 2) - 1),
            np.uint64(2 ** (width - width // 2) - 1),
        )

    def __len__(self) -> int:
        return self._count

    def at(self, places: np.ndarray) -> np.ndarray:
        """int (n,), from 0 to count - 1 -> int64 (n,), the elements at these places."""
        return self._walk(places, 1)

    def place_of(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `at`."""
        return self._walk(values, -1)

    def _walk(self, values: np.ndarray, direction: int) -> np.ndarray:
        if self._listed:
            return self._listed[direction][values]
        found = self._through(np.atleast_1d(values).astype(np.uint64), direction)
        outside = np.flatnonzero(found >= self._count)
        while len(outside):
            found[outside] = self._through(found[outside], direction)
            outside = outside[found[outside] >= self._count]
        return found.astype(np.int64)

    def _through(self, x: np.ndarray, direction: int) -> np.ndarray:
        low, high = x & self._low, x >> self._shift
        for number in range(_ROUNDS)[::direction]:
            if number % 2:
                high = high ^ (mix(low ^ self._keys[number]) & self._high)
            else:
                low = low ^ (mix(high ^ self._keys[number]) & self._low)
        return high << self._shift | low
