"""The layout of parameters on a mesh, spelled out."""

import jax
import numpy as np
import pytest
from conftest import expect_input_error
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import MeshConfig, with_fields
from memsinks_jax.training import sharding
from memsinks_jax.training.paths import path_name
from memsinks_jax.training.program import train_program
from memsinks_jax.training.step import init_state


def test_golden_shardings(tiny):
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    found = sharding.shardings(jax.eval_shape(lambda: init_state(tiny, 1)), mesh)
    named = {
        path_name(path): leaf.spec for path, leaf in jax.tree_util.tree_leaves_with_path(found)
    }
    assert named["params/layers/up_kernel"] == P(None, "fsdp", "tensor")
    assert named["params/layers/down_kernel"] == P(None, "tensor", "fsdp")
    assert named["params/layers/query_bias"] == P(None, "tensor")
    assert named["params/token_embedding"] == P("tensor", "fsdp")
    assert named["params/final_norm/scale"] == P()
    assert named["step"] == P()
    moments = {name: spec for name, spec in named.items() if "/mu/" in name or "/nu/" in name}
    assert len(moments) == 2 * 20
    for name, spec in moments.items():
        assert spec == named["params/" + name.split("/mu/")[-1].split("/nu/")[-1]]


def test_golden_shardings_of_the_llama_family(tiny):
    fields = {"model.family": "llama", "model.tied_head": False, "model.attention_bias": False}
    tiny = with_fields(tiny, fields)
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    found = sharding.shardings(jax.eval_shape(lambda: init_state(tiny, 1)), mesh)
    named = {
        path_name(path): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(found.params)
    }
    assert named["layers/gate_kernel"] == named["layers/up_kernel"] == P(None, "fsdp", "tensor")
    assert named["layers/gate_bias"] == P(None, "tensor")
    assert named["head_kernel"] == P("fsdp", "tensor")
    assert "position_embedding" not in named
    assert "layers/query_bias" not in named


def test_one_device_is_a_mesh_of_one():
    assert dict(sharding.make_mesh(MeshConfig(), jax.devices()[:1]).shape) == {
        "data": 1,
        "fsdp": 1,
        "tensor": 1,
    }
    assert dict(sharding.make_mesh(MeshConfig(tensor=2)).shape) == {
        "data": 4,
        "fsdp": 1,
        "tensor": 2,
    }


def test_fsdp_takes_what_is_left():
    assert dict(sharding.make_mesh(MeshConfig(fsdp=-1)).shape) == {
        "data": 1,
        "fsdp": 8,
        "tensor": 1,
    }
    assert dict(sharding.make_mesh(MeshConfig(data=2, fsdp=-1, tensor=2)).shape) == {
        "data": 2,
        "fsdp": 2,
        "tensor": 2,
    }
    assert dict(sharding.make_mesh(MeshConfig(fsdp=-1, tensor=2)).shape) == {
        "data": 1,
        "fsdp": 4,
        "tensor": 2,
    }


def test_an_axis_that_fsdp_does_not_divide_passes_it_on(tiny):
    """As SmolLM-360M's 960 channels do on 256 chips: to another axis, or to none, and the moments
    with it.
    """
    fields = {"model.d_model": 12, "model.heads": 6, "model.kv_heads": 2, "model.family": "llama"}
    tiny = with_fields(tiny, fields)
    mesh = sharding.make_mesh(MeshConfig(fsdp=8))
    found = sharding.shardings(jax.eval_shape(lambda: init_state(tiny, 1)), mesh)
    named = {
        path_name(path): leaf.spec for path, leaf in jax.tree_util.tree_leaves_with_path(found)
    }
    assert named["params/layers/up_kernel"] == P(None, None, ("tensor", "fsdp"))  # (2, 12, 32)
    assert named["params/layers/down_kernel"] == P(None, ("tensor", "fsdp"))
    assert named["params/layers/query_kernel"] == P(None, None, "tensor")  # (2, 12, 12): whole
    assert named["params/token_embedding"] == P(("tensor", "fsdp"))
    moments = {name: spec for name, spec in named.items() if "/mu/" in name}
    assert all(spec == named["params/" + name.split("/mu/")[-1]] for name, spec in moments.items())
    put = jax.jit(lambda: init_state(tiny, 1), out_shardings=found)()
    assert put.params["layers"]["up_kernel"].addressable_shards[0].data.shape == (2, 12, 4)


@pytest.mark.parametrize(
    "mesh", [MeshConfig(data=3), MeshConfig(fsdp=3), MeshConfig(data=8, tensor=2)]
)
def test_a_mesh_that_does_not_cover_the_devices_is_refused(mesh):
    with expect_input_error("does not cover the 8 devices"):
        sharding.make_mesh(mesh)


@pytest.mark.parametrize(("shape", "splits"), [((4, 1, 2), 4), ((2, 2, 2), 4), ((1, 1, 8), 1)])
def test_a_batch_goes_to_the_devices_of_its_rows(tiny, shape, splits):
    """Devices in any order; a device holds its run of the batch, and the members of `tensor` the
    same.
    """
    tiny = with_fields(tiny, {"mesh": MeshConfig(*shape)})
    devices = jax.devices()[::-2] + jax.devices()[::2]
    mesh = sharding.make_mesh(tiny.mesh, devices)
    assert sharding.own_rows(8, mesh).tolist() == list(range(8))
    inputs = train_program(tiny, 1, mesh, 1).batch["inputs"]
    put = sharding.put_batch(
        {"inputs": np.arange(8 * 160, dtype=np.int32).reshape(8, 160)}, {"inputs": inputs}
    )
    for shard in put["inputs"].addressable_shards:
        run = devices.index(shard.device) * splits // 8
        assert (
            shard.data[:, 0].tolist()
            == [row * 160 for row in range(8)][run * 8 // splits :][: 8 // splits]
        )
    with pytest.raises(AssertionError):
        sharding.put_batch({"inputs": np.zeros((4, 160), np.int32)}, {"inputs": inputs})


def test_a_batch_that_does_not_divide_is_refused():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    sharding.check_batch(12, mesh)
    with expect_input_error(
        r"batch_size is 10, .* into 4 equal parts; choose a multiple of 4, .* 12"
    ):
        sharding.check_batch(10, mesh)
    with expect_input_error(
        r"is 12, .* into 8 equal parts \(2 microbatches by config.compute.accumulate\); .* 16"
    ):
        sharding.check_batch(12, mesh, microbatches=2)


def test_a_parameter_that_does_not_divide_is_refused(tiny):
    tiny = with_fields(tiny, {"model.hidden": 33})
    mesh = sharding.make_mesh(MeshConfig(tensor=2))
    with expect_input_error(
        r"(up|down)_(bias|kernel) .*: 33 does not divide by config.mesh.tensor=2"
    ):
        sharding.shardings(jax.eval_shape(lambda: init_state(tiny, 1)), mesh)
