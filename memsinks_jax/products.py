"""The product of activations and a weight, with its gradient in the order that XLA's CPU backend is fast in."""

import jax


def product(x: jax.Array, kernel_DF: jax.Array) -> jax.Array:
    """x (..., D) @ kernel -> (..., F)."""
    # Two axes, not three: on CPUs the gradient of the other takes three times as long.
    return _product(x.reshape(-1, x.shape[-1]), kernel_DF).reshape(*x.shape[:-1], kernel_DF.shape[1])


@jax.custom_vjp
def _product(x_ND, kernel_DF):
    return x_ND @ kernel_DF


def _backward(residuals, gradient_NF):
    x_ND, kernel_DF = residuals
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


_product.defvjp(lambda x_ND, kernel_DF: (x_ND @ kernel_DF, (x_ND, kernel_DF)), _backward)
