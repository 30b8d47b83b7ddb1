"""Memories as an intervention: add a value to activations near a key, and nowhere else.

    new = a + sum over m of f(x_m) delta_m,   f(x) = exp(-|x / b|^(2 h)),
    x_m the distance of a from key m

f(0) = 1 and f(b) = 1/e for every h. At the `mlp` site of a model with sinks, keys and values cover
the shared neurons. B rows, T positions, M memories, W width of the site.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.model.decoder import compose

SITES = ("attention", "mlp")
# Distance of an activation a from a key k, where p = a.k / |k|^2, cos of the angle between them:
#   blend    half |1 - p|, half 1 - cos, as in the author's notebook
#   blog     1 - p, as the article prints it; negative if p > 1, but f takes |x|
#   clamped  1 - min(p, 1)
#   l2       |a - k|
DISTANCES = ("blend", "blog", "clamped", "l2")
RULES = ("sum", "nearest")  # if several memories fire: add all, or only the nearest
PLACES = ("all", "last")  # at every token, or only at the token before the prediction
HEIGHT = 3.0  # h of the article


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["keys", "deltas", "bounds", "layers"],
    meta_fields=["site", "distance", "rule", "places", "height"],
)
@dataclasses.dataclass(frozen=True)
class Memory:
    """M memories at one site.

    Attributes:
      keys, deltas: float32 (M, W). bounds: float32 (M,), positive. layers: int32 (M,).
      site, distance, rule, places: each from the choices above. height: h.
    """

    keys: jax.Array
    deltas: jax.Array
    bounds: jax.Array
    layers: jax.Array
    site: str
    distance: str = "blend"
    rule: str = "sum"
    places: str = "all"
    height: float = HEIGHT


def memory_of(
    site: str, layer: int, key: np.ndarray, delta: np.ndarray, bound: float, **settings
) -> Memory:
    """A memory of a key and a value, (W,) each. Raises InputError if the bound is not over 0."""
    if not 0 < bound < float("inf"):
        raise InputError(f"the boundary is {bound:g}; it must be over 0")
    key, delta = np.asarray(key, np.float32), np.asarray(delta, np.float32)
    one = key[None], delta[None], np.float32([bound]), np.int32([layer])
    return Memory(*one, site, **settings)


def stack(memories: Sequence[Memory]) -> list[Memory]:
    """Merges memories of one site and settings: each sees activations before the others act."""
    groups: dict[tuple, list[Memory]] = {}
    for memory in memories:
        settings = (memory.site, memory.distance, memory.rule, memory.places, memory.height)
        groups.setdefault((*settings, memory.keys.shape[-1]), []).append(memory)
    return [
        jax.tree.map(lambda *parts: jnp.concatenate(parts), *group) for group in groups.values()
    ]


def bounding(x: jax.Array, bound: jax.Array, height: float) -> jax.Array:
    """f(x): 1 at 0, 1/e at the bound, close to 0 soon after."""
    return jnp.exp(-(jnp.abs(x / bound) ** (2 * height)))


def distances(kind: str, x_BTW: jax.Array, keys_MW: jax.Array) -> jax.Array:
    """Distance of every activation from every key -> float32 (B, T, M)."""
    if kind == "l2":
        return jnp.linalg.norm(x_BTW[:, :, None] - keys_MW, axis=-1)
    squares_M = jnp.maximum((keys_MW**2).sum(axis=-1), jnp.finfo(jnp.float32).tiny)
    dots_BTM = jnp.einsum("btw,mw->btm", x_BTW, keys_MW, precision=jax.lax.Precision.HIGHEST)
    projections_BTM = dots_BTM / squares_M
    if kind == "blog":
        return 1 - projections_BTM
    if kind == "clamped":
        return 1 - jnp.minimum(projections_BTM, 1)
    # A zero activation has no angle. It counts as orthogonal.
    norms_BT = jnp.sqrt((x_BTW**2).sum(axis=-1))
    cosines_BTM = dots_BTM / jnp.maximum(
        norms_BT[:, :, None] * jnp.sqrt(squares_M), jnp.finfo(jnp.float32).tiny
    )
    return 0.5 * jnp.abs(1 - projections_BTM) + 0.5 * (1 - cosines_BTM)


def strengths(memory: Memory, x_BTW: jax.Array, layer: jax.Array) -> jax.Array:
    """f of every memory at every activation of a layer, 0 at other layers -> float32 (B, T, M)."""
    x_BTM = distances(memory.distance, x_BTW.astype(jnp.float32), memory.keys)
    mine_M = memory.layers == layer
    fires_BTM = jnp.where(mine_M, bounding(x_BTM, memory.bounds, memory.height), 0)
    if memory.rule == "nearest":
        nearest_BT = jnp.where(mine_M, jnp.abs(x_BTM), jnp.inf).argmin(axis=-1)
        fires_BTM *= jax.nn.one_hot(nearest_BT, len(mine_M))
    return fires_BTM


def interventions(
    memories: Sequence[Memory], real_BT: jax.Array, last_BT: jax.Array | None
) -> dict[str, Callable]:
    """Turns memories into interventions for the model.

    Args:
      real_BT: which positions are tokens. Memories never fire at padding.
      last_BT: which positions predict the next token; None if every position does, as in documents.
    Raises:
      InputError: a memory acts only at the last position, and `last_BT` is None.
    """

    def at(memory: Memory) -> Callable:
        if memory.places == "last" and last_BT is None:
            raise InputError(
                "a memory of the last position alone is not defined for whole documents; make "
                "one with --places=all"
            )
        may_BT = real_BT & last_BT if memory.places == "last" else real_BT
        width = memory.keys.shape[-1]

        def remember(x_BTW: jax.Array, layer: jax.Array) -> jax.Array:
            fires_BTM = strengths(memory, x_BTW[..., :width], layer) * may_BT[:, :, None]
            added = (fires_BTM @ memory.deltas).astype(x_BTW.dtype)
            return x_BTW.at[..., :width].add(added) if width < x_BTW.shape[-1] else x_BTW + added

        return remember

    return compose(*({memory.site: at(memory)} for memory in stack(memories)))
