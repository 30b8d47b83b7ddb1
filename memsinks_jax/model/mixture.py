"""One prediction from several sources, each read with its own sinks on and no other's.

Sinks of two sources on at once disturb each other, so a text about two is read twice, and what each
reading predicts is mixed. A reading weighs as much as it predicted the tokens so far. At every
token the weights move a little towards equal ones, so that the other source can take over where
the text goes on about it (fixed share, Herbster and Warmuth 1998). A token costs at most
-log(1 - SWITCH) more than with the right source, and each change of source log(K / SWITCH).

P prompts, K sources of each, V vocabulary, T tokens.
"""

import jax
import jax.numpy as jnp

from memsinks_jax.model import placement

SWITCH = 0.02  # chosen on TOFU's first 20 authors, docs/sources.md


def equal(prompts: int, sources: int) -> jax.Array:
    """Before the first token -> log weights (P, K)."""
    return jnp.full((prompts, sources), -jnp.log(float(sources)))


def mixed(weights_PK: jax.Array, scores_PKV: jax.Array) -> jax.Array:
    """Log weights, and what each source predicts as log probabilities -> of all (P, V)."""
    return jax.nn.logsumexp(weights_PK[..., None] + scores_PKV, axis=1)


def after(weights_PK: jax.Array, scores_PK: jax.Array) -> jax.Array:
    """The log weights after a token that each source had predicted with a log probability."""
    weights_PK = jax.nn.log_softmax(weights_PK + scores_PK)
    least = jnp.log(SWITCH / weights_PK.shape[1])
    return jnp.logaddexp(weights_PK + jnp.log1p(-SWITCH), least)


@placement.jit
def nats(nats_KT: jax.Array) -> jax.Array:
    """What each token of a text costs with each source -> with all (T,)."""

    def read(weights_1K: jax.Array, nats_K: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores_1K = -nats_K[None]
        return after(weights_1K, scores_1K), -mixed(weights_1K, scores_1K[..., None])[0, 0]

    return jax.lax.scan(read, equal(1, len(nats_KT)), nats_KT.T)[1]
