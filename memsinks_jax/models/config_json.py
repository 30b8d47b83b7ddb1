"""config.json of a Hugging Face folder: read as our config, written from it."""

import dataclasses
import re
from collections.abc import Mapping

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
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.families import FAMILIES
from memsinks_jax.model.positions import holds, pattern_of
from memsinks_jax.models.dialects import DIALECTS, Dialect

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
