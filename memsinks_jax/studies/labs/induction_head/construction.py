"""The three memories of the theory (section 4.2 and theorem 3), plugged into the model of
`model.py`.

    W_K^1 = sum_t p_t p_{t-1}^T                          attend to the position before
    W_K^2 = sum_{k in Q} w_E(k) (W_O^1 W_V^1 w_E(k))^T   attend to what follows the same character
    W_O^2 = sum_v w_U(v) (W_V^2 w_E(v))^T                predict the attended token

The formulas fix only directions. Each memory is scaled so that a stored pair scores 1 on average,
then W_K^l by beta_l and W_O^2 by gamma. A search on separate sequences finds the best scales. Axes
as in `model`.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.studies.labs.induction_head import measures
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.law import Batch, Law, candidates, sampler
from memsinks_jax.studies.labs.induction_head.model import TwoLayers

# large enough for the limit: attention to the best key alone, or no direct path to the logits
HARD = 1e4
BETAS = (2.0, 5.0, 10.0, 20.0, HARD)
GAMMAS = (1.0, 4.0, HARD)
VARIANTS = ("beta = infinity", "W_O^2 alone", "W_O^2 and W_K^2", "W_K^1 for t < 64")
# sequences for the scales, for the result, in memory at once
SEARCHED, EVALUATED, AT_ONCE = 24, 96, 24


def _stored(u_ND: jax.Array, v_ND: jax.Array) -> jax.Array:
    """sum_n u_n v_n^T, scaled so that u_n . W v_n is 1 on average."""
    matrix = u_ND.T @ v_ND
    return matrix / jnp.einsum("nd,de,ne->n", u_ND, matrix, v_ND).mean()


def memories(
    weights: dict, candidates_Q: np.ndarray, divide_by: float, positions: int | None = None
) -> dict:
    """Puts the three memories of the theory into the weights. A stored pair scores 1, in attention
    after the division. positions: how many have their predecessor in W_K^1; None: all.
    """
    position, token = weights["position"][:positions], weights["token"]
    triggers_QD = token[jnp.asarray(candidates_Q)]
    remapped_QD = triggers_QD @ (weights["output_1"] @ weights["value_1"]).T
    return {
        **weights,
        "key_1": divide_by * _stored(position[1:], position[:-1]),
        "key_2": divide_by * _stored(triggers_QD, remapped_QD),
        "output_2": _stored(weights["unembed"], token @ weights["value_2"].T),
    }


def scaled(weights: dict, beta_1: float, beta_2: float, gamma: float) -> dict:
    scales = {"key_1": beta_1, "key_2": beta_2, "output_2": gamma}
    return {name: scales.get(name, 1.0) * matrix for name, matrix in weights.items()}


@functools.partial(jax.jit, static_argnums=0)
def _of_gammas(model: TwoLayers, weights: dict, batch: Batch) -> jax.Array:
    """Accuracy for every gamma. Logits are linear in gamma, so two passes are enough for all."""
    tokens_BT = batch.tokens_BS[:, :-1]
    direct = model.forward(
        {**weights, "output_2": jnp.zeros_like(weights["output_2"])}, tokens_BT
    ).logits_BTV
    copied = model.forward(weights, tokens_BT).logits_BTV - direct
    return jnp.stack(
        [measures.tally(direct + gamma * copied, batch)["acc_end"][0] for gamma in GAMMAS]
    )


@functools.partial(jax.jit, static_argnums=0)
def _tally(model: TwoLayers, weights: dict, batch: Batch) -> dict[str, jax.Array]:
    return measures.summary(model.forward(weights, batch.tokens_BS[:, :-1]), batch)


def evaluate(statistics: Statistics, law: Law, model: TwoLayers, seed: int) -> dict[str, float]:
    """Builds the memories, chooses scales, evaluates: rates of `measures`, and the clean accuracy
    of `VARIANTS`.
    """
    of_weights, of_search, of_evaluation = jax.random.split(jax.random.key(seed), 3)
    length, chosen = law.length, candidates(statistics, law)
    weights = model.initial(of_weights, len(statistics.characters), length)
    divide_by = math.sqrt(model.d) if model.divide else 1.0
    built = memories(weights, chosen, divide_by)
    sample = jax.jit(sampler(statistics, law), static_argnums=1)
    search, evaluated = sample(of_search, SEARCHED), sample(of_evaluation, EVALUATED)
    parts = [
        jax.tree.map(lambda x, at=at: x[at : at + AT_ONCE], evaluated)
        for at in range(0, EVALUATED, AT_ONCE)
    ]

    def best(weights, pairs):
        """The best of these pairs of beta, with its gamma, and the rates of the memories scaled
        so.
        """
        found = {
            pair: np.asarray(_of_gammas(model, scaled(weights, *pair, 1.0), search))
            for pair in pairs
        }
        pair = max(found, key=lambda pair: found[pair].max())
        scales = (*pair, GAMMAS[found[pair].argmax()])
        return scales, measures.rates(
            measures.add(_tally(model, scaled(weights, *scales), part) for part in parts)
        )

    scales, rates = best(built, [(one, two) for one in BETAS for two in BETAS])
    early = memories(weights, chosen, divide_by, measures.EARLY)
    uniform = [(0.0, beta) for beta in BETAS]
    searches = [(built, [(HARD, HARD)]), (built, [(0.0, 0.0)]), (built, uniform)]
    searches.append((early, [scales[:2]]))
    variants = {
        name: best(*search)[1]["acc_clean"] for name, search in zip(VARIANTS, searches, strict=True)
    }
    recalled = {name: float(value) for name, value in measures.probes(built, chosen).items()}
    # With such a large scale of the logits, a loss means nothing.
    rates = {name: value for name, value in rates.items() if not name.startswith("loss")}
    return rates | recalled | variants


def gradient_order(
    statistics: Statistics, law: Law, model: TwoLayers, seed: int, batches: int, batch: int
) -> dict:
    """Theorem 3 without training: what one gradient step on each memory stores, in order.

    Starts from W_K^1 = W_K^2 = W_O^2 = 0. wo1 is of the negative gradient of W_O^2; with W_O^2 as
    constructed, wk1 is of that of W_K^2; with both, wk0 and wk0_64 of that of W_K^1. Gradients are
    means over `batches` of `batch` sequences.
    """
    of_weights, of_data = jax.random.split(jax.random.key(seed))
    chosen = candidates(statistics, law)
    weights = model.initial(of_weights, len(statistics.characters), law.length)
    divide_by = math.sqrt(model.d) if model.divide else 1.0
    built = scaled(memories(weights, chosen, divide_by), 0.0, 10.0, 4.0)
    sample = sampler(statistics, law)
    nothing = jnp.zeros((model.d, model.d))

    @functools.partial(jax.jit, static_argnums=0)
    def step(name, weights, key):
        drawn = sample(key, batch)

        def loss(matrix):
            logits = model.forward({**weights, name: matrix}, drawn.tokens_BS[:, :-1]).logits_BTV
            total, count = measures.tally(logits, drawn)["loss_head"]
            return total / count

        return -jax.grad(loss)(weights[name])

    found, at = {}, {**built, "key_1": nothing, "key_2": nothing, "output_2": nothing}
    for name, of_memory in (
        ("output_2", ("wo1",)),
        ("key_2", ("wk1",)),
        ("key_1", ("wk0", "wk0_64")),
    ):
        direction = sum(step(name, at, jax.random.fold_in(of_data, i)) for i in range(batches))
        recalled = measures.probes({**at, name: direction}, chosen)
        found |= {probe: float(recalled[probe]) for probe in of_memory}
        at = {**at, name: built[name]}
    return found
