"""AdamW or Muon, and their schedules. Rules over the paths decide which parameters decay, and which
belong to sinks.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from memsinks_jax.config import Config, InputError, OptimizerConfig
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.sinks.kinds import has_sinks, has_tables, is_sparse, partition
from memsinks_jax.training.method import method_of
from memsinks_jax.training.paths import first_match, path_name

# Ordered (regex over the parameter's path, whether it decays); the first match wins, no match is an
# error. nanoGPT's rule: matrices decay, biases and norms do not.
DECAY_RULES = (
    (r"(^|/)(token|position)_embedding$", True),
    (r"_kernel$", True),
    (r"(^|/)sink_(up|gate|down)$", True),
    (r"_bias$", False),
    (r"_norm/(scale|bias)$", False),
)

# Matrices that Muon updates, (L, in, out). AdamW updates the rest, with embeddings and head (Jordan
# 2024).
MUON = r"(^|/)layers/\w+_kernel$"
# Root mean square of AdamW's updates. Scaled to it, Muon can use the same learning rate and decay
# (Liu et al. 2025, 2.2).
_MUON_RMS = 0.2
_EPSILON = 1e-8  # of Adam, as in optax

# Tables of sparse sinks, and the optimizer's state of their rows.
TABLE = r"(^|/)sink_\w+$"

# Ordered (regex, axis of its sinks or None): the weights for which sinks can have their own
# learning rate.
SINK_RULES = (
    (r"(^|/)(up|gate)_(kernel|bias)$", -1),
    (r"(^|/)down_kernel$", -2),
    (r"(^|/)sink_\w+_bias$", -2),
    (TABLE, -3),
    (r".", None),
)


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Rises linearly over the warmup to the peak, and has `final_fraction` of it at the last of
    `steps` updates, steps - 1.

    In between it follows a cosine, or with wsd the peak and then a straight line (Hu et al. 2024,
    arXiv:2404.06395). With too few updates the warmup gives way: two have the peak and the final
    rate, and a single one has the final rate.
    """
    warmup = max(min(config.warmup_steps, int(config.warmup_fraction * steps), steps - 2), 0)
    first, peak, last = (
        config.learning_rate / (warmup + 1),
        config.learning_rate,
        config.learning_rate * config.final_fraction,
    )
    if steps == 1:
        return optax.linear_schedule(last, last, 1)
    if config.schedule == "wsd":
        decay = max(min(int(config.decay_fraction * steps), steps - 1 - warmup), 1)
        parts = [
            optax.linear_schedule(first, peak, warmup),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, last, decay),
        ]
        return optax.join_schedules(parts, [warmup, steps - 1 - decay])
    return optax.warmup_cosine_decay_schedule(first, peak, warmup, steps - 1, last)


def make_optimizer(config: Config, steps: int) -> optax.GradientTransformation:
    """Clipping by the method, then AdamW or Muon. Moments are float32 and shaped like the
    parameters.

    Raises:
      InputError: Muon with sinks among the columns of its matrices, or what the method refuses.
    """
    settings = config.optimizer
    if not settings.base_multiple and not (has_tables(config) and has_sinks(config)):
        raise InputError(
            "config.optimizer.base_multiple is 0, which trains nothing but sinks that are rows "
            "of tables, and this model "
            "has none; set config.sinks.pool and config.sinks.sparse=True, or a base_multiple "
            "above 0"
        )
    direction = scale_by_adam(settings.b1, settings.b2)
    if settings.kind == "muon":
        _check_matrices(config)
        direction = optax.partition({"muon": scale_by_muon(), "adam": direction}, _by_muon)
    chain = [
        method_of(config).clip(),
        optax.chain(
            direction,
            optax.add_decayed_weights(settings.weight_decay, decay_mask),
            optax.scale_by_learning_rate(learning_rate(settings, steps)),
        ),
    ]
    if (config.sinks.learning_rate_multiple, settings.base_multiple) != (1, 1):
        chain.append(scale_sinks(config))
    if not config.sinks.traits.by_context:
        return optax.chain(*chain)
    # Their steps have their length already, see method.ByContext.
    rows = optax.scale(-config.contexts.rate)
    return optax.partition({"rows": rows, "rest": optax.chain(*chain)}, _by_row)


def _by_row(params: dict) -> dict:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "rows" if path_name(path) == CONTEXTS else "rest", params
    )


def scale_by_muon() -> optax.GradientTransformation:
    """optax's Muon for matrices stacked over layers, with updates as large as AdamW's."""

    def resized(update: jax.Array) -> jax.Array:
        return update * _MUON_RMS * max(update.shape[1:]) ** 0.5

    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return optax.chain(
        optax.contrib.scale_by_muon(
            weight_dimension_numbers=lambda tree: jax.tree.map(lambda _: axes, tree)
        ),
        optax.stateless(lambda updates, params: jax.tree.map(resized, updates)),
    )


def _by_muon(params) -> dict:
    """ "muon" or "adam" of every parameter."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "muon" if re.search(MUON, path_name(path)) else "adam", params
    )


def _check_matrices(config: Config) -> None:
    """Orthogonalizing enlarges what is left of an old moment, so it would move sinks that are on
    for no document.
    """
    parts = partition(config.model, config.sinks)
    if config.sinks.traits.tied and parts.sinks and not is_sparse(config.sinks):
        raise InputError(
            "config.optimizer.kind is muon, which would move sinks that are off; set "
            "config.sinks.sparse=True and sampling=floyd, or train without sinks"
        )


# Path of a parameter or a moment, and itself -> whether it changes, or which parts of it.
Accept = Callable[[tuple, jax.Array], jax.Array | bool]


class RowAdamState(NamedTuple):
    """Moments, and the number of updates: int32 () for everything but tables, (M,) for the rows of
    each table.
    """

    count: jax.Array
    counts: dict
    mu: optax.Updates
    nu: optax.Updates


def scale_by_adam(b1: float, b2: float) -> optax.GradientTransformationExtraArgs:
    """optax.scale_by_adam, with a bias correction by the number of updates of each row of the
    tables, if there are any.

    Its update takes `accept`, which decides whether the moments of a parameter change. They do not
    have to be kept for that after the update, and are made before the direction is: so XLA's CPU
    backend writes them in place. It would copy them first, a third of the memory of a step without
    its state.
    """

    def init(params) -> optax.ScaleByAdamState | RowAdamState:
        count, zeros = (
            jnp.zeros((), jnp.int32),
            [jax.tree.map(jnp.zeros_like, params) for _ in range(2)],
        )
        tables = {
            name: leaf
            for name, leaf in params.items()
            if re.search(TABLE, name) and jax.tree.leaves(leaf)
        }
        # others' are masked
        counts = {name: jnp.zeros(len(leaf), jnp.int32) for name, leaf in tables.items()}
        return (
            RowAdamState(count, counts, *zeros) if counts else optax.ScaleByAdamState(count, *zeros)
        )

    def update(
        gradients, state, params=None, *, accept: Accept = lambda path, leaf: True
    ) -> tuple[optax.Updates, NamedTuple]:
        def moment(power: int, decay: float) -> Callable:
            def of(path: tuple, g: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(accept(path, old), (1 - decay) * g**power + decay * old, old)

            return of

        mu = jax.tree_util.tree_map_with_path(moment(1, b1), gradients, state.mu)
        nu = jax.tree_util.tree_map_with_path(moment(2, b2), gradients, state.nu)
        mu, nu = jax.lax.platform_dependent(
            (mu, nu), cpu=jax.lax.optimization_barrier, default=lambda moments: moments
        )
        counted = {"count": state.count + 1}
        if isinstance(state, RowAdamState):
            counted["counts"] = jax.tree.map(lambda count: count + 1, state.counts)

        def direction(path: tuple, mu: jax.Array, nu: jax.Array) -> jax.Array:
            times = counted.get("counts", {}).get(path_name(path), counted["count"])
            times = times.reshape(times.shape + (1,) * (mu.ndim - times.ndim)).astype(jnp.float32)
            return mu / (1 - b1**times) / (jnp.sqrt(nu / (1 - b2**times)) + _EPSILON)

        return jax.tree_util.tree_map_with_path(direction, mu, nu), state._replace(
            mu=mu, nu=nu, **counted
        )

    return optax.GradientTransformationExtraArgs(init, update)


def accepted(accept: Accept, updated, before):
    """Parameters and optimizer state after an update where it is accepted, elsewhere those before
    it.
    """
    adams = optax.ScaleByAdamState, RowAdamState

    def choose(path: tuple, new, old):
        if not isinstance(new, adams):
            return jnp.where(accept(path, old), new, old)
        rest = [
            {name: part for name, part in state._asdict().items() if name not in ("mu", "nu")}
            for state in (new, old)
        ]
        chosen = jax.tree_util.tree_map_with_path(
            lambda below, *pair: choose((*path, *below), *pair), *rest
        )
        return new._replace(**chosen)  # scale_by_adam has chosen the moments

    return jax.tree_util.tree_map_with_path(
        choose, updated, before, is_leaf=lambda node: isinstance(node, adams)
    )


def split(config: Config, params: dict) -> tuple[dict, dict]:
    """(the parameters that a run trains, those that it leaves as they are)"""
    if config.optimizer.base_multiple:
        return params, {}
    trained = {name: leaf for name, leaf in params.items() if re.search(TABLE, name)}
    return trained, {name: leaf for name, leaf in params.items() if name not in trained}


def is_table(path: tuple) -> bool:
    """Whether a parameter is a table of sparse sinks, or optimizer state of its rows."""
    return re.search(TABLE, path_name(path)) is not None


def scale_sinks(config: Config) -> optax.GradientTransformation:
    """Multiplies updates, including decay: of the sinks' weights by
    `config.sinks.learning_rate_multiple`, of all others by `config.optimizer.base_multiple`.
    """
    base, of_sinks = config.optimizer.base_multiple, config.sinks.learning_rate_multiple
    in_matrices = partition(config.model, config.sinks).shared

    def scaled(path: tuple, update: jax.Array) -> jax.Array:
        axis = first_match(SINK_RULES, path_name(path))
        if axis is None:
            return update * base
        shared = 0 if is_table(path) else in_matrices  # all rows of a table are sinks
        factor = jnp.where(jnp.arange(update.shape[axis]) < shared, base, of_sinks)
        return update * factor.reshape(factor.shape + (1,) * (-1 - axis))

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(scaled, updates)
    )


def decay_mask(params) -> dict:
    """True where weight decay applies, by DECAY_RULES."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: first_match(DECAY_RULES, path_name(path)), params
    )
