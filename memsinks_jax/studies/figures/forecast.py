"""Forecasts how long a run takes on other machines, and whether it fits, by arithmetic alone: no
compiler.

`planning/estimate` compiles the actual step for a TPU slice and knows more; this forecasts a whole
experiment within seconds.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

from memsinks_jax.config import Config, TrainingConfig
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.packing import Rows
from memsinks_jax.sinks.kinds import number_on, partition
from memsinks_jax.training import flops, memory
from memsinks_jax.training.flops import (
    GIB,
    Chip,
    flops_per_step,
    flops_per_token,
    parameters,
    parameters_of_token,
)

MACHINES = {"v5e-16": (flops.chip("TPU v5 lite"), 16), "H200": (flops.chip("NVIDIA H200"), 1)}

# Assumed, not measured: the fraction of a chip's peak FLOPs that a step reaches.
EFFICIENCY = 0.4

NOTE = (
    f"By arithmetic, at best: FLOPs with causal attention halved at {EFFICIENCY:.0%} of the peak, "
    "the "
    "optimizer's memory traffic, the sum of gradients over chips, and the evaluations; no "
    "compiling, "
    "reading or saving. `plan` compiles the very step: of figure 4's model on v5e-16 it gives 79 "
    "ms "
    "and 7.8 GiB, this 37 ms and 5.7 GiB."
)


# Fields of config.training that the number of steps depends on, if it is not given.
_COUNTS = ("batch_size", "epochs", "count_removed_repeats")


class Need(NamedTuple):
    """A run's needs on a machine: GiB per chip, GiB that a chip has, and hours in all."""

    memory_gib: float
    limit_gib: float
    hours: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    """A forecast of a run: optimizer steps, tokens read (padding too), parameters, its needs."""

    steps: int
    tokens: int
    parameters: int
    needs: dict[str, Need]

    def to_dict(self) -> dict:
        needs = {name: need._asdict() for name, need in self.needs.items()}
        return dataclasses.asdict(self) | {"needs": needs}


def forecast(config: Config) -> Forecast:
    """The forecast for a config. Raises InputError as `train` does for its documents."""
    steps = config.training.steps or _steps_of_epochs(config)
    needs = {
        name: Need(memory_gib(config, chips), chip.hbm / GIB, _hours(config, steps, chip, chips))
        for name, (chip, chips) in MACHINES.items()
    }
    tokens = steps * config.training.batch_size * config.data.row_length
    return Forecast(steps, tokens, parameters(config), needs)


def table(names: list[str], forecasts: list[Forecast]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of text: one row per run, and one with the total hours."""
    columns = ["run", "steps", "tokens", "parameters"]
    for machine in MACHINES:
        columns += [f"{machine}: GiB a chip", "hours"]
    rows = []
    for name, one in zip(names, forecasts, strict=True):
        millions = (f"{count / 1e6:,.1f} M" for count in (one.tokens, one.parameters))
        row = [name, f"{one.steps:,}", *millions]
        for need in one.needs.values():
            too_much = " (too much)" if need.memory_gib > need.limit_gib else ""
            row += [f"{need.memory_gib:.1f} of {need.limit_gib:.1f}{too_much}", f"{need.hours:.2f}"]
        rows.append(row)
    total = ["all", "", f"{sum(one.tokens for one in forecasts) / 1e6:,.1f} M", ""]
    for machine in MACHINES:
        total += ["", f"{sum(one.needs[machine].hours for one in forecasts):.2f}"]
    return columns, [*rows, total]


def _steps_of_epochs(config: Config) -> int:
    """The steps that a run computes from its documents."""
    # Everything that affects the rows.
    about = dataclasses.replace(
        Config(),
        seed=config.seed,
        general=config.general,
        canaries=config.canaries,
        data=config.data,
        training=TrainingConfig(**{name: getattr(config.training, name) for name in _COUNTS}),
    )
    return _rows(about).steps


@functools.lru_cache(maxsize=8)
def _rows(config: Config) -> Rows:
    return load_corpus(config).rows()


def memory_gib(config: Config, chips: int) -> float:
    """GiB per chip: parameters, moments, gradients, and activations saved for the backward pass."""
    return sum(memory.needed(config, chips).values()) / GIB


def _hours(config: Config, steps: int, chip: Chip, chips: int) -> float:
    arithmetic = flops_per_step(config)["causal"] / (chips * chip.peak * EFFICIENCY)
    computed, count = parameters_of_token(config), partition(config.model, config.sinks).sinks
    rows = config.training.batch_size * number_on(config.sinks, count)
    # Sparse sinks: at most those that are on for a batch with one document per row.
    updated = computed + (parameters(config) - computed) * min(rows / max(count, 1), 1)
    memory_traffic = 2 * (memory.STATE + memory.GRADIENT) * updated / memory.fsdp(config, chips)
    traffic = memory_traffic / chip.hbm_bandwidth
    # In bfloat16, each sum goes out and back.
    communication = 0.0 if chips == 1 else 2 * 2 * computed * (chips - 1) / chips / chip.ici
    own = 2 if config.sinks.kind != "none" else 1
    measured = config.data.held_out_documents + config.data.repeated_documents * own
    forward = flops_per_token(config)["causal"] / 3 * measured * config.data.row_length
    evaluation = forward / (chips * chip.peak * EFFICIENCY)
    evaluations = math.ceil(steps / config.training.evaluate_every)
    return (steps * (max(arithmetic, communication) + traffic) + evaluations * evaluation) / 3600
