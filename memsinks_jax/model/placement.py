"""How activations lie on the devices: the names of the mesh's axes, and hints to the compiler.

The mesh is that of the context (`jax.set_mesh`). Without one, or with one device, these functions
do nothing. An axis that the mesh does not divide is left whole.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache, partial, wraps

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import Config, DataConfig
from memsinks_jax.model import host_memory

# `data` splits the batch, `fsdp` the batch and the parameters, `tensor` heads and hidden neurons.
AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")
FSDP, TENSOR = "fsdp", "tensor"


def mesh_of(arrays) -> Mesh | None:
    """The mesh of a tree of arrays, or of shapes with shardings; None if no leaf has one."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arrays))
    return next((each.mesh for each in shardings if isinstance(each, NamedSharding)), None)


def on_mesh_of(arrays) -> contextlib.AbstractContextManager:
    """Sets the mesh of `arrays`; if they have none, the context stays as it is."""
    mesh = mesh_of(arrays)
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def jit(function: Callable, **options) -> Callable:
    """jax.jit, traced and called on the mesh of its arguments, for programs that use the parameters
    of an opened model.

    Without the mesh the hints here have no effect, and a kernel that XLA cannot split cannot run on
    several devices. A call returns freed memory first, if there is much.
    """
    compiled = jax.jit(function, **options)

    def call(*args, **kwargs):
        host_memory.bound_freed_memory()
        with on_mesh_of((args, kwargs)):
            return compiled(*args, **kwargs)

    return call


def shared(make: Callable) -> Callable:
    """`make(config, *others)` returns compiled functions of a model. It is called once for configs
    that are alike in what such functions read, and equal `others`: a model that is opened again, or
    used for something else, is not traced again.
    """
    made = lru_cache(maxsize=64)(make)
    return wraps(make)(lambda config, *others: made(_read_by_programs(config), *others))


def _read_by_programs(config: Config) -> Config:
    """What of a config is read where a model is applied."""
    data = DataConfig(
        row_length=config.data.row_length, vocabulary_size=config.data.vocabulary_size
    )
    model, compute = (
        dataclasses.replace(config.model, initial=""),
        dataclasses.replace(config.compute, accumulate=1),
    )
    return Config(
        seed=config.seed,
        data=data,
        sinks=config.sinks,
        contexts=config.contexts,
        model=model,
        compute=compute,
    )


def divides(names: str | tuple | None, size: int) -> bool:
    """Whether the mesh's axes of these names split `size` into equal parts; true without a mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return (
        size
        % math.prod(
            shape.get(name, 1) for name in ([names] if isinstance(names, str) else names or ())
        )
        == 0
    )


def parts_along(name: str, size: int) -> int:
    """The number of parts into which the mesh axis splits `size`: 1 without a mesh, or if it does
    not divide `size`.
    """
    return jax.sharding.get_abstract_mesh().shape.get(name, 1) if divides(name, size) else 1


def split(x: jax.Array, *axes: str | tuple | None) -> P:
    """The partition of an activation: `axes` has one entry per axis of x. Mesh axes that do not
    divide x are left out.
    """
    return P(
        *(
            names if divides(names, size) else None
            for size, names in zip(x.shape, axes, strict=True)
        )
    )


def constrain(x: jax.Array, *axes: str | tuple | None) -> jax.Array:
    """Shards an activation by `axes`. Without this hint XLA gathers activations where it should
    gather weights.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, split(x, *axes))


def gather(kernel: jax.Array, *axes: str | None) -> jax.Array:
    """Gathers a weight along fsdp for the product with an activation. Its gradient is sharded like
    the parameter, by `axes`.

    Without this, XLA on TPUs passes parts of the weight around while it multiplies by them: twice
    the time.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return kernel
    return _gather(axes, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(axes, kernel):
    return constrain(kernel, *(name if name != FSDP else None for name in axes))


_gather.defvjp(
    lambda axes, kernel: (_gather(axes, kernel), None),
    lambda axes, _, gradient: (constrain(gradient, *axes),),
)


def on_each_device(function, inputs: list, specs: list[tuple], output: int):
    """Applies `function` to each device's shards, for kernels that XLA cannot split itself.

    Args:
      inputs: arrays, or None, which is passed on.
      specs: the axes of every input, as `split` takes them.
      output: the index of the input whose sharding the result has.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function(*inputs)
    given = [i for i, x in enumerate(inputs) if x is not None]
    partitions = {i: split(inputs[i], *specs[i]) for i in given}

    def of_parts(*parts):
        whole = dict(zip(given, parts, strict=True))
        return function(*(whole.get(i) for i in range(len(inputs))))

    return jax.shard_map(
        of_parts,
        in_specs=tuple(partitions[i] for i in given),
        out_specs=partitions[output],
        check_vma=False,
    )(*(inputs[i] for i in given))
