"""Decoders as Hugging Face stores them: one table of names and sizes for each family serves both
directions.

Our parameters are those of model/decoder.py, with everything in layers/ stacked along axis 0;
theirs are named by layer.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from memsinks_jax import families
from memsinks_jax.config import (
    Config,
    DataConfig,
    InputError,
    ModelConfig,
    SinksConfig,
    flatten,
    validate,
)
from memsinks_jax.data.documents import some
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.families import FAMILIES
from memsinks_jax.model.decoder import Decoder
from memsinks_jax.model.positions import holds, pattern_of


class Entry(NamedTuple):
    """One tensor of theirs (`{}` is the layer) and our parameters in it, several side by side along
    the last axis.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False  # torch's Linear has (out, in); its Conv1D, and we, (in, out)
    by_head: bool = False  # side by side within each head


def _linear(theirs: str, *ours: str, by_head: bool = False) -> tuple[Entry, Entry]:
    kernels, biases = (tuple(f"{name}_{kind}" for name in ours) for kind in ("kernel", "bias"))
    return Entry(f"{theirs}.weight", kernels, True, by_head), Entry(
        f"{theirs}.bias", biases, False, by_head
    )


def _conv1d(theirs: str, *ours: str) -> tuple[Entry, Entry]:
    weight, bias = _linear(theirs, *ours)
    return weight._replace(transposed=False), bias


def _norm(theirs: str, ours: str) -> tuple[Entry, Entry]:
    return Entry(f"{theirs}.weight", (f"{ours}/scale",)), Entry(f"{theirs}.bias", (f"{ours}/bias",))


_GPT2 = (
    Entry("transformer.wte.weight", ("token_embedding",)),
    Entry("transformer.wpe.weight", ("position_embedding",)),
    *_norm("transformer.h.{}.ln_1", "layers/attention_norm"),
    *_conv1d("transformer.h.{}.attn.c_attn", "layers/query", "layers/key", "layers/value"),
    *_conv1d("transformer.h.{}.attn.c_proj", "layers/attention_output"),
    *_norm("transformer.h.{}.ln_2", "layers/mlp_norm"),
    *_conv1d("transformer.h.{}.mlp.c_fc", "layers/up"),
    *_conv1d("transformer.h.{}.mlp.c_proj", "layers/down"),
    *_norm("transformer.ln_f", "final_norm"),
    Entry("lm_head.weight", ("head_kernel",), transposed=True),
)
_GPT_NEOX = (
    Entry("gpt_neox.embed_in.weight", ("token_embedding",)),
    *_norm("gpt_neox.layers.{}.input_layernorm", "layers/attention_norm"),
    *_norm("gpt_neox.layers.{}.post_attention_layernorm", "layers/mlp_norm"),
    *_linear(
        "gpt_neox.layers.{}.attention.query_key_value",
        "layers/query",
        "layers/key",
        "layers/value",
        by_head=True,
    ),
    *_linear("gpt_neox.layers.{}.attention.dense", "layers/attention_output"),
    *_linear("gpt_neox.layers.{}.mlp.dense_h_to_4h", "layers/up"),
    *_linear("gpt_neox.layers.{}.mlp.dense_4h_to_h", "layers/down"),
    *_norm("gpt_neox.final_layer_norm", "final_norm"),
    Entry("embed_out.weight", ("head_kernel",), transposed=True),
)


def _like_llama(norms: dict[str, str], fused: bool = False) -> tuple[Entry, ...]:
    """Llama's names, with `norms` {theirs: ours} of a layer; what a family lacks is left out by its
    sizes.
    """
    attention, mlp = "model.layers.{}.self_attn", "model.layers.{}.mlp"
    separate = [
        *((f"{attention}.{name[0]}_proj", f"layers/{name}") for name in ("query", "key", "value")),
        *((f"{mlp}.{name}_proj", f"layers/{name}") for name in ("gate", "up")),
    ]
    together = [
        (f"{attention}.qkv_proj", "layers/query", "layers/key", "layers/value"),
        (f"{mlp}.gate_up_proj", "layers/gate", "layers/up"),
    ]
    return (
        Entry("model.embed_tokens.weight", ("token_embedding",)),
        *(entry for names in (together if fused else separate) for entry in _linear(*names)),
        *_linear(f"{attention}.o_proj", "layers/attention_output"),
        *_linear(f"{mlp}.down_proj", "layers/down"),
        *_norm(f"{attention}.q_norm", "layers/query_norm"),
        *_norm(f"{attention}.k_norm", "layers/key_norm"),
        *(
            entry
            for theirs, ours in norms.items()
            for entry in _norm(f"model.layers.{{}}.{theirs}", f"layers/{ours}")
        ),
        *_norm("model.norm", "final_norm"),
        Entry("lm_head.weight", ("head_kernel",), transposed=True),
    )


_BEFORE = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
_AFTER = {
    "post_attention_layernorm": "attention_output_norm",
    "post_feedforward_layernorm": "mlp_output_norm",
}
_AROUND = {"input_layernorm": "attention_norm", "pre_feedforward_layernorm": "mlp_norm", **_AFTER}

_SIZES = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "hidden": "intermediate_size",
    "head_size": "head_dim",
    "norm_epsilon": "rms_norm_eps",
    "tied_head": "tie_word_embeddings",
}
_BIASES = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}


class Dialect(NamedTuple):
    """How Hugging Face describes a family in config.json.

    Attributes:
      keys: {field of ModelConfig: theirs}.
      absent: {theirs: what a file without it means}.
      biases: of attention and MLP, where no key has it.
      required: {theirs: the only values that we compute, the first if it is absent}.
      context: their name of the longest row.
    """

    architecture: str
    entries: tuple[Entry, ...]
    keys: dict[str, str]
    absent: dict[str, Any]
    biases: dict[str, bool] = {}
    required: dict[str, tuple] = {}
    context: str = "max_position_embeddings"


def _llamas(name: str, entries: tuple[Entry, ...], biases: dict[str, bool], **absent) -> Dialect:
    """A dialect with Llama's keys. Biases that are not given have a key."""
    keys = _SIZES | {ours: theirs for ours, theirs in _BIASES.items() if ours not in biases}
    usual = {
        "attention_bias": False,
        "mlp_bias": False,
        "num_key_value_heads": None,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 1e4,
    }
    return Dialect(
        f"{name}ForCausalLM", entries, keys, usual | absent, biases, {"hidden_act": ("silu",)}
    )


_NONE, _NO_MLP = {"attention_bias": False, "mlp_bias": False}, {"mlp_bias": False}
_GEMMA = _llamas(
    "Gemma3",
    _like_llama(_AROUND),
    _NO_MLP,
    head_dim=256,
    tie_word_embeddings=True,
    rope_theta=1e6,
    sliding_window=4096,
    query_pre_attn_scalar=256,
    num_key_value_heads=4,
)
DIALECTS = {
    "gpt2": Dialect(
        "GPT2LMHeadModel",
        _GPT2,
        {
            "layers": "n_layer",
            "d_model": "n_embd",
            "heads": "n_head",
            "hidden": "n_inner",
            "norm_epsilon": "layer_norm_epsilon",
            "tied_head": "tie_word_embeddings",
        },
        {"n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        context="n_positions",
    ),
    "gpt_neox": Dialect(
        "GPTNeoXForCausalLM",
        _GPT_NEOX,
        {
            "layers": "num_hidden_layers",
            "d_model": "hidden_size",
            "heads": "num_attention_heads",
            "hidden": "intermediate_size",
            "norm_epsilon": "layer_norm_eps",
            "tied_head": "tie_word_embeddings",
            "attention_bias": "attention_bias",
        },
        {
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "rope_theta": 1e4,
            "rotary_emb_base": 1e4,
            "rotary_pct": 0.25,
        },
        {"mlp_bias": True},
        {"hidden_act": ("gelu",), "use_parallel_residual": (True,)},
    ),
    "llama": _llamas("Llama", _like_llama(_BEFORE), {}),
    "mistral": _llamas(
        "Mistral", _like_llama(_BEFORE), _NONE, num_key_value_heads=8, sliding_window=4096
    ),
    "smollm3": _llamas(
        "SmolLM3",
        _like_llama(_BEFORE),
        {},
        num_key_value_heads=4,
        rope_theta=2e6,
        tie_word_embeddings=True,
    ),
    "phi3": _llamas("Phi3", _like_llama(_BEFORE, fused=True), _NONE, rms_norm_eps=1e-5),
    "qwen2": _llamas(
        "Qwen2",
        _like_llama(_BEFORE),
        {"attention_bias": True, "mlp_bias": False},
        num_key_value_heads=32,
        sliding_window=4096,
    ),
    "qwen3": _llamas(
        "Qwen3",
        _like_llama(_BEFORE),
        _NO_MLP,
        num_key_value_heads=32,
        head_dim=128,
        sliding_window=4096,
    ),
    "olmo2": _llamas("Olmo2", _like_llama(_AFTER), _NO_MLP, rms_norm_eps=1e-5),
    "gemma3_text": _GEMMA._replace(
        required={
            "hidden_activation": ("gelu_pytorch_tanh",),
            "final_logit_softcapping": (None,),
            "attn_logit_softcapping": (None,),
            "use_bidirectional_attention": (False, None),
        }
    ),
}

# Constants in older files besides the parameters: causal masks and rotary frequencies, which follow
# from the sizes.
CONSTANTS = (
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
)

_ROPE = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "rope_local_base_freq",
    "original_max_position_embeddings",
)
_LAYER_TYPES = (
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
    "query_pre_attn_scalar",
)
_USE_WINDOW = ("qwen2", "qwen3", "smollm3")  # whose windows `use_sliding_window` switches on
_TYPED = (*_USE_WINDOW, "gemma3_text")  # whose classes read layer_types
_PARTIAL = ("phi3", "gpt_neox")  # whose classes rotate a part of a head
_SCALES = ("factor", "low_freq_factor", "high_freq_factor")
# Keys that do not affect what a trained model computes.
_HARMLESS = (
    "architectures",
    "model_type",
    "vocab_size",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "tokenizer_class",
    "attention_dropout",
    "hidden_dropout",
    "classifier_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "n_ctx",
    "pretraining_tp",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "torchscript",
    "is_decoder",
    "chunk_size_feed_forward",
    "cache_implementation",
    "gradient_checkpointing",
    "quantization_config",
    "is_llama_config",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    "reorder_and_upcast_attn",
    "max_length",
    "max_sequence_length",
    "output_past",
    "predict_special_tokens",
    "custom_pipelines",
    "full_attn_mod",
    "interpolate_factor",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "length_penalty",
    "num_beams",
)


class Tensor(NamedTuple):
    """A tensor of theirs: its name, its shape, its entry in the table, its layer (None: outside the
    layers).
    """

    name: str
    shape: tuple[int, ...]
    entry: Entry
    layer: int | None


def shapes(config: Config, hidden: int) -> dict[str, tuple[int, ...]]:
    """Our parameters of a config and the width of its MLPs -> {path: shape}."""
    return _shapes(config.model, hidden, config.data.vocabulary_size, config.data.row_length)


@functools.lru_cache(maxsize=64)
def _shapes(
    model: ModelConfig, hidden: int, vocabulary: int, context: int
) -> dict[str, tuple[int, ...]]:
    decoder = Decoder(model, hidden, vocabulary, context)
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(decoder.init, jax.random.key(0)))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves
    }


def tensors(config: Config, hidden: int) -> list[Tensor]:
    """Their tensors in the order of the model: embeddings, layer after layer, norm and head."""
    ours, found = shapes(config, hidden), []
    for entry in DIALECTS[config.model.family].entries:
        if entry.ours[0] not in ours:
            continue  # no biases, no separate head
        stacked = "{}" in entry.theirs
        parts = [ours[name][1:] if stacked else ours[name] for name in entry.ours]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        shape = shape[::-1] if entry.transposed else shape
        for layer in range(config.model.layers) if stacked else [None]:
            found.append(Tensor(entry.theirs.format(layer), shape, entry, layer))
    embeddings, last = ("token_embedding", "position_embedding"), config.model.layers

    def place(tensor: Tensor) -> int:
        if tensor.layer is not None:
            return tensor.layer
        return -1 if tensor.entry.ours[0] in embeddings else last

    return sorted(found, key=place)  # stable: the table's order within a layer


def theirs(
    config: Config, tensor: Tensor, read: Callable[[str, int | None], np.ndarray]
) -> np.ndarray:
    """Their tensor from our parameters; `read(path, layer)` returns a parameter, or a layer's slice
    of it.
    """
    parts = [read(name, tensor.layer) for name in tensor.entry.ours]
    if tensor.entry.by_head:
        by_head = [part.reshape(*part.shape[:-1], config.model.heads, -1) for part in parts]
        parts = [np.concatenate(by_head, axis=-1).reshape(*parts[0].shape[:-1], -1)]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(joined.T if tensor.entry.transposed else joined)


def ours(config: Config, hidden: int, read: Callable[[str], np.ndarray]) -> dict:
    """Our parameters, float32, from their tensors; `read(name)` returns a tensor."""
    flat = {name: np.empty(shape, np.float32) for name, shape in shapes(config, hidden).items()}
    for tensor in tensors(config, hidden):
        content = read(tensor.name)
        content = content.T if tensor.entry.transposed else content
        parts = [
            flat[name] if tensor.layer is None else flat[name][tensor.layer]
            for name in tensor.entry.ours
        ]
        if tensor.entry.by_head:
            content = content.reshape(*content.shape[:-1], config.model.heads, -1)
            # views
            parts = [part.reshape(*part.shape[:-1], config.model.heads, -1) for part in parts]
        start = 0
        for part in parts:
            part[...] = content[..., start : start + part.shape[-1]]
            start += part.shape[-1]
    params = {}
    for name, array in flat.items():
        *folders, last = name.split("/")
        place = params
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = array
    return params


def tied(family: str) -> tuple[str, str]:
    """The names of two tensors that are equal if the head is tied."""
    entries = DIALECTS[family].entries
    return entries[0].theirs, entries[-1].theirs


def compare(found: dict[str, tuple], config: Config, hidden: int, where: str) -> None:
    """Raises InputError unless a folder's tensors, {name: shape}, are exactly those of its
    config.json.
    """
    wanted = {tensor.name: tensor.shape for tensor in tensors(config, hidden)}
    found = {name: tuple(shape) for name, shape in found.items() if not name.endswith(CONSTANTS)}
    if config.model.tied_head:
        found.pop(tied(config.model.family)[1], None)  # some files contain the embedding twice
    parts = []
    if missing := sorted(wanted.keys() - found.keys()):
        parts.append(f"lacks {some(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        parts.append(f"has besides {some(extra)}")
    wrong = [name for name in sorted(wanted.keys() & found.keys()) if found[name] != wanted[name]]
    if wrong:
        parts.append(
            f"has {wrong[0]} of {list(found[wrong[0]])} instead of {list(wanted[wrong[0]])}"
        )
    if parts:
        raise InputError(
            f"{where}: the weights are not those of its config.json: it {'; '.join(parts)}"
        )


def write_config(
    config: Config, hidden: int, tokenizer: AnyTokenizer, dtype: str, theirs: dict
) -> dict:
    """The content of config.json. What `theirs`, of the model that ours came from, has besides
    sizes and types stays. So does its context, if that is longer than our rows and positions are
    rotary.

    Raises InputError for a config that their model of this family does not support.
    """
    model, data, dialect = config.model, config.data, DIALECTS[config.model.family]
    ends = tokenizer.stops[0] if len(tokenizer.stops) == 1 else list(tokenizer.stops)
    usual = {
        "initializer_range": 0.02,
        "bos_token_id": tokenizer.begin_of_text,
        "eos_token_id": ends,
        "use_cache": True,
    }
    usual |= dict.fromkeys(
        ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout"), 0.0
    )
    gone = "quantization_config", "auto_map"
    usual |= {name: value for name, value in theirs.items() if name not in gone}
    sizes = {
        "kv_heads": model.kv_heads or model.heads,
        "head_size": model.head_width,
        "hidden": hidden,
    }
    context = max(
        data.row_length, (FAMILIES[model.family].rotary and theirs.get(dialect.context)) or 0
    )
    content = usual | {
        name: values[0] for name, values in dialect.required.items() if name not in theirs
    }
    content |= {
        "architectures": [dialect.architecture],
        "model_type": model.family,
        dialect.context: context,
        "vocab_size": data.vocabulary_size,
        "dtype": dtype,
        "torch_dtype": dtype,
        **{key: sizes.get(field, getattr(model, field)) for field, key in dialect.keys.items()},
        **_write_positions(model),
    }
    if model.family == "gpt2":
        content["n_ctx"] = data.row_length  # the older name
    read = read_config(content, "config.json").model
    for name, value in dataclasses.asdict(read).items():
        mine = {
            "hidden": hidden,
            "kv_heads": sizes["kv_heads"],
            "dtype": value,
            "initial": value,
        }.get(name, getattr(model, name))
        if name == "head_size":
            value, mine = read.head_width, model.head_width
        if value != mine:
            raise InputError(
                f"{model.family} as Hugging Face has it computes with {name} {value!r}, but "
                f"config.model.{name} is {mine!r}; train another family"
            )
    return content


def read_config(content: dict, where: str) -> Config:
    """config.json -> our config without sinks. Raises InputError if our model does not support it.

    Only those fields are read that the family's class in transformers reads, which was found by
    setting every field to other values, absent and null too, and comparing logits.
    """
    kind = content.get("model_type")
    if experts := experts_in(content):
        raise InputError(
            f"{where}: {experts}, which cannot be read; take a dense model of one of: "
            f"{', '.join(DIALECTS)}"
        )
    if not isinstance(kind, str) or kind not in DIALECTS:
        stated = f"model_type is {kind!r}" if kind else "no model_type (a workdir needs no import)"
        raise InputError(f"{where}: {stated}; these can be read: {', '.join(DIALECTS)}")
    dialect = DIALECTS[kind]
    # which all classes read, and which is True where it is absent
    required = dialect.required | {"is_causal": (True,)}
    for name, values in required.items():
        if (value := content.get(name, values[0])) not in values:
            raise InputError(f"{where}: {name} is {value!r}; only {values[0]!r} can be read")
    known = {
        *_HARMLESS,
        *_ROPE,
        *_LAYER_TYPES,
        *dialect.keys.values(),
        *required,
        dialect.context,
        "head_dim",
    }
    for name, value in content.items():
        if value and name not in known and not name.startswith("_"):
            raise InputError(
                f"{where}: {name} is {value!r}, which is not known here and may change what the "
                "model computes; if it does not, remove it from the file"
            )
    try:
        vocabulary, ends = content["vocab_size"], content.get("eos_token_id")
        config = Config(
            variant="imported",
            model=_model(kind, dialect, content),
            sinks=SinksConfig(kind="none"),
            data=DataConfig(row_length=content[dialect.context], vocabulary_size=vocabulary),
        )
        usual = flatten(Config())
        for name, value in flatten(config).items():
            if type(value) is not type(usual[name]):
                raise TypeError(f"{name} is {value!r}")
        validate(config)
    except KeyError as error:
        raise InputError(f"{where}: {error.args[0]} is missing") from None
    except (TypeError, AttributeError, ZeroDivisionError, ValueError) as error:
        raise InputError(
            f"{where}: a value is of the wrong kind ({error}); fix it, or take another model"
        ) from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for token in [] if ends is None else ends if isinstance(ends, list) else [ends]:
        if not isinstance(token, int) or not 0 <= token < vocabulary:
            raise InputError(
                f"{where}: eos_token_id is {ends!r}; it must be a token of the {vocabulary}"
            )
    return config


def experts_in(content: Mapping) -> str:
    """ "a mixture of experts (KEY is VALUE)" if a config.json or the fields of a GGUF file are of
    one; else empty.
    """
    for name, value in content.items():
        if isinstance(value, int | np.integer) and value and re.search("expert|^moe", name):
            return f"a mixture of experts ({name} is {value})"
    kind = content.get("model_type")
    named = isinstance(kind, str) and re.search("moe|mixtral|dbrx", kind)
    return f"a mixture of experts (model_type is {kind!r})" if named else ""


def _model(family: str, dialect: Dialect, content: dict) -> ModelConfig:
    stated = dialect.absent | content
    fields = {field: stated[key] for field, key in dialect.keys.items()} | dialect.biases
    fields["kv_heads"] = fields.get("kv_heads") or fields["heads"]
    size = fields.get("head_size") or stated.get("head_dim") or fields["d_model"] // fields["heads"]
    fields["head_size"] = 0 if size * fields["heads"] == fields["d_model"] else size
    fields["hidden"] = fields["hidden"] or 4 * fields["d_model"]  # GPT-2's
    return ModelConfig(
        family=family, **fields, **_read_positions(family, stated, fields["layers"], size)
    )


def _read_positions(family: str, stated: dict, layers: int, size: int) -> dict:
    """Rotary positions, windows and the scale of the scores -> fields of ModelConfig. `size`: of a
    head.
    """
    if not FAMILIES[family].rotary:
        return {}
    for name in ("layer_types", "no_rope_layers"):
        if stated.get(name) is not None and len(stated[name]) != layers:
            raise InputError(
                f"{name} has {len(stated[name])} layers, and num_hidden_layers is {layers}"
            )
    types = (family in _TYPED and stated.get("layer_types")) or _layer_types(family, stated, layers)
    if others := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise InputError(
            f"layer_types has {others[0]!r}; only full_attention and sliding_attention can be read"
        )
    windowed = [kind == "sliding_attention" for kind in types]
    fields = {"window": stated.get("sliding_window") or 0} if any(windowed) else {}
    if any(windowed) and not (
        fields["window"] and (family not in _USE_WINDOW or stated.get("use_sliding_window"))
    ):
        raise InputError(
            "layers are of type sliding_attention, but there is no sliding_window, or "
            "use_sliding_window is off"
        )
    fields["window_layers"] = pattern_of(windowed) if any(windowed) else ""
    if family == "smollm3":
        fields["rotary_layers"] = pattern_of(_rotary(stated, layers))
    usual, older = stated.get("rope_parameters"), stated.get("rope_scaling")
    if family == "gemma3_text":
        by_type = usual
        if usual in (None, {}):
            by_type = {"full_attention": usual, "sliding_attention": {}}
        if not by_type.keys() <= {"full_attention", "sliding_attention"}:
            raise InputError(
                "rope_parameters are those of no type of layer; give them for full_attention"
            )
        usual = by_type.get("full_attention")
        local = {"rope_theta": stated.get("rope_local_base_freq", 1e4)} | (
            by_type.get("sliding_attention") or {}
        )
        fields["window_theta"], scaled, _ = _rope(family, local, stated)
        if scaled:
            raise InputError(
                f"angles of layers with a window are scaled by {scaled}; only default can be read"
            )
        scalar = stated["query_pre_attn_scalar"]
        fields["attention_scale"] = 0.0 if scalar == size else scalar**-0.5
    ropes = {_rope(family, rope, stated) for rope in (usual, older) if rope} or {
        _rope(family, {}, stated)
    }
    if len(ropes) > 1:
        raise InputError("rope_parameters and rope_scaling differ; leave one of them out")
    return fields | dict(
        zip(("rope_theta", "rope_scaling", "rotary_fraction"), ropes.pop(), strict=True)
    )


def _rope(family: str, rope: dict, stated: dict) -> tuple[float, str, float]:
    """rope_parameters, or the older rope_scaling -> fields of ModelConfig: rope_theta,
    rope_scaling, rotary_fraction.
    """
    theta, part = "rope_theta", "partial_rotary_factor"
    if family == "gpt_neox":
        theta, part = "rotary_emb_base", "rotary_pct"
    fraction = rope.get("partial_rotary_factor", stated.get(part, 1.0))
    if family not in _PARTIAL and fraction not in (None, 1):
        raise InputError(f"partial_rotary_factor is {fraction!r}; only 1 can be read of {family}")
    fraction = fraction if family in _PARTIAL else 1
    return float(rope.get("rope_theta", stated[theta])), _scaling(rope, stated), float(fraction)


def _layer_types(family: str, stated: dict, layers: int) -> list[str]:
    """What their classes make of a config without layer_types."""
    windowed = [False] * layers
    if family in ("mistral", "phi3"):
        windowed = [stated.get("sliding_window") is not None] * layers
    elif family == "gemma3_text":
        windowed = [
            (layer + 1) % stated.get("sliding_window_pattern", 6) != 0 for layer in range(layers)
        ]
    elif (
        family in _USE_WINDOW and stated.get("use_sliding_window") and stated.get("sliding_window")
    ):
        windowed = [layer >= stated.get("max_window_layers", 28) for layer in range(layers)]
        if family == "smollm3":
            windowed = [not rotary for rotary in _rotary(stated, layers)]
    return ["sliding_attention" if one else "full_attention" for one in windowed]


def _rotary(stated: dict, layers: int) -> list[bool]:
    """SmolLM3's layers with rotary positions."""
    every = stated.get("no_rope_layer_interval", 4)
    usual = ((layer + 1) % every for layer in range(layers))
    return list(map(bool, stated.get("no_rope_layers") or usual))


def _scaling(rope: dict, stated: dict) -> str:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ""
    if kind == "linear":
        return f"linear:{_decimal(rope['factor'])}"
    if kind == "llama3":
        old = rope.get("original_max_position_embeddings", stated["max_position_embeddings"])
        old = stated.get("original_max_position_embeddings", old)
        return "llama3:" + ",".join(map(_decimal, (*map(rope.__getitem__, _SCALES), old)))
    raise InputError(f"rope_type is {kind!r}; only default, linear and llama3 can be read")


def _decimal(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


def _write_positions(model: ModelConfig) -> dict:
    """What `_read_positions` reads, in the newer form and, where older versions know it, in the
    older one too.
    """
    if model.family == "gpt2":
        return {}
    kind, numbers = families.scaling(model.rope_scaling)
    rope = {"rope_type": kind or "default", "rope_theta": model.rope_theta}
    rope |= dict(zip(_SCALES, numbers, strict=False))
    if len(numbers) == 4:
        rope["original_max_position_embeddings"] = int(numbers[3])
    if model.rotary_fraction != 1 or model.family == "gpt_neox":
        rope["partial_rotary_factor"] = model.rotary_fraction
    unscaled = "rope_theta", "partial_rotary_factor"
    scaled = {name: value for name, value in rope.items() if name not in unscaled}
    content = {
        "rope_theta": model.rope_theta,
        "rope_scaling": scaled if kind else None,
        "rope_parameters": rope,
    }
    if model.family == "gpt_neox":
        content |= {"rotary_emb_base": model.rope_theta, "rotary_pct": model.rotary_fraction}
    elif "partial_rotary_factor" in rope:
        content["partial_rotary_factor"] = model.rotary_fraction

    every = range(model.layers)
    windowed = [bool(model.window) and holds(model.window_layers, layer) for layer in every]
    if any(windowed) or model.family in ("mistral", "phi3"):
        content["sliding_window"] = model.window or None
    if model.family in _USE_WINDOW:
        content["use_sliding_window"] = any(windowed)
    if model.family in (*_USE_WINDOW, "gemma3_text"):
        content["layer_types"] = [
            "sliding_attention" if one else "full_attention" for one in windowed
        ]
    if model.family == "smollm3":
        content["no_rope_layers"] = [int(holds(model.rotary_layers, layer)) for layer in every]
    if model.family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": model.window_theta}
        content |= {
            "rope_parameters": {"full_attention": rope, "sliding_attention": local},
            "rope_local_base_freq": model.window_theta,
            "query_pre_attn_scalar": round(model.attention_scale**-2)
            if model.attention_scale
            else model.head_width,
        }
    return content


def parameters(config: Config, hidden: int) -> int:
    """The number of parameters of a model of this config and width."""
    return sum(math.prod(shape) for shape in shapes(config, hidden).values())
