"""When should sinks open, and when should a document teach the rest less? (beyond the paper)

10 points of two to three minutes each on one core. Sinks that open at the second encounter leave less than half of the gap
that the paper's leave. What leaks after that leaks slowly, over all encounters. Slowing it from the 16th on costs nothing,
earlier costs held-out loss.

Seed 0, share of the gap closed and held-out loss over standard's: open at the second encounter .898, .984; and slowed from
the 16th on .938, .981; from the 8th on .951, 1.010. The other points have not been run.

    python -m memsinks_jax.sweep --config=configs/sweeps/opens.py:laptop --seeds=0 --out=runs/opens
"""

import pathlib

from memsinks_jax.variants import open_config

get_config = open_config(pathlib.Path(__file__).parents[1] / "ts_repetition.py").get_config
GRID = (
    {"sinks.opens_at": (1, 2, 3), "sinks.slows_at": (0,)},
    {"sinks.opens_at": (1, 3), "sinks.slows_at": (16,)},
    {"sinks.slows_at": (8, 16, 32)},
    {"sinks.active_fraction": (0.1,)},
    {"sinks.pool": (1000,), "sinks.active": (50,)},
)
MEASURE = "gap_closed"
CONTROL = "standard"
