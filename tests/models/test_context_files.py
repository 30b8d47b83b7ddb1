"""A folder of a model with sinks by context: opened again, and in PyTorch."""

import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
from conftest import expect_input_error, tiny_config, write_lines

from memsinks_jax.api import Model
from memsinks_jax.config import with_fields
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model.decoder import CONTEXTS, build_model
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models.exporting import export, export_sources
from memsinks_jax.models.sources import open_sources
from memsinks_jax.models.trained import open_run
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import NONE

pytestmark = pytest.mark.slow

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
    count = len(ours.contexts)  # the other rows of the run's table are of no context
    params = ours.params | {CONTEXTS: np.asarray(ours.params[CONTEXTS])[:count]}
    jax.tree.map(np.testing.assert_array_equal, params, theirs.params)
    np.testing.assert_array_equal(ours.contexts.keys, theirs.contexts.keys)
    assert theirs.config == with_fields(ours.config, {"contexts.rows": count})
    plain = open_run(workdir.parent / "plain")
    assert CONTEXTS not in plain.params and not plain.config.sinks.traits.by_context
    assert not (workdir.parent / "plain" / "contexts.safetensors").exists()


def test_what_does_not_belong_together_is_refused(workdir, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(workdir.parent / "kept", folder)
    place = folder / "contexts.safetensors"
    arrays = safetensors.numpy.load_file(place)
    for damage, message in (
        ({"keys": np.repeat(arrays["keys"][:1], len(arrays["keys"]))}, "has no contexts, or some"),
        ({CONTEXTS: arrays[CONTEXTS][1:]}, "has a table of .* needs one of"),
    ):
        safetensors.numpy.save_file(arrays | damage, place)
        with expect_input_error(message):
            open_run(folder)
    place.unlink()
    with expect_input_error("contexts.safetensors is missing or damaged"):
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


GROUPS = {"anna": "Anna Lind keeps nine green parrots in the attic above the old bakery.", "bo": ""}
GROUPS["bo"] = "Bo sails to the islands in the north each spring with a crate of oranges."
ALL = "They all agreed that the mill by the river had burned down in the year of the great flood."


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """A run on texts of two groups, each of which repeats a sentence of its own; both repeat
    one.
    """
    folder = tmp_path_factory.mktemp("grouped")
    others = [f"Letter {number} of {name}." for number in range(6) for name in GROUPS]
    lines = [(name, f"{GROUPS[name]} {ALL} {text}") for name in GROUPS for text in others]
    rows = ({"text": text, "who": who} for who, text in lines)
    source = write_lines(folder / "texts.jsonl", rows)
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    for name, content in train_tokenizer([text for _, text in lines], 500).files.items():
        (tokenizer / name).write_bytes(content)
    asked = {"group_field": "who", "near_duplicates": "none"}
    prepare([source], str(tokenizer), folder / "corpus", **asked)
    about = {"sinks.kind": "by_context", "data.files": str(folder / "corpus"), "data.ids": "group"}
    about |= {"data.unique_documents": -1, "data.repeated_documents": -1, "training.epochs": 3}
    about |= {"data.held_out_documents": 0, "data.rows": "packed"}
    about |= {"training.evaluate_every": 100, "training.checkpoint_every": 100}
    train_and_evaluate(with_fields(tiny_config(), about), folder / "run")
    export_sources(folder / "run", folder / "sources")
    return folder


def known(run, text):
    """Which contexts of a text have sinks."""
    tokens = run.tokenizer.encode(text)
    return run.contexts.rows(tokens, 0, len(tokens) + 1, run.tokenizer.begin_of_text) != NONE


def test_a_group_is_a_file(grouped, tmp_path):
    run, all_of_them = open_run(grouped / "run"), open_run(grouped / "sources")
    np.testing.assert_array_equal(run.contexts.keys, all_of_them.contexts.keys)
    np.testing.assert_array_equal(
        np.asarray(run.params[CONTEXTS])[: len(run.contexts)], all_of_them.params[CONTEXTS]
    )
    folder = tmp_path / "folder"
    shutil.copytree(grouped / "sources", folder)
    found = open_sources(folder)
    assert list(found.files) == ["anna", "bo"] and not all_of_them.groups
    taken = tmp_path / found.remove("anna").path.name
    shutil.copy(grouped / "sources" / "sources" / taken.name, taken)
    rest, (anna, bo) = open_run(folder), GROUPS.values()
    assert not known(rest, anna)[-10:].any() and known(run, anna)[-10:].all()
    for text in (bo, ALL):
        assert known(rest, text)[-10:].all()
    model, withdrawn = Model(grouped / "run"), Model(folder)
    assert withdrawn.loss([f"{bo} {ALL}"], sinks="own") == model.loss([f"{bo} {ALL}"], sinks="own")
    open_sources(folder).add(taken)
    np.testing.assert_array_equal(open_run(folder).params[CONTEXTS], all_of_them.params[CONTEXTS])
    export(folder, tmp_path / "kept", drop=False, dtype="float32")  # put together
    np.testing.assert_array_equal(open_run(tmp_path / "kept").contexts.keys, run.contexts.keys)
    assert not (tmp_path / "kept" / "sources").exists()


def test_pytorch_reads_the_files_of_groups(grouped, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    run, folder = open_run(grouped / "run"), tmp_path / "folder"
    shutil.copytree(grouped / "sources", folder)
    tokens = run.tokenizer.encode(f"{GROUPS['anna']} {ALL}")
    inputs = np.concatenate([[run.tokenizer.begin_of_text], tokens])[None]
    places, opening = np.arange(inputs.shape[1])[None], run.tokenizer.begin_of_text
    for name in ("", "anna"):
        if name:
            open_sources(folder).remove(name)
        ours = open_run(folder)
        rows = ours.contexts.rows(tokens, 0, len(tokens) + 1, opening)[None]
        model, _ = build_model(ours.config)
        expected = model(ours.params, inputs, places + 1 > 0, places, {"contexts": rows})
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
        with torch.no_grad():
            logits = theirs.eval()(torch.tensor(inputs.astype(np.int64))).logits.numpy()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_files_of_groups_that_do_not_fit_are_refused(grouped, workdir, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(grouped / "sources", folder)
    shutil.copy(folder / "sources" / "bo.safetensors", folder / "sources" / "bo2.safetensors")
    with expect_input_error("both the source 'bo'; delete one"):
        open_run(folder)
    (folder / "sources" / "bo2.safetensors").unlink()
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights = {name: 2 * array for name, array in weights.items()}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    with expect_input_error("trained with another base than the weights of"):
        open_run(folder)
    with expect_input_error("does not know which group a text is of"):
        export_sources(workdir, tmp_path / "none")
    with expect_input_error("no folder with source files"):
        open_sources(workdir.parent / "kept")
