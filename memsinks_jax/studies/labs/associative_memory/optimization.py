"""Optimization-based memorization (section 4): what gradient descent on W stores.

The cross-entropy of the scores (16) has the gradient (17), whose steps from W = 0 stay in the span
of the u_y e_x^T. So SGD can run on the scores S = U W E^T of all inputs, with M x N numbers instead
of d x d: a step that adds c to W's coordinates along (u_y e_x^T)_y adds (U U^T c) outer (E e_x) to
S. This is exact. Methods that leave the span (Adam, sign descent, layer norm from a random start)
run on W itself.

Rescaling: embeddings are divided by sqrt(d) here, so that |e_x| is about 1 and a unit of q changes
the logit of its own association by about 1, as (20) assumes. For N(0, I_d) embeddings this is a
step size divided by d.

Axes: as in `model`; B samples of a batch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from memsinks_jax.studies.labs.associative_memory import model


def update(v: jax.Array, gamma: float | jax.Array, m: int) -> jax.Array:
    """f of (20): how much seeing an association again adds to its weight v."""
    return v + gamma / (1 + jnp.exp(v) / m)


def iterates(gamma: float, m: int, count: int) -> jax.Array:
    """f^n(0) for n = 0..count (20) -> (count + 1,)."""

    def step(v, _):
        return update(v, gamma, m), v

    return jax.lax.scan(step, jnp.float32(0), None, length=count + 1)[1]


def kernel(e_NR: jax.Array, d: float | jax.Array) -> jax.Array:
    """Inner products of the embeddings over d -> (N, N)."""
    return e_NR @ e_NR.T / d


def stream(
    rule: str, kernel_NN, gram_MM, y_N, inputs_T: jax.Array, gamma_T: jax.Array, measure: Callable
):
    """Steps of batch size one and sizes gamma_T, from W = 0 -> `measure` of the scores (T, ...).

    rule: gradient: SGD (18); approximation: (19), which omits the other outputs; scheme: (4) with
    the weights of (20), which follow from the counts of the inputs.
    """
    m, n = len(gram_MM), len(kernel_NN)

    def step(carry, now):
        scores_MN, v_N = carry
        x, gamma = now
        own_M = jax.nn.one_hot(y_N[x], m)
        chance_M = jax.nn.softmax(scores_MN[:, x])
        gained = update(v_N[x], gamma, m)
        added_M = {
            "gradient": gamma * (own_M - chance_M),
            "approximation": gamma * own_M * (1 - chance_M),
            "scheme": (gained - v_N[x]) * own_M,
        }[rule]
        scores_MN = scores_MN + jnp.outer(gram_MM @ added_M, kernel_NN[x])
        return (scores_MN, v_N.at[x].set(gained)), measure(scores_MN)

    return jax.lax.scan(step, (jnp.zeros((m, n)), jnp.zeros(n)), (inputs_T, gamma_T))[1]


def batches(kernel_NN, gram_MM, y_N, inputs_TB: jax.Array, gamma_T: jax.Array, measure: Callable):
    """SGD (18) with batches from W = 0; sums gradients -> `measure` after every step (T, ...)."""
    m, n = len(gram_MM), len(kernel_NN)
    own_MN = (y_N == jnp.arange(m)[:, None]).astype(jnp.float32)

    def step(scores_MN, now):
        inputs_B, gamma = now
        seen_N = jnp.zeros(n).at[inputs_B].add(1.0)
        residual_MN = seen_N * (own_MN - jax.nn.softmax(scores_MN, axis=0))
        scores_MN = scores_MN + gamma * gram_MM @ residual_MN @ kernel_NN
        return scores_MN, measure(scores_MN)

    return jax.lax.scan(step, jnp.zeros((m, n)), (inputs_TB, gamma_T))[1]


def logits(w_DD: jax.Array, e_ND: jax.Array, u_MD: jax.Array, layer_norm: bool) -> jax.Array:
    """<u_y, W e_x>, or with layer norm <u_y, W e_x / |W e_x|> -> (N, M)."""
    moved_ND = e_ND @ w_DD.T
    if layer_norm:
        moved_ND = moved_ND / jnp.linalg.norm(moved_ND, axis=1, keepdims=True)
    return moved_ND @ u_MD.T


def loss(w_DD, e_ND, u_MD, y_N, weight_N, layer_norm: bool = False) -> jax.Array:
    """Cross-entropy (16), inputs weighted by `weight_N` -> scalar."""
    log_chance_NM = jax.nn.log_softmax(logits(w_DD, e_ND, u_MD, layer_norm))
    return -weight_N @ jnp.take_along_axis(log_chance_NM, y_N[:, None], axis=1)[:, 0]


def _follow(
    optimizer: optax.GradientTransformation,
    weights,
    loss: Callable,
    error: Callable,
    inputs,
    steps=None,
):
    """Steps of an optimizer on `loss(weights, input)` -> final weights, errors after each step."""

    def step(carry, now):
        weights, state = carry
        updates, state = optimizer.update(jax.grad(loss)(weights, now), state, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, state), error(weights)

    (weights, _), errors = jax.lax.scan(step, (weights, optimizer.init(weights)), inputs, steps)
    return weights, errors


def descend(
    optimizer, w_DD, e_ND, u_MD, y_N, inputs_TB: jax.Array, law: model.Law, layer_norm: bool = False
):
    """An optax optimizer on W, with mean gradients -> exact error after every step (T,)."""

    def of_batch(w_DD, inputs_B):
        weight_N = jnp.zeros(len(e_ND)).at[inputs_B].add(1 / inputs_TB.shape[1])
        return loss(w_DD, e_ND, u_MD, y_N, weight_N, layer_norm)

    def error(w_DD):
        # Layer norm keeps the direction of W e_x, so also which output is the largest.
        return model.error(logits(w_DD, e_ND, u_MD, False).T, y_N, law)

    return _follow(optimizer, w_DD, of_batch, error, inputs_TB)[1]


def learn(key: jax.Array, law: model.Law, y_N: jax.Array, m: int, d: int, steps: int, gamma: float):
    """Learned embeddings (section 4.2) -> e (N, d), u (M, d), errors (steps,).

    W = I and e_x = u_{f(x)} recall everything (24), so W is omitted: the scores are u_y^T e_x. Adam
    on the cross-entropy (16) of the whole law, from normal embeddings, hardly depends on p(x), so
    rare inputs move too.
    """
    of_inputs, of_outputs = jax.random.split(key)
    start = jax.random.normal(of_inputs, (len(y_N), d)), jax.random.normal(of_outputs, (m, d))
    p_N = jnp.asarray(law.p_N, jnp.float32)

    def scores(embeddings):
        e_ND, u_MD = embeddings
        return u_MD @ e_ND.T

    def of_law(embeddings, _):
        return -p_N @ jax.nn.log_softmax(scores(embeddings), axis=0)[y_N, jnp.arange(len(y_N))]

    def error(embeddings):
        return model.error(scores(embeddings), y_N, law)

    (e_ND, u_MD), errors = _follow(optax.adam(gamma), start, of_law, error, None, steps)
    return e_ND, u_MD, errors
