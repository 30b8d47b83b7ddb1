"""The factors of published code and of the width, and which weights they multiply."""

import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.studies.baselines import rescaling

pytestmark = pytest.mark.slow


def test_what_published_code_scales_by_and_what_the_width_says():
    fields = {"sinks.shared_fraction": 0.7, "sinks.active_fraction": 0.3, "model.hidden": 1000}
    config = with_fields(tiny_config(), fields)
    assert rescaling.factors(config) == pytest.approx({"published": 1 / 0.7, "width": 0.79 / 0.7})
    pool = with_fields(config, {"sinks.pool": 5000, "sinks.active": 70})
    assert rescaling.factors(pool)["width"] == pytest.approx(1.1)  # 700 shared neurons and 70 sinks


def test_only_the_output_of_shared_neurons_is_scaled():
    config = with_fields(tiny_config(), {"sinks.shared_fraction": 0.5, "model.hidden": 4})
    kernel_LFD = np.ones((2, 4, 3))
    layers = {"down_kernel": kernel_LFD, "up_kernel": np.ones((2, 3, 4))}
    params = {"head": np.ones(2), "layers": layers}
    found = rescaling.scaled(config, params, 1.5)
    assert np.array_equal(found["layers"]["down_kernel"][1, :, 2], [1.5, 1.5, 1, 1])
    assert np.array_equal(found["layers"]["up_kernel"], params["layers"]["up_kernel"])
    assert found["head"].all()
    # the run's own stay as they are
    assert kernel_LFD.all() and kernel_LFD.sum() == kernel_LFD.size
