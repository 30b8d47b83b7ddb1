"""What the families of decoders differ in: one row of facts each. Sizes and numbers are fields of
`config.ModelConfig`.

The names are `model_type` in Hugging Face's config.json.
"""

import math
from typing import NamedTuple


class Family(NamedTuple):
    """The facts of a family. The defaults are Llama's.

    Attributes:
      norm: rms (mean square 1, times a scale), rms_one (times one plus a scale), or layer (mean 0,
        variance 1, a bias).
      norm_before: whether the inputs of attention and MLP are normed.
      norm_after: whether their outputs are normed, before they are added.
      query_key_norm: a norm of queries and keys before they are rotated: head (of each alone),
        width (of all together), "".
      gated: whether an MLP multiplies its activation with a second linear map of its input.
      activation: silu, gelu or gelu_tanh (GELU by the tanh approximation).
      rotary: rotary positions; else learned embeddings of positions.
      output_bias: whether `config.model.attention_bias` also gives the projection after the heads a
        bias.
      parallel: the MLP reads what attention reads, not the stream after attention was added.
      scaled_embedding: token embeddings are multiplied by the square root of d_model.
    """

    norm: str = "rms"
    norm_before: bool = True
    norm_after: bool = False
    query_key_norm: str = ""
    gated: bool = True
    activation: str = "silu"
    rotary: bool = True
    output_bias: bool = True
    parallel: bool = False
    scaled_embedding: bool = False


FAMILIES = {
    "gpt2": Family(norm="layer", gated=False, activation="gelu_tanh", rotary=False),
    "gpt_neox": Family(norm="layer", gated=False, activation="gelu", parallel=True),  # Pythia
    "llama": Family(),  # SmolLM, SmolLM2, TinyLlama and many others
    "mistral": Family(),
    "smollm3": Family(),
    "phi3": Family(),
    "qwen2": Family(output_bias=False),
    "qwen3": Family(query_key_norm="head"),
    "olmo2": Family(norm_before=False, norm_after=True, query_key_norm="width"),
    "gemma3_text": Family(
        norm="rms_one",
        norm_after=True,
        query_key_norm="head",
        activation="gelu_tanh",
        scaled_embedding=True,
    ),
}


def scaling(text: str) -> tuple[str, list[float]]:
    """`config.model.rope_scaling` -> (kind, its numbers); ("", []) for none. Raises ValueError."""
    kind, _, numbers = text.partition(":")
    found = [float(number) for number in numbers.split(",")] if numbers else []
    good = all(0 < number < math.inf for number in found) and (
        kind != "llama3" or found[1:2] < found[2:3]
    )
    if len(found) != {"": 0, "linear": 1, "llama3": 4}.get(kind, -1) or not good:
        raise ValueError(text)
    return kind, found
