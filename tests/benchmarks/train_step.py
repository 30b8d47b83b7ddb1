"""Speed of a training step on a CPU, against PyTorch's on the same work: python
tests/benchmarks/train_step.py --out=DIR

GPT-2 against a decoder like nanoGPT's (scaled_dot_product_attention, fused AdamW), Llama against
transformers' LlamaForCausalLM, at 1 and 5 million parameters, float32, two threads; and our step
with sinks against the one without, at the same width. Forward, loss, backward, clipping, AdamW;
ours also isolates documents and guards the update. Every side has its own process, and the others
wait while it runs: ROUNDS rounds of about SECONDS each, in reverse order every other round. A ratio
is the median over rounds of the ratio of steps per second. Exit code 1 if a goal is missed. Needs
torch and transformers.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import time

from memsinks_jax.config import with_fields

THREADS, ROUNDS, SECONDS = 2, 9, 1.5
AT_LEAST = 0.9  # of PyTorch's steps a second
AT_MOST = 1.03  # of the time of a step without sinks
LEARNING_RATE, STEPS = 1e-3, 1000
SINKS = "by_document"

SHAPES = {
    "1M": {
        "layers": 4,
        "d_model": 128,
        "heads": 4,
        "kv_heads": 2,
        "hidden": 512,
        "batch": 8,
        "length": 128,
    },
    "5M": {
        "layers": 6,
        "d_model": 256,
        "heads": 8,
        "kv_heads": 4,
        "hidden": 1024,
        "batch": 16,
        "length": 256,
    },
}  # kv_heads: Llama's only
VOCABULARY = 2048


def tokens_of(shape):
    """Inputs and targets, int64 (B, T) each."""
    import numpy as np

    stream_BT = np.random.default_rng(0).integers(
        3, VOCABULARY, (shape["batch"], shape["length"] + 1)
    )
    return stream_BT[:, :-1], stream_BT[:, 1:]


def ours(family, kind, shape):
    """-> (a function that makes that many steps and returns the last loss, number of
    parameters).
    """
    import jax
    import numpy as np

    from memsinks_jax.config import Config, validate
    from memsinks_jax.model.host_memory import keep_freed_memory, use_one_arena
    from memsinks_jax.training.step import init_state, make_train_step

    use_one_arena()  # as all commands do
    keep_freed_memory()
    config = with_fields(
        Config(), {"model.family": family, "sinks.kind": kind, "model.layers": shape["layers"]}
    )
    config = with_fields(config, {"model.d_model": shape["d_model"], "model.heads": shape["heads"]})
    config = with_fields(config, {"model.hidden": shape["hidden"]})
    if family == "llama":
        config = with_fields(
            config, {"model.kv_heads": shape["kv_heads"], "model.attention_bias": False}
        )
        config = with_fields(config, {"model.mlp_bias": False})
    config = with_fields(
        config, {"data.row_length": shape["length"], "data.vocabulary_size": VOCABULARY}
    )
    config = with_fields(
        config, {"optimizer.learning_rate": LEARNING_RATE, "training.batch_size": shape["batch"]}
    )
    validate(config)
    inputs_BT, targets_BT = tokens_of(shape)
    batch = {
        "inputs": inputs_BT.astype(np.int32),
        "targets": targets_BT.astype(np.int32),
        "weights": np.ones(inputs_BT.shape, np.float32),
        "segments": np.ones(inputs_BT.shape, np.int32),
        "positions": np.tile(np.arange(shape["length"], dtype=np.int32), (shape["batch"], 1)),
        "identities": np.random.default_rng(1).integers(
            0, 2**32, (shape["batch"], 1, 2), np.uint32
        ),
        "seen": np.ones((shape["batch"], 1), np.int32),
        "epoch": np.zeros(shape["batch"], np.int32),
    }
    state = jax.jit(lambda: init_state(config, STEPS))()
    step = jax.jit(make_train_step(config, STEPS), donate_argnums=0)

    def run(steps):
        nonlocal state
        for _ in range(steps):
            state, metrics = step(state, batch, np.uint32(0))
        return float(metrics["train_loss"])

    return run, sum(a.size for a in jax.tree.leaves(state.params))


def theirs(family, kind, shape):
    """The same of PyTorch. `kind` is not read: it has no sinks."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if family == "gpt2":
        model = nano_gpt(shape)
    else:
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape["d_model"],
            intermediate_size=shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"],
            max_position_embeddings=shape["length"],
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            attention_bias=False,
            mlp_bias=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
        llama = transformers.LlamaForCausalLM(config)

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.llama = llama

            def forward(self, tokens_BT):
                return self.llama(tokens_BT).logits

        model = Logits()
    model.train()
    decaying = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=(0.9, 0.99),
        fused=True,
    )
    inputs_BT, targets_BT = map(torch.from_numpy, tokens_of(shape))

    def run(steps):
        for _ in range(steps):
            logits_BTV = model(inputs_BT)
            loss = F.cross_entropy(logits_BTV.view(-1, VOCABULARY), targets_BT.reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    return run, sum(p.numel() for p in model.parameters())


def nano_gpt(shape):
    """GPT-2 as nanoGPT writes it: queries, keys and values in one product, tanh GELU, tied head,
    biases.
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    d_model, heads = shape["d_model"], shape["heads"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.mlp_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
            self.query_key_value = nn.Linear(d_model, 3 * d_model)
            self.output = nn.Linear(d_model, d_model)
            self.up = nn.Linear(d_model, shape["hidden"])
            self.down = nn.Linear(shape["hidden"], d_model)

        def forward(self, x_BTD):
            batch, length, _ = x_BTD.shape
            parts = self.query_key_value(self.attention_norm(x_BTD)).split(d_model, dim=2)
            query, key, value = (x.view(batch, length, heads, -1).transpose(1, 2) for x in parts)
            heads_BHTC = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x_BTD = x_BTD + self.output(
                heads_BHTC.transpose(1, 2).contiguous().view(batch, length, d_model)
            )
            return x_BTD + self.down(F.gelu(self.up(self.mlp_norm(x_BTD)), approximate="tanh"))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, d_model)
            self.places = nn.Embedding(shape["length"], d_model)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = nn.LayerNorm(d_model)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, tokens_BT):
            x_BTD = self.tokens(tokens_BT) + self.places(torch.arange(tokens_BT.shape[1]))
            for block in self.blocks:
                x_BTD = block(x_BTD)
            return self.norm(x_BTD) @ self.tokens.weight.T

    return Decoder()


def serve(pipe, build, family, kind, shape):
    """A side's process: answers numbers of steps with (seconds, last loss), and 0 with the number
    of parameters.
    """
    run, parameters = build(family, kind, shape)
    run(8)  # until the heap has grown to what it needs
    while (steps := pipe.recv()) is not None:
        start = time.perf_counter()
        result = run(steps) if steps else parameters
        pipe.send((time.perf_counter() - start, result))


@contextlib.contextmanager
def side(build, family, kind, shape):
    """A function (steps) -> (seconds, last loss) that runs in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, build, family, kind, shape), daemon=True)
    process.start()
    there.close()

    def ask(steps):
        here.send(steps)
        return here.recv()

    try:
        yield ask
    finally:
        process.terminate()  # it waits at the pipe, whose end would be an error there
        process.join()
        here.close()


def compare(sides, shape, rounds, seconds):
    """{name: (build, family, kind)} -> {name: {"steps_per_second": [one a round], "parameters",
    "first_loss"}}.
    """
    with contextlib.ExitStack() as held:
        asks = {name: held.enter_context(side(*which, shape)) for name, which in sides.items()}
        results = {
            name: {"parameters": ask(0)[1], "steps_per_second": []} for name, ask in asks.items()
        }
        # As many steps for all, so that short pauses weigh the same.
        steps = max(3, round(seconds / min(ask(3)[0] / 3 for ask in asks.values())))
        for number in range(rounds):
            order = list(asks) if number % 2 == 0 else list(asks)[::-1]
            for name in order:
                took, results[name]["last_loss"] = asks[name](steps)
                results[name]["steps_per_second"].append(steps / took)
    return results


def ratio_of(results, one, other):
    """Median over rounds, and the quartiles."""
    speeds = (results[name]["steps_per_second"] for name in (one, other))
    ratios = [a / b for a, b in zip(*speeds, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {"ratio": statistics.median(ratios), "low": low, "high": high}


def draw(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for place, row in enumerate(rows):
        error = [[row["ratio"] - row["low"]], [row["high"] - row["ratio"]]]
        axes.bar(
            place,
            row["ratio"],
            yerr=error,
            capsize=4,
            color="tab:blue" if row["better"] == "more" else "tab:gray",
        )
        axes.plot([place - 0.4, place + 0.4], [row["goal"]] * 2, color="tab:red")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_xticks(
        range(len(rows)), [f"{r['what']}\n{r['size']} {r['family']}" for r in rows], fontsize=8
    )
    axes.set_ylabel("ratio (red: goal)")
    axes.set_title(
        "Blue: our speed over PyTorch's. Gray: time of a step with sinks over one without",
        fontsize=9,
    )
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=pathlib.Path, help="folder for train_step.json and train_step.png"
    )
    parser.add_argument("--sizes", default=",".join(SHAPES))
    parser.add_argument("--families", default="gpt2,llama")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": str(THREADS),
        "TOKENIZERS_PARALLELISM": "false",
    }
    # XLA makes as many threads as the process may use cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    rows, details = [], {}
    print(
        f"{'what':22s} {'size':4s} {'family':6s} {'ratio':>6s}  {'quartiles':13s} {'goal':8s} "
        "steps/s of both"
    )
    for size in arguments.sizes.split(","):
        for family in arguments.families.split(","):
            results = compare(
                {
                    "pytorch": (theirs, family, ""),
                    "standard": (ours, family, "none"),
                    "sinks": (ours, family, SINKS),
                },
                SHAPES[size],
                arguments.rounds,
                arguments.seconds,
            )
            assert len({result["parameters"] for result in results.values()}) == 1, (
                "the sides are not the same model"
            )
            details[f"{size} {family}"] = results
            for what, one, other, better, goal in (
                ("speed over PyTorch's", "standard", "pytorch", "more", AT_LEAST),
                ("time over standard's", "standard", "sinks", "less", AT_MOST),
            ):
                row = {"what": what, "size": size, "family": family, "better": better, "goal": goal}
                row |= ratio_of(results, one, other)
                row["reached"] = row["ratio"] >= goal if better == "more" else row["ratio"] <= goal
                rows.append(row)
                speeds = [
                    statistics.median(results[name]["steps_per_second"]) for name in (one, other)
                ]
                sign = ">=" if better == "more" else "<="
                print(
                    f"{what:22s} {size:4s} {family:6s} {row['ratio']:6.3f}  {row['low']:.3f} "
                    f"{row['high']:.3f}   "
                    f"{sign} {goal:4.2f}  {speeds[0]:.2f} "
                    f"{speeds[1]:.2f}{'' if row['reached'] else '   missed'}",
                    flush=True,
                )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        setting = {
            "threads": THREADS,
            "rounds": arguments.rounds,
            "seconds": arguments.seconds,
            "shapes": SHAPES,
        }
        whole = {"setting": setting, "rows": rows, "results": details}
        (arguments.out / "train_step.json").write_text(json.dumps(whole, indent=2) + "\n")
        draw(rows, arguments.out / "train_step.png")
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
