"""What a run takes from the model it starts from."""

import json
import sys
import types

import pytest
from conftest import expect_input_error, tiny_config

from memsinks_jax.config import Config, flatten, to_json, with_fields
from memsinks_jax.models.initial import inherit
from memsinks_jax.sinks.kinds import partition

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
    of_sinks = {"sinks.shared_fraction": 0.5, "sinks.active": 7}
    places = {"data.tokenizer": place, "model.initial": place}
    assert config == with_fields(Config(), of_llama | of_sinks | places)
    by_hand = {"model.initial": place, "sinks.active": 9, "data.tokenizer": "other"}
    found = inherit(with_fields(Config(), by_hand))
    assert (found.sinks.active, found.data.tokenizer) == (9, "other")
    assert inherit(Config()) == Config()


def test_what_the_command_line_gives_is_given_also_if_it_is_the_default(tmp_path):
    """And the architecture of a config file, which the user did not ask for, gives way."""
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.active_fraction": 0.1})
    fields = {"model.initial": place, "model.hidden": 128, "data.tokenizer": "other"}
    config = with_fields(Config(), fields)
    assert inherit(config, given={"model.initial"}).model.hidden == 40
    assert inherit(config, given={"model.initial"}).sinks.active_fraction == 0.1
    of_sinks = inherit(config, given={"sinks.active_fraction"}).sinks
    assert of_sinks.active_fraction == Config().sinks.active_fraction
    with expect_input_error(r"config\.model\.heads is 4, and that of config.model.initial=.* is 9"):
        inherit(config, given={"model.heads"})
    with expect_input_error(r"config\.model\.hidden is 128"):
        inherit(config)  # in Python what differs from the default is given


def test_a_model_of_the_hub_is_one_too(tmp_path, monkeypatch):
    place = model_at(tmp_path / "model", LLAMA)
    found = lambda name, allow_patterns: {"one/llama": place}[name]  # noqa: E731
    hub = types.SimpleNamespace(snapshot_download=found)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    config = inherit(with_fields(Config(), {"model.initial": "hf://one/llama"}))
    assert (config.model.hidden, config.data.tokenizer) == (40, place)
    assert config.model.initial == "hf://one/llama"


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
    with expect_input_error(
        rf"config\.{field} is {value}, and that of config.model.initial=.*/model is"
    ):
        inherit(with_fields(Config(), {"model.initial": place, field: value}))


def test_trained_neurons_do_not_become_sinks(tmp_path):
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.kind": "none"})
    with expect_input_error(
        "has no sinks, and with config.sinks.kind=by_document trained neurons would"
    ):
        inherit(with_fields(Config(), {"model.initial": place}))
    none = with_fields(Config(), {"model.initial": place, "sinks.kind": "none"})
    assert inherit(none).model.heads == 9


def test_a_pool_is_added_to_a_model_without_sinks(tmp_path):
    """All its neurons stay shared; what the command line says of the pool holds."""
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.kind": "none"})
    asked = {"model.initial": place, "sinks.pool": 64, "sinks.active": 4}
    config = inherit(with_fields(Config(), asked), given=set(asked))
    assert config.sinks.sparse and config.sinks.sampling == "floyd"
    assert partition(config.model, config.sinks) == (40, 64)
    dense = with_fields(Config(), asked | {"sinks.sparse": False})
    with expect_input_error("add new ones with config.sinks.pool=4096"):
        inherit(dense, given={*asked, "sinks.sparse"})
    run = model_at(tmp_path / "run", flatten(config))
    assert inherit(with_fields(Config(), asked), tmp_path / "run", given=set(asked)) == config
    assert run


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sinks.shared_fraction", 0.5, "fraction is 0.5, but a pool is added to all neurons"),
        ("sinks.sampling", "exact", "set config.sinks.sampling=floyd"),
    ],
)
def test_settings_of_a_pool_are_not_overwritten(field, value, message, tmp_path):
    """Neither on the command line nor in Python, where what differs from the default is given."""
    place = model_at(tmp_path / "model", {**LLAMA, "sinks.kind": "none"})
    asked = {"model.initial": place, "sinks.pool": 64, "sinks.active": 4, field: value}
    for given in (None, set(asked)):
        with expect_input_error(message):
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
    gone = LLAMA | {"model.initial": "gone", "data.tokenizer": "gone"}
    model_at(tmp_path / "run", gone | {"data.row_length": 128})
    found = inherit(with_fields(Config(), {"model.initial": "elsewhere"}), tmp_path / "run")
    assert found.model == with_fields(Config(), LLAMA | {"model.initial": "elsewhere"}).model
    assert found.data.tokenizer == "gone"
    with expect_input_error("gone"):
        inherit(with_fields(Config(), {"model.initial": str(tmp_path / "gone")}))


def test_fields_of_a_config_are_changed_in_a_copy():
    config = tiny_config()
    changed = with_fields(config, {"data.rows": "packed", "seed": 3})
    assert (changed.data.rows, changed.seed) == ("packed", 3)
    assert (config.data.rows, config.seed) == ("one_document", 0)
