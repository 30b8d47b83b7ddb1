"""From the last hidden states to logits, or directly to the loss of every token.

Axes as in decoder.py; the head's matrix is (D, V). Logits and losses are float32.
"""

from functools import partial

import jax
import jax.numpy as jnp

from memsinks_jax.model.placement import BATCH, TENSOR, constrain
from memsinks_jax.model.products import product


def logits(x_BTD: jax.Array, head_DV: jax.Array) -> jax.Array:
    """float32 (B, T, V), summed and kept in float32 for any type of x; (B, V) for one position per
    row, (B, D).
    """
    logits_BTV = product(x_BTD, head_DV.astype(x_BTD.dtype), preferred_element_type=jnp.float32)
    return constrain(logits_BTV, BATCH, *[None] * (logits_BTV.ndim - 2), TENSOR)


def valid_weights(targets_BT: jax.Array, weights_BT: jax.Array, vocabulary_size: int) -> jax.Array:
    """The weights, with 0 for targets outside the vocabulary -> (B, T)."""
    return jnp.where((targets_BT >= 0) & (targets_BT < vocabulary_size), weights_BT, 0.0)


def token_losses(
    x_BTD: jax.Array,
    head_DV: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    chunks: int = 1,
) -> jax.Array:
    """Weight times cross-entropy in nats at every position, 0 where the weight is 0 -> float32 (B,
    T).

    Args:
      chunks: parts of the vocabulary, computed one at a time. With more than one, the logits are
        never in memory at once; the backward pass recomputes each part.
    """
    # Make targets valid first: an invalid one would count as another token, or give NaN.
    valid_BT = jnp.where(weights_BT > 0, targets_BT, 0)
    # tokamax 0.0.12 has a fused cross-entropy for TPUs without temporaries; ours has 1,536 MiB for
    # 8,192 tokens of the 1.7B model, or 449 with 8 chunks. But it returns the sum of a batch, and
    # here single tokens are weighted and reported.
    if chunks == 1:
        losses_BT = cross_entropy(logits(x_BTD, head_DV), valid_BT)
    else:
        losses_BT = _chunked(x_BTD, _in_chunks(head_DV, chunks), valid_BT, head_DV.shape[1])
    return jnp.where(weights_BT > 0, losses_BT * weights_BT, 0.0)


def cross_entropy(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """-log softmax at the target, nats (B, T). Without gather or scatter, which a sharded
    vocabulary cannot do in place.
    """
    is_target_BTV = targets_BT[..., None] == jnp.arange(logits_BTV.shape[-1])
    return jax.nn.logsumexp(logits_BTV, axis=-1) - jnp.where(is_target_BTV, logits_BTV, 0.0).sum(
        axis=-1
    )


def _in_chunks(head_DV: jax.Array, chunks: int) -> jax.Array:
    """(D, V) -> (P, D, W), P parts of W = ceil(V / P) columns: token v is column v // P of part v %
    P.

    Neighbours go to different chunks, so that each device cuts its own shard of the vocabulary.
    """
    padding = -head_DV.shape[1] % chunks
    columns = jnp.pad(head_DV, ((0, 0), (0, padding))).reshape(head_DV.shape[0], -1, chunks)
    return constrain(columns.transpose(2, 0, 1), None, None, TENSOR)


def _chunk_logits(x_BTD, head_DW, chunk, chunks, vocabulary_size) -> tuple[jax.Array, jax.Array]:
    """Logits of a chunk, -inf for padding columns, and the tokens of its columns."""
    tokens_W = jnp.arange(head_DW.shape[1]) * chunks + chunk
    return jnp.where(tokens_W < vocabulary_size, logits(x_BTD, head_DW), -jnp.inf), tokens_W


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _chunked(x_BTD, heads_PDW, targets_BT, vocabulary_size):
    return _chunked_forward(x_BTD, heads_PDW, targets_BT, vocabulary_size)[0]


def _chunked_forward(x_BTD, heads_PDW, targets_BT, vocabulary_size):
    chunks = heads_PDW.shape[0]

    def add(carry, chunk_and_head):
        total_BT, target_BT = carry
        chunk, head_DW = chunk_and_head
        logits_BTW, tokens_W = _chunk_logits(x_BTD, head_DW, chunk, chunks, vocabulary_size)
        total_BT = jnp.logaddexp(total_BT, jax.nn.logsumexp(logits_BTW, axis=-1))
        is_target_BTW = targets_BT[..., None] == tokens_W
        return (total_BT, target_BT + jnp.where(is_target_BTW, logits_BTW, 0.0).sum(axis=-1)), None

    start = (jnp.full(targets_BT.shape, -jnp.inf), jnp.zeros(targets_BT.shape))
    (total_BT, target_BT), _ = jax.lax.scan(add, start, (jnp.arange(chunks), heads_PDW))
    return total_BT - target_BT, (x_BTD, heads_PDW, targets_BT, total_BT)


def _chunked_backward(vocabulary_size, residuals, cotangent_BT):
    x_BTD, heads_PDW, targets_BT, total_BT = residuals
    chunks = heads_PDW.shape[0]
    flat_ND = x_BTD.reshape(-1, x_BTD.shape[-1])

    def add(x_gradient_ND, chunk_and_head):
        chunk, head_DW = chunk_and_head
        logits_BTW, tokens_W = _chunk_logits(x_BTD, head_DW, chunk, chunks, vocabulary_size)
        logits_gradient_BTW = jnp.exp(logits_BTW - total_BT[..., None]) - (
            targets_BT[..., None] == tokens_W
        )
        gradient_NW = (
            (logits_gradient_BTW * cotangent_BT[..., None])
            .astype(x_BTD.dtype)
            .reshape(flat_ND.shape[0], -1)
        )
        head_WD = head_DW.astype(x_BTD.dtype).T
        x_gradient_ND += jnp.matmul(gradient_NW, head_WD, preferred_element_type=jnp.float32)
        return x_gradient_ND, jnp.matmul(
            flat_ND.T, gradient_NW, preferred_element_type=head_DW.dtype
        )

    start = jnp.zeros(flat_ND.shape, jnp.float32)
    x_gradient_ND, head_gradients_PDW = jax.lax.scan(add, start, (jnp.arange(chunks), heads_PDW))
    return x_gradient_ND.reshape(x_BTD.shape).astype(x_BTD.dtype), head_gradients_PDW, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
