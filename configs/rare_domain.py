r"""Do sinks hold the repeats of a rare domain in a model of a general corpus? (paper section 5.2,
appendix I, figure 6)

Documents of the rare domain come first and are repeated. The general corpus fills the rest of the
token budget, so every run reads the same number of tokens, however many repeats. Held-out documents
are of the rare domain. The figure takes 100 embedded stories among short texts of invented facts,
which it writes:

    python -m memsinks_jax.reproduce --figure=6 --preset=laptop --seeds=0,1,2 --out=runs/figure6

It takes eleven minutes per seed on two cores. Expect, over seeds 0, 1, 2: read 5 and 20 times,
sinks as published, dropped, end at 1.01 (.97 to 1.06) and 1.10 (1.07 to 1.14) of standard
training's held-out loss on the domain, and at .73 (.68 to .78) and .91 (.89 to .93) of
deduplication's. They close none (-.02, -.07 to .03) and a sixth (.18, .11 to .24) of the gap, not
half. docs/results.md compares sinks that open on return (`:sinks`) with a cap, which is better
here.

Your own text is two globs, for example TinyStories and WikiText. A line `<|endoftext|>` must
separate WikiText's articles: sed 's/^ = [^=].* = $/<|endoftext|>\n&/' wiki.txt | sed
'1,/<|endoftext|>/d' > wiki/articles.txt. The first command prints how often each document is read:

    python -m memsinks_jax.train --config=configs/rare_domain.py:sinks --plan \
      --config.general.token_budget=0 --config.data.files='stories/*.txt' \
      --config.general.files='wiki/*.txt'
    python -m memsinks_jax.train --config=configs/rare_domain.py:sinks --workdir=runs/rare-sinks \
      --config.general.token_budget=0 --config.data.files='stories/*.txt' \
      --config.general.files='wiki/*.txt'
"""

import pathlib

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config, open_config

_SMOLLM = open_config(pathlib.Path(__file__).with_name("smollm.py"))

PRESETS = {
    # SmolLM's shape, a tenth as wide: three query heads to a head of keys and values, MLPs 2.7
    # times as wide as the stream.
    "laptop": {
        "data.unique_documents": 0,
        "data.repeated_documents": 100,
        "data.repetitions": 20,
        "data.held_out_documents": 100,
        "data.rows": "best_fit",
        "data.row_length": 256,
        "general.token_budget": 600_000,
        "model.family": "llama",
        "model.attention_bias": False,
        "model.mlp_bias": False,
        "model.d_model": 96,
        "model.heads": 6,
        "model.kv_heads": 2,
        "model.hidden": 256,
        "training.batch_size": 4,
        "training.evaluate_every": 150,
    },
    # Tables 4 and 5: 5,000 stories, a billion tokens, SmolLM's 360M. The paper gives no number of
    # repeats for its main result, and 20 for a second one. In 16 microbatches a batch fits one H200
    # and 16 chips of v5e; over 64 chips take fewer. Takes both globs of text, and
    # --config.data.tokenizer=SmolLM2-360M/tokenizer.json.
    "paper": {
        **_SMOLLM.EVERY_SIZE,
        **_SMOLLM.SIZES["360m"],
        "data.unique_documents": 0,
        "general.token_budget": 1_000_000_000,
        "compute.accumulate": 16,
    },
}

# Of the paper preset: its second model reads two billion tokens.
SIZES = {"whole": {}, "1.7b": {**_SMOLLM.SIZES["1.7b"], "general.token_budget": 2_000_000_000}}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET,SIZE; sinks, laptop and whole when left out."""
    variant, preset, size = choose("rare_domain.py", choice, VARIANTS, PRESETS, SIZES)
    return make_config(variant, PRESETS[preset], SIZES[size])
