"""Which learning rate, weight decay, shared and active fraction suit sinks? (paper table 3, by
held-out loss, dropped)

144 points, each about 2.5 minutes on one core with the laptop preset. To vary only the two
fractions, 16 points:

    python -m memsinks_jax.sweep --config=configs/sweeps/table_3.py:laptop --seeds=0 \
      --out=runs/table_3 --config.optimizer.learning_rate=5e-3 --config.optimizer.weight_decay=0.4
"""

import pathlib

from memsinks_jax.config import Config, with_fields
from memsinks_jax.variants import VARIANTS, open_config

_BASE = open_config(pathlib.Path(__file__).parents[1] / "ts_repetition.py")

GRID = {
    "optimizer.learning_rate": (6e-5, 6e-4, 6e-3),
    "optimizer.weight_decay": (1e-5, 1e-3, 1e-1),
    "sinks.shared_fraction": (0.1, 0.3, 0.5, 0.7),
    "sinks.active_fraction": (0.1, 0.3, 0.5, 0.7),
}
MEASURE = "held_out_loss"
CONTROL = "standard"


def get_config(choice: str = "") -> Config:
    """`choice` as in ts_repetition.py. Takes the paper's sinks, which are always open."""
    return with_fields(_BASE.get_config(choice), VARIANTS["sinks_paper"])
