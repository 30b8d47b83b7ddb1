"""Training steps of SmolLM2-135M on one GPU, compared with PyTorch's: python
tests/benchmarks/gpu_step.py --out=FOLDER

Rows of 2,048 tokens in bfloat16, AdamW: transformers as it is and compiled; ours without sinks,
with sinks among the MLP's neurons, and with a pool of 65,536 sparse sinks, as configs/smollm.py has
them. Every side is a process, one after the other, since compiling alone may take most of the
card's memory. Prints, for every side, tokens per second, model FLOPs over the card's peak, the peak
of the memory in use and what the compiler planned. Needs a GPU, torch and transformers.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

LENGTH, ROUNDS, STEPS = 2048, 10, 4
VOCABULARY, DOCUMENTS = 49152, 2
OURS = {
    "standard": ("standard", {}),
    "standard, nothing recomputed": ("standard", {"compute.remat": "none"}),
    "sinks": ("sinks", {}),
    "sparse sinks": (
        "sinks",
        {"sinks.pool": 65_536, "sinks.active": 96, "sinks.sampling": "floyd", "sinks.sparse": True},
    ),
}
THEIRS = {"torch": False, "torch.compile": True}


def tokens_of(rows):
    stream_BT = np.random.default_rng(0).integers(3, VOCABULARY, (rows, LENGTH + 1))
    return stream_BT[:, :-1], stream_BT[:, 1:]


def theirs(compiled, rows):
    """-> (a function that makes a number of steps and waits for them, () -> GiB at the peak,
    None).
    """
    import torch
    import transformers

    torch.set_float32_matmul_precision("high")
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
    )
    model = (
        transformers.LlamaForCausalLM._from_config(shape, attn_implementation="sdpa").cuda().train()
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    called = torch.compile(model) if compiled else model
    inputs, targets = (torch.tensor(of, device="cuda") for of in tokens_of(rows))

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = called(inputs).logits
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).float(), targets.flatten()
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        torch.cuda.synchronize()

    return steps, lambda: torch.cuda.max_memory_allocated() / 2**30, None


def ours(variant, fields, rows):
    """-> (a function that makes a number of steps and waits for them, () -> GiB at the peak, the
    compiler's GiB).
    """
    import jax

    from memsinks_jax.config import with_fields
    from memsinks_jax.training import sharding
    from memsinks_jax.training.program import train_program
    from memsinks_jax.variants import CONFIGS, open_config

    config = open_config(CONFIGS / "smollm.py").get_config(f"135m,{variant}")
    config = with_fields(config, {"training.batch_size": rows, "mesh.fsdp": 1, **fields})
    mesh = sharding.make_mesh(config.mesh)
    jax.set_mesh(mesh)
    program = train_program(config, 1000, mesh, DOCUMENTS)
    inputs, targets = tokens_of(rows)
    places = np.arange(LENGTH)
    batch = {name: np.zeros(shape.shape, shape.dtype) for name, shape in program.batch.items()}
    batch |= {"inputs": inputs, "targets": targets, "weights": np.ones((rows, LENGTH), np.float32)}
    batch["segments"] += 1 + places * DOCUMENTS // LENGTH
    batch["positions"] += places % (LENGTH // DOCUMENTS)
    batch["identities"] = 1 + np.arange(rows * DOCUMENTS * 2).reshape(rows, DOCUMENTS, 2)
    batch["seen"] = np.full((rows, DOCUMENTS), 2)  # sinks are open
    placed = sharding.put_batch(
        {name: x.astype(program.batch[name].dtype) for name, x in batch.items()}, program.batch
    )
    compiled = program.step.lower(program.state, program.batch, program.seed).compile()
    text = compiled.as_text()
    (here / "kernel.txt").open("a").write(f"{variant} {fields}: {'__cudnn$fmha' in text}\n")
    of = compiled.memory_analysis()
    planned = (
        of.argument_size_in_bytes
        + of.output_size_in_bytes
        + of.temp_size_in_bytes
        - of.alias_size_in_bytes
    ) / 2**30
    state = program.init()

    def steps(count):
        nonlocal state
        for _ in range(count):
            state, metrics = compiled(state, placed, np.uint32(0))
        assert np.isfinite(float(metrics["train_loss"]))

    return steps, lambda: jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**30, planned


def child(side, rows):
    steps, peak, planned = theirs(THEIRS[side], rows) if side in THEIRS else ours(*OURS[side], rows)
    steps(3)  # what is compiled at the first call, and warm up
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        steps(STEPS)
        found.append((time.perf_counter() - began) / STEPS)
    print(
        "FOUND",
        json.dumps({"seconds": found, "peak_gib": peak(), "planned_gib": planned}),
        flush=True,
    )


def main():
    global here
    flags = argparse.ArgumentParser()
    flags.add_argument("--out", type=pathlib.Path, required=True)
    flags.add_argument("--rows", type=int, default=16)
    flags.add_argument("--side")
    asked = flags.parse_args()
    here = asked.out
    here.mkdir(parents=True, exist_ok=True)
    if asked.side:
        return child(asked.side, asked.rows)
    from memsinks_jax.training.flops import utilization
    from memsinks_jax.variants import CONFIGS, open_config

    card = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    config = open_config(CONFIGS / "smollm.py").get_config("135m,standard")
    shares = utilization(config, card)
    command, found = [sys.executable, __file__, f"--out={here}", f"--rows={asked.rows}"], {}
    for side in (*THEIRS, *OURS):
        log = here / f"{side}.log"
        done = subprocess.run(
            [*command, f"--side={side}"], stdout=subprocess.PIPE, stderr=log.open("w"), text=True
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
        of = found[side] = (
            json.loads(lines[-1][6:]) if lines else {"failed": log.read_text()[-600:]}
        )
        if "seconds" in of:
            median = statistics.median(of["seconds"])
            of["tokens_per_second"] = asked.rows * LENGTH / median
            of["spread"] = [min(of["seconds"]) / median, max(of["seconds"]) / median]
            of |= shares(of["tokens_per_second"])  # of the model without sparse sinks
        print(side, json.dumps(of))
    (here / "gpu_step.json").write_text(
        json.dumps({"card": card, "rows": asked.rows, "sides": found}, indent=1)
    )


if __name__ == "__main__":
    main()
