"""What sinks by context cost: python tests/benchmarks/contexts.py

A step of the laptop preset with them over one without, on the same batches, and text written with
memory on over off. Both sides alternate in one run; medians of the ratios. Exit code 1 if a goal is
missed.
"""

import itertools
import statistics
import sys
import time

import jax
import numpy as np

from memsinks_jax.config import with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.opened import Opened, nobody
from memsinks_jax.data.pipeline import batches
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.training import sharding
from memsinks_jax.training.program import train_program
from memsinks_jax.variants import make_config

ROUNDS, STEPS, TOKENS = 12, 12, 100
STEP_AT_MOST, TOKEN_AT_MOST = 1.03, 1.1


def steps_of(variant, rows):
    """A function that makes STEPS steps -> its seconds."""
    corpus = load_corpus(make_config(variant, {"data.rows": rows}))
    config, source = corpus.config, corpus.rows()
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh):
        program = train_program(config, source.steps, mesh, source.documents_per_row)
        made = itertools.islice(batches(source, config.training.batch_size), STEPS)
        state, placed = program.init(), [sharding.put_batch(batch, program.batch) for batch in made]

    def steps():
        nonlocal state
        with jax.set_mesh(mesh):
            start = time.perf_counter()
            for batch in placed:
                state, _ = program.step(state, batch, np.uint32(config.seed))
            jax.block_until_ready(state.params)
            return time.perf_counter() - start

    return steps


def writer_of(prompts):
    """(mode of the sinks) -> the seconds that a model takes to write TOKENS tokens after each
    prompt.
    """
    corpus = load_corpus(make_config("context"))
    config = with_fields(corpus.config, {"data.row_length": 256})
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = train_program(config, 1, mesh, 1).init().params
    never = Opened(config.sinks, nobody)
    generator = Generator(config, corpus.tokenizer, params, never, contexts=corpus.contexts)

    def write(mode):
        start = time.perf_counter()
        generator(prompts, Settings(TOKENS, seed=1, sinks=mode))
        return time.perf_counter() - start

    return write


def ratio(one, other):
    """The median of one's time over the other's, without the first round, which compiles."""
    pairs = [(one(), other()) for _ in range(ROUNDS)][1:]
    return statistics.median(a / b for a, b in pairs)


def main():
    reached = True
    for rows in ("one_document", "packed"):
        found = ratio(steps_of("context", rows), steps_of("standard", rows))
        print(f"a step, rows {rows}: {found:.3f} of that of standard training")
        reached &= found <= STEP_AT_MOST
    for count in (1, 8):
        write = writer_of(["Once upon a time"] * count)
        found = ratio(lambda write=write: write("own"), lambda write=write: write("drop"))
        print(f"{count} at a time, a token: {found:.3f} of that without memory")
        reached &= found <= TOKEN_AT_MOST
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
