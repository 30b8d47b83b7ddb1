"""Does dropping the sinks remove the memorization, and nothing else? (paper section 5.1, figure 4)

20 stories are repeated 128 times among 4,000 seen once. So 39% of the documents read are repeats,
as in the paper's TS-Repetition (100 x 128 + 20,000 there).

On 2 cores figure 4 with one seed and three variants takes 4.5 minutes; a single run on one core a
little over two. With all variants the figure also measures the methods of 4c, about six minutes per
seed, once. Expect, over seeds 0 to 4: standard 1.36 held-out and 0.08 repeated; sinks dropped 1.35
and 1.27, 94% of the gap closed; sinks_paper 1.35 and 1.00, 73%. The variants narrow and dropout
memorize like standard.

    python -m memsinks_jax.train --config=configs/ts_repetition.py:sinks --workdir=runs/sinks
    python -m memsinks_jax.reproduce --figure=4 --preset=laptop --seeds=0,1,2 --out=runs/figure4
"""

from memsinks_jax.config import Config, with_fields
from memsinks_jax.variants import VARIANTS, choose, make_config

PRESETS = {
    "laptop": {},
    # Appendix B and table 1: GPT-2 medium's shape, 32,800 rows of 512 tokens (16.8 M). The paper
    # gives neither batch nor steps; learning rate and weight decay are of its grid. Wants an
    # accelerator and --config.data.files=TINYSTORIES.
    "paper": {
        "data.unique_documents": 20_000,
        "data.repeated_documents": 100,
        "data.held_out_documents": 1000,
        "data.row_length": 512,
        "data.vocabulary_size": 8192,
        "model.layers": 24,
        "model.d_model": 1024,
        "model.heads": 16,
        "model.hidden": 4096,
        "model.dtype": "bfloat16",
        "optimizer.learning_rate": 6e-4,
        "optimizer.b2": 0.95,
        "optimizer.weight_decay": 0.1,
        "training.batch_size": 32,
        "training.evaluate_every": 100,
    },
}

# Width of residual stream, heads and MLPs over that of the preset: the paper does not name its
# sizes. Figure 5b has all but the largest.
SIZES = {"whole": 1.0, "quarter": 0.25, "half": 0.5, "one_and_a_half": 1.5, "two_and_a_half": 2.5}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET,SIZE; sinks, laptop and whole when left out."""
    variant, preset, size = choose("ts_repetition.py", choice, VARIANTS, PRESETS, SIZES)
    config = make_config(variant, PRESETS[preset])
    shape = {
        name: int(SIZES[size] * getattr(config.model, name))
        for name in ("d_model", "heads", "hidden")
    }
    config = with_fields(config, {f"model.{name}": value for name, value in shape.items()})
    # at the small model's rate the held-out loss of standard training is 6% higher, of sinks 15%
    if SIZES[size] > 2:
        config = with_fields(
            config, {"optimizer.learning_rate": min(config.optimizer.learning_rate, 2e-3)}
        )
    return config
