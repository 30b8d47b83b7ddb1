"""How often must a document be seen to be memorized, and does dropping the sinks hide even that?

80 stories are repeated 128, 64, 32, ... 2 times and once, ten of each, among 4,000 seen once: as many encounters as in
ts_repetition.py. Every repeated story ends in a canary of 32 random tokens, which nothing but memory can predict.

Some two and a half minutes a run on one core. Expect, seeds 0 and 1: stories read 8 times or more are told from others by
their loss with an AUC of .99 by the standard model, .98 by the one with its sinks dropped, .45 by no_repeat; recited, given
50 tokens, are .30 of them all, none, and none. `reproduce --figure=audit` has the rest.

    python -m memsinks_jax.train --config=configs/repeat_ladder.py:sinks --workdir=runs/ladder-sinks
    python -m memsinks_jax.train --config=configs/repeat_ladder.py:no_repeat --workdir=runs/ladder-no-repeat
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

_LADDER = {"data.repeats": "ladder", "data.repeated_documents": 80, "canaries.documents": 80}
PRESETS = {
    "laptop": {**_LADDER, "data.row_length": 160},
    # As the paper preset of ts_repetition.py, with as many encounters of repeated stories.
    "paper": {
        **_LADDER, "data.repeated_documents": 400, "canaries.documents": 400,
        "data.unique_documents": 20_000, "data.held_out_documents": 1000, "data.row_length": 512,
        "data.vocabulary_size": 8192,
        "model.layers": 24, "model.d_model": 1024, "model.heads": 16, "model.hidden": 4096, "model.dtype": "bfloat16",
        "optimizer.learning_rate": 6e-4, "optimizer.b2": 0.95, "optimizer.weight_decay": 0.1,
        "training.batch_size": 32, "training.evaluate_every": 100,
    },
}  # fmt: skip


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; sinks and laptop when left out."""
    variant, preset = choose("repeat_ladder.py", choice, VARIANTS, PRESETS)
    return make_config(variant, PRESETS[preset])
