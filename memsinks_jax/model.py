"""The decoder. One module for two families: GPT-2 (learned positions, LayerNorm, tanh GELU) and Llama (rotary
positions, RMSNorm, SiLU-gated MLP, keys and values shared by several query heads); SmolLM is a Llama.

Axes: B batch, T time, D d_model, F hidden (S shared + M sinks), H heads, K kv heads, C head dim, V vocabulary, L layers;
of a cache, T is all the places it has room for.

Every layer has two named sites where an intervention, a pure function `(x, layer) -> x`, may look at or change what
passes: `attention` (concatenated heads before the output projection, x_BTD) and `mlp` (hidden activation after GELU or
after the gate, before the down projection, x_BTF). `layer` is a traced int32. The model knows no intervention by name.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from memsinks_jax.config import Config, ModelConfig
from memsinks_jax.sinks import Partition, partition

Interventions = Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]]

_INITIAL_DEVIATION = 0.02  # GPT-2's
_QUERY_BLOCKS = 4  # half the time of one block on a CPU


class Cache(NamedTuple):
    """Keys and values of the positions seen so far, LBTKC each."""

    keys: jax.Array
    values: jax.Array


def empty_cache(config: ModelConfig, batch: int, length: int) -> Cache:
    """Room for `length` positions of `batch` rows."""
    shape = (config.layers, batch, length, config.kv_heads or config.heads, config.d_model // config.heads)
    return Cache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


class Decoder(nn.Module):
    """Tokens to logits.

    Attributes:
      config: sizes; `config.hidden` is not read here.
      hidden: F, the width of the MLPs that is built.
      vocabulary_size: V.
      context: the longest row.
    """

    config: ModelConfig
    hidden: int
    vocabulary_size: int
    context: int

    @nn.compact
    def __call__(
        self,
        tokens_BT: jax.Array,
        segments_BT: jax.Array,
        positions_BT: jax.Array,
        interventions: Interventions | None = None,
        cache: Cache | None = None,
    ) -> jax.Array | tuple[jax.Array, Cache]:
        """int32 tokens, segments (from 1; 0 padding) and positions (from 0) -> float32 logits_BTV.

        A position sees itself and earlier positions of its own segment, nothing else. With a cache, a row is one
        document: its keys and values are put in at their positions, each sees what stands there up to itself, and the
        result is (logits_BTV, cache); segments are not read.
        """
        unknown = set(interventions or {}) - {"attention", "mlp"}
        if unknown:
            raise ValueError(f"no site named {sorted(unknown)}; sites are attention and mlp")
        dtype = jnp.dtype(self.config.dtype)
        normal = nn.initializers.normal(_INITIAL_DEVIATION)
        embedding_VD = self.param("token_embedding", normal, (self.vocabulary_size, self.config.d_model))
        x_BTD = embedding_VD[tokens_BT]
        angles_BTC = None
        if self.config.family == "gpt2":
            places_TD = self.param("position_embedding", normal, (self.context, self.config.d_model))
            x_BTD = x_BTD + places_TD[positions_BT]
        else:
            angles_BTC = rotary_angles(positions_BT, self.config)
        if cache is None:
            visible_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
            visible_BTT &= jnp.tril(jnp.ones((tokens_BT.shape[1],) * 2, bool))
        else:
            visible_BTT = jnp.arange(cache.keys.shape[2]) <= positions_BT[:, :, None]
        layer = nn.remat(Layer, prevent_cse=False) if self.config.remat else Layer
        layers = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=self.config.layers,
            # XLA's CPU backend copies a loop's activations at every turn: unrolled layers are a tenth faster there.
            unroll=self.config.layers if jax.default_backend() == "cpu" else 1,
        )(self.config, self.hidden, interventions or {}, name="layers")
        numbers = jnp.arange(self.config.layers)
        x_BTD, cache = layers(x_BTD.astype(dtype), numbers, cache, visible_BTT, positions_BT, angles_BTC)
        x_BTD = Norm(self.config, name="final_norm")(x_BTD)
        if self.config.tied_head:
            head_DV = embedding_VD.T
        else:
            head_DV = self.param("head_kernel", normal, (self.config.d_model, self.vocabulary_size))
        logits = x_BTD.astype(dtype).reshape(-1, self.config.d_model) @ head_DV.astype(dtype)
        logits_BTV = logits.reshape(*tokens_BT.shape, self.vocabulary_size).astype(jnp.float32)
        return logits_BTV if cache is None else (logits_BTV, cache)


class Layer(nn.Module):
    """Attention and MLP, each on the normed residual stream and added to it."""

    config: ModelConfig
    hidden: int
    interventions: Interventions

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, layer: jax.Array, cache: Cache | None, visible_BTT, positions_BT, angles_BTC
    ) -> tuple[jax.Array, Cache | None]:
        normed_BTD = Norm(self.config, name="attention_norm")(x_BTD)
        heads_BTD, cache = self.attention(normed_BTD, layer, cache, visible_BTT, positions_BT, angles_BTC)
        x_BTD = x_BTD + heads_BTD
        x_BTD = x_BTD + self.mlp(Norm(self.config, name="mlp_norm")(x_BTD), layer)
        return x_BTD, cache

    def attention(self, x_BTD, layer, cache, visible_BTT, positions_BT, angles_BTC) -> tuple[jax.Array, Cache | None]:
        heads, kv_heads = self.config.heads, self.config.kv_heads or self.config.heads
        size, bias = self.config.d_model // heads, self.config.attention_bias
        query_BTHC = self.linear("query", x_BTD, heads * size, bias).reshape(*x_BTD.shape[:2], heads, size)
        key_BTKC = self.linear("key", x_BTD, kv_heads * size, bias).reshape(*x_BTD.shape[:2], kv_heads, size)
        value_BTKC = self.linear("value", x_BTD, kv_heads * size, bias).reshape(*x_BTD.shape[:2], kv_heads, size)
        if angles_BTC is not None:
            query_BTHC, key_BTKC = rotate(query_BTHC, angles_BTC), rotate(key_BTKC, angles_BTC)
        if cache is not None:
            rows_B1 = jnp.arange(x_BTD.shape[0])[:, None]
            cache = Cache(
                cache.keys.at[rows_B1, positions_BT].set(key_BTKC),
                cache.values.at[rows_B1, positions_BT].set(value_BTKC),
            )
            key_BTKC, value_BTKC = cache
        heads_BTD = attend(query_BTHC, key_BTKC, value_BTKC, visible_BTT).reshape(x_BTD.shape)
        heads_BTD = self.intervene("attention", heads_BTD, layer)
        return self.linear("attention_output", heads_BTD, self.config.d_model, bias, residual=True), cache

    def mlp(self, x_BTD: jax.Array, layer: jax.Array) -> jax.Array:
        bias = self.config.mlp_bias
        if self.config.family == "gpt2":
            x_BTF = nn.gelu(self.linear("up", x_BTD, self.hidden, bias), approximate=True)
        else:
            x_BTF = nn.silu(self.linear("gate", x_BTD, self.hidden, bias)) * self.linear("up", x_BTD, self.hidden, bias)
        x_BTF = self.intervene("mlp", x_BTF, layer)
        return self.linear("down", x_BTF, self.config.d_model, bias, residual=True)

    def intervene(self, site: str, x: jax.Array, layer: jax.Array) -> jax.Array:
        return self.interventions[site](x, layer) if site in self.interventions else x

    def linear(self, name: str, x: jax.Array, width: int, has_bias: bool, residual: bool = False) -> jax.Array:
        """x @ kernel + bias. What writes to the residual stream starts smaller, by the number of writers (GPT-2)."""
        deviation = _INITIAL_DEVIATION * ((2 * self.config.layers) ** -0.5 if residual else 1.0)
        kernel = self.param(f"{name}_kernel", nn.initializers.normal(deviation), (x.shape[-1], width))
        # Two axes, not three: XLA's CPU backend takes three times as long for the gradient of the other.
        product = (x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)).reshape(*x.shape[:-1], width)
        if not has_bias:
            return product
        return product + self.param(f"{name}_bias", nn.initializers.zeros, (width,)).astype(x.dtype)


def rotary_angles(positions_BT: jax.Array, config: ModelConfig) -> jax.Array:
    """How far each pair of a head's channels is turned at each position -> float32 radians (B, T, C / 2)."""
    size = config.d_model // config.heads
    frequencies = config.rope_theta ** -(jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    return positions_BT[:, :, None].astype(jnp.float32) * frequencies


def rotate(x_BTHC: jax.Array, angles_BTC: jax.Array) -> jax.Array:
    """Turns the pairs (c, c + C / 2) of every head's channels, in float32, as Hugging Face's Llama lays them out."""
    cosine, sine = jnp.cos(angles_BTC)[:, :, None], jnp.sin(angles_BTC)[:, :, None]
    first, second = jnp.split(x_BTHC.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x_BTHC.dtype)


def attend(query_BTHC: jax.Array, key_BTKC: jax.Array, value_BTKC: jax.Array, visible_BTT: jax.Array) -> jax.Array:
    """Softmax attention over the visible positions -> (B, T, H, C). `visible_BTT` must be causal.

    Queries go in blocks that look no further than their own end: of the scores nothing can see, most are not computed.
    With a cache there are more keys than queries, and one block.
    """
    length, scale = query_BTHC.shape[1], query_BTHC.shape[-1] ** -0.5
    shared_by = query_BTHC.shape[2] // key_BTKC.shape[2]
    if shared_by > 1:
        key_BTKC, value_BTKC = (jnp.repeat(x, shared_by, axis=2) for x in (key_BTKC, value_BTKC))
    causal = length == key_BTKC.shape[1]
    block = -(-length // _QUERY_BLOCKS) if causal else length
    outputs = []
    for start in range(0, length, block):
        end = min(start + block, length)
        seen = end if causal else key_BTKC.shape[1]
        scores_BHTT = jnp.einsum("bthc,bshc->bhts", query_BTHC[:, start:end], key_BTKC[:, :seen]).astype(jnp.float32)
        visible = visible_BTT[:, None, start:end, :seen]
        weights_BHTT = jax.nn.softmax(jnp.where(visible, scores_BHTT * scale, jnp.finfo(jnp.float32).min))
        outputs.append(jnp.einsum("bhts,bshc->bthc", weights_BHTT.astype(value_BTKC.dtype), value_BTKC[:, :seen]))
    return jnp.concatenate(outputs, axis=1)


def attention_kernel() -> str:
    """What `attend` is computed with, for whoever wants to know."""
    return f"XLA on {jax.default_backend()}, queries in {_QUERY_BLOCKS} blocks"


class Norm(nn.Module):
    """LayerNorm (gpt2: mean 0, variance 1, scale, bias) or RMSNorm (llama: mean square 1, scale), in float32."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        wide = x.astype(jnp.float32)
        if self.config.family == "gpt2":
            bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
            wide = wide - wide.mean(axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.config.norm_epsilon) * scale
        return (normed + bias if self.config.family == "gpt2" else normed).astype(x.dtype)


def build_model(config: Config) -> tuple[Decoder, Partition]:
    """The decoder of a config, and how its hidden neurons are split into shared ones and sinks."""
    parts = partition(config.model, config.sinks)
    return Decoder(config.model, sum(parts), config.data.vocabulary_size, config.data.row_length), parts


def valid_weights(targets_BT: jax.Array, weights_BT: jax.Array, vocabulary_size: int) -> jax.Array:
    """The weights, with 0 where the target is no token of the vocabulary -> (B, T)."""
    return jnp.where((targets_BT >= 0) & (targets_BT < vocabulary_size), weights_BT, 0.0)


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array) -> jax.Array:
    """Cross-entropy in nats at every position, 0 where the weight is 0 -> float32 (B, T).

    Targets are made valid before the call: optax takes -1 for the last class and returns NaN beyond the vocabulary.
    """
    valid_BT = jnp.where(weights_BT > 0, targets_BT, 0)
    losses_BT = optax.losses.softmax_cross_entropy_with_integer_labels(logits_BTV, valid_BT)
    return jnp.where(weights_BT > 0, losses_BT * weights_BT, 0.0)
