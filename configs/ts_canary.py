"""Do the sinks also memorize what cannot be guessed? Random tokens in repeated stories (paper
section 3.1, TS-Canary)

20 stories are repeated 128 times among 4,000 seen once, as in ts_repetition.py. Half of the 20 end
in a canary of 32 random tokens, which only memory can predict (in the paper and in figure 2 all of
them: --config.canaries.documents=-1). The paper gives neither length nor place of a canary; these
are ours.

A run takes two minutes on one core. Figure 2 takes this config. Seed 0, nats per token: standard
1.327 held-out, .064 repeated, .020 canaries; sinks_paper, dropped, 1.317, 1.061 and 1.534 (own
sinks on: .017). Guessing a canary costs 7.6, so most of this model's knowledge of canaries is not
in the sinks.

    python -m memsinks_jax.train --config=configs/ts_canary.py:sinks --workdir=runs/canary-sinks
    python -m memsinks_jax.train --config=configs/ts_canary.py:standard \
      --workdir=runs/canary-standard
"""

import pathlib

from memsinks_jax.config import Config
from memsinks_jax.variants import VARIANTS, choose, make_config, open_config

_REPETITION = open_config(pathlib.Path(__file__).with_name("ts_repetition.py"))

PRESETS = {
    "laptop": {"canaries.documents": 10, "data.row_length": 160},
    "paper": {**_REPETITION.PRESETS["paper"], "canaries.documents": 100},  # all stories carry one
}


def get_config(choice: str = "") -> Config:
    """`choice` is VARIANT,PRESET; sinks and laptop when left out."""
    variant, preset = choose("ts_canary.py", choice, VARIANTS, PRESETS)
    return make_config(variant, PRESETS[preset])
