"""Shared by the theorems: random draws, and when a bound counts as violated."""

import zlib

import numpy as np

ROUNDING = 1e-12  # tolerance before a bound counts as violated


def generator(seed: int, purpose: str) -> np.random.Generator:
    """An independent stream for every seed and purpose."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def unit(x: np.ndarray) -> np.ndarray:
    """Scales vectors, along the last axis, to length 1."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def features(rng: np.random.Generator, *shape: int, signed: bool = False) -> np.ndarray:
    """Vectors of length 1 in random directions, or with positive entries -> `shape`."""
    return unit(rng.standard_normal(shape) if signed else rng.random(shape))


def below(values, bounds) -> int:
    """Number of values below their bound by more than rounding."""
    return int(np.sum(np.asarray(values) < np.asarray(bounds) - ROUNDING))
