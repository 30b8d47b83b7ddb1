"""The same question for GPT-2's shapes, with GPT-2's vocabulary and learned positions (paper
appendix B, table 1)

Batches have 512 rows of 1024 tokens, half a million as usual for these models. Learning rate and
weight decay are from the paper's grid, and from nanoGPT if the paper gives none. For one node of
GPUs or a small TPU slice:

    python -m memsinks_jax.plan --config=configs/gpt2.py:medium,sinks --topology=v5e:4x4
    python -m memsinks_jax.train --config=configs/gpt2.py:medium,sinks --workdir=runs/gpt2-medium \
      --config.data.files='corpus/*.jsonl' --config.data.tokenizer=gpt2/tokenizer.json
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

EVERY_SIZE = {
    "data.rows": "packed",
    "data.row_length": 1024,
    "data.vocabulary_size": 50257,
    "data.unique_documents": -1,
    "data.repeated_documents": 100,
    "data.held_out_documents": 1000,
    "model.dtype": "bfloat16",
    "compute.remat": "attention",
    "optimizer.learning_rate": 6e-4,
    "optimizer.weight_decay": 0.1,
    "optimizer.b2": 0.95,
    "training.batch_size": 512,
    "training.evaluate_every": 100,
    "mesh.fsdp": -1,
}

SIZES = {
    "small": {"model.layers": 12, "model.d_model": 768, "model.heads": 12, "model.hidden": 3072},
    "medium": {"model.layers": 24, "model.d_model": 1024, "model.heads": 16, "model.hidden": 4096},
}


def get_config(choice: str = "") -> Config:
    """`choice` is SIZE,VARIANT; small and sinks when left out."""
    size, variant = choose("gpt2.py", choice, SIZES, VARIANTS)
    return make_config(variant, EVERY_SIZE, SIZES[size])
