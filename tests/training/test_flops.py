"""FLOPs of a step by both counts, and the peaks that they are divided by."""

import pytest

from memsinks_jax.config import Config, ModelConfig, with_fields
from memsinks_jax.training import flops


def llama(layers, d_model, heads, kv_heads, hidden):
    config = Config()
    config = with_fields(
        config,
        {
            "model": ModelConfig(
                family="llama",
                layers=layers,
                d_model=d_model,
                heads=heads,
                kv_heads=kv_heads,
                hidden=hidden,
                attention_bias=False,
                mlp_bias=False,
            )
        },
    )
    return with_fields(config, {"data.vocabulary_size": 49152, "data.row_length": 2048})


def gpt2_medium():
    fields = {"model": ModelConfig(layers=24, d_model=1024, heads=16, hidden=4096)}
    config = with_fields(Config(), fields)
    return with_fields(config, {"data.vocabulary_size": 50257, "data.row_length": 1024})


# Parameters as Hugging Face counts them; GFLOPs a token by hand, 6 N + 12 L T D and 6 N + 6 L T D,
# to three digits.
@pytest.mark.parametrize(
    ("config", "parameters", "full", "causal"),
    [
        (llama(30, 576, 9, 3, 1536), 134_515_008, 1.23, 1.02),
        (llama(32, 960, 15, 5, 2560), 361_821_120, 2.93, 2.55),
        (gpt2_medium(), 354_823_168, 2.43, 2.28),
        (llama(24, 2048, 32, 0, 8192), 1_711_376_384, 11.48, 10.87),
    ],
    ids=["135m", "360m", "gpt2-medium", "1.7b"],
)
def test_flops_of_known_models(config, parameters, full, causal):
    assert flops.parameters(config) == parameters
    counted = flops.flops_per_token(config)
    assert (round(counted["full"] / 1e9, 2), round(counted["causal"] / 1e9, 2)) == (full, causal)
    assert flops.flops_per_step(config)["full"] == counted["full"] * 8 * config.data.row_length


def test_sinks_count_as_they_are_computed(tiny):
    with_sinks = flops.flops_per_token(tiny)
    tiny = with_fields(tiny, {"sinks.kind": "none"})
    assert flops.flops_per_token(tiny) == with_sinks
    tiny = with_fields(tiny, {"sinks.kind": "cut"})
    assert flops.flops_per_token(tiny)["full"] < with_sinks["full"]


def test_of_sparse_sinks_those_that_are_on_count(tiny):
    tiny = with_fields(tiny, {"sinks.sampling": "floyd", "sinks.active": 6, "sinks.pool": 6})
    of_six, parameters = flops.flops_per_token(tiny), flops.parameters(tiny)
    tiny = with_fields(tiny, {"sinks.sparse": True, "sinks.pool": 400})
    assert flops.flops_per_token(tiny) == pytest.approx(of_six)
    assert flops.parameters(tiny) > 2 * parameters


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2250),
    ],
)
def test_peaks(kind, teraflops):
    assert flops.chip(kind).peak == teraflops * 1e12


def test_clocks_make_the_peak():
    # Multiply-adds a cycle: 4 or 8 units of 128 x 128; v6e does twice as many as v4 and v5p.
    units = {"TPU v4": 8, "TPU v5 lite": 4, "TPU v5": 8, "TPU v6 lite": 16}
    for kind, count in units.items():
        known = flops.chip(kind)
        assert known.peak == pytest.approx(known.clock * count * 128 * 128 * 2, rel=0.01)


def test_mfu_is_the_part_of_the_peak():
    config = llama(32, 960, 15, 5, 2560)
    # 40% of an H200 by the full count, for this model.
    values = flops.utilization(config, "NVIDIA H200")(135_200)
    assert values["mfu"] == pytest.approx(0.40, abs=0.002)
    assert values["mfu_causal"] == pytest.approx(0.40 * 2.548 / 2.926, abs=0.002)
    assert flops.utilization(config, "cpu")(1000.0) == {}
