"""Does rounding the weights bring anything back? Rounding to few bits is known to undo unlearning
by small changes of the weights, because the changes are smaller than a step (Zhang et al. 2024,
"Catastrophic failure of LLM unlearning via quantization").

Rounding is symmetric, to the nearest of 2**bits - 1 levels, one scale for each output channel of a
kernel and for each row of an embedding; biases and norms stay. Dropped sinks are cut out first, as
in an exported model.
"""

import jax
import jax.numpy as jnp

from memsinks_jax.measures.document_loss import DocumentLoss, mean_loss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.rows import bar
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.sinks.kinds import partition
from memsinks_jax.training.optimizer import DECAY_RULES, SINK_RULES
from memsinks_jax.training.paths import first_match, path_name

BITS = (8, 4)


def quantized(params: dict, bits: int) -> dict:
    """The parameters with matrices rounded to the grid of `bits` bits; still float32."""
    levels = 2 ** (bits - 1) - 1

    def rounded(path: tuple, x: jax.Array) -> jax.Array:
        name = path_name(path)
        if not first_match(DECAY_RULES, name):  # a vector
            return x
        # Kernels are (..., in, out), embeddings (rows, D): the reduced axis is the one before the
        # last, or the last.
        largest = jnp.abs(x).max(axis=-1 if name.endswith("_embedding") else -2, keepdims=True)
        scale = jnp.where(largest > 0, largest / levels, 1.0)
        return jnp.round(x / scale) * scale

    return jax.tree_util.tree_map_with_path(rounded, params)


def without_sinks(subject: Subject) -> dict:
    """The subject's parameters; those that read dropped sinks are 0, which equals cutting them."""
    config = subject.run.config
    shared = partition(config.model, config.sinks).shared

    def cut(path: tuple, x: jax.Array) -> jax.Array:
        if first_match(SINK_RULES, path_name(path)) != -2:
            return x
        return jnp.where(jnp.arange(x.shape[-2])[:, None] < shared, x, 0)

    return (
        jax.tree_util.tree_map_with_path(cut, subject.run.params)
        if subject.mode == "drop"
        else subject.run.params
    )


def quantize(subject: Subject, members: Documents, non_members: Documents) -> dict:
    """Loss before and after rounding.

    Returns:
      {"float", "int8", "int4": {"members", "non_members": nats per token}}.
    """
    loss = DocumentLoss(subject.run.config)
    params = without_sinks(subject)
    sides = {"members": members, "non_members": non_members}
    batches = {name: documents.batches(subject.run) for name, documents in sides.items()}
    found = {}
    with bar(len(BITS) + 1, f"quantization, {subject.name}") as progress:
        for bits in (None, *BITS):
            weights = quantized(params, bits) if bits else params
            found[f"int{bits}" if bits else "float"] = {
                name: mean_loss(loss, weights, group, subject.mode)
                for name, group in batches.items()
            }
            progress.update()
    return found
