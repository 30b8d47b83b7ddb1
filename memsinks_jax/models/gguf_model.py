"""A model in a GGUF file, in Hugging Face's names: config.json, the other small files, tensors.

What llama.cpp changes when it writes a file is undone: Llama's rows of queries and keys are
interleaved (its rotation takes neighbours), Gemma's norms have their one added, GPT-NeoX's queries,
keys and values are gathered from the heads.
"""

import functools
import json
import logging
import math
import pathlib

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.gguf_file import open_gguf
from memsinks_jax.models import config_json, hugging_face
from memsinks_jax.models.dialects import DIALECTS

logger = logging.getLogger(__name__)
_warn_once = functools.cache(logger.warning)

# Their architecture: our family.
_FAMILIES = {
    "llama": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "gemma3": "gemma3_text",
    "gptneox": "gpt_neox",
    "gpt2": "gpt2",
}
_INTERLEAVED = ("llama", "smollm3")
# Llama 3.1's and 3.2's scaling of rotary frequencies, of which the file has only the factors.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_GEMMA_27B_LAYERS = 62  # its scores are divided by the root of d_model / heads


class GgufModel:
    """What `weights.Weights` and config.json are to a folder, for a GGUF file.

    Attributes:
      content: of config.json.
      shapes: {Hugging Face's name: shape}; tensors without one have the file's.
      tied: the head is the embedding: the file has no other, or the same bytes twice.
    Raises:
      InputError: an architecture or a rotary scaling that cannot be read.
    """

    def __init__(self, path: pathlib.Path):
        self.file = open_gguf(path)
        architecture = self.file.field("general.architecture")
        if experts := config_json.experts_in(self.file.fields):
            raise InputError(
                f"{path}: {experts}, which cannot be read; take a dense model of one of: "
                f"{', '.join(_FAMILIES)}"
            )
        if architecture not in _FAMILIES:
            raise InputError(
                f"{path}: its architecture is {architecture!r}; these can be read: "
                f"{', '.join(_FAMILIES)}"
            )
        self.family = _FAMILIES[architecture]
        self.d_model, self.heads, self.layers = (
            self.file.field(f"{{arch}}.{name}")
            for name in ("embedding_length", "attention.head_count", "block_count")
        )
        self.kv_heads = self.file.field("{arch}.attention.head_count_kv", self.heads)
        self.head_size = self.file.field("{arch}.attention.key_length", self.d_model // self.heads)
        self.tied = "output.weight" not in self.file.shapes or self.file.same(
            "output.weight", "token_embd.weight"
        )
        self.content = self._config()
        self._names = self._theirs()
        named = set(self._names.values())
        self.shapes = {name: self._shape(name) for name in self._names}
        known = named | {"rope_freqs.weight"} | ({"output.weight"} if self.tied else set())
        self.shapes |= {
            name: shape for name, shape in self.file.shapes.items() if name not in known
        }

    def read(self, name: str) -> np.ndarray:
        """A tensor by Hugging Face's name, float32."""
        found = self.file.read(self._names[name])
        if self.family in _INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
            heads = self.kv_heads if ".k_proj." in name else self.heads
            pairs = found.reshape(heads, -1, 2, *found.shape[1:])
            found = pairs.swapaxes(1, 2).reshape(found.shape)
        if self.family == "gpt_neox" and ".query_key_value." in name:
            kinds = found.reshape(3, self.heads, -1, *found.shape[1:])
            found = kinds.swapaxes(0, 1).reshape(found.shape)
        if self.family == "gemma3_text" and name.endswith("norm.weight"):
            found = found - 1
        return found.T if self._is_conv1d(name) else found

    def _is_conv1d(self, name: str) -> bool:
        return self.family == "gpt2" and name.endswith(
            (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self.file.shapes[self._names[name]]
        return shape[::-1] if self._is_conv1d(name) else shape

    def _theirs(self) -> dict[str, str]:
        """{Hugging Face's name: the file's} of all tensors that the model has and the file
        holds.
        """
        import gguf

        architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(
            architectures[self.file.field("general.architecture")], self.layers
        )
        config, found = config_json.read_config(self.content, str(self.file.path)), {}
        for tensor in hugging_face.tensors(config, config.model.hidden):
            name = names.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
            if name in self.file.shapes:
                found[tensor.name] = name
        return found

    def _config(self) -> dict:
        field, dialect = self.file.field, DIALECTS[self.family]
        biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
        epsilon = field("{arch}.attention.layer_norm_epsilon", 0) or field(
            "{arch}.attention.layer_norm_rms_epsilon"
        )
        sizes = {
            "layers": self.layers,
            "d_model": self.d_model,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_size": self.head_size,
            "hidden": field("{arch}.feed_forward_length"),
            "norm_epsilon": _rounded(epsilon),
            "tied_head": self.tied,
            **{name: bias in self.file.shapes for name, bias in biases.items()},
        }
        if self.family == "gpt_neox":
            sizes["attention_bias"] = "blk.0.attn_qkv.bias" in self.file.shapes
        content = {theirs: sizes[ours] for ours, theirs in dialect.keys.items()} | {
            "model_type": self.family,
            dialect.context: field("{arch}.context_length"),
            "vocab_size": len(field("tokenizer.ggml.tokens")),
            **self._special(),
        }
        if self.family == "gpt2":
            return content
        theta = _rounded(field("{arch}.rope.freq_base", 1e4))
        rotated = field("{arch}.rope.dimension_count", self.head_size) / self.head_size
        rope = {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": rotated,
            **self._scaling(theta),
        }
        content |= {
            "rope_parameters": rope,
            "sliding_window": field("{arch}.attention.sliding_window", 0) or None,
        }
        if not content["sliding_window"]:
            self._warn_of_window(theta)
        if self.family == "gpt_neox":
            content["use_parallel_residual"] = field("{arch}.use_parallel_residual", True)
        if self.family == "gemma3_text":
            local = {"rope_type": "default", "rope_theta": 1e4}
            content["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
            content["query_pre_attn_scalar"] = self.head_size
            if self.layers == _GEMMA_27B_LAYERS:
                content["query_pre_attn_scalar"] = self.d_model // self.heads
        return content

    def _warn_of_window(self, theta: float) -> None:
        named, likely = str(self.file.fields.get("general.name", "")).lower(), ""
        if "mistral" in named and theta == 1e4:  # later ones have another theta, and no window
            likely = "Mistral 0.1"
        elif self.family == "phi3" and self.file.field("{arch}.context_length") == 4096:
            likely = "an early Phi-3"
        if likely:
            _warn_once(
                f"{self.file.path}: looks like {likely}, which attends within a window, but the "
                "file names none; long texts "
                "are read without one. Import it from its Hugging Face folder"
            )

    def _special(self) -> dict:
        end, _, stops = self.file.tokens_around()
        return {
            "bos_token_id": self.file.fields.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": stops if len(stops) > 1 else end,
            "pad_token_id": self.file.fields.get("tokenizer.ggml.padding_token_id"),
        }

    def _scaling(self, theta: float) -> dict:
        # llama.cpp's defaults, and its name of 2023.
        kind = self.file.field("{arch}.rope.scaling.type", "linear")
        factor = self.file.field(
            "{arch}.rope.scaling.factor", self.file.field("{arch}.rope.scale_linear", 1.0)
        )
        if "rope_freqs.weight" in self.file.shapes:
            found = self.file.read("rope_freqs.weight")
            for factor in (8.0, 32.0):
                expected = _llama3_factors(theta, self.head_size, factor)
                if found.shape == expected.shape and np.allclose(found, expected, rtol=1e-4):
                    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
            raise InputError(
                f"{self.file.path}: its rotary frequencies (rope_freqs.weight) are not scaled as "
                "Llama 3.1's or 3.2's; import the model from its Hugging Face folder"
            )
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor} if factor != 1 else {}
        if kind == "none":
            return {}
        raise InputError(
            f"{self.file.path}: its rotary positions are scaled by {kind!r}; only none and "
            "linear can be read"
        )

    def small_files(self) -> dict[str, str]:
        """{name: content} of the other files of a Hugging Face folder."""
        fields = self.file.fields
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": self.file.tokens_around()[1] is not None,
            "model_max_length": self.file.field("{arch}.context_length"),
            **self.file.special_names(),
        }
        config = {name: value for name, value in self.content.items() if value is not None}
        named = {name: config[name] for name in config if name.endswith("_token_id")}
        files = {
            "config.json": config,
            "tokenizer_config.json": settings,
            "generation_config.json": named,
        }
        files = {name: json.dumps(content, indent=2) + "\n" for name, content in files.items()}
        if template := fields.get("tokenizer.chat_template"):
            files["chat_template.jinja"] = template
        if licence := fields.get("general.license"):
            files["README.md"] = f"---\nlicense: {licence}\n---\n"
        return files


def _rounded(value: float) -> float:
    """A float32 as it was written in decimals: 1e-5, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _llama3_factors(theta: float, size: int, factor: float) -> np.ndarray:
    """By what llama.cpp divides the rotary frequencies of a Llama 3 -> float32 (size / 2,)."""
    waves = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    share = np.clip(
        (_LLAMA3["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1
    )
    return (1 / ((1 - share) / factor + share)).astype(np.float32)
