"""Which settings of the sinks close nine tenths of the gap and cost nothing? (beyond the paper)

Shared and active fraction, whether sinks learn faster than the rest, whether half of attention's outputs are sinks too:
24 points, at the laptop preset some 2.5 minutes each on one core. Wanted: gap closed of 0.9 and more at a held-out loss of
at most 1.01 of standard's.

    python -m memsinks_jax.sweep --config=configs/sweeps/beyond.py:laptop --seeds=0,1,2 --out=runs/beyond
"""

import pathlib

from memsinks_jax.variants import open_config

get_config = open_config(pathlib.Path(__file__).parents[1] / "ts_repetition.py").get_config

GRID = {
    "sinks.shared_fraction": (0.5, 0.7), "sinks.active_fraction": (0.1, 0.3),
    "sinks.learning_rate_multiple": (1.0, 3.0, 10.0), "sinks.attention_fraction": (0.0, 0.5),
}  # fmt: skip
MEASURE = "gap_closed"
CONTROL = "standard"
