"""What a layer knows of positions: rotary angles and the window of attention. Axes as in
decoder.py.

Most models have layers of one kind. In others, layers with a window, or without rotary positions,
take turns with the rest.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import ModelConfig
from memsinks_jax.families import FAMILIES, scaling


class Kind(NamedTuple):
    """A kind of layer.

    Attributes:
      window: how many of the last positions a position sees, itself included; 0: all.
      theta: base of the rotary angles; 0: no rotary positions.
    """

    window: int
    theta: float


def holds(pattern: str, layer: int) -> bool:
    """Whether a layer is one of a pattern of `config.ModelConfig`, such as 1110."""
    return not pattern or pattern[layer % len(pattern)] == "1"


def pattern_of(layers: Sequence[bool]) -> str:
    """The shortest pattern of these layers; empty for all."""
    digits = "".join("01"[one] for one in layers)
    period = next(
        n
        for n in range(1, len(digits) + 1)
        if all(a == digits[i % n] for i, a in enumerate(digits))
    )
    return digits[:period] if "0" in digits else ""


def kinds(config: ModelConfig) -> tuple[list[Kind], np.ndarray]:
    """The kinds of layers that a model has, and the number of the kind of each layer, int32
    (L,).
    """

    def kind(layer: int) -> Kind:
        window = config.window if holds(config.window_layers, layer) else 0
        rotary = FAMILIES[config.family].rotary and holds(config.rotary_layers, layer)
        theta = config.window_theta if window and config.window_theta else config.rope_theta
        return Kind(window, theta if rotary else 0.0)

    of_layers = [kind(layer) for layer in range(config.layers)]
    found = list(dict.fromkeys(of_layers))
    return found, np.array([found.index(one) for one in of_layers], np.int32)


def frequencies(config: ModelConfig, kind: Kind) -> np.ndarray:
    """Radians by which each pair of channels turns from one position to the next -> float32
    (rotated / 2,).
    """
    size = config.rotated
    if not kind.theta:
        return np.zeros(size // 2, np.float32)
    found = kind.theta ** -(jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    how, numbers = scaling(config.rope_scaling)
    if not how or (kind.window and config.window_theta):
        return found
    factor, *rest = numbers
    if how == "linear":
        return found / factor
    # Llama 3.1: waves longer than context / low are stretched by the factor, those shorter than
    # context / high are kept.
    low, high, context = rest
    stretched = jnp.clip((context * found / (2 * math.pi) - low) / (high - low), 0, 1)
    return (1 - stretched) * found / factor + stretched * found


def angles(positions_BT: jax.Array, config: ModelConfig) -> tuple[jax.Array, ...]:
    """Rotation of each pair of a head's channels at each position -> float32 radians (B, T, rotated
    / 2) by kind of layer; () for a family without rotary positions.
    """
    if not FAMILIES[config.family].rotary:
        return ()
    wide_BT1 = positions_BT[:, :, None].astype(jnp.float32)
    return tuple(wide_BT1 * frequencies(config, kind) for kind in kinds(config)[0])


def rotate(x_BTHC: jax.Array, angles_BTC: jax.Array) -> jax.Array:
    """Rotates the pairs (c, c + rotated / 2) of every head's first channels, in float32, as Hugging
    Face's Llama does.
    """
    half = angles_BTC.shape[-1]
    cosine, sine = jnp.cos(angles_BTC)[:, :, None], jnp.sin(angles_BTC)[:, :, None]
    first, second = (x_BTHC[..., start : start + half].astype(jnp.float32) for start in (0, half))
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    turned = [part.astype(x_BTHC.dtype) for part in turned]
    return jnp.concatenate([*turned, x_BTHC[..., 2 * half :]], axis=-1)
