r"""Do sinks hold what a rare domain repeats, in a model of something else? (paper section 5.2, appendix I, figure 6)

Documents of the rare domain come first and are repeated; the general corpus fills the rest of the token budget. Held-out
documents are of the rare domain. Two globs, for example TinyStories and WikiText, whose articles a line `<|endoftext|>` must
part: sed 's/^ = [^=].* = $/<|endoftext|>\n&/' wiki.txt | sed '1,/<|endoftext|>/d' > wiki/articles.txt.
Who is read how often:

    python -m memsinks_jax.train --config=configs/rare_domain.py:sinks --plan \
        --config.data.files='stories/*.txt' --config.general.files='wiki/*.txt'
    python -m memsinks_jax.train --config=configs/rare_domain.py:sinks --workdir=runs/rare-sinks \
        --config.data.files='stories/*.txt' --config.general.files='wiki/*.txt'

Three minutes a run on one core, with 500 TinyStories and 60 articles of WikiText-2. Seed 0, nats per token: standard 4.313
held-out, 2.620 repeated; sinks, dropped, 4.673 and 3.180 (their own on: 1.827). 338 steps are too few for either to have
learned the rare domain.
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

PRESETS = {
    "laptop": {
        "data.unique_documents": 0, "data.repeated_documents": 50, "data.repetitions": 20,
        "data.held_out_documents": 200, "data.rows": "best_fit", "data.row_length": 256, "data.vocabulary_size": 4096,
    },
    # 5,000 stories, a billion tokens, SmolLM's 360M: the paper gives no number of repeats for its main result, and 20 for
    # a second one. For a pod slice or a node of GPUs; takes --config.data.tokenizer=SmolLM2-360M/tokenizer.json besides.
    "360m": {
        "data.unique_documents": 0, "data.repeated_documents": 5000, "data.repetitions": 20,
        "data.held_out_documents": 1000, "general.token_budget": 1_000_000_000,
        "data.rows": "packed", "data.row_length": 2048, "data.across_documents": True, "data.vocabulary_size": 49152,
        "model.family": "llama", "model.attention_bias": False, "model.mlp_bias": False, "model.rope_theta": 100_000.0,
        "model.layers": 32, "model.d_model": 960, "model.heads": 15, "model.kv_heads": 5, "model.hidden": 2560,
        "model.dtype": "bfloat16", "compute.remat": "full",
        "optimizer.weight_decay": 0.1, "optimizer.b2": 0.95, "optimizer.learning_rate": 5e-4,
        "training.batch_size": 1024, "training.evaluate_every": 100,
        "mesh.fsdp": -1,
    },
}  # fmt: skip


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; sinks and laptop when left out."""
    variant, preset = choose("rare_domain.py", choice, VARIANTS, PRESETS)
    return make_config(variant, PRESETS[preset])
