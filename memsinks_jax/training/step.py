"""One update: forward with the run's interventions, loss, gradient, guard, AdamW. Everything here is traced once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from memsinks_jax import sinks
from memsinks_jax.config import Config
from memsinks_jax.model import build_model, token_losses, valid_weights
from memsinks_jax.training.guard import Guard, init_guard, judge
from memsinks_jax.training.optimizer import learning_rate, make_optimizer


class TrainState(NamedTuple):
    """What an update changes and a checkpoint holds. `step` counts finished updates, int32 ()."""

    step: jax.Array
    params: dict
    optimizer: optax.OptState
    guard: Guard


def init_state(config: Config, steps: int) -> TrainState:
    """Fresh parameters (float32) and zero moments, from the config's seed. Trace it with `jax.eval_shape` for shapes."""
    model, _ = build_model(config)
    row = jnp.zeros((1, config.data.row_length), jnp.int32)
    params = model.init(jax.random.key(config.seed, impl="threefry2x32"), row, row, row)["params"]
    optimizer = make_optimizer(config.optimizer, steps).init(params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer, init_guard(config.training))


def training_gates(config: Config, parts: sinks.Partition, batch: dict, step: jax.Array, seed: jax.Array) -> dict:
    """The interventions under which a batch is trained on, by `config.sinks.kind`."""
    if config.sinks.kind == "by_chance":
        gates = sinks.chance_gates(step, batch["inputs"].shape, seed, parts, config.sinks)
        return sinks.apply_gates(gates, segments_BT=None)
    gates = sinks.gates_for_mode("own", batch["identities"], seed, parts, config.sinks, config.model.layers)
    return sinks.apply_gates(gates, batch["segments"])


def make_train_step(config: Config, steps: int) -> Callable:
    """(state, batch, seed) -> (state, metrics). The batch is that of data/packing.py, seed a uint32 ().

    Metrics: `train_loss` (nats per token, sum over tokens / number of tokens of the global batch), `tokens`,
    `invalid_labels` (targets that are no token of the vocabulary; they are left out), `gradient_norm` before clipping,
    `learning_rate`, `skipped_updates` so far and `skipped_in_a_row`.
    """
    model, parts = build_model(config)
    optimizer = make_optimizer(config.optimizer, steps)
    schedule = learning_rate(config.optimizer, steps)

    def loss_of(params: dict, batch: dict, weights_BT: jax.Array, interventions: dict) -> jax.Array:
        logits_BTV = model.apply(
            {"params": params}, batch["inputs"], batch["segments"], batch["positions"], interventions
        )
        losses_BT = token_losses(logits_BTV, batch["targets"], weights_BT)
        return losses_BT.sum() / jnp.maximum(weights_BT.sum(), 1.0)

    def train_step(state: TrainState, batch: dict, seed: jax.Array) -> tuple[TrainState, dict]:
        interventions = training_gates(config, parts, batch, state.step, seed)
        weights_BT = valid_weights(batch["targets"], batch["weights"], config.data.vocabulary_size)
        loss, gradients = jax.value_and_grad(loss_of)(state.params, batch, weights_BT, interventions)
        gradient_norm = optax.tree.norm(gradients)
        accept, guard = judge(state.guard, loss, gradient_norm, config.training)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        updated = (optax.apply_updates(state.params, updates), optimizer_state)
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(accept, new, old), updated, (state.params, state.optimizer)
        )
        metrics = {
            "train_loss": loss,
            "tokens": weights_BT.sum(),
            "invalid_labels": (batch["weights"] - weights_BT).sum(),
            "gradient_norm": gradient_norm,
            "learning_rate": schedule(state.guard.accepted),  # the optimizer counts the updates that were made
            "skipped_updates": guard.skipped,
            "skipped_in_a_row": guard.in_a_row,
        }
        return TrainState(state.step + 1, params, optimizer_state, guard), metrics

    return train_step
