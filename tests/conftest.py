"""Set before jax is imported anywhere: eight devices on a CPU, so that every mesh of the tests is a real one."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import pathlib

import pytest

from memsinks_jax.config import Config, DataConfig, ModelConfig, TrainingConfig, validate

ROOT = pathlib.Path(__file__).resolve().parents[1]


def tiny_config() -> Config:
    """A config small enough to train in seconds: 40 rows of 64 tokens, 2 layers, 16 shared neurons and 16 sinks."""
    config = Config(
        data=DataConfig(
            unique_documents=24, repeated_documents=2, repetitions=8, held_out_documents=4,
            row_length=64, vocabulary_size=512,
        ),
        model=ModelConfig(layers=2, d_model=16, heads=2, hidden=32),
        training=TrainingConfig(batch_size=8, log_every=1, evaluate_every=2, checkpoint_every=2),
    )  # fmt: skip
    config.sinks.shared_fraction = 0.5
    config.mesh.data = 8
    return validate(config)


@pytest.fixture
def tiny() -> Config:
    return tiny_config()
