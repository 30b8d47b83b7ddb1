"""What training stores: gradients against autodiff, steps on scores against steps on the matrix,
learned embeddings.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memsinks_jax.studies.labs.associative_memory import model, optimization

pytestmark = pytest.mark.slow

N, M, D = 20, 5, 12
LAW, Y = model.zipf(N, 1.0), jnp.asarray(model.outputs(N, M))


@pytest.fixture
def memory():
    of_inputs, of_outputs, of_matrix = jax.random.split(jax.random.key(0), 3)
    u_MD = jax.random.normal(of_outputs, (M, D))
    u_MD = u_MD / jnp.linalg.norm(u_MD, axis=1, keepdims=True)
    e_ND = jax.random.normal(of_inputs, (N, D)) / D**0.5
    return e_ND, u_MD, jax.random.normal(of_matrix, (D, D))


def gradient(w_DD, e_D, u_MD, y) -> jax.Array:
    """(17) for one association, as printed: -(1 - p(y|x)) (u_y - eps) e_x^T -> (D, D)."""
    chance_M = jax.nn.softmax(u_MD @ (w_DD @ e_D))
    others_M = chance_M.at[y].set(0)
    eps_D = others_M / others_M.sum() @ u_MD
    return -(1 - chance_M[y]) * jnp.outer(u_MD[y] - eps_D, e_D)


def layer_norm_gradient(w_DD, e_D, u_MD, y) -> jax.Array:
    """(21) for one association: the plain gradient at W / |W e_x|, projected off W e_x, over |W
    e_x| -> (D, D).
    """
    length = jnp.linalg.norm(w_DD @ e_D)
    unit_DD = w_DD / length
    direction_D = unit_DD @ e_D
    plain_DD = gradient(unit_DD, e_D, u_MD, y)
    return (plain_DD - jnp.outer(direction_D, direction_D @ plain_DD)) / length


@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_as_printed_equal_autodiff(memory, layer_norm):
    """(17), and (21) with layer norm."""
    e_ND, u_MD, w_DD = memory
    printed = layer_norm_gradient if layer_norm else gradient
    for x in range(N):
        only_x = jnp.zeros(N).at[x].set(1.0)
        automatic = jax.grad(optimization.loss)(w_DD, e_ND, u_MD, Y, only_x, layer_norm)
        assert jnp.abs(automatic).max() > 0.01
        np.testing.assert_allclose(printed(w_DD, e_ND[x], u_MD, Y[x]), automatic, atol=1e-6)


# gamma: f^n(0) for n = 1, 10, 100, 1000, with M = 5.
ITERATES = {
    10: (8.333, 8.436, 9.119, 10.900),
    1: (0.833, 3.636, 6.177, 8.512),
    0.1: (0.083, 0.775, 3.522, 6.156),
    0.01: (0.008, 0.083, 0.769, 3.511),
}


@pytest.mark.parametrize("gamma", ITERATES)
def test_iterates(gamma):
    values = np.asarray(optimization.iterates(gamma, 5, 1000))
    assert values[0] == 0
    assert values[[1, 10, 100, 1000]] == pytest.approx(ITERATES[gamma], abs=6e-4)


def follow_on_matrix(memory, inputs_TB, gamma):
    """SGD (18) on W from 0, gradients summed over the batch -> scores (T, M, N)."""
    e_ND, u_MD, _ = memory
    w_DD, scores = jnp.zeros((D, D)), []
    for inputs_B in inputs_TB:
        seen_N = jnp.zeros(N).at[inputs_B].add(1.0)
        w_DD = w_DD - gamma * jax.grad(optimization.loss)(w_DD, e_ND, u_MD, Y, seen_N)
        scores.append(u_MD @ w_DD @ e_ND.T)
    return np.array(scores)


@pytest.mark.parametrize("batch", [1, 8])
def test_steps_on_scores_are_steps_on_the_matrix(memory, batch):
    e_ND, u_MD, _ = memory
    inputs_TB = model.samples(jax.random.key(1), LAW, 25 * batch).reshape(25, batch)
    # Divided by sqrt(d) already, so the kernel is theirs over 1.
    kernel_NN, gram_MM, gamma_T = optimization.kernel(e_ND, 1.0), u_MD @ u_MD.T, jnp.full(25, 2.0)
    expected = follow_on_matrix(memory, inputs_TB, 2.0)
    followed = optimization.batches(
        kernel_NN, gram_MM, Y, inputs_TB, gamma_T, lambda scores: scores
    )
    np.testing.assert_allclose(followed, expected, atol=1e-4)
    if batch == 1:
        one = optimization.stream(
            "gradient", kernel_NN, gram_MM, Y, inputs_TB[:, 0], gamma_T, lambda scores: scores
        )
        np.testing.assert_allclose(one, expected, atol=1e-4)


def test_scheme_stores_f_n_of_0_and_the_approximation_leaves_other_outputs_alone(memory):
    e_ND, u_MD, _ = memory
    inputs_T = model.samples(jax.random.key(2), LAW, 40)
    kernel_NN, gram_MM, gamma_T = optimization.kernel(e_ND, 1.0), u_MD @ u_MD.T, jnp.full(40, 0.7)

    def last(rule, gram_MM, kernel_NN):
        return optimization.stream(
            rule, kernel_NN, gram_MM, Y, inputs_T, gamma_T, lambda scores: scores
        )[-1]

    seen_N = np.bincount(np.asarray(inputs_T), minlength=N)
    q_N = np.asarray(optimization.iterates(0.7, M, 40))[seen_N]
    expected = model.scores(e_ND, gram_MM, q_N[None], Y)[0]
    np.testing.assert_allclose(last("scheme", gram_MM, kernel_NN), expected, atol=1e-4)
    # Where nothing interferes, only the own output of an input that was seen gets a score, and (19)
    # is nearly (20).
    scores_MN = np.asarray(last("approximation", jnp.eye(M), jnp.eye(N)))
    own_MN = np.asarray(Y) == np.arange(M)[:, None]
    assert (scores_MN[~own_MN] == 0).all()
    assert (scores_MN[own_MN & (seen_N > 0)] > 0).all()
    exact = 0.0
    for _ in range(seen_N[0]):
        exact += 0.7 * (1 - np.exp(exact) / (np.exp(exact) + M - 1))
    assert scores_MN[Y[0], 0] == pytest.approx(exact, abs=1e-4)


def test_adam_without_memory_is_sign_descent(memory):
    e_ND, u_MD, w_DD = memory
    inputs_TB = model.samples(jax.random.key(3), LAW, 160).reshape(20, 8)
    ways = (optax.adam(0.05, b1=0.0, b2=0.0, eps=0.0), optax.sign_sgd(0.05))
    adam, signs = (optimization.descend(way, w_DD, e_ND, u_MD, Y, inputs_TB, LAW) for way in ways)
    assert len(set(np.asarray(adam).tolist())) > 3
    np.testing.assert_array_equal(adam, signs)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_descent_on_the_matrix_learns(memory, layer_norm):
    e_ND, u_MD, w_DD = memory
    inputs_TB = jnp.tile(jnp.arange(N), (300, 1))
    uniform = model.Law(np.full(N, 1 / N))
    errors = optimization.descend(
        optax.sgd(5.0), w_DD, e_ND, u_MD, Y, inputs_TB, uniform, layer_norm
    )
    assert errors[-1] < 0.3 < errors[0]


def test_layer_norm_bounds_the_scores(memory):
    e_ND, u_MD, w_DD = memory
    plain = optimization.logits(100 * w_DD, e_ND, u_MD, False)
    normed = optimization.logits(100 * w_DD, e_ND, u_MD, True)
    assert jnp.abs(plain).max() > 10 and jnp.abs(normed).max() <= 1
    np.testing.assert_array_equal(plain.argmax(1), normed.argmax(1))


def test_learned_embeddings_reach_zero_error_in_two_dimensions():
    law, y_N = model.zipf(100, 2.0), jnp.asarray(model.outputs(100, M))
    keys = jax.random.split(jax.random.key(0), 10)
    e, u, errors = jax.vmap(lambda key: optimization.learn(key, law, y_N, M, 2, 1500, 0.05))(keys)
    assert e.shape == (10, 100, 2) and u.shape == (10, M, 2)
    assert (errors[:, 0] > 0.2).all()
    assert (errors[:, -1] == 0).sum() >= 9
