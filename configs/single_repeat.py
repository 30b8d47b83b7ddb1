"""Do sinks calm the cycle of learning and forgetting? Stories that appear every 40 steps (paper
section 5.4, figure 7)

All other stories are seen once. There are two repeated stories at the laptop preset and one at the
paper's. The run measures them before and after each step that reads them, and one step later. Their
losses are in metrics.jsonl as repeated_loss (sinks dropped) and repeated_loss_own (their own sinks
on, which the paper plots).

A run takes about three minutes on one core. Expect, over seeds 0 to 2, in the last third of
training: with their own sinks as published on, the stories' loss is .913 (.815 to 1.010) of
standard training's, and it falls by .001 nats less (.003 less to .001 more) at each encounter. With
one story in batches of 8 and 20 encounters it stays near the entropy floor: one story in eight is
too few to be memorized. So the laptop preset has small batches.

    python -m memsinks_jax.reproduce --figure=7 --preset=laptop --seeds=0,1,2 --out=runs/figure7
    python -m memsinks_jax.train --config=configs/single_repeat.py:sinks \
      --workdir=runs/single-sinks
    python -m memsinks_jax.train --config=configs/single_repeat.py:standard \
      --workdir=runs/single-standard
"""

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config

EVERY_PRESET = {"data.schedule": "memsinks_jax.studies.schedules:EveryNth,steps=40"}
PRESETS = {
    # Two stories, since one is one sample; small batches, so that 30 encounters are enough to learn
    # them.
    "laptop": {
        "data.unique_documents": 4800,
        "data.repeated_documents": 2,
        "training.batch_size": 4,
    },
    # As many tokens as the paper preset of ts_repetition.py: twice the stories, in one pass.
    "paper": {
        "data.repeated_documents": 1,
        "data.unique_documents": 40_000,
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


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; sinks and laptop when left out."""
    variant, preset = choose("single_repeat.py", choice, VARIANTS, PRESETS)
    return make_config(variant, EVERY_PRESET, PRESETS[preset])
