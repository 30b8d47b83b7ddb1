"""The cost of the lab's data: drawing a step's sequences on the device, as a share of the step:

    python tests/benchmarks/induction_head.py

Compiled alone and as part of the step; medians of alternating rounds after an uncounted warm-up.
"""

import statistics
import sys
import time

import jax

from memsinks_jax.studies.labs.induction_head import bigrams, training
from memsinks_jax.studies.labs.induction_head.law import sampler
from memsinks_jax.studies.labs.induction_head.presets import Preset

STEPS, ROUNDS = 10, 5  # steps of one call, calls
AT_MOST = 0.10  # of a step's time


def seconds(function):
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def share(recipe, table):
    """(seconds of the data of a step, seconds of the step)."""
    trained, others, state = training.start(recipe, table, 0)
    sample, key = sampler(table, recipe.law), jax.random.key(0)

    @jax.jit
    def draw(key):
        # All of a batch must be used, or the compiler leaves it out.
        def one(total, number):
            batch = sample(jax.random.fold_in(key, number), recipe.batch)
            return total + batch.tokens_BS.sum() + batch.seen_BT.sum() + batch.cyclic_B.sum(), None

        return jax.lax.scan(one, 0, jax.numpy.arange(STEPS))[0]

    pair = (
        (lambda: draw(key)),
        (lambda: training.steps(recipe, table, (trained, state), others, key, 0, STEPS)),
    )
    for function in pair:
        seconds(function)
    rounds = [[seconds(function) / STEPS for function in pair] for _ in range(ROUNDS)]
    return [statistics.median(one) for one in zip(*rounds, strict=True)]


def main():
    table, worst = bigrams.bundled(), 0.0
    preset = Preset("laptop", table)
    for name, recipe in {
        "E1": preset.alone(256),
        "E6, 20 random triggers": preset.alone(k=20, fixed=False),
        "E3, all tokens": preset.world(k=1),
        "E10": preset.full(),
    }.items():
        data, step = share(recipe, table)
        worst = max(worst, data / step)
        print(
            f"{name:24s} data {1e3 * data:7.2f} ms   step {1e3 * step:8.2f} ms   share "
            f"{data / step:6.1%}"
        )
    return 0 if worst < AT_MOST else 1


if __name__ == "__main__":
    sys.exit(main())
