"""Settings: defaults load, mistakes are named."""

import dataclasses
import json
import time

import pytest
from conftest import expect_input_error

from memsinks_jax.config import (
    Config,
    InputError,
    first_difference,
    flatten,
    from_json,
    nearest_field,
    settable,
    shown,
    to_json,
    validate,
    with_fields,
)


def test_json_round_trip_keeps_every_field():
    config = Config(seed=7)
    fields = {"data.files": "a/*.txt", "sinks.active_fraction": 0.1, "compute.remat": "full"}
    config = with_fields(config, fields)
    assert from_json(to_json(config), "here") == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sinks.active_fraction", 0.0),
        ("sinks.active_fraction", 1.01),
        ("sinks.active_fraction", float("nan")),
        ("sinks.shared_fraction", 0.0),
        ("sinks.kind", "on"),
        ("data.repeats_at_most", -2),
        ("model.heads", 3),
        ("training.batch_size", 0),
        ("mesh.data", 0),
        ("optimizer.learning_rate", float("inf")),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    config = with_fields(Config(), {field: value})
    with expect_input_error(f"config.{field}"):
        validate(config)


def test_what_the_plan_does_not_repeat_is_not_capped():
    config = with_fields(Config(), {"data.repeats_at_most": 2, "training.batch_size": 32})
    validate(config)
    config = with_fields(config, {"data.repeated_documents": -1})
    with expect_input_error("config.data.repeated_documents"):
        validate(config)


@pytest.mark.parametrize(
    "scaling", ["llama3:8,4,4,8192", "llama3:8,4,1,8192", "linear:nan", "linear:inf", "linear:0"]
)
def test_a_scaling_that_has_no_angles_is_refused(scaling):
    with expect_input_error("config.model.rope_scaling is .*; give linear:FACTOR or"):
        validate(with_fields(Config(), {"model.rope_scaling": scaling}))


def test_a_config_is_replaced_and_never_changed():
    config = Config()
    other = with_fields(config, {"data.repetitions": 64, "seed": 1})
    assert (other.seed, other.data.repetitions) == (1, 64) and config == Config()
    assert {config: "a", other: "b"}[Config()] == "a"
    assert with_fields(config, flatten(settable(other))) == other
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.data.repetitions = 64
    with pytest.raises(TypeError, match="repetition"):
        with_fields(config, {"data.repetition": 64})


def test_the_ends_of_active_fraction_are_allowed():
    config = with_fields(Config(), {"sinks.active_fraction": 1.0})
    assert validate(config) is config


@pytest.mark.parametrize(
    ("typo", "field"),
    [
        ("data.repetition", "data.repetitions"),
        ("optimizer.batch_size", "training.batch_size"),
        ("sinks.activ_fraction", "sinks.active_fraction"),
        ("sed", "seed"),
        ("optimizer.lr", "optimizer.learning_rate"),
        ("optimizer.wd", "optimizer.weight_decay"),
    ],
)
def test_the_nearest_field_is_found(typo, field):
    assert nearest_field(typo) == field


def test_of_a_long_name_the_beginning_is_shown(tmp_path):
    assert shown("data.rows") == "'data.rows'" and len(shown("x" * 300)) < 65
    start = time.monotonic()
    assert nearest_field("data.files" * 10_000) == "data.files"
    assert time.monotonic() - start < 1
    with pytest.raises(InputError) as error:
        from_json(json.dumps({"x" * 300: 1}), "config.json")
    assert len(str(error.value)) < 200


def test_json_of_another_version_is_refused():
    text = to_json(Config()).replace('"repetitions"', '"repetition"')
    with expect_input_error(r"run/config.json.*data.repetition.*data.repetitions"):
        from_json(text, "run/config.json")
    with expect_input_error("batch_size"):
        from_json(to_json(Config()).replace('"batch_size": 8', '"batch_size": "8"'), "here")


def test_the_first_difference_is_named():
    other = with_fields(Config(), {"data.repetitions": 64})
    assert first_difference(Config(), other) == ("data.repetitions", 128, 64)
    assert first_difference(Config(), Config()) is None


def test_no_section_has_more_than_two_dozen_fields():
    sections = [getattr(Config(), field.name) for field in dataclasses.fields(Config)]
    assert all(len(dataclasses.fields(s)) <= 24 for s in sections if dataclasses.is_dataclass(s))
    assert len(flatten(Config())) > 30
