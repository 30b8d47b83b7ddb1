"""Document ids: 64 bits as two uint32 lanes, because JAX has no 64-bit integers by default.

A 32-bit id would already collide for 100 pairs among a million documents (n^2 / 2^33); with 64 bits
a billion documents have an expected 0.03 colliding pairs. The id (0, 0) is reserved for padding.
"""

import hashlib
import re

import numpy as np

from memsinks_jax.config import InputError


def content_id(tokens: np.ndarray) -> np.ndarray:
    """Hash of a document's tokens (int32, any length) -> uint32 (2,), high lane first, never (0,
    0).

    It depends only on the tokens and their order, not on neighbours, place in a row, machine or
    process.
    """
    digest = hashlib.blake2b(np.ascontiguousarray(tokens, "<i4").tobytes(), digest_size=8).digest()
    return _lanes(int.from_bytes(digest, "big"))


def numbered_id(identity: np.ndarray, number: int) -> np.ndarray:
    """The id of a group that has sinks by its number -> uint32 (2,): the high lane of its id, then
    `number` + 1.

    Args:
      identity: uint32 (2,), the hash of its name.
      number: of the group in the run, from 0; -1 for documents without a group.
    """
    return np.array([identity[0] or 1, number + 1], np.uint32)


def to_hex(identity: np.ndarray) -> str:
    """uint32 (2,) -> 16 hexadecimal digits, for display and JSON."""
    return f"{int(identity[0]):08x}{int(identity[1]):08x}"


def from_hex(text: str) -> np.ndarray:
    """The inverse: 16 hexadecimal digits -> uint32 (2,). Raises InputError for other texts."""
    if not re.fullmatch("[0-9a-fA-F]{16}", text):
        raise InputError(
            f"{text!r} is no id of a document; it has 16 hexadecimal digits, as in "
            "documents.jsonl of the run"
        )
    return np.array([int(text[:8], 16), int(text[8:], 16)], np.uint32)


def as_lanes(numbers: np.ndarray) -> np.ndarray:
    """uint64 (n,) -> uint32 (n, 2)."""
    return np.stack([numbers >> np.uint64(32), numbers & np.uint64(2**32 - 1)], axis=-1).astype(
        np.uint32
    )


def as_numbers(identities: np.ndarray) -> np.ndarray:
    """The inverse: uint32 (n, 2) -> uint64 (n,)."""
    return identities[:, 0].astype(np.uint64) << np.uint64(32) | identities[:, 1]


def ngram_hashes(tokens: np.ndarray, length: int) -> np.ndarray:
    """Hashes of the n-grams of `length` tokens: int32 (tokens,) -> uint64 (n-grams,). Shorter
    documents have none.
    """
    tokens = tokens.astype(np.uint64)
    hashed = np.zeros(max(len(tokens) - length + 1, 0), np.uint64)
    for place in range(length):
        hashed = (hashed ^ (tokens[place : place + len(hashed)] + np.uint64(1))) * np.uint64(
            0x9E3779B97F4A7C15
        )
        hashed ^= hashed >> np.uint64(29)
    return hashed


def _lanes(number: int) -> np.ndarray:
    number = number or 1
    return np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
