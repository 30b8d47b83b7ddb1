"""Which learning rate, weight decay and shared fraction suit gradient masking? (paper table 2,
before dropping)

27 points, each about 3 minutes on one core with the laptop preset.

    python -m memsinks_jax.sweep --config=configs/sweeps/table_2.py:laptop --seeds=0 \
      --out=runs/table_2
"""

import pathlib

from memsinks_jax.config import Config
from memsinks_jax.variants import open_config

_BASE = open_config(pathlib.Path(__file__).parents[1] / "ts_repetition.py")

GRID = {
    "optimizer.learning_rate": (6e-5, 6e-4, 6e-3),
    "optimizer.weight_decay": (1e-5, 1e-3, 1e-1),
    "sinks.shared_fraction": (0.7, 0.9, 0.95),
}
MEASURE = "held_out_loss_own"
CONTROL = ""


def get_config(choice: str = "") -> Config:
    """`choice` is PRESET,SIZE of configs/ts_repetition.py."""
    return _BASE.get_config(f"gradient_masking,{choice}")
