"""The decoder: one module for all families. What they differ in are facts, read from
families.FAMILIES and the config.

Axes: B batch, T time, D d_model, F hidden (S shared + M sinks), H heads, K kv heads, C head dim, V
vocabulary, L layers; in a cache, T is its capacity.

Every layer has two named sites: `attention` (concatenated heads before the output projection, x_BTD
of width H C) and `mlp` (hidden activation, after the gate if there is one, before the down
projection, x_BTF). An intervention, a pure function `(x, layer) -> x`, may read or change the
activation there. `layer` is a traced int32. The model knows no intervention by name. With sparse
sinks F is S, and the entry `sinks` of the interventions has the table rows that are on, and where.
With sinks by context, the entry `contexts` has the row of the table of contexts at every position,
int32 (B, T), NONE for none; it is added before the head.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from memsinks_jax.config import Config, ModelConfig
from memsinks_jax.families import FAMILIES
from memsinks_jax.model import sparse_sinks
from memsinks_jax.model.attention import SAVED, attend, choose_kernel, masked_attention, within
from memsinks_jax.model.exchange import rows_of
from memsinks_jax.model.losses import logits
from memsinks_jax.model.placement import BATCH, FSDP, TENSOR, constrain, gather
from memsinks_jax.model.positions import angles, kinds, rotate
from memsinks_jax.model.products import PRODUCT, GradientScale, add_bias, product
from memsinks_jax.sinks.blocks import Blocks
from memsinks_jax.sinks.kinds import Partition, is_sparse, partition

Interventions = Mapping[str, Callable[[jax.Array, jax.Array], jax.Array] | Blocks | jax.Array]

# Interventions that depend on the rows: (B, T) bool, which tokens are real; (B, T) bool, which
# tokens need a next token, None if all do -> interventions.
Change = Callable[[jax.Array, jax.Array | None], Interventions]

CONTEXTS = "sink_contexts"  # the table of contexts, (M, D)
_INITIAL_DEVIATION = 0.02  # GPT-2's

_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}

# What of a layer is saved for the backward pass, which recomputes the rest. From most memory to
# least.
REMAT_POLICIES = {
    "none": None,
    "products": jax.checkpoint_policies.save_only_these_names(SAVED, PRODUCT),
    "attention": jax.checkpoint_policies.save_only_these_names(SAVED),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def compose(*changes: Interventions) -> Interventions:
    """Combines interventions in this order. At most one may have `sinks` or `contexts`."""
    sparse = {
        site: change[site] for change in changes for site in ("sinks", "contexts") if site in change
    }
    sites = {site for change in changes for site in change} - set(sparse)

    def chain(site: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
        functions = [change[site] for change in changes if site in change]
        return lambda x, layer: functools.reduce(
            lambda x, function: function(x, layer), functions, x
        )

    return {site: chain(site) for site in sites} | sparse


def no_change(real_BT: jax.Array, asked_BT: jax.Array | None) -> Interventions:
    """The Change that changes nothing."""
    return {}


@jax.custom_vjp
def recorded(x: jax.Array, record: jax.Array) -> jax.Array:
    """Returns x. The gradient for `record`, zeros like x in float32, is x itself.

    An intervention can return only the activation; this is how it reports what it has seen. The
    rest of the backward pass is computed only if it is used.
    """
    return x


recorded.defvjp(lambda x, record: (x, x), lambda x, gradient: (gradient, x.astype(jnp.float32)))


class Cache(NamedTuple):
    """Keys and values of the positions seen so far, LBTKC each."""

    keys: jax.Array
    values: jax.Array


def empty_cache(config: ModelConfig, batch: int, length: int) -> Cache:
    """A cache with room for `length` positions of `batch` rows."""
    shape = (config.layers, batch, length, config.kv_heads or config.heads, config.head_width)
    return Cache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


class LayerInputs(NamedTuple):
    """The inputs that all layers share. `angles_BTC` has one array for each kind of layer, see
    positions.py.
    """

    segments_BT: jax.Array
    positions_BT: jax.Array
    angles_BTC: tuple[jax.Array, ...]
    interventions: Interventions
    gradient_scale: GradientScale | None


class Layer(nnx.Module):
    """Attention and MLP, each added to the residual stream; the family decides which inputs and
    outputs are normed.
    """

    def __init__(self, model: "Decoder", key: jax.Array):
        config: ModelConfig = model.config
        self.model, self.family, width, heads = (
            model,
            FAMILIES[config.family],
            config.d_model,
            config.attention_width,
        )
        shapes = {
            "query": (width, heads),
            "key": (width, config.key_width),
            "value": (width, config.key_width),
            "attention_output": (heads, width),
        }
        has_bias = dict.fromkeys(shapes, config.attention_bias)
        has_bias["attention_output"] &= self.family.output_bias
        shapes |= dict.fromkeys(
            ("gate", "up") if self.family.gated else ("up",), (width, model.hidden)
        )
        shapes["down"] = (model.hidden, width)
        has_bias = dict.fromkeys(shapes, config.mlp_bias) | has_bias
        new = _Initial(key, b"layers", len(shapes) + sum(has_bias.values()))
        for name, shape in shapes.items():
            writers = 2 * config.layers if name in ("attention_output", "down") else 1
            setattr(self, f"{name}_kernel", new.normal(*shape, writers=writers))
            setattr(self, f"{name}_bias", new.zeros(shape[1]) if has_bias[name] else None)
        sizes = {"head": (config.head_width, config.head_width), "width": (heads, config.key_width)}
        query, keys = sizes.get(self.family.query_key_norm, (0, 0))
        before, after = (
            width if placed else 0 for placed in (self.family.norm_before, self.family.norm_after)
        )
        norms = {
            "attention_norm": before,
            "mlp_norm": before,
            "attention_output_norm": after,
            "mlp_output_norm": after,
            "query_norm": query,
            "key_norm": keys,
        }
        for name, size in norms.items():
            setattr(self, name, Norm(config, size) if size else None)

    def __call__(
        self,
        x_BTD: jax.Array,
        layer: jax.Array,
        kind: jax.Array | None,
        cache: Cache | None,
        rows,
        inputs: LayerInputs,
    ) -> tuple[jax.Array, Cache | None]:
        heads_BTD, cache = self.attention(
            _normed(self.attention_norm, x_BTD), layer, kind, cache, inputs
        )
        read_BTD, x_BTD = x_BTD, x_BTD + _normed(self.attention_output_norm, heads_BTD)
        read_BTD = _normed(self.mlp_norm, read_BTD if self.family.parallel else x_BTD)
        x_BTD = x_BTD + _normed(self.mlp_output_norm, self.mlp(read_BTD, layer, rows, inputs))
        return constrain(x_BTD, BATCH, None, None), cache

    def attention(self, x_BTD, layer, kind, cache, inputs) -> tuple[jax.Array, Cache | None]:
        config: ModelConfig = self.model.config

        def heads(name: str) -> jax.Array:
            y, norm = (
                self.linear(name, x_BTD),
                {"query": self.query_norm, "key": self.key_norm}.get(name),
            )
            by_head = (*x_BTD.shape[:2], -1, config.head_width)
            if self.family.query_key_norm == "width":
                y_BTHC = _normed(norm, y).reshape(by_head)
            else:
                y_BTHC = _normed(norm, y.reshape(by_head))
            is_rotated = name != "value" and inputs.angles_BTC
            return rotate(y_BTHC, _of_kind(inputs.angles_BTC, kind)) if is_rotated else y_BTHC

        query_BTHC, key_BTKC, value_BTKC = heads("query"), heads("key"), heads("value")
        if config.attention_scale:  # the kernels divide by the root of the head's size
            query_BTHC = query_BTHC * (config.attention_scale * config.head_width**0.5)
        if cache is None:
            heads_BTHC = attend(
                self.model.kernel,
                query_BTHC,
                key_BTKC,
                value_BTKC,
                inputs.segments_BT,
                self.model.windows,
                kind,
            )
        else:
            rows_B1 = jnp.arange(x_BTD.shape[0])[:, None]
            # Into the cache of all layers, in place: a layer's own would be copied back whole.
            cache = Cache(
                cache.keys.at[layer, rows_B1, inputs.positions_BT].set(key_BTKC),
                cache.values.at[layer, rows_B1, inputs.positions_BT].set(value_BTKC),
            )
            before_BTS = inputs.positions_BT[:, :, None] - jnp.arange(cache.keys.shape[2])
            visible_BTS = within(before_BTS, self.model.windows, kind)
            heads_BTHC = masked_attention(
                query_BTHC, cache.keys[layer], cache.values[layer], visible_BTS
            )
        heads_BTD = _intervene(inputs, "attention", heads_BTHC.reshape(*x_BTD.shape[:2], -1), layer)
        return self.linear("attention_output", heads_BTD, residual=True), cache

    def mlp(
        self, x_BTD: jax.Array, layer: jax.Array, rows: dict[str, jax.Array], inputs: LayerInputs
    ) -> jax.Array:
        linear = functools.partial(self.linear, x=x_BTD, columns=inputs.gradient_scale)
        x_BTF = _intervene(inputs, "mlp", self.activation(linear), layer)
        y_BTD = self.linear("down", x_BTF, residual=True, rows=inputs.gradient_scale)
        if rows:
            y_BTD += sparse_sinks.added(x_BTD, rows, inputs.interventions["sinks"], self.activation)
        return y_BTD

    def activation(self, linear: Callable[[str], jax.Array]) -> jax.Array:
        """The hidden activation of an MLP, from the outputs of its linear maps."""
        function = _ACTIVATIONS[self.family.activation]
        return (
            function(linear("gate")) * linear("up") if self.family.gated else function(linear("up"))
        )

    def linear(
        self, name: str, x: jax.Array, residual: bool = False, rows=None, columns=None
    ) -> jax.Array:
        """x @ kernel + bias."""
        kernel, bias = (
            getattr(self, f"{name}_kernel")[...].astype(x.dtype),
            getattr(self, f"{name}_bias"),
        )
        kernel = gather(kernel, *((TENSOR, FSDP) if residual else (FSDP, TENSOR)))
        y = product(x, kernel, None, rows, columns)
        if bias is None:
            return y
        return add_bias(y, bias[...].astype(x.dtype), columns)


def _normed(norm: "Norm | None", x: jax.Array) -> jax.Array:
    return x if norm is None else norm(x)


def _of_kind(choices: tuple[jax.Array, ...], kind: jax.Array | None) -> jax.Array:
    """The choice for a kind of layer; None: there is one kind."""
    return choices[0] if kind is None else jnp.stack(choices)[kind]


def _intervene(inputs: LayerInputs, site: str, x: jax.Array, layer: jax.Array) -> jax.Array:
    return inputs.interventions[site](x, layer) if site in inputs.interventions else x


class Norm(nnx.Module):
    """A norm of the family's kind over the last axis, of `size`, in float32."""

    def __init__(self, config: ModelConfig, size: int):
        kind = FAMILIES[config.family].norm
        self.epsilon, self.offset = config.norm_epsilon, kind == "rms_one"
        self.scale = nnx.Param((jnp.zeros if self.offset else jnp.ones)(size))
        self.bias = nnx.Param(jnp.zeros(size)) if kind == "layer" else None

    def __call__(self, x: jax.Array) -> jax.Array:
        wide, scale = x.astype(jnp.float32), self.scale[...] + 1 if self.offset else self.scale[...]
        if self.bias is not None:
            wide = wide - wide.mean(axis=-1, keepdims=True)
        normed = (
            wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.epsilon) * scale
        )
        return (normed if self.bias is None else normed + self.bias[...]).astype(x.dtype)


class _Initial:
    """Initial parameters, made one after the other.

    The key of each follows from its scope and its number, so one that is added last leaves all
    others as they are.
    """

    def __init__(self, key: jax.Array, scope: bytes = b"", number: int = 0):
        self.key, self.scope, self.number = key, scope, number

    def normal(self, *shape: int, writers: int = 1) -> nnx.Param:
        """Weights. Those that write to the residual stream start smaller, by the number of writers
        (GPT-2).
        """
        self.number += 1
        digest = hashlib.sha1(self.scope + bytes([self.number])).digest()
        key = jax.random.fold_in(self.key, int.from_bytes(digest[:4]))
        return nnx.Param(jax.nn.initializers.normal(_INITIAL_DEVIATION * writers**-0.5)(key, shape))

    def zeros(self, *shape: int) -> nnx.Param:
        self.number += 1
        return nnx.Param(jnp.zeros(shape))


class _Modules(nnx.Module):
    """All parameters of a decoder, those of the layers stacked.

    Modules end here: outside, parameters are one plain dict, as optax, Orbax and export want. They
    cost tracing (plain functions trace in 0.70 of the time), so norms that are absent are None.
    """

    def __init__(self, model: "Decoder", key: jax.Array):
        config, new = model.config, _Initial(key)
        self.token_embedding = new.normal(model.vocabulary_size, config.d_model)
        if not FAMILIES[config.family].rotary:
            self.position_embedding = new.normal(model.context, config.d_model)
        shape = model.sinks, config.layers, config.d_model
        for name in sparse_sinks.tables_of(config) if model.sinks else ():
            writers = 2 * config.layers if name.endswith("down") else 1
            setattr(
                self,
                name,
                new.zeros(*shape[:2])
                if name.endswith("bias")
                else new.normal(*shape, writers=writers),
            )
        self.layers = nnx.vmap(lambda key: model.layer(model, key))(
            jax.random.split(key, config.layers)
        )
        self.final_norm = Norm(config, config.d_model)
        if not config.tied_head:
            self.head_kernel = new.normal(config.d_model, model.vocabulary_size)
        if model.contexts:  # last, so that the others begin as in a model without
            setattr(self, CONTEXTS, new.zeros(model.contexts, config.d_model))


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Tokens to logits, as a pure function of parameters: a nested dict of arrays, those of the
    layers stacked.

    Attributes:
      config: sizes; `config.hidden` is not read here.
      hidden: F, the width of the MLPs as built.
      sinks: M, the number of sparse sinks, in addition to F; parameters may have more or fewer.
      contexts: the number of sinks by context.
      vocabulary_size: V.
      context: the longest row.
      kernel: one of attention.KERNELS.
      remat: one of REMAT_POLICIES.
      unroll: unrolls the layers instead of scanning over them.
      layer: the module of a layer, for inspection.
    """

    config: ModelConfig
    hidden: int
    vocabulary_size: int
    context: int
    kernel: str = "xla"
    remat: str = "none"
    unroll: bool = True
    sinks: int = 0
    contexts: int = 0
    layer: type[Layer] = Layer

    @functools.cached_property
    def windows(self) -> list[int]:
        """The window of each kind of layer; 0: none."""
        return [kind.window for kind in kinds(self.config)[0]]

    def init(self, key: jax.Array) -> dict:
        """Fresh parameters, float32."""
        return nnx.to_pure_dict(nnx.state(_Modules(self, key)))

    @functools.cached_property
    def _structure(self) -> nnx.GraphDef:
        return nnx.graphdef(nnx.eval_shape(lambda: _Modules(self, jax.random.key(0))))

    def __call__(
        self,
        params: dict,
        tokens_BT: jax.Array,
        segments_BT: jax.Array,
        positions_BT: jax.Array,
        interventions: Interventions | None = None,
        cache: Cache | None = None,
        read_out: Callable[[jax.Array, jax.Array], jax.Array] = logits,
        gradient_scale: GradientScale | None = None,
    ) -> jax.Array | tuple[jax.Array, Cache]:
        """int32 tokens, segments (from 1; 0 padding) and positions (from 0) -> float32 logits_BTV.

        A position sees itself and earlier positions of its own segment, nothing else. With a cache,
        a row is one
        document: its keys and values are stored at their positions, each position sees those up to
        its own, and the result is (logits_BTV, cache); segments are not read. `read_out` replaces
        the logits by another function of the last hidden states (x_BTD) and the head's matrix (D,
        V). `gradient_scale` is for the MLPs' neurons.
        """
        config, interventions = self.config, interventions or {}
        sites = {
            "attention",
            "mlp",
            *(("sinks",) if self.sinks else ()),
            *(("contexts",) if self.contexts else ()),
        }
        if unknown := set(interventions) - sites:
            raise ValueError(f"no site named {sorted(unknown)}; sites are attention and mlp")
        dtype, modules = jnp.dtype(config.dtype), nnx.merge(self._structure, params)
        x_BTD = modules.token_embedding[tokens_BT]
        if FAMILIES[config.family].scaled_embedding:
            x_BTD = x_BTD * config.d_model**0.5
        if not FAMILIES[config.family].rotary:
            x_BTD = x_BTD + modules.position_embedding[positions_BT]
        angles_BTC, (_, kind_L) = angles(positions_BT, config), kinds(config)
        rows = {}
        if "sinks" in interventions:
            tables = {name: params[name] for name in sparse_sinks.tables_of(config)}
            rows = sparse_sinks.fetch(tables, interventions["sinks"], dtype)
        structure, stacked = nnx.split(modules.layers)

        def layer(
            x_BTD, cache, weights: nnx.State, number, kind, rows, *places
        ) -> tuple[jax.Array, Cache | None]:
            inputs = LayerInputs(*places, interventions, gradient_scale)
            return nnx.merge(structure, weights)(x_BTD, number, kind, cache, rows, inputs)

        if self.remat != "none":
            layer = jax.checkpoint(layer, prevent_cse=False, policy=REMAT_POLICIES[self.remat])
        x_BTD = constrain(x_BTD.astype(dtype), BATCH, None, None)
        (x_BTD, cache), _ = jax.lax.scan(
            lambda carried, its: (
                layer(*carried, *its, segments_BT, positions_BT, angles_BTC),
                None,
            ),
            (x_BTD, cache),
            (
                stacked,
                jnp.arange(config.layers),
                jnp.asarray(kind_L) if kind_L.any() else None,
                rows,
            ),
            unroll=config.layers if self.unroll else 1,
        )
        x_BTD = modules.final_norm(x_BTD)
        if "contexts" in interventions:
            found = rows_of({CONTEXTS: params[CONTEXTS]}, interventions["contexts"], dtype)
            x_BTD = x_BTD + constrain(found[CONTEXTS], BATCH, None, None)
        head_DV = modules.token_embedding[...].T if config.tied_head else modules.head_kernel[...]
        result = read_out(x_BTD.astype(dtype), gather(head_DV.astype(dtype), FSDP, TENSOR))
        return result if cache is None else (result, cache)


def build_model(config: Config, platform: str | None = None) -> tuple[Decoder, Partition]:
    """The decoder of a config, and its Partition of the hidden neurons into shared ones and sinks.

    `platform` is 'cpu', 'gpu' or 'tpu'; by default this machine's. Raises InputError as
    `choose_kernel` does.
    """
    parts, sparse = partition(config.model, config.sinks), is_sparse(config.sinks)
    platform = platform or jax.default_backend()
    decoder = Decoder(
        config.model,
        parts.shared if sparse else sum(parts),
        config.data.vocabulary_size,
        config.data.row_length,
        kernel=choose_kernel(config, platform),
        remat=config.compute.remat,
        # XLA's CPU backend copies a loop's activations at every iteration: unrolled layers are a
        # tenth faster there.
        unroll=platform == "cpu",
        sinks=parts.sinks if sparse else 0,
        contexts=config.contexts.rows if config.sinks.traits.by_context else 0,
    )
    return decoder, parts
