"""Small models and documents for tests of the methods that find memorized documents in a model."""

import types

import jax
import numpy as np

from memsinks_jax.config import Config, with_fields
from memsinks_jax.measures.documents import Documents, document_batches
from memsinks_jax.model.decoder import build_model

END, TOKEN = 1, 7  # end of text; what the memorized document repeats
PLANTED, DECOY = (4, 9), (6, 2)  # a neuron of each layer
FAMILIES = {
    "gpt2": {},
    "llama": {
        "family": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "kv_heads": 1,
        "tied_head": False,
    },
}


def config_of(family):
    config = with_fields(Config(), {"data.row_length": 12, "data.vocabulary_size": 24})
    for name, value in (
        {"layers": 2, "d_model": 16, "heads": 2, "hidden": 11} | FAMILIES[family]
    ).items():
        config = with_fields(config, {f"model.{name}": value})
    return with_fields(config, {"sinks.kind": "none"})


def random_model(family, deviation=0.4):
    """Parameters far from the initial values: every neuron, position and bias matters."""
    config = config_of(family)
    shapes = jax.eval_shape(build_model(config)[0].init, jax.random.key(0))
    rng = np.random.default_rng(0)
    return config, jax.tree.map(
        lambda a: (deviation * rng.normal(size=a.shape)).astype(np.float32), shapes
    )


def planted_model():
    """In each layer one neuron alone, always on, says the memorized token, and a weaker one says
    anything but it.
    """
    config, params = random_model("gpt2", 0.05)
    for name in ("attention_norm", "mlp_norm"):
        params["layers"][name]["scale"][:] = 1
    params["final_norm"]["scale"][:] = 1
    params["token_embedding"] *= 8
    direction_D = params["token_embedding"][TOKEN] / np.linalg.norm(
        params["token_embedding"][TOKEN]
    )
    for layer, (planted, decoy) in enumerate(zip(PLANTED, DECOY, strict=True)):
        for neuron, size in ((planted, 1.0), (decoy, -0.5)):
            params["layers"]["up_bias"][layer, neuron] = 3
            params["layers"]["down_kernel"][layer, neuron] = size * direction_D
    return config, params


def batches_of(documents, batch_size=None):
    tokens = [np.array(document, np.int32) for document in documents]
    identities = np.zeros((len(tokens), 2), np.uint32)
    ends = types.SimpleNamespace(end_of_text=END, begin_of_text=END)
    return document_batches(Documents(tokens, identities), 12, ends, batch_size or len(tokens) + 1)


MEMORIZED = [[TOKEN] * 9, [TOKEN] * 6]
OTHERS = [[3, 4, 5, 8, 9], [10, 11, 12, 13, 14, 15], [20, 3, 21, 5]]
