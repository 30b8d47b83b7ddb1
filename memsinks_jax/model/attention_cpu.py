"""Causal attention for XLA's CPU backend, forward and backward by hand. Axes as in decoder.py; G
query heads share a kv head (H = K G), and a block of t queries may see S keys.

Scores are key-major, (B, K, S, G t). Then none of the six products contracts the first axis of an
operand, which takes XLA's CPU backend up to twice the time. The exponentials are saved for the
backward pass. They are divided by their sum only after the product with the values, because there
is less to divide. With XLA's attention instead, a step of the laptop preset takes 1.07 to 1.11 of
the time (jax 0.10.2).
"""

import jax
import jax.numpy as jnp

_BLOCK = 64  # queries; half or twice as many is a fifth slower
_MOST_BLOCKS = 16  # for a long row: each block is compiled separately


@jax.custom_vjp
def causal_attention(
    query_BTHC: jax.Array, key_BTKC: jax.Array, value_BTKC: jax.Array, visible_BTT: jax.Array
) -> jax.Array:
    """Softmax attention over the visible positions -> (B, T, H, C). `visible_BTT` must be causal,
    and every position must see at least one. A block of queries reads no keys after its own end.
    """
    return _forward(query_BTHC, key_BTKC, value_BTKC, visible_BTT)[0]


def _forward(query_BTHC, key_BTKC, value_BTKC, visible_BTT):
    kv_heads, scaled_BTHC = (
        key_BTKC.shape[2],
        query_BTHC.astype(jnp.float32) * query_BTHC.shape[-1] ** -0.5,
    )
    outputs, saved = [], []
    for start, end in _blocks(query_BTHC.shape[1]):
        scores = _product(_rows(key_BTKC[:, :end]), _columns(scaled_BTHC[:, start:end], kv_heads))
        visible_BStT = jnp.swapaxes(visible_BTT[:, start:end, :end], 1, 2)[:, None, :, None]
        split = (*scores.shape[:3], -1, end - start)  # G and t apart
        scores = jnp.where(visible_BStT, scores.reshape(split), jnp.finfo(jnp.float32).min).reshape(
            scores.shape
        )
        exponentials = jnp.exp(scores - scores.max(axis=2, keepdims=True))
        inverse = 1 / exponentials.sum(axis=2, keepdims=True)
        exponentials = exponentials.astype(value_BTKC.dtype)
        output = _product(_columns(value_BTKC[:, :end], kv_heads), exponentials) * inverse
        outputs.append(_positions(output, end - start).astype(value_BTKC.dtype))
        saved.append((exponentials, inverse))
    output_BTHC = jnp.concatenate(outputs, axis=1)
    return output_BTHC, (scaled_BTHC, key_BTKC, value_BTKC, output_BTHC, saved)


def _backward(residuals, gradient_BTHC):
    scaled_BTHC, key_BTKC, value_BTKC, output_BTHC, saved = residuals
    kv_heads, dtype = key_BTKC.shape[2], key_BTKC.dtype
    # The derivative of softmax needs the sum of weight times gradient for each query, which is also
    # this product.
    along_BTH1 = (gradient_BTHC * output_BTHC).astype(jnp.float32).sum(axis=-1, keepdims=True)
    queries, keys, values = [], [], []
    for (start, end), (exponentials, inverse) in zip(
        _blocks(scaled_BTHC.shape[1]), saved, strict=True
    ):
        upstream = _columns(gradient_BTHC[:, start:end], kv_heads) * inverse
        along = _columns(along_BTH1[:, start:end], kv_heads) * inverse
        of_weights = _product(_rows(value_BTKC[:, :end]), upstream.astype(dtype))
        of_scores = (exponentials * (of_weights - along)).astype(dtype)
        queries.append(
            _positions(_product(_columns(key_BTKC[:, :end], kv_heads), of_scores), end - start)
        )
        keys.append(_product(of_scores, _rows(scaled_BTHC[:, start:end], kv_heads)))
        values.append(_product(exponentials, jnp.swapaxes(upstream, 2, 3).astype(dtype)))
    query_BTHC = (jnp.concatenate(queries, axis=1) * scaled_BTHC.shape[-1] ** -0.5).astype(dtype)
    return query_BTHC, _over_blocks(keys).astype(dtype), _over_blocks(values).astype(dtype), None


causal_attention.defvjp(_forward, _backward)


def _blocks(length: int) -> list[tuple[int, int]]:
    block = max(_BLOCK, -(-length // _MOST_BLOCKS))
    return [(start, min(start + block, length)) for start in range(0, length, block)]


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Matrix product of the last two axes, in float32, for each of the first two."""
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)


def _rows(x_BTHC: jax.Array, kv_heads: int | None = None) -> jax.Array:
    """-> (B, K, G T, C)."""
    batch, length, heads, size = x_BTHC.shape
    grouped = x_BTHC.reshape(batch, length, kv_heads or heads, -1, size)
    return grouped.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads or heads, -1, size)


def _columns(x_BTHC: jax.Array, kv_heads: int) -> jax.Array:
    """-> (B, K, C, G T)."""
    batch, length, _, size = x_BTHC.shape
    grouped = x_BTHC.reshape(batch, length, kv_heads, -1, size)
    return grouped.transpose(0, 2, 4, 3, 1).reshape(batch, kv_heads, size, -1)


def _positions(x: jax.Array, length: int) -> jax.Array:
    """The inverse of `_columns` -> (B, T, H, C)."""
    batch, kv_heads, size, _ = x.shape
    return (
        x.reshape(batch, kv_heads, size, -1, length)
        .transpose(0, 4, 1, 3, 2)
        .reshape(batch, length, -1, size)
    )


def _over_blocks(parts: list[jax.Array]) -> jax.Array:
    """Sums the blocks' contributions to the keys up to their ends, (B, K, end, C) each -> (B, T, K,
    C).
    """
    starts = [0] + [part.shape[2] for part in parts]
    pieces = [
        sum(part[:, :, start:end] for part in parts[number:])
        for number, (start, end) in enumerate(zip(starts, starts[1:], strict=False))
    ]
    return jnp.concatenate(pieces, axis=2).swapaxes(1, 2)
