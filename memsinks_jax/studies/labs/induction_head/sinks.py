"""Sinks in this setting: a model whose MLP has neurons that only some sequences may use.

Half of every batch are fresh sequences, half come from a small pool that returns all the time.
Neurons 0..S-1 of the MLP are shared, the rest are sinks. Every sequence has its own share of them,
drawn from its number. What the model knows about the pool beyond fresh sequences is memorized;
dropping the sinks should remove it and keep the induction head.

Axes as in `model`; R sequences of the pool, M sinks.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.studies.labs.induction_head import measures
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.law import Batch, Law, sampler
from memsinks_jax.studies.labs.induction_head.model import TwoLayers
from memsinks_jax.studies.labs.induction_head.training import Run, purpose, resumable

MODES = ("own", "dropped")  # sinks at test time: each sequence's own, as in training, or none
_WEIGHTS, _FRESH, _POOL, _MASKS, _TEST = range(10, 15)  # purposes of the seed's randomness
TESTED = 64  # fresh sequences per test


@dataclasses.dataclass(frozen=True)
class World:
    """Attributes:
    shared, sinks: neurons of the MLP; without sinks the model is ordinary. active: share of the
    sinks that a sequence may use. pool: sequences that return. batch: sequences per step, half of
    them from the pool.
    """

    law: Law
    d: int
    shared: int
    sinks: int
    active: float
    pool: int
    batch: int
    steps: int
    learning_rate: float = 0.002
    weight_decay: float = 1e-4
    log_every: int = 20

    @property
    def model(self) -> TwoLayers:
        return TwoLayers(self.d, feed_forward="mlp", hidden=self.shared + self.sinks)


def gates(world: World, key: jax.Array, numbers_B: jax.Array, mode: str) -> jax.Array:
    """Which neurons are on for the sequences with these numbers -> float32 (B, S + M)."""

    def own_M(number):
        return jax.random.bernoulli(jax.random.fold_in(key, number), world.active, (world.sinks,))

    on_BM = jax.vmap(own_M)(numbers_B) & (mode == "own")
    return jnp.concatenate(
        [jnp.ones((len(numbers_B), world.shared)), on_BM.astype(jnp.float32)], axis=1
    )


def logits(world: World, weights: dict, tokens_BT: jax.Array, gates_BF: jax.Array) -> jax.Array:
    return world.model.forward(
        weights, tokens_BT, lambda hidden_BTF: hidden_BTF * gates_BF[:, None]
    ).logits_BTV


@functools.partial(jax.jit, static_argnums=(0, 1, 7))
def _steps(
    world: World,
    statistics: Statistics,
    carry,
    others: dict,
    pool: Batch,
    keys: dict,
    first: int,
    count: int,
):
    """The state after `count` steps, the first with the number `first`. `keys` are by purpose."""
    rule, sample, half = _rule(world), sampler(statistics, world.law), world.batch // 2

    def one(carry, number):
        trained, state = carry
        of_fresh, of_choice = jax.random.split(jax.random.fold_in(keys[_FRESH], number))
        chosen_B = jax.random.permutation(of_choice, world.pool)[:half]
        fresh = sample(of_fresh, world.batch - half)
        batch = jax.tree.map(lambda new, old: jnp.concatenate([new, old[chosen_B]]), fresh, pool)
        # Numbers 0..R-1 are the pool's. Every fresh sequence has a number of its own.
        fresh_B = world.pool + number * world.batch + jnp.arange(world.batch - half)
        gates_BF = gates(world, keys[_MASKS], jnp.concatenate([fresh_B, chosen_B]), "own")

        def loss(trained):
            outputs_BTV = logits(world, {**others, **trained}, batch.tokens_BS[:, :-1], gates_BF)
            return measures.losses(outputs_BTV, batch.tokens_BS[:, 1:]).mean()

        updates, state = rule.update(jax.grad(loss)(trained), state, trained)
        return (optax.apply_updates(trained, updates), state), None

    return jax.lax.scan(one, carry, first + jnp.arange(count))[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _measure(
    world: World, statistics: Statistics, weights: dict, pool: Batch, keys: dict, number: int
) -> dict:
    """Tally after a step, of fresh sequences and of the pool."""
    fresh = sampler(statistics, world.law)(jax.random.fold_in(keys[_TEST], number), TESTED)
    found = {}
    for name, batch, first in (("fresh", fresh, 2**30), ("pool", pool, 0)):
        numbers_B = first + jnp.arange(len(batch.seen_BT))
        for mode in MODES:
            outputs_BTV = logits(
                world, weights, batch.tokens_BS[:, :-1], gates(world, keys[_MASKS], numbers_B, mode)
            )
            found |= {
                f"{name} {mode} {what}": pair
                for what, pair in measures.tally(outputs_BTV, batch).items()
            }
    return found


def _rule(world: World) -> optax.GradientTransformation:
    return optax.adamw(world.learning_rate, weight_decay=world.weight_decay)


def train(
    world: World,
    statistics: Statistics,
    seed: int,
    path: pathlib.Path,
    report: Callable[[int, dict], None],
) -> Run:
    """One run; `path` and `report` as in `training.resumable`.

    Its curves are 'acc_clean' and 'loss_bigram' of `measures.tally` after 'fresh own ', 'fresh
    dropped ', 'pool own ' and 'pool dropped '. Its test, by mode: means over the last three points
    of in-context accuracy and global loss of fresh sequences, and of what the model knows by heart,
    this loss minus that of the pool.
    """
    keys = {number: purpose(seed, number) for number in (_WEIGHTS, _FRESH, _POOL, _MASKS, _TEST)}
    others = world.model.initial(keys[_WEIGHTS], len(statistics.characters), world.law.length)
    trained = {name: others.pop(name) for name in world.model.trainable}
    pool = sampler(statistics, world.law)(keys[_POOL], world.pool)

    def advance(carry, done, count):
        carry = _steps(world, statistics, carry, others, pool, keys, done, count)
        found = _measure(world, statistics, {**others, **carry[0]}, pool, keys, done + count)
        return carry, measures.rates(jax.device_get(found))

    start = (trained, _rule(world).init(trained))
    carry, curves = resumable(path, world.steps, world.log_every, start, advance, report)
    shown = [
        " ".join(names)
        for names in itertools.product(("fresh", "pool"), MODES, ("acc_clean", "loss_bigram"))
    ]
    ends, test = {name: float(np.mean(curves[name][-3:])) for name in shown}, {}
    for mode in MODES:
        test[f"accuracy {mode}"] = ends[f"fresh {mode} acc_clean"]
        test[f"global {mode}"] = ends[f"fresh {mode} loss_bigram"]
        test[f"by heart {mode}"] = (
            ends[f"fresh {mode} loss_bigram"] - ends[f"pool {mode} loss_bigram"]
        )
    return Run(
        world, seed, {name: curves[name] for name in ("step", *shown)}, {**others, **carry[0]}, test
    )
