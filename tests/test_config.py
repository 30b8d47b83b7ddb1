"""Settings: defaults load, mistakes are named."""

import dataclasses

import pytest

from memsinks_jax.config import (
    Config,
    InputError,
    first_difference,
    flatten,
    from_json,
    nearest_field,
    to_json,
    validate,
)


def test_json_round_trip_keeps_every_field():
    config = Config(seed=7)
    config.data.files, config.sinks.active_fraction, config.compute.remat = "a/*.txt", 0.1, "full"
    assert from_json(to_json(config), "here") == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sinks.active_fraction", 0.0), ("sinks.active_fraction", 1.01), ("sinks.active_fraction", float("nan")),
        ("sinks.shared_fraction", 0.0), ("sinks.kind", "on"), ("data.repeats", "twice"), ("data.id_noise", -0.1),
        ("model.heads", 3), ("training.batch_size", 0), ("mesh.data", 0), ("optimizer.learning_rate", float("inf")),
        ("goldfish.every", 1),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(field, value):
    config = Config()
    section, name = field.split(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(InputError, match=f"config.{field}"):
        validate(config)


@pytest.mark.parametrize(("field", "value"), [("repeat_every", 4), ("repeated_documents", -1)])
def test_what_the_plan_does_not_repeat_is_not_capped(field, value):
    config = Config()
    config.training.repeats_capped_at, config.training.batch_size = 2, 32
    validate(config)
    setattr(config.data, field, value)
    with pytest.raises(InputError, match=f"config.data.{field}"):
        validate(config)


def test_the_ends_of_active_fraction_are_allowed():
    config = Config()
    config.sinks.active_fraction = 1.0
    assert validate(config) is config


@pytest.mark.parametrize(
    ("typo", "field"),
    [
        ("data.repetition", "data.repetitions"), ("optimizer.batch_size", "training.batch_size"),
        ("sinks.activ_fraction", "sinks.active_fraction"), ("sed", "seed"),
        ("optimizer.lr", "optimizer.learning_rate"), ("optimizer.wd", "optimizer.weight_decay"),
    ],
)  # fmt: skip
def test_the_nearest_field_is_found(typo, field):
    assert nearest_field(typo) == field


def test_json_of_another_version_is_refused():
    text = to_json(Config()).replace('"repetitions"', '"repetition"')
    with pytest.raises(InputError, match=r"run/config.json.*data.repetition.*data.repetitions"):
        from_json(text, "run/config.json")
    with pytest.raises(InputError, match="batch_size"):
        from_json(to_json(Config()).replace('"batch_size": 8', '"batch_size": "8"'), "here")


def test_the_first_difference_is_named():
    other = Config()
    other.data.repetitions = 64
    assert first_difference(Config(), other) == ("data.repetitions", 128, 64)
    assert first_difference(Config(), Config()) is None


def test_no_section_has_more_than_two_dozen_fields():
    sections = [getattr(Config(), field.name) for field in dataclasses.fields(Config)]
    assert all(len(dataclasses.fields(s)) <= 24 for s in sections if dataclasses.is_dataclass(s))
    assert len(flatten(Config())) > 30
