"""The decoder. One module for every family; today GPT-2 (learned positions, LayerNorm, tanh GELU, tied head).

Axes: B batch, T time, D d_model, F hidden (S shared + M sinks), H heads, C head dim, V vocabulary, L layers.

Every layer has two named sites where an intervention, a pure function `(x, layer) -> x`, may look at or change what
passes: `attention` (concatenated heads before the output projection, x_BTD) and `mlp` (hidden activation after GELU
before the down projection, x_BTF). `layer` is a traced int32. The model knows no intervention by name.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from memsinks_jax.config import Config, ModelConfig
from memsinks_jax.sinks import Partition, partition

Interventions = Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]]

_INITIAL_DEVIATION = 0.02  # GPT-2's
_NORM_EPSILON = 1e-5
_QUERY_BLOCKS = 4  # half the time of one block on a CPU


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
    ) -> jax.Array:
        """int32 tokens, segments (from 1; 0 padding) and positions (from 0) -> float32 logits_BTV.

        A position sees itself and earlier positions of its own segment, nothing else.
        """
        unknown = set(interventions or {}) - {"attention", "mlp"}
        if unknown:
            raise ValueError(f"no site named {sorted(unknown)}; sites are attention and mlp")
        dtype = jnp.dtype(self.config.dtype)
        normal = nn.initializers.normal(_INITIAL_DEVIATION)
        embedding_VD = self.param("token_embedding", normal, (self.vocabulary_size, self.config.d_model))
        places_TD = self.param("position_embedding", normal, (self.context, self.config.d_model))
        x_BTD = (embedding_VD[tokens_BT] + places_TD[positions_BT]).astype(dtype)
        visible_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
        visible_BTT &= jnp.tril(jnp.ones((tokens_BT.shape[1],) * 2, bool))
        layer = nn.remat(Layer, prevent_cse=False) if self.config.remat else Layer
        layers = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast),
            length=self.config.layers,
            # XLA's CPU backend copies a loop's activations at every turn: unrolled layers are a tenth faster there.
            unroll=self.config.layers if jax.default_backend() == "cpu" else 1,
        )(self.config, self.hidden, interventions or {}, name="layers")
        x_BTD, _ = layers(x_BTD, jnp.arange(self.config.layers), visible_BTT)
        x_BTD = LayerNorm(name="final_norm")(x_BTD)
        logits = x_BTD.astype(dtype).reshape(-1, self.config.d_model) @ embedding_VD.astype(dtype).T
        return logits.reshape(*tokens_BT.shape, self.vocabulary_size).astype(jnp.float32)


class Layer(nn.Module):
    """Attention and MLP, each on the normed residual stream and added to it."""

    config: ModelConfig
    hidden: int
    interventions: Interventions

    @nn.compact
    def __call__(self, x_BTD: jax.Array, layer: jax.Array, visible_BTT: jax.Array) -> tuple[jax.Array, None]:
        x_BTD = x_BTD + self.attention(LayerNorm(name="attention_norm")(x_BTD), layer, visible_BTT)
        x_BTD = x_BTD + self.mlp(LayerNorm(name="mlp_norm")(x_BTD), layer)
        return x_BTD, None

    def attention(self, x_BTD: jax.Array, layer: jax.Array, visible_BTT: jax.Array) -> jax.Array:
        d_model, heads = self.config.d_model, self.config.heads
        query, key, value = (self.linear(name, x_BTD, d_model) for name in ("query", "key", "value"))
        split = (*x_BTD.shape[:2], heads, d_model // heads)
        query_BTHC, key_BTHC, value_BTHC = query.reshape(split), key.reshape(split), value.reshape(split)
        heads_BTD = attend(query_BTHC, key_BTHC, value_BTHC, visible_BTT).reshape(x_BTD.shape)
        heads_BTD = self.intervene("attention", heads_BTD, layer)
        return self.linear("attention_output", heads_BTD, d_model, residual=True)

    def mlp(self, x_BTD: jax.Array, layer: jax.Array) -> jax.Array:
        x_BTF = nn.gelu(self.linear("up", x_BTD, self.hidden), approximate=True)
        x_BTF = self.intervene("mlp", x_BTF, layer)
        return self.linear("down", x_BTF, self.config.d_model, residual=True)

    def intervene(self, site: str, x: jax.Array, layer: jax.Array) -> jax.Array:
        return self.interventions[site](x, layer) if site in self.interventions else x

    def linear(self, name: str, x: jax.Array, width: int, residual: bool = False) -> jax.Array:
        """x @ kernel + bias. What writes to the residual stream starts smaller, by the number of writers (GPT-2)."""
        deviation = _INITIAL_DEVIATION * ((2 * self.config.layers) ** -0.5 if residual else 1.0)
        kernel = self.param(f"{name}_kernel", nn.initializers.normal(deviation), (x.shape[-1], width))
        bias = self.param(f"{name}_bias", nn.initializers.zeros, (width,))
        # Two axes, not three: XLA's CPU backend takes three times as long for the gradient of the other.
        product = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
        return product.reshape(*x.shape[:-1], width) + bias.astype(x.dtype)


def attend(query_BTHC: jax.Array, key_BTHC: jax.Array, value_BTHC: jax.Array, visible_BTT: jax.Array) -> jax.Array:
    """Softmax attention over the visible positions -> (B, T, H, C). `visible_BTT` must be causal.

    Queries go in blocks that look no further than their own end: of the scores nothing can see, most are not computed.
    """
    length, scale = query_BTHC.shape[1], query_BTHC.shape[-1] ** -0.5
    block = -(-length // _QUERY_BLOCKS)
    outputs = []
    for start in range(0, length, block):
        end = min(start + block, length)
        scores_BHTT = jnp.einsum("bthc,bshc->bhts", query_BTHC[:, start:end], key_BTHC[:, :end]).astype(jnp.float32)
        visible = visible_BTT[:, None, start:end, :end]
        weights_BHTT = jax.nn.softmax(jnp.where(visible, scores_BHTT * scale, jnp.finfo(jnp.float32).min))
        outputs.append(jnp.einsum("bhts,bshc->bthc", weights_BHTT.astype(value_BTHC.dtype), value_BTHC[:, :end]))
    return jnp.concatenate(outputs, axis=1)


def attention_kernel() -> str:
    """What `attend` is computed with, for whoever wants to know."""
    return f"XLA on {jax.default_backend()}, queries in {_QUERY_BLOCKS} blocks"


class LayerNorm(nn.Module):
    """Mean 0, variance 1 over the last axis, in float32; then scale and bias."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + _NORM_EPSILON) * scale + bias).astype(x.dtype)


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
