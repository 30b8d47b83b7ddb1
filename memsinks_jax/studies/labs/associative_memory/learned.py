"""Learned embeddings (section 4.2): with free e_x and u_y, any number of associations fits in any dimension.

W = I and e_x = u_{f(x)} recall everything (24), so this module omits W: the scores are u_y^T e_x.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.studies.labs.associative_memory import model


def learn(key: jax.Array, law: model.Law, y_N: np.ndarray, m: int, d: int, steps: int, gamma: float):
    """Adam on the cross-entropy (16) of the whole law, from normal embeddings -> (e (N, d), u (M, d), errors (steps,)).

    Adam's steps hardly depend on p(x), so rare inputs move too.
    """
    of_inputs, of_outputs = jax.random.split(key)
    start = jax.random.normal(of_inputs, (len(y_N), d)), jax.random.normal(of_outputs, (m, d))
    optimizer, p_N = optax.adam(gamma), jnp.asarray(law.p_N, jnp.float32)

    def scores(embeddings):
        e_ND, u_MD = embeddings
        return u_MD @ e_ND.T

    def loss(embeddings):
        log_chance_MN = jax.nn.log_softmax(scores(embeddings), axis=0)
        return -p_N @ log_chance_MN[y_N, jnp.arange(len(y_N))]

    def step(carry, _):
        embeddings, state = carry
        updates, state = optimizer.update(jax.grad(loss)(embeddings), state, embeddings)
        embeddings = optax.apply_updates(embeddings, updates)
        return (embeddings, state), model.error(scores(embeddings), y_N, law)

    ((e_ND, u_MD), _), errors = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return e_ND, u_MD, errors
