"""Scaling up the shared neurons when sinks are dropped, to make up for the missing ones, as dropout
does at evaluation.

Published code multiplies by (g + p) / g, with g the shared fraction of an MLP's neurons and p the
active fraction of its sinks. The paper does not mention it.
"""

import jax.numpy as jnp

from memsinks_jax.config import Config
from memsinks_jax.sinks.kinds import partition, share_on


def factors(config: Config) -> dict[str, float]:
    """-> {"published": (g + p) / g, "width": by which active sinks widen the shared neurons}."""
    parts = partition(config.model, config.sinks)
    on = share_on(config.sinks, parts.sinks)
    g = parts.shared / sum(parts)
    return {"published": (g + on) / g, "width": (g + (1 - g) * on) / g}


def scaled(config: Config, params: dict, factor: float) -> dict:
    """The parameters with the output of the MLPs' shared neurons multiplied by a factor."""
    shared = partition(config.model, config.sinks).shared
    kernel_LFD = params["layers"]["down_kernel"]
    factors_F = jnp.where(jnp.arange(kernel_LFD.shape[1]) < shared, factor, 1.0)
    kernel_LFD = kernel_LFD * factors_F[:, None]
    return params | {"layers": params["layers"] | {"down_kernel": kernel_LFD}}
