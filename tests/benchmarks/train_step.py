"""Speed of a training step on a CPU, against PyTorch's on the same work: python
tests/benchmarks/train_step.py --out=DIR

GPT-2 against a decoder like nanoGPT's (scaled_dot_product_attention, fused AdamW), Llama against
transformers' LlamaForCausalLM, at 1 and 5 million parameters, float32, two threads. PyTorch runs
eagerly and by torch.compile; the faster one counts. And our step with sinks by document (masked,
open on return), and with memory by context (a row at every other position), against the one
without, at the same width. Forward, loss, backward, clipping, AdamW; ours also isolates documents
and guards the update. Every side has its own process, and the others wait while it runs: ROUNDS
rounds of about SECONDS each, in reverse order every other round. A ratio is the median over rounds.
Exit code 1 if a goal is missed. Needs torch, transformers and a C++ compiler.
"""

import argparse
import json
import pathlib
import sys

import sides

from memsinks_jax.config import with_fields

ROUNDS, SECONDS = 9, 1.5
AT_LEAST = 1.05  # of PyTorch's steps a second
AT_MOST = 1.03  # of the time of a step without sinks
LEARNING_RATE, STEPS = 1e-3, 1000
PYTORCH = ("eager", "compiled")
KINDS = {"standard": "none", "sinks": "by_document", "memory": "by_context"}
ROWS_OF_CONTEXTS = 4096

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
    from memsinks_jax.model.decoder import CONTEXTS
    from memsinks_jax.model.host_memory import keep_freed_memory, use_one_arena
    from memsinks_jax.sinks.kinds import NONE
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
    if kind == "by_context":
        config = with_fields(config, {"contexts.rows": ROWS_OF_CONTEXTS})
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
    if kind == "by_context":
        rows = np.arange(inputs_BT.size, dtype=np.int32).reshape(inputs_BT.shape)
        batch["contexts"] = np.where(rows % 2, rows, NONE)
    state = jax.jit(lambda: init_state(config, STEPS))()
    step = jax.jit(make_train_step(config, STEPS), donate_argnums=0)

    def run(steps):
        nonlocal state
        for _ in range(steps):
            state, metrics = step(state, batch, np.uint32(0))
        return float(metrics["train_loss"])

    of_model = {name: leaf for name, leaf in state.params.items() if name != CONTEXTS}
    return run, sum(leaf.size for leaf in jax.tree.leaves(of_model))


def theirs(family, how, shape):
    """The same of PyTorch; `how` is one of PYTORCH."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(sides.THREADS)
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
        model = transformers.LlamaForCausalLM(config)

    def loss_of(inputs_BT, targets_BT):
        logits = model(inputs_BT)
        logits_BTV = logits if family == "gpt2" else logits.logits
        return F.cross_entropy(logits_BTV.view(-1, VOCABULARY), targets_BT.reshape(-1))

    if how == "compiled":
        loss_of = torch.compile(loss_of)
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
            loss = loss_of(inputs_BT, targets_BT)
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


def draw(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    for place, row in enumerate(rows):
        error = [[row["ratio"] - row["low"]], [row["high"] - row["ratio"]]]
        colour = "tab:blue" if row["better"] == "more" else "tab:gray"
        axes.bar(place, row["ratio"], yerr=error, capsize=4, color=colour)
        axes.plot([place - 0.4, place + 0.4], [row["goal"]] * 2, color="tab:red")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_xticks(
        range(len(rows)),
        [f"{row['what']}\n{row['size']} {row['family']}" for row in rows],
        fontsize=7,
        rotation=45,
        ha="right",
    )
    axes.set_ylabel("ratio (red: goal)")
    axes.set_title(
        "Blue: our speed over PyTorch's. Gray: time of a step over one without sinks", fontsize=9
    )
    figure.savefig(path, dpi=150)


def compared(size, family, found):
    """Results by side -> rows of the table."""
    pytorch = min(PYTORCH, key=lambda how: found[how].median)
    pairs = [(f"speed over {pytorch} PyTorch", pytorch, "standard", "more", AT_LEAST)]
    pairs += [(f"time with {name}", name, "standard", "less", AT_MOST) for name in KINDS][1:]
    rows = []
    for what, one, other, better, goal in pairs:
        ratio, low, high = sides.ratio(found[one], found[other])
        reached = ratio >= goal if better == "more" else ratio <= goal
        row = {"what": what, "size": size, "family": family, "better": better, "goal": goal}
        row |= {"ratio": ratio, "low": low, "high": high, "reached": reached}
        row["ms"] = [1e3 * found[name].median for name in (one, other)]
        rows.append(row)
        print(
            f"{what:28s} {size:4s} {family:6s} {ratio:6.3f}  {low:.3f} {high:.3f}   "
            f"{'>=' if better == 'more' else '<='} {goal:4.2f}  "
            f"{row['ms'][0]:.1f} {row['ms'][1]:.1f}",
            flush=True,
        )
    return rows


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
    sides.two_threads()
    rows, details = [], {}
    print(f"{'what':28s} size family  ratio  quartiles     goal     ms a step, of both")
    for size in arguments.sizes.split(","):
        for family in arguments.families.split(","):
            found = sides.take_turns(
                {how: (theirs, family, how, SHAPES[size]) for how in PYTORCH}
                | {name: (ours, family, kind, SHAPES[size]) for name, kind in KINDS.items()},
                arguments.rounds,
                arguments.seconds,
            )
            parameters = {name: one.about for name, one in found.items()}
            if len(set(parameters.values())) > 1:
                raise sides.SideError(f"the sides are not the same model: {parameters}")
            details[f"{size} {family}"] = {name: vars(one) for name, one in found.items()}
            rows += compared(size, family, found)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        setting = {"threads": sides.THREADS, "rounds": arguments.rounds, "shapes": SHAPES}
        setting["seconds"] = arguments.seconds
        whole = {"setting": setting, "rows": rows, "results": details}
        (arguments.out / "train_step.json").write_text(json.dumps(whole, indent=2) + "\n")
        draw(rows, arguments.out / "train_step.png")
    missed = [f"{row['what']}, {row['size']} {row['family']}" for row in rows if not row["reached"]]
    return f"missed: {'; '.join(missed)}" if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except sides.SideError as error:
        sys.exit(f"train_step: {error}")
