"""One update: forward with the run's interventions, loss, gradient, guard, AdamW. Everything here
is traced once.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from memsinks_jax.config import Config
from memsinks_jax.model.decoder import CONTEXTS, build_model
from memsinks_jax.model.losses import token_losses, valid_weights
from memsinks_jax.model.placement import BATCH, constrain
from memsinks_jax.sinks.blocks import sinks_for_mode
from memsinks_jax.sinks.kinds import Partition, has_tables
from memsinks_jax.sinks.learning import slowed
from memsinks_jax.sinks.opening import opened
from memsinks_jax.training import active_rows
from memsinks_jax.training.guard import Guard, check_update, init_guard
from memsinks_jax.training.method import method_of
from memsinks_jax.training.optimizer import accepted, learning_rate, make_optimizer, split


class TrainState(NamedTuple):
    """The state that an update changes and a checkpoint holds. `step` counts finished updates,
    int32 ().
    """

    step: jax.Array
    params: dict
    optimizer: optax.OptState
    guard: Guard


def init_params(config: Config, params: dict | None = None) -> dict:
    """Fresh parameters from the config's seed (float32), or those given. Trace it with
    `jax.eval_shape` for shapes.
    """
    if params is None:
        params = build_model(config)[0].init(jax.random.key(config.seed, impl="threefry2x32"))
    trained, frozen = split(config, params)
    # What is frozen is only read, in the type of activations.
    return trained | jax.tree.map(lambda leaf: leaf.astype(config.model.dtype), frozen)


def init_state(config: Config, steps: int, params: dict | None = None) -> TrainState:
    """Zero moments, and the parameters of `init_params`."""
    params = init_params(config, params)
    optimizer = make_optimizer(config, steps).init(split(config, params)[0])
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer, init_guard())


def make_train_step(config: Config, steps: int, platform: str | None = None) -> Callable:
    """(state, batch, seed) -> (state, metrics). The batch is that of data/packing.py, seed a uint32
    ().

    Metrics: `train_loss` (nats per token, sum over tokens / number of tokens of the global batch),
    `tokens`, `invalid_labels` (targets outside the vocabulary; they are left out), `gradient_norm`
    before clipping, `learning_rate`, `skipped_updates` so far and `skipped_in_a_row`. `platform` is
    build_model's.
    """
    model, parts = build_model(config, platform)
    optimizer, schedule = make_optimizer(config, steps), learning_rate(config.optimizer, steps)
    method, sparse = method_of(config), has_tables(config)

    def losses_of(
        frozen: dict, params: dict, batch: dict, step: jax.Array, seed: jax.Array
    ) -> jax.Array:
        """The losses of a batch or a microbatch, (B, T)."""
        learning_BT, gradient_scale = method.slowing(batch)
        inputs_BT, positions_BT, segments_BT = (
            batch["inputs"],
            batch["positions"],
            batch["segments"],
        )
        if config.data.across_documents:
            segments_BT = jnp.minimum(segments_BT, 1)
        read_out = partial(
            token_losses,
            targets_BT=batch["targets"],
            weights_BT=batch["weights"],
            chunks=config.compute.loss_chunks,
        )
        gates = method.interventions(batch, step, seed)
        losses_BT = model(
            frozen | params,
            inputs_BT,
            segments_BT,
            positions_BT,
            gates,
            gradient_scale=gradient_scale,
            read_out=read_out,
        )
        return losses_BT if learning_BT is None else slowed(losses_BT, learning_BT)

    def train_step(state: TrainState, batch: dict, seed: jax.Array) -> tuple[TrainState, dict]:
        weights_BT = valid_weights(batch["targets"], batch["weights"], config.data.vocabulary_size)
        invalid_labels, tokens = (batch["weights"] - weights_BT).sum(), weights_BT.sum()
        batch = batch | {"weights": weights_BT, "rows": jnp.arange(len(weights_BT))}
        trained, frozen = split(config, state.params)
        before = params, optimizer_state = trained, state.optimizer
        if sparse:
            name, requested, pool = _requested(config, parts, batch, seed)
            rows = active_rows.find(requested, pool)
            batch |= {name: rows.places}
            before = params, optimizer_state = active_rows.gather(before, rows)

        def loss_and_gradients(part: dict) -> tuple[jax.Array, dict]:
            losses = partial(losses_of, frozen, step=state.step, seed=seed)
            # Over the tokens of the whole batch.
            return method.gradients(
                losses, params, part, jnp.maximum(tokens, 1.0), state.step, seed
            )

        loss, gradients = _summed_over_parts(loss_and_gradients, batch, config.compute.accumulate)
        gradients = method.steps(gradients)
        gradient_norm = optax.tree.norm(
            {name: leaf for name, leaf in gradients.items() if name != CONTEXTS}
        )
        accept, guard = check_update(state.guard, loss, gradient_norm, config.training)
        update_mask = method.update_mask(batch, seed)

        def changes(path: tuple, leaf: jax.Array) -> jax.Array:
            return (
                accept
                & update_mask(path)
                & (active_rows.update_mask(path, leaf, rows) if sparse else True)
            )

        updates, optimizer_state = optimizer.update(
            gradients, optimizer_state, params, accept=changes
        )
        updated = accepted(changes, (optax.apply_updates(params, updates), optimizer_state), before)
        if sparse:
            updated = active_rows.scatter((trained, state.optimizer), updated, rows)
        metrics = {
            "train_loss": loss,
            "tokens": tokens,
            "invalid_labels": invalid_labels,
            "gradient_norm": gradient_norm,
            # the optimizer counts only updates that were made
            "learning_rate": schedule(state.guard.accepted),
            "skipped_updates": guard.skipped,
            "skipped_in_a_row": guard.in_a_row,
        }
        params, optimizer_state = updated
        return TrainState(state.step + 1, frozen | params, optimizer_state, guard), metrics

    return train_step


def _requested(
    config: Config, parts: Partition, batch: dict, seed: jax.Array
) -> tuple[str, jax.Array, int]:
    """(name in the batch of the table rows that it reads, their numbers int32 (B, ...), how many
    rows there are)
    """
    if config.sinks.traits.by_context:
        return "contexts", batch["contexts"], config.contexts.rows
    about = batch["identities"], seed, parts.sinks, config.sinks, batch["segments"]
    return (
        "sinks",
        sinks_for_mode("own", *about, opened(batch, config.sinks)),
        parts.sinks,
    )


def _summed_over_parts(function: Callable, batch: dict, count: int):
    """Sums the results of `function` over `count` microbatches, one after the other."""
    if count == 1:
        return function(batch)
    # Every count-th row, not adjacent rows, so that every microbatch has rows of all devices.
    parts = jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:]), batch)

    def add(total, number):
        part = jax.tree.map(lambda x: constrain(x[:, number], BATCH, *[None] * (x.ndim - 2)), parts)
        return jax.tree.map(jnp.add, total, function(part)), None

    zeros = jax.tree.map(
        jnp.zeros_like, jax.eval_shape(function, jax.tree.map(lambda x: x[:, 0], parts))
    )
    return jax.lax.scan(add, zeros, jnp.arange(count))[0]
