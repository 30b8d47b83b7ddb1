"""Training: fresh sequences drawn on the device, frozen memories, live probes, checkpoints.

The sequences of a step depend only on the seed and the step, so an interrupted run resumes bit for
bit. Axes as in `model`.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import time
import zipfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.atomic import atomic_file
from memsinks_jax.config import InputError
from memsinks_jax.studies.labs.induction_head import measures
from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.law import Batch, Law, candidates, sampler
from memsinks_jax.studies.labs.induction_head.model import Full, TwoLayers

AT_ONCE = 64  # sequences per gradient computation; larger batches sum several, which saves memory
EVALUATED = 192  # sequences in the test at the end
SAVE_EVERY_SECONDS = 20
_WEIGHTS, _DATA, _TEST = range(3)  # purposes of the seed's randomness


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One training run except for its seed.

    Attributes:
      everywhere: average the loss over all tokens, not only over outputs of triggers seen before.
      clip: largest norm of the gradient, None for no limit.
      frozen_until: (memory, step): before this step the memory has no gradient, decay or momentum.
      test_law: law of the test sequences during training, if it differs from `law`.
    """

    law: Law
    model: TwoLayers | Full
    steps: int
    batch: int
    learning_rate: float
    optimizer: str = "sgd"
    weight_decay: float = 1e-4
    clip: float | None = None
    everywhere: bool = False
    frozen_until: tuple[tuple[str, int], ...] = ()
    test_law: Law | None = None
    log_every: int = 10


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: `curves` {name: (points,)} including `step`, final `weights`, and `test`,
    rates on fresh sequences at the end. Those of `test_law` start with 'other_'.
    """

    recipe: Recipe
    seed: int
    curves: dict[str, np.ndarray]
    weights: dict[str, jax.Array]
    test: dict[str, float]


def purpose(seed: int, number: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), number)


def start(recipe: Recipe, statistics: Statistics, seed: int) -> tuple[dict, dict, optax.OptState]:
    """Trained weights, the others, and the optimizer's state."""
    drawn = recipe.model.initial(
        purpose(seed, _WEIGHTS), len(statistics.characters), recipe.law.length
    )
    trained = {name: drawn.pop(name) for name in recipe.model.trainable}
    return trained, drawn, optimizer(recipe).init(trained)


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """SGD adds decay to the gradient, as in PyTorch. AdamW applies it separately."""
    if recipe.optimizer == "adamw":
        rule = optax.adamw(recipe.learning_rate, b1=0.9, b2=0.99, weight_decay=recipe.weight_decay)
    else:
        decay = optax.add_decayed_weights(recipe.weight_decay)
        rule = optax.chain(decay, optax.sgd(recipe.learning_rate, momentum=0.9))
    return (
        rule if recipe.clip is None else optax.chain(optax.clip_by_global_norm(recipe.clip), rule)
    )


def gradient(recipe: Recipe, trained: dict, others: dict, batch: Batch) -> tuple[dict, dict]:
    """Gradient of the mean loss over the whole batch, and the batch's tally."""

    def total(trained, part):
        logits_BTV = recipe.model.forward({**others, **trained}, part.tokens_BS[:, :-1]).logits_BTV
        loss_BT = measures.losses(logits_BTV, part.tokens_BS[:, 1:])
        counted = jnp.where(recipe.everywhere | (part.seen_BT >= 2), loss_BT, 0.0)
        return counted.sum(), measures.tally(logits_BTV, part)

    step = jax.grad(total, has_aux=True)
    if len(batch.seen_BT) <= AT_ONCE:
        summed, tally = step(trained, batch)
    else:
        parts = jax.tree.map(lambda x: x.reshape(-1, AT_ONCE, *x.shape[1:]), batch)
        zeros = jax.tree.map(jnp.zeros_like, trained)

        def add(done, part):
            grads, tally = step(trained, part)
            return jax.tree.map(jnp.add, done, grads), tally

        summed, tallies = jax.lax.scan(add, zeros, parts)
        tally = jax.tree.map(lambda x: x.sum(0), tallies)
    count = batch.seen_BT.size if recipe.everywhere else jnp.maximum((batch.seen_BT >= 2).sum(), 1)
    return jax.tree.map(lambda x: x / count, summed), tally


@functools.partial(jax.jit, static_argnums=(0, 1, 6))
def steps(
    recipe: Recipe,
    statistics: Statistics,
    carry,
    others: dict,
    root: jax.Array,
    first: int,
    count: int,
):
    """`count` steps, the first with the number `first`. root: key of the data. others: weights that
    are not trained.

    (trained weights, optimizer's state) -> the same, and the summed tally. Compiled once for all
    seeds.
    """
    sample = sampler(statistics, recipe.law)
    rule = optimizer(recipe)
    until = dict(recipe.frozen_until)

    def one(carry, number):
        trained, state = carry
        grads, tally = gradient(
            recipe, trained, others, sample(jax.random.fold_in(root, number), recipe.batch)
        )
        free = {name: number >= until.get(name, 0) for name in trained}
        # Frozen memories look like zeros to the optimizer, so that no momentum builds up.
        hidden = {name: jnp.where(free[name], matrix, 0.0) for name, matrix in trained.items()}
        grads = {name: jnp.where(free[name], grad, 0.0) for name, grad in grads.items()}
        updates, state = rule.update(grads, state, hidden)
        trained = {
            name: jnp.where(free[name], matrix + updates[name], matrix)
            for name, matrix in trained.items()
        }
        return (trained, state), tally

    carry, tallies = jax.lax.scan(one, carry, first + jnp.arange(count))
    return carry, jax.tree.map(lambda x: x.sum(0), tallies)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def fresh(
    model: TwoLayers | Full,
    statistics: Statistics,
    law: Law,
    sequences: int,
    weights: dict,
    key: jax.Array,
) -> dict:
    """Tally of sequences that no training has seen."""
    batch = sampler(statistics, law)(key, sequences)
    return measures.summary(model.forward(weights, batch.tokens_BS[:, :-1]), batch)


@functools.partial(jax.jit, static_argnums=(0, 1))
def probes(recipe: Recipe, statistics: Statistics, weights: dict) -> dict[str, jax.Array]:
    """Probes of the weights -> {probe: value}."""
    model = recipe.model
    chosen = candidates(statistics, recipe.law)
    everything = np.arange(len(statistics.characters))
    undecided = np.setdiff1d(everything, chosen) if recipe.law.fixed else everything
    if isinstance(model, Full):
        return {}
    found = measures.probes(weights, chosen)
    if model.positions == "rotary":
        found = {
            name: value for name, value in found.items() if measures.MEMORY_OF[name] != "key_1"
        }
    if model.feed_forward != "none" and len(undecided):
        found["ff1"] = measures.bigram_divergence(
            measures.feed_forward_logits(weights), statistics, undecided
        )
    return found


def test_rates(
    model: TwoLayers | Full, statistics: Statistics, weights: dict, law: Law, seed: int
) -> dict[str, float]:
    """Rates on `EVALUATED` sequences of a law that no training has seen."""
    keys = jax.random.split(purpose(seed, _TEST), EVALUATED // 16)
    return measures.rates(
        measures.add(fresh(model, statistics, law, 16, weights, key) for key in keys)
    )


def digest(recipe: Recipe, statistics: Statistics, seed: int) -> str:
    """Hash of everything that determines a run."""
    hashed = repr((recipe, statistics.characters, seed)).encode() + statistics.bigrams_VV.tobytes()
    return hashlib.sha256(hashed).hexdigest()[:12]


def save(path: pathlib.Path, carry, step: int, curves: dict[str, list[float]]) -> None:
    """Writes atomically."""
    leaves = {
        f"leaf_{place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(carry))
    }
    with atomic_file(path) as scratch:
        np.savez(scratch, step=step, curves=json.dumps(curves), **leaves)


def load(path: pathlib.Path, carry):
    """Reads what `save` wrote, shaped like `carry`. Raises InputError if the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file) as stored:
            leaves, shape = jax.tree.flatten(carry)
            found = [jnp.asarray(stored[f"leaf_{place}"]) for place in range(len(leaves))]
            step, curves = int(stored["step"]), json.loads(str(stored["curves"]))
            return jax.tree.unflatten(shape, found), step, curves
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: cannot be read ({type(error).__name__}); delete it and run again"
        ) from None


def resumable(
    path: pathlib.Path,
    steps: int,
    log_every: int,
    carry,
    advance: Callable,
    report: Callable[[int, dict], None],
):
    """Trains, from a checkpoint at `path` if there is one -> (carry, curves {name: (points,)}
    including `step`).

    carry: trained weights and the optimizer's state. advance: (carry, steps done, further steps) ->
    (carry, {name: value}).
    report: called with the step and these values every `log_every` steps. If it raises, the state
    is saved and the run ends.
    """
    done, curves, saved = 0, {}, time.monotonic()
    if path.exists():
        carry, done, curves = load(path, carry)
    while done < steps:
        count = min(log_every, steps - done)
        carry, point = advance(carry, done, count)
        done += count
        for name, value in ({"step": done} | point).items():
            curves.setdefault(name, []).append(value)
        if done == steps or time.monotonic() - saved > SAVE_EVERY_SECONDS:
            save(path, carry, done, curves)
            saved = time.monotonic()
        try:
            report(done, point)
        except BaseException:
            save(path, carry, done, curves)
            raise
    return carry, {name: np.array(values) for name, values in curves.items()}


def train(
    recipe: Recipe,
    statistics: Statistics,
    seed: int,
    path: pathlib.Path,
    report: Callable[[int, dict], None],
) -> Run:
    """One run; `path` and `report` as in `resumable`."""
    trained, others, state = start(recipe, statistics, seed)
    of_data, of_test, few = purpose(seed, _DATA), purpose(seed, _TEST), min(recipe.batch, 16)

    def advance(carry, done, count):
        carry, tally = steps(recipe, statistics, carry, others, of_data, done, count)
        weights, key = {**others, **carry[0]}, jax.random.fold_in(of_test, done + count)
        tested = fresh(recipe.model, statistics, recipe.test_law or recipe.law, few, weights, key)
        tested, found = measures.rates(jax.device_get(tested)), probes(recipe, statistics, weights)
        point = measures.rates(jax.device_get(tally)) | {
            name: float(value) for name, value in found.items()
        }
        point |= {name: value for name, value in tested.items() if name.startswith("score")}
        if recipe.test_law is not None:
            point |= {f"other_{name}": tested[name] for name in ("acc_end", "acc_clean")}
        return carry, point

    carry, curves = resumable(
        path, recipe.steps, recipe.log_every, (trained, state), advance, report
    )
    weights, test = {**others, **carry[0]}, {}
    for prefix, law in (("", recipe.law), ("other_", recipe.test_law)):
        if law is not None:
            rates = test_rates(recipe.model, statistics, weights, law, seed)
            test |= {prefix + name: value for name, value in rates.items()}
    return Run(recipe, seed, curves, weights, test)
