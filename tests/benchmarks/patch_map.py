"""Speed of a patch map in one batch against one forward pass per site: python
tests/benchmarks/patch_map.py

All single patches of a prompt of 12 tokens, every layer and token, on a CPU, by models of the two
presets of configs/facts.py with random parameters. The others are our own model, compiled, called
once per site, and transformers' GPT-2 with a hook on the input of `c_proj`, as in the original
study (omitted if PyTorch is not installed). Checks that all give the same losses. Times are medians
of alternating rounds after an uncounted warm-up.
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import jax
import numpy as np

from memsinks_jax.config import ModelConfig, with_fields
from memsinks_jax.data.embedded import facts
from memsinks_jax.data.opened import Opened, nobody
from memsinks_jax.data.tokenizer import JsonTokenizer
from memsinks_jax.editing import patching
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode, target_token
from memsinks_jax.model import host_memory
from memsinks_jax.models.folder import write_folder
from memsinks_jax.models.trained import Trained
from memsinks_jax.training.step import init_state
from memsinks_jax.variants import make_config

SIZES = {"1M": ModelConfig(), "6.5M": ModelConfig(layers=8, d_model=256, heads=8, hidden=1024)}
STEP, SITE, REPEATS = 3.0, "mlp", 7
AT_LEAST = 10  # times as fast as transformers, one forward a site


def seconds(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def by_transformers(folder, config, tokens, deltas_LTW, target):
    """One forward a site -> a function that gives losses (L, T); None without PyTorch."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids, deltas = torch.tensor(tokens[None].astype(np.int64)), torch.tensor(deltas_LTW)

    def losses():
        found = np.zeros(deltas_LTW.shape[:2])
        with torch.no_grad():
            for layer in range(found.shape[0]):
                for place in range(found.shape[1]):

                    def hook(module, inputs, layer=layer, place=place):
                        (a,) = inputs
                        a = a.clone()
                        a[:, place] += deltas[layer, place]
                        return (a,)

                    handle = model.transformer.h[layer].mlp.c_proj.register_forward_pre_hook(hook)
                    logits = model(ids).logits[0, -1]
                    handle.remove()
                    found[layer, place] = -torch.log_softmax(logits, -1)[target]
        return found

    return losses


def main():
    host_memory.use_one_arena()
    host_memory.keep_freed_memory()
    world = facts.world(0)
    tokenizer = JsonTokenizer(facts.tokenizer_json(world))
    slowest = np.inf
    for name, model in SIZES.items():
        config = make_config("standard", {"data.row_length": 48, "data.vocabulary_size": 1024})
        config = with_fields(config, {"model": model})
        params = jax.jit(lambda config=config: init_state(config, 1).params)()
        params = jax.tree.map(
            lambda a: a + 0.1 * jax.random.normal(jax.random.key(a.size), a.shape), params
        )
        probe = Probe(config, params)
        edit = facts.edits(world, "strong", 1, 0)[0]
        prompt, target = (
            encode(tokenizer, [edit.prompt], 48),
            target_token(tokenizer, edit.prompt, edit.target),
        )
        trace, known = probe.trace(prompt, target, SITE), int(prompt.last[0]) + 1
        deltas_LTW = -STEP * trace.gradients[0, :, :known]
        sites = [(layer, place) for layer in range(model.layers) for place in range(known)]

        def in_one_batch(probe=probe, prompt=prompt, target=target, trace=trace):
            return patching.patch_map(probe, prompt, target, SITE, trace, STEP).losses

        def one_by_one(
            probe=probe, prompt=prompt, target=target, sites=sites, deltas_LTW=deltas_LTW
        ):
            found = [
                probe.patched(
                    prompt, target, SITE, [layer], [place], deltas_LTW[layer, place][None]
                ).losses[0]
                for layer, place in sites
            ]
            return np.reshape(found, deltas_LTW.shape[:2])

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "hf"
            nobodys = Opened(config.sinks, nobody)
            write_folder(path, Trained(config, tokenizer, params, 0, nobodys), "", drop=True)
            theirs = by_transformers(path, config, prompt.tokens[0, :known], deltas_LTW, target)
        others = {"our model, one call a site": one_by_one}
        others |= {"transformers, one forward a site": theirs} if theirs else {}
        for other in others.values():
            np.testing.assert_allclose(other(), in_one_batch(), rtol=1e-3, atol=1e-3)
        rounds = [[seconds(f)[0] for f in (in_one_batch, *others.values())] for _ in range(REPEATS)]
        mine, *rest = (statistics.median(times) for times in zip(*rounds, strict=True))
        print(f"{name}: {len(sites)} sites in one batch {1000 * mine:.1f} ms")
        for side, time_taken in zip(others, rest, strict=True):
            print(f"  {side}: {1000 * time_taken:.1f} ms, {time_taken / mine:.1f} times as long")
        if theirs:
            slowest = min(slowest, rest[-1] / mine)
    if slowest < AT_LEAST:
        print(f"less than {AT_LEAST} times as fast as one forward a site")


if __name__ == "__main__":
    main()
