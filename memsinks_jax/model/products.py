"""The product of activations and a weight, with its gradient in the order that XLA's CPU backend is
fast in.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

PRODUCT = "product"  # its name for rematerialization, which does not see into a custom gradient


class GradientScale(NamedTuple):
    """The scale of each position in the gradient of some neurons' weights. Values and other
    gradients stay the same.
    """

    scale_BT: jax.Array
    neurons_F: jax.Array  # bool; the gradient of the other neurons' weights is not scaled


def product(
    x: jax.Array,
    kernel_DF: jax.Array,
    preferred_element_type: DTypeLike | None = None,
    rows: GradientScale | None = None,
    columns: GradientScale | None = None,
) -> jax.Array:
    """x (..., D) @ kernel -> (..., F), in the type of both or in a wider one, like jnp.matmul.

    Args:
      rows, columns: the scale of the gradient of neurons that are rows, or columns, of the kernel.
    """
    # Two axes, not three: with three the gradient takes three times as long on CPUs.
    y_NF = _product(x.reshape(-1, x.shape[-1]), kernel_DF, rows, columns, preferred_element_type)
    return checkpoint_name(y_NF, PRODUCT).reshape(*x.shape[:-1], kernel_DF.shape[1])


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _product(x_ND, kernel_DF, rows, columns, preferred_element_type):
    if x_ND.dtype == jnp.bfloat16 and preferred_element_type is None:
        return jax.lax.platform_dependent(x_ND, kernel_DF, cpu=_bfloat16_on_cpu, default=jnp.matmul)
    return jnp.matmul(x_ND, kernel_DF, preferred_element_type=preferred_element_type)


def _forward(x_ND, kernel_DF, rows, columns, preferred_element_type):
    return _product(x_ND, kernel_DF, rows, columns, preferred_element_type), (
        x_ND,
        kernel_DF,
        rows,
        columns,
    )


def _backward(preferred_element_type, residuals, gradient_NF):
    x_ND, kernel_DF, rows, columns = residuals
    # A wider gradient is rounded first, as maxtext does: with a float32 operand both products would
    # be float32 ones. So devices sum gradients in the compute dtype; moments are float32.
    gradient_NF = gradient_NF.astype(x_ND.dtype)
    of_kernel_DF = jax.lax.platform_dependent(
        _scaled(x_ND, rows),
        _scaled(gradient_NF, columns),
        cpu=_gradient_on_cpu,
        default=lambda x_ND, gradient_NF: x_ND.T @ gradient_NF,
    )
    of_x_ND = jax.lax.platform_dependent(
        gradient_NF,
        kernel_DF,
        cpu=_input_gradient_on_cpu,
        default=lambda gradient_NF, kernel_DF: gradient_NF @ kernel_DF.T,
    )
    return of_x_ND, of_kernel_DF, None, None


def _scaled(x_NF: jax.Array, gradient_scale: GradientScale | None) -> jax.Array:
    if gradient_scale is None:
        return x_NF
    return jnp.where(
        gradient_scale.neurons_F,
        x_NF * gradient_scale.scale_BT.reshape(-1, 1).astype(x_NF.dtype),
        x_NF,
    )


def _bfloat16_on_cpu(left, right):
    # XLA's CPU backend has fast products of bfloat16, with AMX five times as fast
    # as of float32, but only into float32.
    return jnp.matmul(left, right, preferred_element_type=jnp.float32).astype(left.dtype)


def _transposed(matrix):
    # And only of the second axis with the first (jax 0.10.2): in two halves, XLA leaves the
    # transpose alone, where it would fold one of the whole into the product.
    half = matrix.shape[0] // 2
    return jnp.concatenate([matrix[:half].T, matrix[half:].T], axis=1)


def _input_gradient_on_cpu(gradient_NF, kernel_DF):
    if gradient_NF.dtype == jnp.bfloat16:
        return _bfloat16_on_cpu(gradient_NF, _transposed(kernel_DF))
    return gradient_NF @ kernel_DF.T


def _gradient_on_cpu(x_ND, gradient_NF):
    if x_ND.dtype == jnp.bfloat16:
        return _bfloat16_on_cpu(_transposed(x_ND), gradient_NF)
    # Eigen takes twice as long if a product over the first axes is taller than wide, so the wide
    # one is computed. The barrier keeps XLA from folding the transpose into the product again. In a
    # whole step of the laptop preset this makes no difference (0.98 to 1.02, jax 0.10.2).
    if x_ND.shape[1] > gradient_NF.shape[1]:
        return jax.lax.optimization_barrier(gradient_NF.T @ x_ND).T
    return x_ND.T @ gradient_NF


_product.defvjp(_forward, _backward)


@jax.custom_vjp
def add_bias(
    y_BTF: jax.Array, bias_F: jax.Array, gradient_scale: GradientScale | None
) -> jax.Array:
    """y + bias, with one entry per neuron. Its gradient is summed in float32."""
    return y_BTF + bias_F


def _add_bias_backward(gradient_scale, gradient_BTF):
    gradient_NF = _scaled(gradient_BTF.reshape(-1, gradient_BTF.shape[-1]), gradient_scale)
    of_bias_F = gradient_NF.astype(jnp.float32).sum(axis=0).astype(gradient_BTF.dtype)
    return gradient_BTF, of_bias_F, None


add_bias.defvjp(
    lambda y_BTF, bias_F, gradient_scale: (y_BTF + bias_F, gradient_scale), _add_bias_backward
)
