"""Shared by the theorems: random draws, claims on how often a bound is violated, runs of results.json."""

import zlib

import numpy as np

from memsinks_jax.reporting.claims import Claim

ROUNDING = 1e-12  # tolerance before a bound counts as violated


def generator(seed: int, purpose: str) -> np.random.Generator:
    """An independent stream for every seed and purpose."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def positive_features(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors of length 1 with positive entries (uniform before scaling) -> `shape`; the last axis is the vector's."""
    x = rng.random(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def signed_features(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors of length 1 in random directions -> `shape`; the last axis is the vector's."""
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def below(values, bounds) -> int:
    """Number of values below their bound by more than rounding."""
    return int(np.sum(np.asarray(values) < np.asarray(bounds) - ROUNDING))


def violated(name: str, statement: str, paper: str, counts: list[int], trials: int) -> Claim:
    """Claims that a bound is never violated. One count per seed."""
    return Claim(name, f"{statement}: violations in {trials:,} trials", paper, [float(c) for c in counts], at_most=0)


def near(name: str, statement: str, paper: str, values: list[float], expected: float, tolerance: float) -> Claim:
    """Claims that a number is `expected` to within `tolerance`."""
    low, high = round(float(expected - tolerance), 6), round(float(expected + tolerance), 6)
    return Claim(name, statement, paper, [float(value) for value in values], at_least=low, at_most=high)


def record(variant: str, seed: int, metrics: dict, curves: dict[str, tuple[str, list, list]] | None = None) -> dict:
    """One run of results.json. curves: {name: (name of the x axis, its values, values)}."""
    return {
        "variant": variant, "seed": seed, "metrics": {name: float(value) for name, value in metrics.items()},
        "curves": {
            name: {axis: [float(x) for x in places], "value": [float(value) for value in values]}
            for name, (axis, places, values) in (curves or {}).items()
        },
    }  # fmt: skip
