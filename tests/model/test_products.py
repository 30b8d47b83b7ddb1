"""Products of bfloat16 on the CPU, which are summed in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memsinks_jax.model.decoder import REMAT_POLICIES
from memsinks_jax.model.losses import token_losses
from memsinks_jax.model.products import add_bias, product

SHAPES = [(2, 64, 32, 96), (1, 1, 8, 8), (1, 3, 7, 5), (3, 5, 1, 9), (1, 6, 4, 1)]  # (B, T, D, F)


def exact(of, *arrays):
    """In float64 of the same rounded numbers."""
    return of(*(np.asarray(array, np.float64) for array in arrays))


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_products_and_their_gradients_round_once(shape):
    batch, length, width, wide = shape
    draw = np.random.default_rng(0)
    x, kernel, bias, upstream = (
        jnp.asarray(draw.normal(size=size), jnp.bfloat16)
        for size in ((batch, length, width), (width, wide), (wide,), (batch, length, wide))
    )

    @jax.jit
    def compute(x, kernel, bias, upstream):
        y, backward = jax.vjp(lambda *of: add_bias(product(*of[:2]), of[2], None), x, kernel, bias)
        return y, *backward(upstream)

    y, of_x, of_kernel, of_bias = compute(x, kernel, bias, upstream)
    wanted = (
        exact(lambda x, kernel: x @ kernel, x, kernel),
        exact(lambda upstream, kernel: upstream @ kernel.T, upstream, kernel),
        exact(lambda x, upstream: np.einsum("btd,btf->df", x, upstream), x, upstream),
        exact(lambda upstream: upstream.sum(axis=(0, 1)), upstream),
    )
    without_bias = jax.jit(product)(x, kernel)
    for found, right in zip((without_bias, of_x, of_kernel, of_bias), wanted, strict=True):
        assert found.dtype == jnp.bfloat16 and found.shape == right.shape
        # one step of bfloat16's 8 bits, and of the sum's float32
        np.testing.assert_allclose(np.asarray(found, np.float64), right, rtol=2**-8, atol=1e-5)
    np.testing.assert_array_equal(y, (without_bias + bias).astype(jnp.bfloat16))


def test_a_tied_head_trains_in_bfloat16():
    """Its gradient is transposed, which XLA's CPU backend may not fold into the product."""
    draw = np.random.default_rng(0)
    embedding_VD = jnp.asarray(draw.normal(size=(1024, 64)) / 8, jnp.float32)
    x_BTD = jnp.asarray(draw.normal(size=(2, 64, 64)), jnp.float32)
    targets_BT = jnp.asarray(draw.integers(0, 1024, (2, 64)))

    def loss(embedding_VD, x_BTD, dtype):
        head_DV = embedding_VD.T.astype(dtype)
        return token_losses(x_BTD.astype(dtype), head_DV, targets_BT, jnp.ones((2, 64))).sum()

    gradients = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
    for found, right in zip(
        gradients(embedding_VD, x_BTD, jnp.bfloat16),
        gradients(embedding_VD, x_BTD, jnp.float32),
        strict=True,
    ):
        np.testing.assert_allclose(found, right, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("policy", "saved"), [("products", True), ("attention", False)])
def test_rematerialization_saves_products_of_any_type(dtype, policy, saved, capsys):
    def square(x, kernel):
        return jnp.sin(product(x, kernel)).sum()

    kept = jax.checkpoint(square, policy=REMAT_POLICIES[policy])
    x, kernel = jnp.ones((2, 8), dtype), jnp.ones((8, 24), dtype)
    jax.ad_checkpoint.print_saved_residuals(kept, x, kernel)
    assert ("[2,24]" in capsys.readouterr().out) == saved
