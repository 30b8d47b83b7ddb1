"""Folders as Hugging Face has them: there and back to the bit, sinks cut out or added, and what
cannot be read exactly is refused. That transformers agrees: test_families.py.
"""

import errno
import json
import os
import pathlib
import resource
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from conftest import expect_input_error, tiny_config
from folders import open_folder, random_params, write

from memsinks_jax.config import Config, ModelConfig, SinksConfig, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.model.decoder import build_model
from memsinks_jax.models import weights
from memsinks_jax.models.importing import with_sinks
from memsinks_jax.models.initial import inherit
from memsinks_jax.models.stored import Stored
from memsinks_jax.sinks.draws import document_sinks
from memsinks_jax.sinks.interventions import sink_interventions
from memsinks_jax.sinks.kinds import partition
from memsinks_jax.training.step import init_state

PLAIN = {"family": "llama", "attention_bias": False, "mlp_bias": False}
FAMILIES = {
    "gpt2": {},
    "gpt2, own head": {"tied_head": False},
    "llama": PLAIN | {"rope_theta": 50000.0},
    "llama, own head, shared keys": PLAIN | {"heads": 4, "kv_heads": 2, "tied_head": False},
    "llama, biases, one key": {"family": "llama", "heads": 4, "kv_heads": 1, "norm_epsilon": 1e-6},
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_corpus(tiny_config()).tokenizer


def config_of(family):
    config = tiny_config()
    for name, value in FAMILIES[family].items():
        config = with_fields(config, {f"model.{name}": value})
    return config


def logits_of(config, params, tokens, mode="all"):
    model, _ = build_model(config)
    segments = jnp.ones_like(tokens)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    identities = jnp.ones((len(tokens), 1, 2), jnp.uint32)
    interventions = sink_interventions(config, mode, identities, 0, segments)
    return model(params, tokens, segments, positions, interventions)


TOKENS = jnp.asarray(np.random.default_rng(0).integers(3, 900, (3, 40)), jnp.int32)


def same(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back_changes_no_bit(family, tokenizer, tmp_path):
    config = config_of(family)
    config = with_fields(config, {"sinks.kind": "none"})
    params = random_params(config)
    write(tmp_path / "hf", config, params, tokenizer)
    assert not Stored(tmp_path / "hf").is_run
    found, found_tokenizer, back = open_folder(tmp_path / "hf")
    assert same(back, params)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert found.model.hidden == config.model.hidden
    assert found_tokenizer.encode("A story.").tolist() == tokenizer.encode("A story.").tolist()
    np.testing.assert_array_equal(logits_of(found, back, TOKENS), logits_of(config, params, TOKENS))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "family", ["gpt2", "llama, own head, shared keys", "llama, biases, one key"]
)
def test_a_plain_model_has_the_sinks_of_one_document(family, sparse, tokenizer, tmp_path):
    config = config_of(family)
    fields = {"sinks.sparse": sparse, "sinks.sampling": "floyd", "sinks.pool": 40}
    fields |= {"sinks.active": 6}
    config = with_fields(config, fields)
    params = random_params(config)
    on = np.sort(document_sinks(jnp.ones((1, 2), jnp.uint32), 0, 40, config.sinks)[0])
    shared = partition(config.model, config.sinks).shared
    for mode, drop, some in (("own", True, on), ("drop", True, ()), ("all", False, ())):
        write(tmp_path / mode, config, params, tokenizer, drop=drop, remaining=some)
        found, _, back = open_folder(tmp_path / mode)
        assert found.model.hidden == shared + {"own": 6, "drop": 0, "all": 40}[mode] or not drop
        expected = logits_of(config, params, TOKENS, mode)
        np.testing.assert_allclose(logits_of(found, back, TOKENS), expected, atol=1e-4)
    # One that has all of them has them by document still.
    expected = logits_of(config, params, TOKENS, "own")
    np.testing.assert_allclose(logits_of(found, back, TOKENS, "own"), expected, atol=1e-4)
    assert np.abs(expected - logits_of(config, params, TOKENS, "drop")).max() > 0.1


@pytest.mark.parametrize(
    "family", ["gpt2", "llama, own head, shared keys", "llama, biases, one key"]
)
def test_dropped_sinks_are_cut_out(family, tokenizer, tmp_path):
    config = config_of(family)
    params = random_params(config)
    written = write(tmp_path / "hf", config, params, tokenizer)
    parts = partition(config.model, config.sinks)
    # Weights that read and write each neuron, and the biases that belong to it.
    a_neuron = config.model.d_model * (3 if config.model.family == "llama" else 2)
    if config.model.mlp_bias:
        a_neuron += 2 if config.model.family == "llama" else 1
    whole = sum(a.size for a in jax.tree.leaves(params))
    assert written["parameters"] == whole - config.model.layers * parts.sinks * a_neuron
    found, _, cut = open_folder(tmp_path / "hf")
    assert found.model.hidden == parts.shared
    np.testing.assert_allclose(
        logits_of(found, cut, TOKENS), logits_of(config, params, TOKENS, "drop"), atol=1e-4
    )


def test_kept_sinks_come_back_as_sinks(tokenizer, tmp_path):
    config = config_of("gpt2")
    params = random_params(config)
    write(tmp_path / "hf", config, params, tokenizer, drop=False)
    found, _, back = open_folder(tmp_path / "hf")
    assert found == config
    assert same(back, params)
    np.testing.assert_array_equal(
        logits_of(found, back, TOKENS, "own"), logits_of(config, params, TOKENS, "own")
    )


def test_large_models_are_several_files(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("memsinks_jax.models.weights.SHARD_BYTES", 10_000)
    config = config_of("llama")
    params = random_params(config)
    written = write(tmp_path / "hf", config, params, tokenizer, drop=False)
    assert written["files"] == [f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)]
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(a.size for a in jax.tree.leaves(params))
    assert same(open_folder(tmp_path / "hf")[2], params)


def test_files_have_the_rights_that_the_user_gives(tokenizer, tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "hf", config_of("llama"), random_params(config_of("llama")), tokenizer)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "hf").iterdir()} == {0o640}


def test_bfloat16(tokenizer, tmp_path):
    config = config_of("llama")
    params = random_params(config)
    write(tmp_path / "hf", config, params, tokenizer, drop=False, dtype="bfloat16")
    back = open_folder(tmp_path / "hf")[2]
    assert same(back, jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(jnp.float32), params))


# Sinks for a model that has none.


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_added_sinks_change_nothing_at_first(family):
    config = config_of(family)
    config = with_fields(config, {"sinks.kind": "none"})
    params = random_params(config)
    before = logits_of(config, params, TOKENS)
    wider, params = with_sinks(config, jax.tree.map(np.asarray, params), SinksConfig(), 24, seed=0)
    assert partition(wider.model, wider.sinks) == (32, 24)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, init_state(wider, 10).params)
    for mode in ("all", "drop", "own"):
        np.testing.assert_allclose(logits_of(wider, params, TOKENS, mode), before, atol=1e-5)
    # but they read, so they can learn
    assert np.abs(params["layers"]["up_kernel"][..., 32:]).mean() > 0.01


def test_old_neurons_become_sinks():
    config = config_of("gpt2")
    config = with_fields(config, {"sinks.kind": "none"})
    params = random_params(config)
    before = logits_of(config, params, TOKENS)
    config, params = with_sinks(config, params, SinksConfig(shared_fraction=0.5), 0, seed=0)
    assert partition(config.model, config.sinks) == (16, 16)
    np.testing.assert_array_equal(logits_of(config, params, TOKENS), before)


# What is refused.


@pytest.fixture(scope="module")
def written(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "hf"
    write(folder, config_of("llama"), random_params(config_of("llama")), tokenizer)
    return folder


def copied(written, tmp_path):
    return pathlib.Path(shutil.copytree(written, tmp_path / "hf"))


EXPERTS, USUAL = {"num_local_experts": 8}, {"rope_type": "default"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mamba"},
            "model_type is 'mamba'; these can be read: gpt2, gpt_neox, llama",
        ),
        (
            {"model_type": "qwen3_moe"},
            r"a mixture of experts \(model_type is 'qwen3_moe'\), .* one of: gpt2, gpt_neox",
        ),
        ({"model_type": "mixtral"} | EXPERTS, r"mixture of experts \(num_local_experts is 8\)"),
        ({"num_experts": 8}, r"a mixture of experts \(num_experts is 8\)"),
        ({"model_type": None}, r"no model_type \(a workdir needs no import\)"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_parameters": USUAL, "rope_scaling": {"type": "yarn"}}, "rope_type is 'yarn'"),
        ({"head_dim": 32}, r"0.self_attn.k_proj.weight of \[16, 16\] instead of \[64, 16\]"),
        ({"num_hidden_layers": 3}, r"lacks model.layers.2.input_layernorm.weight, .* and \d+ more"),
        ({"num_hidden_layers": 1}, "it has besides model.layers.1.input_layernorm.weight"),
        ({"intermediate_size": 17}, r"mlp.down_proj.weight of \[16, 16\] instead of \[16, 17\]"),
        ({"eos_token_id": 5000}, "eos_token_id is 5000; it must be a token of the 1024"),
        ({"vocab_size": None}, "eos_token_id|vocab_size"),
        ({"num_attention_heads": 0}, "config.json: config.model.heads is 0; it must lie in"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(written, tmp_path, change, message):
    path = copied(written, tmp_path) / "config.json"
    content = json.loads(path.read_text()) | {k: v for k, v in change.items() if v is not None}
    for name in [name for name, value in change.items() if value is None]:
        del content[name]
    path.write_text(json.dumps(content))
    with expect_input_error(message):
        open_folder(tmp_path / "hf")


def test_a_tokenizer_of_another_model_is_refused(tokenizer, tmp_path):
    config = config_of("llama")
    config = with_fields(config, {"data.vocabulary_size": tokenizer.vocabulary_size - 1})
    write(tmp_path / "hf", config, random_params(config), tokenizer)
    with expect_input_error(
        r"the tokenizer has (\d+) tokens and the model \d+; they are not of one model"
    ):
        open_folder(tmp_path / "hf")


@pytest.mark.parametrize("content", ["[1]", "{", "[" * 100_000])
def test_a_config_that_is_none_is_refused(written, tmp_path, content):
    copied(written, tmp_path)
    (tmp_path / "hf" / "config.json").write_text(content)
    with expect_input_error(r"config.json cannot be read"):
        open_folder(tmp_path / "hf")


@pytest.mark.parametrize(
    "opened", [open_folder, lambda place: inherit(Config(model=ModelConfig(initial=str(place))))]
)
def test_what_is_no_folder_of_a_model_gets_advice(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ["file/a.gguf", "folder/b.Q4_K_M.gguf", "lora/adapter_config.json", "empty/README"]:
        pathlib.Path(name).parent.mkdir()
        pathlib.Path(name).write_text("{}")
    hub = "HuggingFaceTB/SmolLM2-135M"
    for place, problem in (
        ("file/a.gguf", r"^file/a.gguf: cannot be read as GGUF \(.*\)$"),
        ("folder", r"^folder holds a GGUF file; give the file: folder/b.Q4_K_M.gguf$"),
        ("lora", r"^lora is an adapter \(LoRA\); merge it into its base .*merge_and_unload"),
        (hub, f"^{hub} is no folder; .*: hf://{hub}$"),
        ("empty", r"^empty.config.json cannot be read \(.*\); give the folder of a training run"),
    ):
        with expect_input_error(problem) as refused:
            opened(pathlib.Path(place))
        assert "\n" not in str(refused.value)


def test_what_the_file_system_refuses_is_its_error(tmp_path):
    """safetensors has an error of its own for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match="File too large") as raised:
            weights.write(tmp_path, [[("a", np.ones(4000, np.float32))]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert raised.value.errno == errno.EFBIG


def test_weights_that_cannot_be_read_are_refused(written, tmp_path):
    path = copied(written, tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with expect_input_error(r"model.safetensors: cannot be read as weights"):
        open_folder(tmp_path / "hf")
    path.unlink()
    (tmp_path / "hf" / "pytorch_model.bin").write_bytes(b"a pickle")
    with expect_input_error(r"hf holds no model.safetensors.*convert it: .*save_pret"):
        open_folder(tmp_path / "hf")


def test_parts_without_their_index_are_refused(written, tmp_path):
    copied(written, tmp_path)
    (tmp_path / "hf" / "model.safetensors").rename(
        tmp_path / "hf" / "model-00001-of-00002.safetensors"
    )
    with expect_input_error(
        "holds model-00001-of-00002.safetensors, .* no model.safetensors.index.json; copy"
    ):
        open_folder(tmp_path / "hf")


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "I8", "U8"])
def test_weights_of_a_type_without_its_scales_are_refused(kind, written, tmp_path):
    """NumPy does not know most of them, and numbers of the others are no weights."""
    path = copied(written, tmp_path) / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, name = json.loads(content[8 : 8 + size]), "model.norm.weight"
    start, stop = header[name]["data_offsets"]
    others = {key: value for key, value in header.items() if key not in (name, "__metadata__")}
    # the last one, which gets shorter
    assert start > max(of["data_offsets"][0] for of in others.values())
    header[name] |= {"dtype": kind, "data_offsets": [start, start + (stop - start) // 4]}
    text = json.dumps(header).encode()
    path.write_bytes(
        len(text).to_bytes(8, "little")
        + text
        + content[8 + size :][: header[name]["data_offsets"][1]]
    )
    with expect_input_error(f"tensor model.norm.weight is of type {kind}, .* dequantize"):
        open_folder(tmp_path / "hf")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_tensor_that_is_no_number_is_named(value, written, tmp_path):
    path = copied(written, tmp_path) / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["model.norm.weight"][3] = value
    safetensors.numpy.save_file(tensors, path)
    with expect_input_error(r"hf: tensor model\.norm\.weight holds nan or inf"):
        open_folder(tmp_path / "hf")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/model.safetensors", "sub/model.safetensors", 7]
)
def test_an_index_stays_in_its_folder(name, written, tmp_path):
    copied(written, tmp_path)
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "model.safetensors")
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": name}})
    )
    problem = (
        "names .*model.safetensors, which is not a file of its folder"
        if name != 7
        else ": not an index of weights"
    )
    with expect_input_error(rf"index\.json ?{problem}"):
        open_folder(tmp_path / "hf")


def test_an_existing_folder_is_not_changed(written, tokenizer):
    before = {path: path.stat().st_mtime_ns for path in written.iterdir()}
    with expect_input_error("exists; use another --out"):
        write(written, config_of("llama"), random_params(config_of("llama")), tokenizer)
    assert {path: path.stat().st_mtime_ns for path in written.iterdir()} == before


def test_nothing_is_half_written(tokenizer, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("memsinks_jax.models.folder.write_tokenizer", full)
    config = config_of("gpt2")
    with pytest.raises(OSError, match="hf"):
        write(tmp_path / "hf", config, random_params(config), tokenizer)
    assert not list(tmp_path.iterdir())


def test_a_model_that_theirs_cannot_be_is_refused(tokenizer, tmp_path):
    config = config_of("gpt2")
    config = with_fields(config, {"model.kv_heads": 1})
    with expect_input_error(
        "gpt2 as Hugging Face has it computes with kv_heads 2, but config.model.kv_heads is 1"
    ):
        write(tmp_path / "hf", config, random_params(config), tokenizer)
