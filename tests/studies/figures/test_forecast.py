"""Predicted needs of a run: each part on cases with known answers."""

import pytest
from conftest import tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.studies.figures import forecast
from memsinks_jax.training import flops
from memsinks_jax.training.flops import flops_per_step, parameters


def test_steps_and_tokens_are_those_of_the_run():
    config = with_fields(tiny_config(), {"training.epochs": 3, "training.batch_size": 10})
    found = forecast.forecast(config)
    plan = load_corpus(config).mixture
    assert found.steps == 3 * (len(plan.documents("unique")) + 8 * len(plan.repeated)) // 10
    assert found.tokens == found.steps * 10 * 160
    config = with_fields(config, {"training.steps": 7})
    assert forecast.forecast(config).steps == 7


def test_hours_of_a_long_step_are_its_flops():
    config = with_fields(tiny_config(), {"training.batch_size": 2**20, "training.steps": 1000})
    config = with_fields(config, {"training.evaluate_every": 1000})
    one = forecast.forecast(config).needs
    arithmetic = 1000 * flops_per_step(config)["causal"] / forecast.EFFICIENCY / 3600
    assert one["H200"].hours == pytest.approx(arithmetic / flops.chip("NVIDIA H200").peak, rel=0.01)
    of_sixteen = arithmetic / 16 / flops.chip("TPU v5 lite").peak
    assert one["v5e-16"].hours == pytest.approx(of_sixteen, rel=0.01)
    config = with_fields(config, {"training.evaluate_every": 1})
    assert forecast.forecast(config).needs["H200"].hours > one["H200"].hours


def test_memory_is_the_state_and_what_is_stored():
    config = with_fields(tiny_config(), {"mesh.data": -1, "training.batch_size": 16})
    state = 16 * parameters(config) / 2**30
    small, large = forecast.memory_gib(config, 1), forecast.memory_gib(config, 16)
    assert (small - state) == pytest.approx(16 * (large - state))
    config = with_fields(config, {"mesh.fsdp": -1})
    assert forecast.memory_gib(config, 16) == pytest.approx(large - state * 15 / 16)
    memory = {}
    for remat in ("none", "products", "attention", "full"):
        config = with_fields(config, {"compute.remat": remat})
        memory[remat] = forecast.memory_gib(config, 1)
    assert memory["none"] > memory["products"] > memory["attention"] > memory["full"]


def test_a_pool_of_sparse_sinks_takes_memory_alone():
    """Sinks that are off are neither computed nor summed over chips, nor updated."""
    fields = {"sinks.sampling": "floyd", "sinks.active": 6, "sinks.pool": 6, "mesh.fsdp": -1}
    fields |= {"training.steps": 1000, "training.evaluate_every": 1000}
    config = with_fields(tiny_config(), fields | {"training.batch_size": 2**16})
    few, state = forecast.forecast(config), parameters(config)
    config = with_fields(config, {"sinks.sparse": True, "sinks.pool": 40_000_000})
    many, room = forecast.forecast(config), 16 * (parameters(config) - state) / 2**30
    chips = {name: count for name, (_, count) in forecast.MACHINES.items()}
    for machine, need in many.needs.items():
        more = need.memory_gib - few.needs[machine].memory_gib
        assert more == pytest.approx(room / chips[machine], rel=1e-3)
        assert need.hours == pytest.approx(few.needs[machine].hours, rel=0.05)


def test_the_table_adds_the_hours():
    config = with_fields(tiny_config(), {"training.steps": 10**7})
    one = forecast.forecast(config)
    _, rows = forecast.table(["a", "b"], [one, one])
    assert float(rows[-1][-1]) == pytest.approx(2 * one.needs["H200"].hours, abs=0.01)
