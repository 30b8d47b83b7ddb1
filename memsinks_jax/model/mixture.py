"""One prediction from several sources, each read with its own sinks on and no other's.

Sinks of two sources on at once disturb each other, so a text about two is read twice, and what each
reading predicts is mixed. A reading weighs as much as it predicted the tokens so far. At every
token the weights move a little towards equal ones, so that the other source can take over where
the text goes on about it (fixed share, Herbster and Warmuth 1998). Beyond the right sources alone a
text costs at most log(K), -log(1 - SWITCH) a token, and log(K / SWITCH) each change of source.

Q prompts, K sources of each, V vocabulary, T tokens.
"""

import jax
import jax.numpy as jnp

from memsinks_jax.model import placement

SWITCH = 0.02  # chosen on TOFU's first 20 authors, docs/sources.md


def equal(prompts: int, sources: int) -> jax.Array:
    """Before the first token -> log weights (Q, K)."""
    return jnp.full((prompts, sources), -jnp.log(float(sources)))


def mixed(weights_QK: jax.Array, scores_QKV: jax.Array) -> jax.Array:
    """Log weights, and what each source predicts as log probabilities -> of all (Q, V)."""
    return jax.nn.logsumexp(weights_QK[..., None] + scores_QKV, axis=1)


def after(weights_QK: jax.Array, scores_QK: jax.Array) -> jax.Array:
    """The log weights after a token that each source had predicted with a log probability."""
    weights_QK = jax.nn.log_softmax(weights_QK + scores_QK)
    least = jnp.log(SWITCH / weights_QK.shape[1])
    return jnp.logaddexp(weights_QK + jnp.log1p(-SWITCH), least)


@placement.jit
def nats(nats_KT: jax.Array) -> jax.Array:
    """What each token of a text costs with each source -> with all (T,)."""

    def read(weights_1K: jax.Array, nats_K: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores_1K = -nats_K[None]
        return after(weights_1K, scores_1K), -mixed(weights_1K, scores_1K[..., None])[0, 0]

    return jax.lax.scan(read, equal(1, len(nats_KT)), nats_KT.T)[1]
