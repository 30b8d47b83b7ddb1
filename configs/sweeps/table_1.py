"""Which learning rate and weight decay suit standard training? (paper table 1, chosen by held-out
loss)

9 points, each about 2.5 minutes on one core with the laptop preset, whose own rate is 5e-3.

    python -m memsinks_jax.sweep --config=configs/sweeps/table_1.py:laptop --seeds=0 \
      --out=runs/table_1
"""

import pathlib

from memsinks_jax.config import Config
from memsinks_jax.variants import open_config

_BASE = open_config(pathlib.Path(__file__).parents[1] / "ts_repetition.py")

GRID = {"optimizer.learning_rate": (6e-5, 6e-4, 6e-3), "optimizer.weight_decay": (1e-5, 1e-3, 1e-1)}
MEASURE = "held_out_loss"
CONTROL = ""


def get_config(choice: str = "") -> Config:
    """`choice` is PRESET,SIZE of configs/ts_repetition.py."""
    return _BASE.get_config(f"standard,{choice}")
