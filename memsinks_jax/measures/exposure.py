"""Does a model know a secret? The rank of an inserted canary among random ones that were not
inserted (Carlini et al. 2019).

All alternatives take the canary's place in its document, so the only difference is that they were
never read. A document is read once; for the alternatives, only the canary's own tokens are
computed.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import tqdm

from memsinks_jax.config import Config
from memsinks_jax.data.canaries import alternatives, canary_targets
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Cache, build_model, empty_cache
from memsinks_jax.model.losses import token_losses
from memsinks_jax.sinks.interventions import sink_interventions
from memsinks_jax.sinks.kinds import NONE

ALTERNATIVES = 127  # with the canary, a power of two
_MOST_CACHE = 2**28  # bytes


def exposures(subject: Subject, corpus: Corpus) -> np.ndarray:
    """Exposure of each canary of a corpus -> bits, float64 (canaries,); see `exposure`. At most the
    bits of all possible
    canaries: more tries are meaningless.
    """
    run, config, count, found = subject.run, corpus.config, corpus.config.canaries.length, []
    of_context, of_candidates = _programs(subject, count)
    parts, opening = _parts(run.config), corpus.tokenizer.begin_of_text
    indices = corpus.mixture.canaries
    both = zip(indices.tolist(), run.opened(corpus.identities(indices)), strict=True)
    what = f"{subject.name}: canaries"
    for index, is_open in tqdm.tqdm([*both], desc=what, leave=False, disable=None):
        tokens = np.asarray(corpus.tokens(index))
        start = canary_targets(config.canaries, len(tokens)).start
        others = alternatives(config, index, ALTERNATIVES, corpus.tokenizer)
        candidates = np.concatenate([tokens[None, start : start + count], others])
        context = np.zeros(config.data.row_length, np.int32)
        context[: start + 1] = [opening, *tokens[:start]]
        whose = corpus.identities(index)[None, None], is_open[None, None]
        cache = of_context(run.params, context, *whose)
        rows = _rows(run.contexts, tokens[:start], candidates, opening)
        before = cache, context[start], np.int32(start)
        nats = [
            of_candidates(run.params, *before, *some, *whose)
            for some in zip(np.split(candidates, parts), np.split(rows, parts), strict=True)
        ]
        found.append(exposure(np.concatenate(nats)))
    return np.minimum(found, count * math.log2(corpus.tokenizer.vocabulary_size))


def _parts(config: Config) -> int:
    """The number of parts in which to compute the candidates, a power of two: each candidate has
    its own cache.
    """
    per_candidate = sum(
        x.size * x.dtype.itemsize
        for x in jax.eval_shape(lambda: empty_cache(config.model, 1, config.data.row_length))
    )
    return min(
        max(1, 1 << (per_candidate * (ALTERNATIVES + 1) // _MOST_CACHE).bit_length()),
        ALTERNATIVES + 1,
    )


def _rows(
    contexts: Contexts | None, before: np.ndarray, candidates: np.ndarray, opening: int
) -> np.ndarray:
    """The rows of the contexts of candidates behind some tokens, int32 like them; NONE without
    sinks by context.
    """
    if contexts is None:
        return np.full(candidates.shape, NONE, np.int32)
    place = len(before), len(before) + candidates.shape[1]
    return np.stack(
        [contexts.rows(np.concatenate([before, each]), *place, opening) for each in candidates]
    )


def exposure(nats: np.ndarray) -> float:
    """Exposure in bits from losses (candidates,), the first of which is the canary's: log2 of the
    average number of random candidates to try before one has as low a loss.

    The share is taken from a normal distribution with the mean and deviation of the alternatives'
    losses. A memorized canary has a lower loss than all alternatives, so an exposure by rank could
    not exceed log2 of their number. A canary that was never read has log2(e) = 1.44 bits on
    average, as by rank.
    """
    mean, deviation = nats[1:].mean(), nats[1:].std(ddof=1)
    return float(-scipy.special.log_ndtr((nats[0] - mean) / deviation) / math.log(2))


def _programs(subject: Subject, count: int):
    """Compiled: (tokens, id, whether its sinks were open) -> cache; (cache, candidates, ...) ->
    nats (candidates,).
    """
    config = subject.run.config
    model, _ = build_model(config)

    def apply(params, inputs_BT, positions_BT, cache, rows_BT, whose, read_out) -> tuple:
        identity, is_open = whose
        of = config, subject.mode, identity, np.uint32(config.seed), None, is_open
        gates = sink_interventions(*of, contexts_BT=rows_BT)
        place = inputs_BT, jnp.ones_like(inputs_BT), positions_BT
        return model(params, *place, gates, cache, read_out=read_out)

    def of_context(params: dict, tokens_T: jax.Array, *whose: jax.Array) -> Cache:
        positions_BT = jnp.arange(len(tokens_T))[None]
        nothing = jnp.full(positions_BT.shape, NONE)  # the cache does not depend on contexts
        cache = empty_cache(config.model, 1, len(tokens_T))
        about = tokens_T[None], positions_BT, cache, nothing, whose
        return apply(params, *about, lambda x_BTD, head_DV: None)[1]

    def of_candidates(
        params: dict, cache: Cache, before, start, candidates_BT, rows_BT, *whose
    ) -> jax.Array:
        batch = len(candidates_BT)
        cache = jax.tree.map(lambda x: jnp.repeat(x, batch, axis=1), cache)
        inputs_BT = jnp.concatenate([jnp.full((batch, 1), before), candidates_BT[:, :-1]], axis=1)
        positions_BT = jnp.broadcast_to(start + jnp.arange(count), inputs_BT.shape)

        def read_out(x_BTD: jax.Array, head_DV: jax.Array) -> jax.Array:
            return token_losses(x_BTD, head_DV, candidates_BT, jnp.ones(inputs_BT.shape))

        losses_BT, _ = apply(params, inputs_BT, positions_BT, cache, rows_BT, whose, read_out)
        return losses_BT.sum(axis=1)

    return placement.jit(of_context), placement.jit(of_candidates)
