"""Each entry of private_interfaces still does what it is for, with the installed versions."""

import types

import jax
import jax.numpy as jnp
import pytest
from absl import flags
from jax.experimental import multihost_utils
from ml_collections import config_flags
from orbax.checkpoint import v1 as ocp

from memsinks_jax import private_interfaces


def test_jax_traces_attention_for_the_version_that_is_given(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", None)  # a machine without cuDNN
    monkeypatch.setattr(
        fused_attention_stablehlo,
        "check_cudnn_version",
        fused_attention_stablehlo.check_cudnn_version,
    )  # is put back
    x_BTNC = jax.ShapeDtypeStruct((1, 64, 1, 64), jnp.bfloat16)

    def trace():
        return jax.jit(
            lambda x: jax.nn.dot_product_attention(x, x, x, implementation="cudnn")
        ).trace(x_BTNC)

    with pytest.raises(RuntimeError, match="cuDNN is not detected"):
        trace()
    private_interfaces.trace_for_cudnn(91000)
    trace()


def test_a_save_of_orbax_does_not_ask_the_preemption_service(tmp_path, monkeypatch):
    asked, by_each = [], []
    monkeypatch.setattr(
        multihost_utils, "reached_preemption_sync_point", lambda step: asked.append(step) or False
    )
    for number, change in enumerate((lambda _: None, private_interfaces.without_preemption)):
        with ocp.training.Checkpointer(tmp_path / str(number)) as checkpointer:
            change(checkpointer)
            checkpointer.save_checkpointables_async(
                7, {"params": {"x": jnp.zeros(1)}}, force=True
            ).result()
        by_each.append(asked.copy())
        asked.clear()
    assert set(by_each[0]) == {7} and not by_each[1]


def test_jax_says_which_cluster_it_detects(monkeypatch):
    cluster = {"JOB_ID": 7, "STEP_NODELIST": "node1", "JOB_NUM_NODES": 3, "NTASKS": 3, "PROCID": 2}
    cluster |= {"LOCALID": 0}
    for name, value in cluster.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    address, *numbers = private_interfaces.find_cluster(1)
    assert (address.partition(":")[0], numbers) == ("node1", [3, 2])


def test_an_error_of_the_devices_is_known():
    with pytest.raises(RuntimeError) as raised:
        jax.devices("no such platform")
    assert private_interfaces.raised_by_devices(raised.value)
    with pytest.raises(TypeError) as raised:
        jnp.zeros("a shape")
    assert not private_interfaces.raised_by_devices(raised.value)


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections 1.1
def test_the_flag_of_a_config_holds_what_can_be_set(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("def get_config(): return 3")
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    private_interfaces.change_config(
        values["config"], lambda number: types.SimpleNamespace(number=number)
    )
    values(["command", f"--config={file}"])
    assert values.config.number == 3
