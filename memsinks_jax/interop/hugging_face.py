"""GPT-2 and Llama as Hugging Face stores them. One table of names and sizes serves both directions.

Our parameters are those of model/decoder.py, with everything in layers/ stacked along axis 0; theirs are named by layer.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import Config, DataConfig, InputError, ModelConfig, SinksConfig, validate
from memsinks_jax.data.documents import some
from memsinks_jax.data.tokenizer import AnyTokenizer


class Entry(NamedTuple):
    """One tensor of theirs (`{}` is the layer) and our parameters in it, several side by side along the last axis."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False  # torch's Linear has (out, in); its Conv1D, and we, (in, out)


def _linear(theirs: str, ours: str) -> tuple[Entry, Entry]:
    return Entry(f"{theirs}.weight", (f"{ours}_kernel",), transposed=True), Entry(f"{theirs}.bias", (f"{ours}_bias",))


def _conv1d(theirs: str, *ours: str) -> tuple[Entry, Entry]:
    kernels, biases = (tuple(f"{name}_{kind}" for name in ours) for kind in ("kernel", "bias"))
    return Entry(f"{theirs}.weight", kernels), Entry(f"{theirs}.bias", biases)


def _norm(theirs: str, ours: str) -> tuple[Entry, Entry]:
    return Entry(f"{theirs}.weight", (f"{ours}/scale",)), Entry(f"{theirs}.bias", (f"{ours}/bias",))


_HEAD = Entry("lm_head.weight", ("head_kernel",), transposed=True)
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
    _HEAD,
)
_LLAMA = (
    Entry("model.embed_tokens.weight", ("token_embedding",)),
    *_norm("model.layers.{}.input_layernorm", "layers/attention_norm"),
    *_linear("model.layers.{}.self_attn.q_proj", "layers/query"),
    *_linear("model.layers.{}.self_attn.k_proj", "layers/key"),
    *_linear("model.layers.{}.self_attn.v_proj", "layers/value"),
    *_linear("model.layers.{}.self_attn.o_proj", "layers/attention_output"),
    *_norm("model.layers.{}.post_attention_layernorm", "layers/mlp_norm"),
    *_linear("model.layers.{}.mlp.gate_proj", "layers/gate"),
    *_linear("model.layers.{}.mlp.up_proj", "layers/up"),
    *_linear("model.layers.{}.mlp.down_proj", "layers/down"),
    *_norm("model.norm", "final_norm"),
    _HEAD,
)
TABLES = {"gpt2": _GPT2, "llama": _LLAMA}
TIED = {family: (table[0].theirs, _HEAD.theirs) for family, table in TABLES.items()}  # equal if the head is tied

_DROPOUTS = {"gpt2": ("attn_pdrop", "embd_pdrop", "resid_pdrop"), "llama": ("attention_dropout",)}

# Constants in older files besides the parameters: causal masks and rotary frequencies, which follow from the sizes.
CONSTANTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


class Tensor(NamedTuple):
    """A tensor of theirs: its name, its shape, its entry in the table, its layer (None: outside the layers)."""

    name: str
    shape: tuple[int, ...]
    entry: Entry
    layer: int | None


def shapes(config: Config, hidden: int) -> dict[str, tuple[int, ...]]:
    """Our parameters of a config and the width of its MLPs -> {path: shape}."""
    model, layers = config.model, config.model.layers
    d_model, size = model.d_model, model.d_model // model.heads
    keys = (model.kv_heads or model.heads) * size
    matrices = {"query": (d_model, d_model), "key": (d_model, keys), "value": (d_model, keys),
                "attention_output": (d_model, d_model), "up": (d_model, hidden), "down": (hidden, d_model)}  # fmt: skip
    if model.family == "llama":
        matrices["gate"] = (d_model, hidden)
    found = {"token_embedding": (config.data.vocabulary_size, d_model)}
    if model.family == "gpt2":
        found["position_embedding"] = (config.data.row_length, d_model)
    for name, shape in matrices.items():
        found[f"layers/{name}_kernel"] = (layers, *shape)
        if model.mlp_bias if name in ("gate", "up", "down") else model.attention_bias:
            found[f"layers/{name}_bias"] = (layers, shape[1])
    for norm, of in (("layers/attention_norm", (layers,)), ("layers/mlp_norm", (layers,)), ("final_norm", ())):
        found[f"{norm}/scale"] = (*of, d_model)
        if model.family == "gpt2":
            found[f"{norm}/bias"] = (*of, d_model)
    if not model.tied_head:
        found["head_kernel"] = (d_model, config.data.vocabulary_size)
    return found


def tensors(config: Config, hidden: int) -> list[Tensor]:
    """Their tensors in the order of the model: embeddings, layer after layer, norm and head."""
    ours, found = shapes(config, hidden), []
    for entry in TABLES[config.model.family]:
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
        return -1 if tensor.entry.ours[0] in embeddings else last if tensor.layer is None else tensor.layer

    return sorted(found, key=place)  # stable: the table's order within a layer


def theirs(tensor: Tensor, read: Callable[[str, int | None], np.ndarray]) -> np.ndarray:
    """Their tensor from our parameters; `read(path, layer)` returns a parameter, or a layer's slice of it."""
    parts = [read(name, tensor.layer) for name in tensor.entry.ours]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(joined.T if tensor.entry.transposed else joined)


def ours(config: Config, hidden: int, read: Callable[[str], np.ndarray]) -> dict:
    """Our parameters, float32, from their tensors; `read(name)` returns a tensor."""
    flat = {name: np.empty(shape, np.float32) for name, shape in shapes(config, hidden).items()}
    for tensor in tensors(config, hidden):
        content = read(tensor.name)
        content = content.T if tensor.entry.transposed else content
        start = 0
        for name in tensor.entry.ours:
            part = flat[name] if tensor.layer is None else flat[name][tensor.layer]
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


def compare(found: dict[str, tuple], config: Config, hidden: int, where: str) -> None:
    """Raises InputError unless a folder's tensors, {name: shape}, are exactly those of its config.json."""
    wanted = {tensor.name: tensor.shape for tensor in tensors(config, hidden)}
    found = {name: tuple(shape) for name, shape in found.items() if not name.endswith(CONSTANTS)}
    if config.model.tied_head:
        found.pop("lm_head.weight", None)  # some files contain the embedding twice
    parts = []
    if missing := sorted(wanted.keys() - found.keys()):
        parts.append(f"lacks {some(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        parts.append(f"has besides {some(extra)}")
    wrong = [name for name in sorted(wanted.keys() & found.keys()) if found[name] != wanted[name]]
    if wrong:
        parts.append(f"has {wrong[0]} of {list(found[wrong[0]])} instead of {list(wanted[wrong[0]])}")
    if parts:
        raise InputError(f"{where}: the weights are not those of its config.json: it {'; '.join(parts)}")


def write_config(config: Config, hidden: int, tokenizer: AnyTokenizer, dtype: str, theirs: dict) -> dict:
    """The content of config.json. What `theirs`, of the model that ours came from, says besides sizes and types stays.

    Raises InputError for a config that their model of this family does not support.
    """
    model, data = config.model, config.data
    ends = tokenizer.stops[0] if len(tokenizer.stops) == 1 else list(tokenizer.stops)
    usual = {
        "initializer_range": 0.02, "bos_token_id": tokenizer.begin_of_text, "eos_token_id": ends, "use_cache": True,
        **dict.fromkeys(_DROPOUTS[model.family], 0.0),
    } | {name: value for name, value in theirs.items() if name != "quantization_config"}  # fmt: skip
    common = usual | {
        "vocab_size": data.vocabulary_size, "tie_word_embeddings": model.tied_head, "dtype": dtype, "torch_dtype": dtype,
    }  # fmt: skip
    if model.family == "gpt2":
        if model.kv_heads not in (0, model.heads) or not (model.attention_bias and model.mlp_bias):
            raise InputError(
                "GPT-2 as Hugging Face has it needs biases and as many kv_heads as heads; train the llama family"
            )
        return common | {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": model.layers, "n_embd": model.d_model,
            "n_head": model.heads, "n_inner": hidden, "n_positions": data.row_length, "n_ctx": data.row_length,
            "layer_norm_epsilon": model.norm_epsilon, "activation_function": "gelu_new",
        }  # fmt: skip
    return common | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": model.layers,
        "hidden_size": model.d_model, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads, "head_dim": model.d_model // model.heads,
        "intermediate_size": hidden, "max_position_embeddings": data.row_length, "rms_norm_eps": model.norm_epsilon,
        "hidden_act": "silu", "rope_theta": model.rope_theta, "rope_scaling": None, "attention_bias": model.attention_bias,
        "mlp_bias": model.mlp_bias,
    }  # fmt: skip


def read_config(content: dict, where: str) -> Config:
    """config.json -> our config without sinks. Raises InputError if our model does not support it."""
    kind = content.get("model_type")
    if kind not in TABLES:
        said = f"model_type is {kind!r}" if kind else "no model_type (a workdir needs no import)"
        raise InputError(f"{where}: {said}; only {' and '.join(TABLES)} can be read")
    try:
        model, context = _gpt2(content, where) if kind == "gpt2" else _llama(content, where)
        vocabulary, ends = content["vocab_size"], content.get("eos_token_id")
        data = DataConfig(row_length=context, vocabulary_size=vocabulary)
        config = validate(Config("imported", data=data, model=model, sinks=SinksConfig(kind="none")))
    except KeyError as error:
        raise InputError(f"{where}: {error.args[0]} is missing") from None
    except (TypeError, AttributeError, ZeroDivisionError, ValueError) as error:
        raise InputError(f"{where}: a value is of the wrong kind ({error}); fix it, or take another model") from None
    for token in [] if ends is None else ends if isinstance(ends, list) else [ends]:
        if not isinstance(token, int) or not 0 <= token < vocabulary:
            raise InputError(f"{where}: eos_token_id is {ends!r}; it must be a token of the {vocabulary}")
    return config


def _gpt2(content: dict, where: str) -> tuple[ModelConfig, int]:
    _require(content, where, "activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    for name, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        _require(content, where, name, (value,), value)
    model = ModelConfig(
        family="gpt2", layers=content["n_layer"], d_model=content["n_embd"], heads=content["n_head"],
        hidden=content.get("n_inner") or 4 * content["n_embd"], tied_head=content.get("tie_word_embeddings", True),
        norm_epsilon=content.get("layer_norm_epsilon", 1e-5),
    )  # fmt: skip
    return model, content["n_positions"]


def _llama(content: dict, where: str) -> tuple[ModelConfig, int]:
    _require(content, where, "hidden_act", ("silu",), "silu")
    ropes = [content.get(name) or {} for name in ("rope_parameters", "rope_scaling")]  # the first is newer
    for kind in (rope.get("rope_type", rope.get("type", "default")) for rope in ropes):
        if kind != "default":
            raise InputError(f"{where}: rope_type is {kind!r}; only rotary positions without scaling can be read")
    rope = ropes[0] or ropes[1]
    size = content["hidden_size"] // content["num_attention_heads"]
    _require(content, where, "head_dim", (size, None), size)
    bias = content.get("attention_bias", False)
    model = ModelConfig(
        family="llama", layers=content["num_hidden_layers"], d_model=content["hidden_size"],
        heads=content["num_attention_heads"], hidden=content["intermediate_size"],
        kv_heads=content.get("num_key_value_heads") or content["num_attention_heads"], attention_bias=bias,
        mlp_bias=content.get("mlp_bias", False), tied_head=content.get("tie_word_embeddings", False),
        rope_theta=float(rope.get("rope_theta") or content.get("rope_theta", 10000.0)),
        norm_epsilon=content.get("rms_norm_eps", 1e-6),
    )  # fmt: skip
    return model, content["max_position_embeddings"]


def _require(content: dict, where: str, name: str, allowed: tuple, default) -> None:
    value = content.get(name, default)
    if value not in allowed:
        raise InputError(f"{where}: {name} is {value!r}; only {allowed[0]!r} can be read")


def parameters(config: Config, hidden: int) -> int:
    """The number of parameters of a model of this config and width."""
    return sum(math.prod(shape) for shape in shapes(config, hidden).values())
