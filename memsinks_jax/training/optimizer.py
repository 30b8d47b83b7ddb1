"""AdamW with warmup and cosine decay; which parameters decay, and which are of sinks, are rules over their paths."""

import re

import jax
import jax.numpy as jnp
import optax

from memsinks_jax import sinks
from memsinks_jax.config import Config, InputError, OptimizerConfig

# Ordered (regex over the parameter's path, whether it decays); the first match wins, no match is an error.
# nanoGPT's rule: matrices decay, biases and norms do not.
DECAY_RULES = (
    (r"(^|/)(token|position)_embedding$", True),
    (r"_kernel$", True),
    (r"_bias$", False),
    (r"_norm/(scale|bias)$", False),
)

# Ordered (regex, (site, axis along which its sinks lie) or None): the weights whose learning rate sinks can have their own.
# Of attention those that read the sinks; what makes them serves shared outputs too where heads share keys and values.
SINK_RULES = (
    (r"(^|/)(up|gate)_(kernel|bias)$", ("mlp", -1)),
    (r"(^|/)down_kernel$", ("mlp", -2)),
    (r"(^|/)attention_output_kernel$", ("attention", -2)),
    (r".", None),
)


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Linear from 0 over the warmup, then cosine to `final_fraction` of the peak at the last of `steps` updates."""
    warmup = min(config.warmup_steps, int(config.warmup_fraction * steps))
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (warmup + 1),
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=max(steps, warmup + 1),
        end_value=config.learning_rate * config.final_fraction,
    )


def make_optimizer(config: Config, steps: int) -> optax.GradientTransformation:
    """Clipping by the global norm, then AdamW. Moments are float32 and shaped like the parameters."""
    settings = config.optimizer
    chain = [
        optax.clip_by_global_norm(settings.clip_norm),
        optax.adamw(
            learning_rate(settings, steps), b1=settings.b1, b2=settings.b2, weight_decay=settings.weight_decay,
            mask=decay_mask,
        ),
    ]  # fmt: skip
    if config.sinks.learning_rate_multiple != 1:
        chain.append(scale_sinks(config))
    return optax.chain(*chain)


def scale_sinks(config: Config) -> optax.GradientTransformation:
    """Multiplies the updates of the sinks' weights, decay with them, by `config.sinks.learning_rate_multiple`."""
    parts = sinks.partitions(config)

    def scaled(path: tuple, update: jax.Array) -> jax.Array:
        rule = first_match(SINK_RULES, path_name(path))
        if rule is None:
            return update
        site, axis = rule
        factor = jnp.where(
            jnp.arange(update.shape[axis]) < parts[site].shared, 1.0, config.sinks.learning_rate_multiple
        )
        return update * factor.reshape(factor.shape + (1,) * (-1 - axis))

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scaled, updates))


def decay_mask(params) -> dict:
    """True where weight decay applies, by DECAY_RULES."""
    return jax.tree_util.tree_map_with_path(lambda path, _: first_match(DECAY_RULES, path_name(path)), params)


def path_name(path: tuple) -> str:
    """('layers', 'up_kernel') as jax names it -> 'layers/up_kernel'."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def first_match(rules: tuple, name: str):
    """The value of the first (regex, value) whose regex is found in `name`. Raises InputError when none is."""
    for pattern, value in rules:
        if re.search(pattern, name):
            return value
    raise InputError(f"parameter {name} is covered by no rule; add one to {[pattern for pattern, _ in rules]}")
