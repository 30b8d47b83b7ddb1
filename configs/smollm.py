"""Do sinks keep what is repeated out of SmolLM-size models? (paper section 5.2, appendix I, tables
4 and 5)

SmolLM2's shapes (135M, 360M, 1.7B) and its vocabulary. Batches have 1024 rows of 2048 tokens;
training takes 1 billion tokens for the two small models and 2 billion for 1.7B. The paper gives
neither context nor warmup. It has no 135M, which takes 360M's values here. For TPU pod slices or
nodes of GPUs; 135M fits v5e:4x4 with --config.compute.accumulate=4. On eight H100s 135M and 360M
fit with accumulate=2, 1.7B with 4; on one H100 135M with 16; on four nodes of eight 1.7B as it is.
360M's 960 channels do not divide by 256. So on 256 chips use --config.mesh.fsdp=16: with fsdp over
all chips, each would hold attention's weights whole. `plan` prints what fits and how long a step
takes:

    python -m memsinks_jax.plan --config=configs/smollm.py:360m,sinks --topology=v5e:16x16
    python -m memsinks_jax.plan --config=configs/smollm.py:135m,sinks --topology=h100:8 \
      --config.compute.accumulate=2
    python -m memsinks_jax.train --config=configs/smollm.py:360m,sinks --workdir=runs/smollm-360m \
      --config.data.files='corpus/*.jsonl' --config.data.tokenizer=SmolLM2-360M/tokenizer.json
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

EVERY_SIZE = {
    "data.rows": "packed",
    "data.row_length": 2048,
    "data.vocabulary_size": 49152,
    "data.unique_documents": -1,
    "data.repeated_documents": 5000,
    "data.repetitions": 20,
    "data.held_out_documents": 1000,
    "model.family": "llama",
    "model.attention_bias": False,
    "model.mlp_bias": False,
    "model.rope_theta": 100_000.0,
    "model.dtype": "bfloat16",
    "compute.remat": "full",
    "optimizer.weight_decay": 0.1,
    "optimizer.b2": 0.95,
    "optimizer.learning_rate": 5e-4,
    "training.batch_size": 1024,
    "training.steps": 477,
    "training.evaluate_every": 100,
    "mesh.fsdp": -1,
}

SIZES = {
    "135m": {
        "model.layers": 30,
        "model.d_model": 576,
        "model.heads": 9,
        "model.kv_heads": 3,
        "model.hidden": 1536,
    },
    "360m": {
        "model.layers": 32,
        "model.d_model": 960,
        "model.heads": 15,
        "model.kv_heads": 5,
        "model.hidden": 2560,
    },
    "1.7b": {
        "model.layers": 24,
        "model.d_model": 2048,
        "model.heads": 32,
        "model.kv_heads": 32,
        "model.hidden": 8192,
        "optimizer.learning_rate": 5e-5,
        "training.steps": 954,
    },
}


def get_config(choice: str = "") -> Config:
    """`choice` is SIZE,VARIANT; 135m and sinks when left out."""
    size, variant = choose("smollm.py", choice, SIZES, VARIANTS)
    return make_config(variant, EVERY_SIZE, SIZES[size])
