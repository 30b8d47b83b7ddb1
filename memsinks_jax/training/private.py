"""DP-SGD (Abadi et al. 2016): every row's gradient is clipped, and noise is added to their sum. By optax's aggregation.

It protects a row. A document that is read k times is in k of them. No epsilon is computed here.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from memsinks_jax.config import Config, InputError, OptimizerConfig


def refuse(config: Config) -> None:
    """Raises InputError if a step has no gradients per row: with sinks, or with microbatches."""
    if config.optimizer.noise_multiplier and (config.sinks.kind != "none" or config.compute.accumulate > 1):
        raise InputError(
            f"config.optimizer.noise_multiplier is {config.optimizer.noise_multiplier:g}, and DP-SGD trains a model without "
            "sinks, a whole batch at once; set config.sinks.kind=none and config.compute.accumulate=1"
        )


def gradients(
    losses: Callable[[dict, dict], jax.Array], params: dict, batch: dict, step: jax.Array, seed: jax.Array,
    settings: OptimizerConfig,
) -> tuple[jax.Array, dict]:  # fmt: skip
    """(params, rows -> losses (B, T)) -> (nats per token of the batch, mean of the rows' clipped gradients, with noise).

    The noise is a function of (seed, step). A row's loss is the mean of its own tokens.
    """

    def of_row(row: dict) -> tuple[jax.Array, dict]:
        alone = jax.tree.map(lambda x: x[None], row)
        return jax.value_and_grad(lambda p: losses(p, alone).sum() / jnp.maximum(row["weights"].sum(), 1.0))(params)

    loss_B, gradients_B = jax.vmap(of_row)(batch)
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)
    aggregate = optax.contrib.differentially_private_aggregate(settings.clip_norm, settings.noise_multiplier, key)
    found, _ = aggregate.update(gradients_B, aggregate.init(params))
    tokens_B = batch["weights"].sum(axis=1)
    return (loss_B * tokens_B).sum() / jnp.maximum(tokens_B.sum(), 1.0), found
