"""Time of a step with sparse sinks, against others: python tests/benchmarks/sparse_sinks.py
--out=DIR

Whole steps on this machine, float32, with every document's sinks open. All sides live in one
process and alternate, ROUNDS rounds of about SECONDS each, in reverse order every other round. A
ratio is the median over rounds. In `results.json`:

  over_standard  laptop, pool of 4,096, 46 a document, over a standard model with the same shared
                 neurons
  over_masked    the same over masked sinks of the same pool
  pool_growth    a pool of 65,536 over one of 4,096
  paper_shape    154 sinks, 46 a document, over masked ones
  nulls_shape    width 960, 500 shared, 7,692 sinks, 100 a document, 4 rows of 512, over masked ones

In comparisons with masked sinks, `details` also give the share of their time that a step without
any sinks takes: a lower limit for sparse sinks.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

from memsinks_jax.config import with_fields

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

ROUNDS, SECONDS = 21, 0.4
LAPTOP = {
    "batch": 8,
    "length": 128,
    "d_model": 128,
    "heads": 4,
    "layers": 4,
    "hidden": 512,
    "family": "gpt2",
}
NULLS = {
    "batch": 4,
    "length": 512,
    "d_model": 960,
    "heads": 15,
    "layers": 2,
    "hidden": 715,
    "family": "llama",
}  # 500 shared
STEPS = 1000
STANDARD = ("standard", 0, 0)

# name: (shape, side, side over which, most that is wanted); a side is (kind of MLP, pool, active
# sinks)
RATIOS = {
    "over_standard": (LAPTOP, ("sparse", 4096, 46), STANDARD, 1.15),
    "over_masked": (LAPTOP, ("sparse", 4096, 46), ("masked", 4096, 46), 0.25),
    "pool_growth": (LAPTOP, ("sparse", 65_536, 46), ("sparse", 4096, 46), 1.05),
    "paper_shape": (LAPTOP, ("sparse", 154, 46), ("masked", 154, 46), 1.0),
    "nulls_shape": (NULLS, ("sparse", 7692, 100), ("masked", 7692, 100), 0.2),
}


def side(shape, kind, pool, active):
    """-> a function that makes that many steps."""
    import jax
    import numpy as np

    from memsinks_jax.config import Config, validate
    from memsinks_jax.training.step import init_state, make_train_step

    config = with_fields(
        Config(), {"model.family": shape["family"], "model.layers": shape["layers"]}
    )
    config = with_fields(
        config, {"model.hidden": shape["hidden"], "model.d_model": shape["d_model"]}
    )
    config = with_fields(
        config, {"model.heads": shape["heads"], "data.row_length": shape["length"]}
    )
    config = with_fields(
        config, {"training.batch_size": shape["batch"], "sinks.opens_at": 1, "sinks.slows_at": 0}
    )
    config = with_fields(
        config, {"sinks.kind": "cut" if kind == "standard" else "by_document", "sinks.pool": pool}
    )
    config = with_fields(
        config,
        {"sinks.active": active, "sinks.sampling": "floyd", "sinks.sparse": kind == "sparse"},
    )
    validate(config)
    random, (rows, length) = np.random.default_rng(0), (shape["batch"], shape["length"])
    stream_BT = random.integers(3, config.data.vocabulary_size, (rows, length + 1)).astype(np.int32)
    ones_BT = np.ones((rows, length), np.int32)
    # Batches of other documents in turn, as in training.
    batches = [
        {
            "inputs": stream_BT[:, :-1],
            "targets": stream_BT[:, 1:],
            "segments": ones_BT,
            "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
            "weights": ones_BT.astype(np.float32),
            "identities": random.integers(0, 2**32, (rows, 1, 2), np.uint32),
            "repeated": np.ones((rows, 1), bool),
            "seen": np.ones((rows, 1), np.int32),
            "epoch": np.zeros(rows, np.int32),
        }
        for _ in range(16)
    ]
    state = jax.jit(lambda: init_state(config, STEPS))()
    step = jax.jit(make_train_step(config, STEPS), donate_argnums=0)

    def run(steps):
        nonlocal state
        for number in range(steps):
            state, metrics = step(state, batches[number % len(batches)], np.uint32(0))
        metrics["train_loss"].block_until_ready()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="folder for results.json")
    parser.add_argument(
        "--quick", action="store_true", help="three short rounds, for a first number"
    )
    parser.add_argument("--only", default="", help=f"some of {','.join(RATIOS)}")
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from memsinks_jax.model.host_memory import keep_freed_memory, use_one_arena
    from memsinks_jax.studies.figures.step_times import take_turns

    use_one_arena()  # as all commands do
    keep_freed_memory()
    rounds, seconds = (3, 0.2) if arguments.quick else (ROUNDS, SECONDS)
    results, details = {}, {}
    for name, (shape, one, other, wanted) in RATIOS.items():
        if arguments.only and name not in arguments.only.split(","):
            continue
        without = [STANDARD] if other[0] == "masked" else []
        found = take_turns([side(shape, *each) for each in (one, other, *without)], rounds, seconds)
        ratios, *least = (
            [a / b for a, b in zip(of, found[1], strict=True)] for of in (found[0], *found[2:])
        )
        results[name] = statistics.median(ratios)
        details[name] = {
            "milliseconds": found,
            "wanted": wanted,
            "without_sinks": [*map(statistics.median, least)],
        }
        print(
            f"{name:14s} {results[name]:6.3f}  ({min(ratios):.3f} to {max(ratios):.3f})  wanted "
            f"<= {wanted:.2f}   "
            f"{statistics.median(found[0]):.1f} over {statistics.median(found[1]):.1f} ms"
            + "".join(f", without sinks {ratio:.3f}" for ratio in details[name]["without_sinks"]),
            flush=True,
        )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "results.json").write_text(
            json.dumps(results | {"details": details}, indent=2) + "\n"
        )
    return 0 if all(results[name] <= RATIOS[name][3] for name in results) else 1


if __name__ == "__main__":
    sys.exit(main())
