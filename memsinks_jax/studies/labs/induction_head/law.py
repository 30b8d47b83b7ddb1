"""The data law (section 3): bigrams of a text, in which K trigger characters have an output
specific to the sequence.

For every sequence: K triggers q, fixed (the most frequent characters) or drawn from pi_u without
replacement; an output o for each, uniform or from pi_b(.|q); then z_1 ~ pi_u. After z_t comes its
output if it is a trigger, else a draw from pi_b(.|z_t). From a trigger's second time on, its output
can be predicted from the sequence alone.

All draws are on the device, hundreds of sequences in one scan over time.

Axes: B sequences, S = T + 1 tokens of a sequence, T positions that predict the next, K triggers, V
characters.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics


@dataclasses.dataclass(frozen=True)
class Law:
    """The parameters of a data law.

    Attributes:
      k: triggers per sequence. fixed: the same k in all: the most frequent, after skipping the
        `offset` most frequent.
      bigram_outputs: outputs from pi_b(.|q) instead of uniform.
      length: T, positions that predict; a sequence has one token more.
    """

    k: int = 5
    fixed: bool = True
    offset: int = 0
    bigram_outputs: bool = False
    length: int = 256

    def check(self, statistics: Statistics) -> "Law":
        """Returns itself. Raises an InputError that names the flag, what is wrong, what to do."""
        size = len(statistics.characters)
        if not 1 <= self.k <= size:
            raise InputError(
                f"--k={self.k}: give a number of triggers from 1 to {size}, the characters of the "
                "text"
            )
        if self.offset + self.k > size:
            raise InputError(
                f"--k={self.k}: {size} characters without the {self.offset} most frequent are too "
                "few"
            )
        return self


class Batch(NamedTuple):
    """Sequences of the law.

    Attributes:
      tokens_BS: int32. x is all but the last, y all but the first.
      seen_BT: int32, how often this trigger has come, including now; 0 if x is no trigger. From 2
        on the next token can be predicted.
      cyclic_B: bool, whether the sequence ends in tokens that lead to one another forever: triggers
        (such as o = q), and characters with only one possible successor, like the u after q.
    """

    tokens_BS: jax.Array
    seen_BT: jax.Array
    cyclic_B: jax.Array


def candidates(statistics: Statistics, law: Law) -> np.ndarray:
    """Characters that can be triggers, the fixed ones, rarest first, or all -> int64 (K or V,)."""
    size = len(statistics.unigrams_V)
    if not law.fixed:
        return np.arange(size)
    return statistics.pi_u_V.argsort()[size - law.offset - law.k : size - law.offset]


def _cumulative(p_xV: np.ndarray) -> jax.Array:
    """Cumulative distributions, float32, exactly 1 from the last possible character on."""
    sums_xV = p_xV.cumsum(-1)
    return jnp.asarray(sums_xV / sums_xV[..., -1:], jnp.float32)


def _inverse(cumulative_xV: jax.Array, uniform_x: jax.Array) -> jax.Array:
    """The character at which the cumulative distribution passes `uniform` -> int32 (x)."""
    return (cumulative_xV <= uniform_x[..., None]).sum(-1).astype(jnp.int32)


def sampler(statistics: Statistics, law: Law):
    """A function (key, number of sequences) -> Batch. Compile it with a static number."""
    size = len(statistics.unigrams_V)
    first_V, next_VV = _cumulative(statistics.pi_u_V), _cumulative(statistics.pi_b_VV)
    log_u_V = jnp.asarray(np.log(statistics.pi_u_V), jnp.float32)
    outputs_VV = statistics.pi_b_VV if law.bigram_outputs else np.ones((size, size))
    outputs_VV = _cumulative(outputs_VV)
    certain_V = statistics.pi_b_VV.max(1) == 1
    sole_V = jnp.asarray(np.where(certain_V, statistics.pi_b_VV.argmax(1), -1), jnp.int32)
    links = law.k + int(certain_V.sum())
    fixed_K = jnp.asarray(candidates(statistics, law)[: law.k], jnp.int32)

    def sample(key: jax.Array, sequences: int) -> Batch:
        of_triggers, of_outputs, of_tokens = jax.random.split(key, 3)
        if law.fixed:
            triggers_BK = jnp.broadcast_to(fixed_K, (sequences, law.k))
        else:
            # The k largest of log p + Gumbel noise are k draws without replacement.
            noisy_BV = log_u_V + jax.random.gumbel(of_triggers, (sequences, size))
            triggers_BK = jax.lax.top_k(noisy_BV, law.k)[1].astype(jnp.int32)
        outputs_BK = _inverse(
            outputs_VV[triggers_BK], jax.random.uniform(of_outputs, (sequences, law.k))
        )
        uniform_SB = jax.random.uniform(of_tokens, (law.length + 1, sequences))

        def forced(at_B):
            """The only possible next token, or -1 if there is a choice."""
            hit_BK = at_B[:, None] == triggers_BK
            return jnp.where(hit_BK.any(-1), jnp.where(hit_BK, outputs_BK, 0).sum(-1), sole_V[at_B])

        def follow(last_B, uniform_B):
            forced_B = forced(last_B)
            next_B = jnp.where(forced_B >= 0, forced_B, _inverse(next_VV[last_B], uniform_B))
            return next_B, next_B

        first_B = _inverse(first_V, uniform_SB[0])
        last_B, later_TB = jax.lax.scan(follow, first_B, uniform_SB[1:])
        tokens_BS = jnp.concatenate([first_B[None], later_TB]).T

        is_BTK = tokens_BS[:, :-1, None] == triggers_BK[:, None]
        seen_BT = jnp.where(is_BTK, jnp.cumsum(is_BTK, axis=1), 0).sum(-1).astype(jnp.int32)
        # Passing more than all `links` forced tokens without a choice means being in a cycle.
        end_B = jax.lax.fori_loop(
            0, links + 1, lambda _, at_B: jnp.where(at_B >= 0, forced(at_B), -1), last_B
        )
        return Batch(tokens_BS, seen_BT, end_B >= 0)

    return sample
