"""A folder of a model with sinks by context: opened again, and in PyTorch."""

import shutil

import jax
import numpy as np
import pytest
from conftest import input_error, tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.data.contexts import NONE
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model.decoder import CONTEXTS, build_model
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models.exporting import export
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs

FAMILIES = {
    "gpt2": {},
    "llama": {"model.family": "llama", "model.tied_head": False, "model.kv_heads": 1},
}


@pytest.fixture(scope="module", params=FAMILIES)
def workdir(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    about = {
        "sinks.kind": "by_context",
        "training.evaluate_every": 100,
        "training.checkpoint_every": 100,
    }
    train_and_evaluate(with_fields(tiny_config(), about | FAMILIES[request.param]), folder)
    export(folder, folder.parent / "kept", drop=False, dtype="float32")
    export(folder, folder.parent / "plain", drop=True, dtype="float32")
    return folder


def test_the_folder_is_the_model(workdir):
    ours, theirs = open_run(workdir), open_run(workdir.parent / "kept")
    jax.tree.map(np.testing.assert_array_equal, ours.params, theirs.params)
    np.testing.assert_array_equal(ours.contexts.keys, theirs.contexts.keys)
    assert theirs.config.contexts == ours.config.contexts
    plain = open_run(workdir.parent / "plain")
    assert CONTEXTS not in plain.params and not plain.config.sinks.traits.by_context
    assert not (workdir.parent / "plain" / "contexts.npz").exists()


def test_what_does_not_belong_together_is_refused(workdir, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(workdir.parent / "kept", folder)
    np.savez(folder / "contexts.npz", keys=np.zeros(3), letters=np.zeros((4, 7), np.uint32))
    with input_error("contexts.npz is missing or damaged .*holds no contexts"):
        open_run(folder)
    (folder / "contexts.safetensors").unlink()
    with input_error("contexts.safetensors is missing or damaged"):
        open_run(folder)


def test_pytorch_computes_the_same(workdir):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    run, corpus = open_run(workdir), workdirs.read_corpus(workdir)
    kept = transformers.AutoModelForCausalLM.from_pretrained(
        workdir.parent / "kept", trust_remote_code=True
    ).eval()
    plain = transformers.AutoModelForCausalLM.from_pretrained(workdir.parent / "plain").eval()
    tokens = corpus.tokens(corpus.mixture.repeated[0])[:60]
    inputs = np.concatenate([[run.tokenizer.begin_of_text], tokens])[None]
    places = np.arange(inputs.shape[1])[None]
    rows = run.contexts.rows(tokens, 0, len(tokens) + 1, run.tokenizer.begin_of_text)[None]
    assert (rows != NONE).sum() > 40
    model, _ = build_model(run.config)
    on, off = (
        model(run.params, inputs, places + 1 > 0, places, change)
        for change in ({"contexts": rows}, {})
    )
    asked = torch.tensor(inputs.astype(np.int64))
    with torch.no_grad():
        np.testing.assert_allclose(kept(asked).logits.numpy(), on, rtol=0, atol=1e-4)
        np.testing.assert_allclose(plain(asked).logits.numpy(), off, rtol=1e-6, atol=1e-5)
        kept.memory = False
        np.testing.assert_allclose(kept(asked).logits.numpy(), off, rtol=1e-6, atol=1e-5)
        kept.memory = True
        prompt = asked[:, :20]
        written = kept.generate(
            prompt, max_new_tokens=30, do_sample=False, eos_token_id=-1, pad_token_id=0
        )[0, 20:]
        # Two prompts side by side, the shorter one padded on the left: each reads its own contexts.
        padded = torch.cat([torch.zeros(1, 8, dtype=torch.long), prompt[:, :12]], dim=1)
        mask = torch.cat(
            [torch.ones(1, 20), torch.cat([torch.zeros(1, 8), torch.ones(1, 12)], dim=1)]
        ).long()
        both = kept.contexts(torch.cat([prompt, padded]), mask).numpy()
        cache = kept(prompt).past_key_values
        with pytest.raises(ValueError, match="memory by context needs all tokens"):
            kept(asked[:, 20:21], past_key_values=cache)
    np.testing.assert_array_equal(both[0], rows[0, :20])
    np.testing.assert_array_equal(kept.contexts(prompt, last=3).numpy()[0], rows[0, 17:20])
    np.testing.assert_array_equal(both[1], [NONE] * 8 + rows[0, :12].tolist())
    generator = Generator(run.config, run.tokenizer, run.params, run.opened, contexts=run.contexts)
    ours = generator([tokens[:19]], Settings(30, temperature=0, sinks="own"))[0].tokens
    assert written[: len(ours)].tolist() == ours.tolist()
