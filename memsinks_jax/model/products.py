"""The product of activations and a weight, with its gradient in the order that XLA's CPU backend is fast in."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def product(x: jax.Array, kernel_DF: jax.Array, preferred_element_type: DTypeLike | None = None) -> jax.Array:
    """x (..., D) @ kernel -> (..., F), in the type of both or, as of jnp.matmul, in a wider one."""
    # Two axes, not three: on CPUs the gradient of the other takes three times as long.
    y_NF = _product(x.reshape(-1, x.shape[-1]), kernel_DF, preferred_element_type)
    return y_NF.reshape(*x.shape[:-1], kernel_DF.shape[1])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x_ND, kernel_DF, preferred_element_type):
    return jnp.matmul(x_ND, kernel_DF, preferred_element_type=preferred_element_type)


def _forward(x_ND, kernel_DF, preferred_element_type):
    return _product(x_ND, kernel_DF, preferred_element_type), (x_ND, kernel_DF)


def _backward(preferred_element_type, residuals, gradient_NF):
    x_ND, kernel_DF = residuals
    # A wider gradient is rounded first, as maxtext does: with a float32 operand both products would be float32 ones.
    gradient_NF = gradient_NF.astype(x_ND.dtype)
    of_kernel_DF = jax.lax.platform_dependent(
        x_ND, gradient_NF, cpu=_gradient_on_cpu, default=lambda x_ND, gradient_NF: x_ND.T @ gradient_NF
    )
    return gradient_NF @ kernel_DF.T, of_kernel_DF


def _gradient_on_cpu(x_ND, gradient_NF):
    # Eigen takes twice as long for a product over the first axes that is taller than wide: the wide one is computed.
    # The barrier keeps XLA from folding the transpose into the product again.
    if x_ND.shape[1] > gradient_NF.shape[1]:
        return jax.lax.optimization_barrier(gradient_NF.T @ x_ND).T
    return x_ND.T @ gradient_NF


_product.defvjp(_forward, _backward)
