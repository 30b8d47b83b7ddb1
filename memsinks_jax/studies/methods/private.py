"""DP-SGD (Abadi et al. 2016): every row's gradient is clipped, and noise is added to their sum. By
optax's aggregation.

It protects a row. A document that is read k times is in k of them. No epsilon is computed here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from memsinks_jax.config import InputError, setting
from memsinks_jax.training.method import Method


class Private(Method):
    """Of a model without sinks, a whole batch at once. Rows are clipped, and nothing else is."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        noise_multiplier: float = setting(
            0.1, "standard deviation of the noise on summed gradients / clip_norm", above=0
        )

    def __init__(self, config, settings):
        super().__init__(config, settings)
        if config.sinks.kind != "none" or config.compute.accumulate > 1:
            raise InputError(
                "config.training.method is DP-SGD, which trains a model without sinks, a whole "
                "batch at once; set config.sinks.kind=none and config.compute.accumulate=1"
            )

    def gradients(self, losses, params, batch, tokens, step, seed):
        """The gradient is the mean of the rows' clipped ones, with noise, a function of (seed,
        step).

        A row's loss is the mean of its own tokens.
        """

        def of_row(row: dict) -> tuple[jax.Array, dict]:
            alone, count = (
                jax.tree.map(lambda x: x[None], row),
                jnp.maximum(row["weights"].sum(), 1.0),
            )
            return jax.value_and_grad(lambda p: losses(p, alone).sum() / count)(params)

        loss_B, gradients_B = jax.vmap(of_row)(batch)
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)
        norm, noise = self.config.optimizer.clip_norm, self.settings.noise_multiplier
        aggregate = optax.contrib.differentially_private_aggregate(norm, noise, key)
        found, _ = aggregate.update(gradients_B, aggregate.init(params))
        tokens_B = batch["weights"].sum(axis=1)
        return (loss_B * tokens_B).sum() / jnp.maximum(tokens_B.sum(), 1.0), found

    def clip(self):
        return optax.identity()
