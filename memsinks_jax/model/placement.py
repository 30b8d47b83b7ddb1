"""How activations lie on the devices: the names of the mesh's axes, and hints to the compiler.

The mesh is that of the context (`jax.set_mesh`); without one, or with one device, nothing here does anything. What a mesh
axis does not divide is left whole.
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# `data` splits the batch, `fsdp` the batch and the parameters, `tensor` heads and hidden neurons.
AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")
FSDP, TENSOR = "fsdp", "tensor"


def mesh_of(arrays) -> Mesh | None:
    """The mesh that a tree of arrays, or of shapes with shardings, lies on; None where no leaf lies on one."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arrays))
    return next((each.mesh for each in shardings if isinstance(each, NamedSharding)), None)


def on_mesh_of(arrays) -> contextlib.AbstractContextManager:
    """Sets the mesh of `arrays`; without one the context stays as it is."""
    mesh = mesh_of(arrays)
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def jit(function: Callable, **options) -> Callable:
    """jax.jit, traced and called on the mesh of its arguments: for whatever computes with the parameters of an opened model.

    Without the mesh the hints here would say nothing, and a kernel that XLA cannot split would not run on several devices.
    """
    compiled = jax.jit(function, **options)

    def call(*args, **kwargs):
        with on_mesh_of((args, kwargs)):
            return compiled(*args, **kwargs)

    return call


def divides(names: str | tuple | None, size: int) -> bool:
    """Whether the mesh's axes of these names split `size` into equal parts; true without a mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return size % math.prod(shape.get(name, 1) for name in ([names] if isinstance(names, str) else names or ())) == 0


def parts_along(name: str, size: int) -> int:
    """Into how many parts the mesh's axis of this name splits `size`: 1 without a mesh, or where it does not divide it."""
    return jax.sharding.get_abstract_mesh().shape.get(name, 1) if divides(name, size) else 1


def split(x: jax.Array, *axes: str | tuple | None) -> P:
    """The partition of an activation: `axes` name mesh axes, one entry for each axis of x, as far as they divide it."""
    return P(*(names if divides(names, size) else None for size, names in zip(x.shape, axes, strict=True)))


def constrain(x: jax.Array, *axes: str | tuple | None) -> jax.Array:
    """Lays an activation out as `axes` say. XLA, left alone, gathers activations where it should gather weights."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, split(x, *axes))


def gather(kernel: jax.Array, *axes: str | None) -> jax.Array:
    """A weight whole along fsdp, for the product with an activation; its gradient lies like the parameter, as `axes` say.

    Said aloud, since XLA on TPUs would pass parts of the weight around while it multiplies by them: twice the time.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return kernel
    return _gather(axes, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(axes, kernel):
    return constrain(kernel, *(name if name != FSDP else None for name in axes))


_gather.defvjp(
    lambda axes, kernel: (_gather(axes, kernel), None), lambda axes, _, gradient: (constrain(gradient, *axes),)
)


def on_each_device(function, inputs: list, specs: list[tuple], output: int):
    """`function` of the parts that each device holds, for kernels which XLA cannot split itself.

    Args:
      inputs: arrays, or None, which is passed on.
      specs: for every input the axes as `split` takes them.
      output: which input the result is laid out like.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function(*inputs)
    given = [i for i, x in enumerate(inputs) if x is not None]
    partitions = {i: split(inputs[i], *specs[i]) for i in given}

    def of_parts(*parts):
        whole = dict(zip(given, parts, strict=True))
        return function(*(whole.get(i) for i in range(len(inputs))))

    return jax.shard_map(
        of_parts, in_specs=tuple(partitions[i] for i in given), out_specs=partitions[output], check_vma=False
    )(*(inputs[i] for i in given))
