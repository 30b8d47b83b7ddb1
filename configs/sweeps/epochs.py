"""Do sinks cost anything if ordinary text is read several times? (beyond the paper)

1,000 stories without repeats, five epochs. Sinks that open at the second encounter beyond one per
epoch stay closed. The paper's open for every story. 20 of the stories stand for "repeated" in the
table, but are read as often as the others. Three runs per seed, each two minutes on one core.

Held-out loss over standard's, seeds 0, 1, 2: 1.003 +- 0.015 if they stay closed, 1.023 +- 0.015
with the paper's.

    python -m memsinks_jax.sweep --config=configs/sweeps/epochs.py:laptop --seeds=0,1,2 \
      --out=runs/epochs
"""

import pathlib

from memsinks_jax.config import Config, with_fields
from memsinks_jax.variants import open_config

_BASE = open_config(pathlib.Path(__file__).parents[1] / "ts_repetition.py")

GRID = {"sinks.opens_at": (1, 2)}
MEASURE = "held_out_loss"
CONTROL = "standard"


def get_config(choice: str = "") -> Config:
    """`choice` as in ts_repetition.py."""
    changes = {"data.unique_documents": 980, "data.repetitions": 1, "training.epochs": 5}
    return with_fields(_BASE.get_config(choice), changes)
