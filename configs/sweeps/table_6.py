"""Which shared and active fraction suit sinks in SmolLM-size models? (paper table 6)

12 points for each size. The paper does not say how it chose; here by held-out loss, sinks dropped,
as in table 3. Needs machines as in configs/smollm.py:

    python -m memsinks_jax.sweep --config=configs/sweeps/table_6.py:360m --seeds=0 \
      --out=runs/table_6 --config.data.files='corpus/*.jsonl' \
      --config.data.tokenizer=SmolLM2-360M/tokenizer.json
"""

import pathlib

from memsinks_jax.config import Config, with_fields
from memsinks_jax.variants import VARIANTS, open_config

_BASE = open_config(pathlib.Path(__file__).parents[1] / "smollm.py")

GRID = {"sinks.shared_fraction": (0.95, 0.9, 0.7, 0.5), "sinks.active_fraction": (0.1, 0.3, 0.5)}
MEASURE = "held_out_loss"
CONTROL = "standard"


def get_config(choice: str = "") -> Config:
    """`choice` as in smollm.py. Takes the paper's sinks, which are always open."""
    return with_fields(_BASE.get_config(choice), VARIANTS["sinks_paper"])
