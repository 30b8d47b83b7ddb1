"""Does everything run? Synthetic stories, sinks on, a tiny model; no network.

    python -m memsinks_jax.train --config=configs/smoke.py --workdir=runs/smoke

18 seconds on 2 cores. Expect a held-out loss of 5.4 and falling: too short to learn much, long
enough to see it.
"""

from memsinks_jax.config import Config, DataConfig, ModelConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        data=DataConfig(
            unique_documents=160, repeated_documents=4, repetitions=16, held_out_documents=16
        ),
        model=ModelConfig(layers=2, d_model=64, heads=2, hidden=128),
        training=TrainingConfig(batch_size=8, log_every=1, evaluate_every=10),
    )
