"""The decoder. One module for two families: GPT-2 (learned positions, LayerNorm, tanh GELU) and Llama (rotary
positions, RMSNorm, SiLU-gated MLP, keys and values shared by several query heads); SmolLM is a Llama.

Axes: B batch, T time, D d_model, F hidden (S shared + M sinks), H heads, K kv heads, C head dim, V vocabulary, L layers;
of a cache, T is all the places it has room for.

Every layer has two named sites where an intervention, a pure function `(x, layer) -> x`, may look at or change what
passes: `attention` (concatenated heads before the output projection, x_BTD) and `mlp` (hidden activation after GELU or
after the gate, before the down projection, x_BTF). `layer` is a traced int32. The model knows no intervention by name.
Where sinks are sparse, F is S, and the entry `sinks` of the interventions says which rows of the tables are on where.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from memsinks_jax.config import Config, ModelConfig
from memsinks_jax.model import sparse_sinks
from memsinks_jax.model.attention import SAVED, attend, choose_kernel, masked_attention
from memsinks_jax.model.losses import logits
from memsinks_jax.model.placement import BATCH, FSDP, TENSOR, constrain, gather
from memsinks_jax.model.products import Teaching, add_bias, product
from memsinks_jax.sinks import Blocks, Partition, is_sparse, partition

Interventions = Mapping[str, Callable[[jax.Array, jax.Array], jax.Array] | Blocks]

# Interventions that depend on the rows: (B, T) bool of the real tokens, and of those whose next token is asked for, None
# where that is all of them -> interventions.
Change = Callable[[jax.Array, jax.Array | None], Interventions]

_INITIAL_DEVIATION = 0.02  # GPT-2's

# What the backward pass finds saved of a layer; the rest it computes again. From most memory to least.
REMAT_POLICIES = {
    "none": None,
    "products": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(SAVED),
    ),
    "attention": jax.checkpoint_policies.save_only_these_names(SAVED),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def in_turn(*changes: Interventions) -> Interventions:
    """Interventions one after the other, as one. Of `sinks` there is one at most."""
    sparse = {site: rows for change in changes for site, rows in change.items() if site == "sinks"}
    sites = {site for change in changes for site in change} - set(sparse)

    def chain(site: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
        functions = [change[site] for change in changes if site in change]
        return lambda x, layer: functools.reduce(lambda x, function: function(x, layer), functions, x)

    return {site: chain(site) for site in sites} | sparse


def no_change(real_BT: jax.Array, asked_BT: jax.Array | None) -> Interventions:
    """The Change that changes nothing."""
    return {}


@jax.custom_vjp
def recorded(x: jax.Array, record: jax.Array) -> jax.Array:
    """x. Its gradient for `record`, zeros like x in float32, is x itself.

    So an intervention, which returns nothing but the activation, hands out what it has seen; nothing else of the backward
    pass is computed unless it is asked for.
    """
    return x


recorded.defvjp(lambda x, record: (x, x), lambda x, gradient: (gradient, x.astype(jnp.float32)))


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
      sinks: M, of the sparse ones, which are built beside it.
      vocabulary_size: V.
      context: the longest row.
      kernel: of attention.KERNELS.
      remat: of REMAT_POLICIES.
      unroll: lays the layers out one after the other instead of in a loop.
    """

    config: ModelConfig
    hidden: int
    vocabulary_size: int
    context: int
    kernel: str = "xla"
    remat: str = "none"
    unroll: bool = True
    sinks: int = 0

    @nn.compact
    def __call__(
        self,
        tokens_BT: jax.Array,
        segments_BT: jax.Array,
        positions_BT: jax.Array,
        interventions: Interventions | None = None,
        cache: Cache | None = None,
        read_out: Callable[[jax.Array, jax.Array], jax.Array] = logits,
        teaching: Teaching | None = None,
    ) -> jax.Array | tuple[jax.Array, Cache]:
        """int32 tokens, segments (from 1; 0 padding) and positions (from 0) -> float32 logits_BTV.

        A position sees itself and earlier positions of its own segment, nothing else. With a cache, a row is one
        document: its keys and values are put in at their positions, each sees what stands there up to itself, and the
        result is (logits_BTV, cache); segments are not read. `read_out` makes something else than logits of the last
        hidden states (x_BTD) and the head's matrix (D, V). `teaching` is of the MLPs' neurons.
        """
        interventions = interventions or {}
        unknown = set(interventions) - ({"attention", "mlp", "sinks"} if self.sinks else {"attention", "mlp"})
        if unknown:
            raise ValueError(f"no site named {sorted(unknown)}; sites are attention and mlp")
        dtype = jnp.dtype(self.config.dtype)
        normal = _normal()
        embedding_VD = self.param("token_embedding", normal, (self.vocabulary_size, self.config.d_model))
        x_BTD = embedding_VD[tokens_BT]
        angles_BTC = None
        if self.config.family == "gpt2":
            places_TD = self.param("position_embedding", normal, (self.context, self.config.d_model))
            x_BTD = x_BTD + places_TD[positions_BT]
        else:
            angles_BTC = rotary_angles(positions_BT, self.config)
        tables, rows = self.sink_tables(), None
        if "sinks" in interventions:
            rows = sparse_sinks.fetch(tables, interventions["sinks"], dtype)
        layer = Layer
        if self.remat != "none":
            layer = nn.remat(Layer, prevent_cse=False, policy=REMAT_POLICIES[self.remat])
        layers = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, 0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=self.config.layers,
            unroll=self.config.layers if self.unroll else 1,
        )(self.config, self.hidden, self.kernel, interventions, teaching, name="layers")
        numbers = jnp.arange(self.config.layers)
        x_BTD = constrain(x_BTD.astype(dtype), BATCH, None, None)
        x_BTD, cache = layers(x_BTD, numbers, cache, rows, segments_BT, positions_BT, angles_BTC)
        x_BTD = Norm(self.config, name="final_norm")(x_BTD)
        if self.config.tied_head:
            head_DV = embedding_VD.T
        else:
            head_DV = self.param("head_kernel", normal, (self.config.d_model, self.vocabulary_size))
        result = read_out(x_BTD.astype(dtype), gather(head_DV.astype(dtype), FSDP, TENSOR))
        return result if cache is None else (result, cache)

    def sink_tables(self) -> dict[str, jax.Array]:
        """{name: rows}, all of `sinks` when the model is made, later as many as the parameters have."""
        names = sparse_sinks.tables_of(self.config) if self.sinks else ()
        if not self.is_initializing():
            return {name: self.get_variable("params", name) for name in names}
        shape, found = (self.sinks, self.config.layers, self.config.d_model), {}
        for name in names:
            if name.endswith("_bias"):
                found[name] = self.param(name, nn.initializers.zeros, shape[:2])
            else:
                initial = _normal(2 * self.config.layers) if name.endswith("down") else _normal()
                found[name] = self.param(name, initial, shape)
        return found


def _normal(writers: int = 1) -> nn.initializers.Initializer:
    """Of weights; what writes to the residual stream starts smaller, by the number of writers (GPT-2)."""
    return nn.initializers.normal(_INITIAL_DEVIATION * writers**-0.5)


class Layer(nn.Module):
    """Attention and MLP, each on the normed residual stream and added to it."""

    config: ModelConfig
    hidden: int
    kernel: str
    interventions: Interventions
    teaching: Teaching | None

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, layer: jax.Array, cache: Cache | None, rows, segments_BT, positions_BT, angles_BTC
    ) -> tuple[jax.Array, Cache | None]:
        normed_BTD = Norm(self.config, name="attention_norm")(x_BTD)
        heads_BTD, cache = self.attention(normed_BTD, layer, cache, segments_BT, positions_BT, angles_BTC)
        x_BTD = x_BTD + heads_BTD
        x_BTD = x_BTD + self.mlp(Norm(self.config, name="mlp_norm")(x_BTD), layer, rows)
        return constrain(x_BTD, BATCH, None, None), cache

    def attention(self, x_BTD, layer, cache, segments_BT, positions_BT, angles_BTC) -> tuple[jax.Array, Cache | None]:
        heads, kv_heads = self.config.heads, self.config.kv_heads or self.config.heads
        size, bias = self.config.d_model // heads, self.config.attention_bias
        query_BTHC = self.linear("query", x_BTD, heads * size, bias).reshape(*x_BTD.shape[:2], heads, size)
        key_BTKC = self.linear("key", x_BTD, kv_heads * size, bias).reshape(*x_BTD.shape[:2], kv_heads, size)
        value_BTKC = self.linear("value", x_BTD, kv_heads * size, bias).reshape(*x_BTD.shape[:2], kv_heads, size)
        if angles_BTC is not None:
            query_BTHC, key_BTKC = rotate(query_BTHC, angles_BTC), rotate(key_BTKC, angles_BTC)
        if cache is None:
            heads_BTHC = attend(self.kernel, query_BTHC, key_BTKC, value_BTKC, segments_BT)
        else:
            rows_B1 = jnp.arange(x_BTD.shape[0])[:, None]
            cache = Cache(
                cache.keys.at[rows_B1, positions_BT].set(key_BTKC),
                cache.values.at[rows_B1, positions_BT].set(value_BTKC),
            )
            seen_BTS = jnp.arange(cache.keys.shape[1]) <= positions_BT[:, :, None]
            heads_BTHC = masked_attention(query_BTHC, *cache, seen_BTS)
        heads_BTD = heads_BTHC.reshape(x_BTD.shape)
        heads_BTD = self.intervene("attention", heads_BTD, layer)
        return self.linear("attention_output", heads_BTD, self.config.d_model, bias, residual=True), cache

    def mlp(self, x_BTD: jax.Array, layer: jax.Array, rows: dict[str, jax.Array] | None) -> jax.Array:
        bias = self.config.mlp_bias
        linear = functools.partial(self.linear, x=x_BTD, width=self.hidden, has_bias=bias, columns=self.teaching)
        x_BTF = self.intervene("mlp", self.activation(linear), layer)
        y_BTD = self.linear("down", x_BTF, self.config.d_model, bias, residual=True, rows=self.teaching)
        if rows is None:
            return y_BTD
        return y_BTD + sparse_sinks.added(x_BTD, rows, self.interventions["sinks"], self.activation)

    def activation(self, linear: Callable[[str], jax.Array]) -> jax.Array:
        """The hidden activation of an MLP, of what its linear maps give."""
        if self.config.family == "gpt2":
            return nn.gelu(linear("up"), approximate=True)
        return nn.silu(linear("gate")) * linear("up")

    def intervene(self, site: str, x: jax.Array, layer: jax.Array) -> jax.Array:
        return self.interventions[site](x, layer) if site in self.interventions else x

    def linear(
        self, name: str, x: jax.Array, width: int, has_bias: bool, residual: bool = False, rows=None, columns=None
    ) -> jax.Array:  # fmt: skip
        """x @ kernel + bias."""
        initial = _normal(2 * self.config.layers) if residual else _normal()
        kernel = self.param(f"{name}_kernel", initial, (x.shape[-1], width))
        kernel = gather(kernel.astype(x.dtype), *((TENSOR, FSDP) if residual else (FSDP, TENSOR)))
        y = product(x, kernel, None, rows, columns)
        if not has_bias:
            return y
        bias = self.param(f"{name}_bias", nn.initializers.zeros, (width,)).astype(x.dtype)
        return y + bias if columns is None else add_bias(y, bias, columns)


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


def build_model(config: Config, platform: str | None = None) -> tuple[Decoder, Partition]:
    """The decoder of a config, and how its hidden neurons are split into shared ones and sinks.

    `platform` is 'cpu', 'gpu' or 'tpu'; by default that of this machine. Raises InputError as `choose_kernel` does.
    """
    parts, sparse = partition(config.model, config.sinks), is_sparse(config.sinks)
    platform = platform or jax.default_backend()
    decoder = Decoder(
        config.model, parts.shared if sparse else sum(parts), config.data.vocabulary_size, config.data.row_length,
        kernel=choose_kernel(config, platform),
        remat=config.compute.remat,
        # XLA's CPU backend copies a loop's activations at every turn: unrolled layers are a tenth faster there.
        unroll=platform == "cpu",
        sinks=parts.sinks if sparse else 0,
    )  # fmt: skip
    return decoder, parts
