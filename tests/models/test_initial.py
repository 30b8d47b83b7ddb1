"""What a run takes from the model it starts from."""

import json
import sys
import types

import pytest
from conftest import input_error, tiny_config

from memsinks_jax.config import Config, flatten, to_json, with_fields
from memsinks_jax.models.initial import inherit
from memsinks_jax.sinks import partition

LLAMA = {"model.family": "llama", "model.layers": 3, "model.d_model": 36, "model.heads": 9}
LLAMA |= {"model.kv_heads": 3, "model.hidden": 40, "model.attention_bias": False}
LLAMA |= {"model.mlp_bias": False, "model.rope_theta": 5e4, "model.norm_epsilon": 1e-6}
LLAMA |= {"data.vocabulary_size": 300, "data.row_length": 64}


def model_at(folder, fields):
    folder.mkdir()
    (folder / "config.json").write_text(to_json(with_fields(Config(), fields)))
    return str(folder)


def test_architecture_and_tokenizer_are_the_models(tmp_path):
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.shared_fraction": 0.5, "sinks.active": 7})
    config = inherit(with_fields(Config(), {"model.initial": place}))
    of_llama = {name: value for name, value in LLAMA.items() if name != "data.row_length"}
    assert config == with_fields(
        Config(),
        {
            **of_llama,
            "sinks.shared_fraction": 0.5,
            "sinks.active": 7,
            "data.tokenizer": place,
            "model.initial": place,
        },
    )
    set_by_hand = with_fields(
        Config(), {"model.initial": place, "sinks.active": 9, "data.tokenizer": "other"}
    )
    assert (inherit(set_by_hand).sinks.active, inherit(set_by_hand).data.tokenizer) == (9, "other")
    assert inherit(Config()) == Config()


def test_what_the_command_line_gives_is_given_also_if_it_is_the_default(tmp_path):
    """And the architecture of a config file, which the user did not ask for, gives way."""
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.active_fraction": 0.1})
    config = with_fields(
        Config(), {"model.initial": place, "model.hidden": 128, "data.tokenizer": "other"}
    )
    assert inherit(config, given={"model.initial"}).model.hidden == 40
    assert inherit(config, given={"model.initial"}).sinks.active_fraction == 0.1
    assert (
        inherit(config, given={"sinks.active_fraction"}).sinks.active_fraction
        == Config().sinks.active_fraction
    )
    with input_error(r"config\.model\.heads is 4, and that of config.model.initial=.* is 9"):
        inherit(config, given={"model.heads"})
    with input_error(r"config\.model\.hidden is 128"):
        inherit(config)  # in Python what differs from the default is given


def test_a_model_of_the_hub_is_one_too(tmp_path, monkeypatch):
    place = model_at(tmp_path / "model", LLAMA)
    hub = types.SimpleNamespace(
        snapshot_download=lambda name, allow_patterns: {"one/llama": place}[name]
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    config = inherit(with_fields(Config(), {"model.initial": "hf://one/llama"}))
    assert (config.model.hidden, config.data.tokenizer, config.model.initial) == (
        40,
        place,
        "hf://one/llama",
    )


def test_learned_positions_are_the_models(tmp_path):
    place = model_at(tmp_path / "model", {"data.row_length": 64})
    assert inherit(with_fields(Config(), {"model.initial": place})).data.row_length == 64


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.heads", 12),
        ("model.kv_heads", 9),
        ("model.rope_theta", 2e4),
        ("sinks.shared_fraction", 0.6),
        ("model.hidden", 44),
        ("data.vocabulary_size", 301),
        ("model.norm_epsilon", 1e-4),
        ("sinks.pool", 5),
    ],
)
def test_a_contradiction_is_refused_by_name(field, value, tmp_path):
    place = model_at(tmp_path / "model", LLAMA)
    with input_error(rf"config\.{field} is {value}, and that of config.model.initial=.*/model is"):
        inherit(with_fields(Config(), {"model.initial": place, field: value}))


def test_trained_neurons_do_not_become_sinks(tmp_path):
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.kind": "none"})
    with input_error("has no sinks, and with config.sinks.kind=by_document trained neurons would"):
        inherit(with_fields(Config(), {"model.initial": place}))
    assert (
        inherit(with_fields(Config(), {"model.initial": place, "sinks.kind": "none"})).model.heads
        == 9
    )


def test_a_pool_is_added_to_a_model_without_sinks(tmp_path):
    """All its neurons stay shared; what the command line says of the pool holds."""
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.kind": "none"})
    asked = {"model.initial": place, "sinks.pool": 64, "sinks.active": 4}
    config = inherit(with_fields(Config(), asked), given=set(asked))
    assert (config.sinks.sparse, config.sinks.sampling, partition(config.model, config.sinks)) == (
        True,
        "floyd",
        (40, 64),
    )
    with input_error("add new ones with config.sinks.pool=4096"):
        inherit(
            with_fields(Config(), asked | {"sinks.sparse": False}), given={*asked, "sinks.sparse"}
        )
    run = model_at(tmp_path / "run", flatten(config))
    assert inherit(with_fields(Config(), asked), tmp_path / "run", given=set(asked)) == config
    assert run


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "sinks.shared_fraction",
            0.5,
            "config.sinks.shared_fraction is 0.5, but a pool is added to all neurons",
        ),
        ("sinks.sampling", "exact", "set config.sinks.sampling=floyd"),
    ],
)
def test_settings_of_a_pool_are_not_overwritten(field, value, message, tmp_path):
    """Neither on the command line nor in Python, where what differs from the default is given."""
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.kind": "none"})
    asked = {"model.initial": place, "sinks.pool": 64, "sinks.active": 4, field: value}
    for given in (None, set(asked)):
        with input_error(message):
            inherit(with_fields(Config(), asked), given=given)


def test_a_hugging_face_folder_is_a_model_too(tmp_path):
    content = {"model_type": "llama", "vocab_size": 300, "eos_token_id": 0, "hidden_act": "silu"}
    content |= {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3}
    content |= {"num_hidden_layers": 3, "intermediate_size": 40, "max_position_embeddings": 64}
    content |= {"rope_theta": 5e4}
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = inherit(with_fields(Config(), {"model.initial": str(tmp_path), "sinks.kind": "none"}))
    assert (config.model.heads, config.model.kv_heads, config.model.rope_theta) == (9, 3, 5e4)


def test_a_run_that_has_begun_needs_the_model_no_more(tmp_path):
    inherited = with_fields(Config(), {**LLAMA, "model.initial": "gone", "data.tokenizer": "gone"})
    run = tmp_path / "run"
    model_at(
        run, {**LLAMA, "data.row_length": 128, "model.initial": "gone", "data.tokenizer": "gone"}
    )
    found = inherit(with_fields(Config(), {"model.initial": "elsewhere"}), run)
    assert (found.model, found.data.tokenizer) == (
        with_fields(inherited, {"model.initial": "elsewhere"}).model,
        "gone",
    )
    with input_error("gone"):
        inherit(with_fields(Config(), {"model.initial": str(tmp_path / "gone")}))


def test_fields_of_a_config_are_changed_in_a_copy():
    config = tiny_config()
    changed = with_fields(config, {"data.rows": "packed", "seed": 3})
    assert (changed.data.rows, changed.seed, config.data.rows, config.seed) == (
        "packed",
        3,
        "one_document",
        0,
    )
