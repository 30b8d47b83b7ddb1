"""What TPU compilers make of models with windows, where libtpu is installed."""

import pytest

from memsinks_jax.config import Config, with_fields
from memsinks_jax.model.attention import choose_kernel
from memsinks_jax.planning.estimate import estimate
from memsinks_jax.planning.topology import devices_of

SMALL = {"model.d_model": 256, "model.heads": 2, "model.kv_heads": 1, "model.hidden": 256}
SMALL |= {"model.dtype": "bfloat16", "model.layers": 4, "model.attention_bias": False}
SMALL |= {"model.mlp_bias": False, "model.window": 128, "data.row_length": 256}
SMALL |= {"data.vocabulary_size": 512, "training.batch_size": 8, "compute.remat": "full"}
SMALL |= {"mesh.fsdp": -1, "sinks.kind": "none"}


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize(
    "fields",
    [
        {"model.family": "mistral"},
        {"model.family": "gemma3_text", "model.window_layers": "110", "model.window_theta": 1e4},
    ],
    ids=["every layer", "some layers, with angles of their own"],
)
def test_windows_compile_with_splash(fields):
    config = with_fields(Config(), SMALL | fields)
    assert choose_kernel(config, "tpu") == "splash"
    found = estimate(config, *devices_of("v5e:2x2"), documents_per_row=4)
    assert found.kernel_flops > 0 and not found.not_counted
