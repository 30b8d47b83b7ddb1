"""TPU slices and GPUs by name, without hardware."""

import importlib.util
import math
import shutil

import pytest
from conftest import ROOT, expect_input_error

from memsinks_jax.config import MeshConfig
from memsinks_jax.planning import cards, topology
from memsinks_jax.training import flops


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e:16x17", "of v5e there are 1x1, 2x2, 2x4, .*, 16x16"),
        (
            "v5e16x16",
            "write GENERATION:SHAPE, as v5e:16x16, or CARD:NUMBER, as h100:8, of one of v4, ",
        ),
        ("v9:4x4", "is not known"),
        ("h100", "of h100 there are 1, 2, 3, 4, 5, 6, 7, 8"),
        ("h100:32", "of h100 there are 1, 2, 3, 4, 5, 6, 7, 8"),
        ("", "is not known"),
    ],
)
def test_unknown_slices_are_refused_with_what_there_is(name, message):
    with expect_input_error(message) as refusal:
        topology.devices_of(name)
    assert "\n" not in str(refusal.value)


def test_without_libtpu_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with expect_input_error(r"pip install 'jax\[tpu\]'"):
        topology.devices_of("v5e:4x4")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("v5e:4x4", 0), "--slices is 0"),
        (("h100:8", 1, 0), "--nodes is 0"),
        (("h100:8", 2), "--slices=2: h100 has nodes, no slices"),
        (("v5e:4x4", 1, 2), "--nodes=2: v5e has slices, no nodes"),
    ],
)
def test_slices_are_of_tpus_and_nodes_of_gpus(given, message):
    with expect_input_error(message):
        topology.devices_of(*given)


@pytest.mark.parametrize("installed", [(), ("jax_cuda12_plugin",), ("nvidia",)])
def test_without_the_compiler_for_gpus_one_line_says_what_to_install(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with expect_input_error(r"is not installed; run: pip install '\.\[plan-gpu\]'"):
        topology.devices_of("h100:8")


def test_a_card_is_described_once():
    """Its peaks are those that `train` computes MFU with, its memory what launch/ gives to jax."""
    for name, card in cards.CARDS.items():
        assert flops.chip(card.kind).name.lower() == name
    assert (
        f"XLA_PYTHON_CLIENT_MEM_FRACTION={cards.SHARE}"
        in (ROOT / "launch/environment.sh").read_text()
    )
    assert all(
        f"--{name}={str(value).lower()}" in (ROOT / "launch/environment.sh").read_text()
        for name, value in cards.OPTIONS.items()
    )


def of_nodes(nodes, per_node, slice_index):
    class Device:
        platform, device_kind = "gpu", "NVIDIA H100 80GB HBM3"

        def __init__(self, number):
            self.id = number
            self.process_index = number // per_node
            self.slice_index = slice_index(number)

    return [Device(number) for number in range(nodes * per_node)]


def test_nodes_of_gpus_lie_along_data(monkeypatch):
    """As they do in `train`, where jax numbers the nodes: parameters are sharded in a node,
    gradients summed between.
    """
    monkeypatch.setattr(topology.sharding, "Mesh", lambda devices, *rest, **more: devices)
    compiled_for = topology.mesh_of(MeshConfig(fsdp=-1), of_nodes(4, 8, lambda number: 0))
    attached = topology.sharding.make_mesh(
        MeshConfig(fsdp=-1), of_nodes(4, 8, lambda number: number // 8)
    )
    for mesh in (compiled_for, attached):
        assert mesh.shape == (4, 8, 1)
        assert [[one.id for one in node] for node in mesh[..., 0]] == [
            list(range(8 * n, 8 * n + 8)) for n in range(4)
        ]


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("name", "slices", "count", "chip"),
    [
        ("v5e:16x16", 1, 256, "v5e"),
        ("V5E:2x4", 1, 8, "v5e"),
        ("v5e:1x1", 1, 1, "v5e"),
        ("v5e:4x4", 4, 64, "v5e"),
        ("v5p:4x4x4", 1, 64, "v5p"),
        ("v4:2x2x4", 1, 16, "v4"),
        ("v6e:16x16", 2, 512, "v6e"),
    ],
)
def test_devices(name, slices, count, chip):
    devices, known = topology.devices_of(name, slices)
    assert (len(devices), known.name) == (count, chip)
    assert len({getattr(device, "slice_index", 0) for device in devices}) == slices


@pytest.mark.tpu
@pytest.mark.parametrize("generation", topology.SHAPES)
def test_the_smallest_and_largest_of_every_table_exist(generation):
    for shape in (topology.SHAPES[generation][0], topology.SHAPES[generation][-1]):
        devices, _ = topology.devices_of(f"{generation}:{shape}")
        assert len(devices) == math.prod(map(int, shape.split("x")))
