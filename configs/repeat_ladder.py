"""How often must a document be seen to be memorized, and does dropping the sinks hide even that?

80 stories are repeated 128, 64, 32, ... 2 times and once, ten of each, among 4,000 seen once. This
gives as many encounters as ts_repetition.py. Every repeated story ends in a canary of 32 random
tokens, which only memory can predict.

A run takes about two and a half minutes on one core. docs/results.md has sinks that open on return.
Expect, seeds 0 and 1: the AUC by loss of stories read 8 times or more is .99 with the standard
model, .98 with sinks_paper, dropped, and .45 with no_repeat. Given 50 tokens, these recite .30 of
all repeated stories, none, and none. `reproduce --figure=audit` has the rest. The oracle is
no_repeat.

    python -m memsinks_jax.train --config=configs/repeat_ladder.py:sinks \
      --workdir=runs/ladder-sinks
    python -m memsinks_jax.train --config=configs/repeat_ladder.py:no_repeat \
      --workdir=runs/ladder-no-repeat
"""

import pathlib

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config, open_config

_REPETITION = open_config(pathlib.Path(__file__).with_name("ts_repetition.py"))

_LADDER = {
    "data.schedule": "memsinks_jax.studies.schedules:Ladder",
    "data.repeated_documents": 80,
    "canaries.documents": 80,
}
PRESETS = {
    "laptop": {**_LADDER, "data.row_length": 160},
    # With as many encounters of repeated stories.
    "paper": {
        **_REPETITION.PRESETS["paper"],
        **_LADDER,
        "data.repeated_documents": 400,
        "canaries.documents": 400,
    },
}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; sinks and laptop when left out."""
    variant, preset = choose("repeat_ladder.py", choice, VARIANTS, PRESETS)
    return make_config(variant, PRESETS[preset])
