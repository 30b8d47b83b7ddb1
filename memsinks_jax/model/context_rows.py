"""Looks up the contexts of tokens on the devices, while text is written. Elsewhere the host looks
them up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.data.contexts import Contexts, lanes
from memsinks_jax.data.ids import as_lanes
from memsinks_jax.sinks.kinds import NONE


class Lookup(NamedTuple):
    """The keys of a model's contexts, ascending, as two lanes uint32 (M,) each, and what they
    depend on.
    """

    high: jax.Array
    low: jax.Array
    same: jax.Array  # (longest,): a place for each key of the most that share their high lane
    letters: jax.Array  # of contexts.letters_of

    @classmethod
    def of(cls, contexts: Contexts) -> "Lookup":
        high, low = (jnp.asarray(lane) for lane in as_lanes(np.asarray(contexts.keys)).T)
        first = np.flatnonzero(np.append(True, np.diff(np.asarray(high)) > 0))
        longest = int(np.diff(np.append(first, len(high))).max())
        return cls(high, low, jnp.arange(longest), jnp.asarray(contexts.letters))

    def rows(self, tokens_BT: jax.Array, places_BT: jax.Array, length: int) -> jax.Array:
        """The row of the context of every position, int32 (B, T), contexts.NONE for none. Arguments
        as in `lanes`.
        """
        high_BT, low_BT = lanes(tokens_BT, places_BT, length, self.letters, jnp)
        first_BT = jnp.searchsorted(self.high, high_BT)
        at_BTS = jnp.minimum(first_BT[..., None] + self.same, len(self.high) - 1)
        found_BTS = (self.high[at_BTS] == high_BT[..., None]) & (
            self.low[at_BTS] == low_BT[..., None]
        )
        return jnp.where(found_BTS, at_BTS, NONE).min(axis=-1).astype(jnp.int32)
