"""AdamW with warmup and cosine decay; which parameters decay is a rule over their paths."""

import re

import jax
import optax

from memsinks_jax.config import InputError, OptimizerConfig

# Ordered (regex over the parameter's path, whether it decays); the first match wins, no match is an error.
# nanoGPT's rule: matrices decay, biases and norms do not.
DECAY_RULES = (
    (r"(^|/)(token|position)_embedding$", True),
    (r"_kernel$", True),
    (r"_bias$", False),
    (r"_norm/(scale|bias)$", False),
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


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipping by the global norm, then AdamW. Moments are float32 and shaped like the parameters."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate(config, steps), b1=config.b1, b2=config.b2, weight_decay=config.weight_decay, mask=decay_mask
        ),
    )


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
