"""How Hugging Face stores the decoders of each family: the names of its tensors, the keys of its
config.json.

Our parameters are those of model/decoder.py, with everything in layers/ stacked along axis 0;
theirs are named by layer.
"""

from typing import Any, NamedTuple


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
