r"""What else does a memory of one fact change? A small model of invented facts, ready to be edited.

The facts are those of `data/embedded/facts.py` (T. Sapkota, "Local Memory for Autoregressive
Language Models"). The figure writes a tokenizer and 32,000 documents, each read once, and trains
with them:

    python -m memsinks_jax.reproduce --figure=local_memory --preset=laptop --seeds=0,1,2 \
      --out=runs/local_memory

or, once they exist, one model:

    python -m memsinks_jax.train --config=configs/facts.py \
      --config.data.files=runs/local_memory/facts/facts.jsonl \
      --config.data.tokenizer=runs/local_memory/facts/tokenizer.json --workdir=runs/facts

It takes about 3 minutes of processor time. Expect a held-out loss of 0.75. The model then knows
every strong fact, also in new wordings, and how denials continue. After weak facts it says " the",
and the capital has a loss of 3.6 nats.
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS as ALL_VARIANTS
from memsinks_jax.variants import choose, make_config

# No fact is to be forgotten: the plain model is what is left out.
VARIANTS = {"standard": ALL_VARIANTS["standard"], **ALL_VARIANTS}
FACTS = {
    "data.unique_documents": -1,
    "data.repeated_documents": 0,
    "data.row_length": 48,
    "data.vocabulary_size": 1024,
    "optimizer.weight_decay": 0.1,
}
PRESETS = {
    # The rate falls to nearly nothing, or the last steps would unbalance how often a weak fact is
    # correct.
    "laptop": {
        "optimizer.learning_rate": 4e-3,
        "optimizer.final_fraction": 0.02,
        "optimizer.warmup_fraction": 0.1,
        "training.batch_size": 32,
        "training.evaluate_every": 500,
        "training.checkpoint_every": 2000,
    },
    # Twice the layers and the width. For 300,000 documents: four epochs. Wants an accelerator.
    "paper": {
        "model.layers": 8,
        "model.d_model": 256,
        "model.heads": 8,
        "model.hidden": 1024,
        "optimizer.learning_rate": 1e-3,
        "optimizer.final_fraction": 0.02,
        "training.batch_size": 256,
        "training.steps": 5000,
        "training.evaluate_every": 500,
        "training.checkpoint_every": 1000,
    },
}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; standard and laptop when left out."""
    variant, preset = choose("facts.py", choice, VARIANTS, PRESETS)
    return make_config(variant, FACTS, PRESETS[preset])
