"""The loss of every token, whole and in parts of the vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from memsinks_jax.model.losses import cross_entropy, logits, token_losses

B, T, D, V = 2, 5, 8, 37


def inputs(vocabulary=V, dtype=jnp.float32):
    return jax.device_get(_inputs(vocabulary, dtype))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _inputs(vocabulary, dtype):
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (B, T, D), dtype)
    head = jax.random.normal(keys[1], (D, vocabulary))
    targets = jax.random.randint(keys[2], (B, T), 0, vocabulary)
    weights = jax.random.bernoulli(keys[3], 0.7, (B, T)).astype(jnp.float32)
    return x, head, targets, weights


def test_cross_entropy_is_minus_the_log_softmax():
    x, head, targets, _ = inputs()
    expected = -np.take_along_axis(
        scipy.special.log_softmax(x @ head, axis=-1), targets[..., None], axis=-1
    )[..., 0]
    measured = jax.jit(lambda x, head: cross_entropy(logits(x, head), targets))(x, head)
    np.testing.assert_allclose(measured, expected, atol=1e-5)


@pytest.mark.parametrize("chunks", [1, 4])
def test_large_logits_of_bfloat16_are_exact(chunks):
    """Sums of bfloat16 products stay in float32: at logits of 75 one step of bfloat16 is half a
    nat.
    """
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(B, T, 64)), jnp.bfloat16)
    head = jnp.asarray(2.2 * draw.normal(size=(64, 512)), jnp.bfloat16)
    targets = draw.integers(0, 512, (B, T))
    exact = np.asarray(x, np.float64) @ np.asarray(head, np.float64)
    assert 70 < np.abs(exact).max() < 90
    expected = (
        scipy.special.logsumexp(exact, axis=-1)
        - np.take_along_axis(exact, targets[..., None], axis=-1)[..., 0]
    )
    losses = token_losses(x, head, jnp.asarray(targets), jnp.ones((B, T)), chunks)
    np.testing.assert_allclose(losses, expected, atol=1e-3)


def test_gradients_of_chunks_are_summed_in_float32():
    """The gradient of the logits, 1/128 less the target, is exact in bfloat16: only sums can round.
    Operations run one by one, since XLA's CPU backend leaves out a rounding that is undone at once.
    """
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 128, (B, T))
    surprise = 1 / 128 - np.eye(128)[targets]

    def total(x, head):
        return token_losses(x, head, jnp.asarray(targets), jnp.ones((B, T)), 4).sum()

    def gradients(x, head):
        arrays = (jnp.asarray(x, jnp.bfloat16), jnp.asarray(head, jnp.float32))
        with jax.disable_jit():
            return [
                np.asarray(array, np.float64) for array in jax.grad(total, argnums=(0, 1))(*arrays)
            ]

    head = np.asarray(jnp.asarray(100 + draw.normal(size=(D, 128)), jnp.bfloat16), np.float64)
    np.testing.assert_allclose(
        gradients(np.zeros((B, T, D)), head)[0], surprise @ head.T, rtol=2**-8, atol=1e-4
    )
    x = np.asarray(jnp.asarray(draw.normal(size=(B, T, D)), jnp.bfloat16), np.float64)
    expected = np.einsum("btd,btv->dv", x, surprise)
    np.testing.assert_allclose(gradients(x, np.zeros((D, 128)))[1], expected, atol=1e-5)


@pytest.mark.parametrize("chunks", [2, 5, V])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_chunks_change_neither_loss_nor_gradient(chunks, dtype):
    """37 tokens in parts that do not divide them; bfloat16 to the rounding of the gradients'
    products.
    """
    x, head, targets, weights = inputs(dtype=dtype)

    def total(x, head, chunks):
        losses = token_losses(x, head, targets, weights, chunks)
        return (losses * jnp.arange(1.0, T + 1)).sum(), losses

    both = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True), static_argnums=2)
    (_, expected), gradients = both(x, head, 1)
    (_, measured), others = both(x, head, chunks)
    np.testing.assert_allclose(measured, expected, atol=1e-5)
    for one, other in zip(others, gradients, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            np.asarray(one, np.float32),
            np.asarray(other, np.float32),
            atol=1e-5 if dtype == jnp.float32 else 0.15,
        )


def test_chunks_never_have_all_logits_at_once():
    x, head, targets, weights = (
        np.tile(a, (1, 20, 1)[: a.ndim]) if n != 1 else a for n, a in enumerate(inputs(4096))
    )

    def largest(chunks):
        gradient = jax.grad(
            lambda x, head: token_losses(x, head, targets, weights, chunks).sum(), argnums=(0, 1)
        )
        return jax.jit(gradient).lower(x, head).compile().memory_analysis().temp_size_in_bytes

    whole = B * 20 * T * 4096 * 4
    assert largest(1) >= whole
    assert largest(16) < largest(1) - whole / 2


@pytest.mark.parametrize("chunks", [1, 3])
def test_bad_targets_without_weight_do_not_reach_the_loss(chunks):
    x, head, _, _ = inputs()
    targets, weights = np.array([[4, -100, V + 3]]), np.array([[1.0, 0.0, 0.0]], np.float32)
    losses = jax.jit(token_losses, static_argnums=4)(x[:1, :3], head, targets, weights, chunks)
    expected = -scipy.special.log_softmax(x[0, 0] @ head)[4]
    np.testing.assert_allclose(losses, [[expected, 0, 0]], rtol=1e-5)


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2)])
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_mesh_changes_nothing(shape, chunks):
    x, head, targets, weights = inputs(vocabulary=48)
    x, targets, weights = (np.concatenate([a] * 4) for a in (x, targets, weights))
    gradient = jax.grad(
        lambda x, head: token_losses(x, head, targets, weights, chunks).sum(), argnums=(0, 1)
    )
    alone = jax.jit(gradient)(x, head)
    mesh = jax.make_mesh(
        shape, ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3
    )
    with jax.set_mesh(mesh):
        split = jax.jit(gradient)(x, head)
    for one, other in zip(split, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
