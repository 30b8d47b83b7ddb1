"""TPU slices by name, without hardware."""

import importlib.util

import pytest

from memsinks_jax.config import InputError
from memsinks_jax.planning import topology

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the TPU compiler, is not installed: pip install 'jax[tpu]'",
)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v5e:16x17", "there is no such slice of v5e; near it are v5e:8x8, v5e:8x16, v5e:16x16"),
        ("v5p:3x3x3", "near it are v5p:2x2x2, v5p:2x2x4, v5p:2x4x4"),
        ("v5e16x16", "write GENERATION:SHAPE with one of v4, v5e, v5p, v6e, for example v5e:16x16"),
        ("v9:4x4", "is not known"),
        ("", "is not known"),
    ],
)
def test_unknown_slices_are_refused_with_what_there_is(name, told):
    with pytest.raises(InputError, match=told) as refusal:
        topology.devices_of(name)
    assert "\n" not in str(refusal.value)


def test_without_libtpu_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(InputError, match=r"pip install 'jax\[tpu\]'"):
        topology.devices_of("v5e:4x4")


def test_no_slices_are_refused():
    with pytest.raises(InputError, match="--slices is 0"):
        topology.devices_of("v5e:4x4", 0)


@needs_libtpu
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


@needs_libtpu
@pytest.mark.parametrize("generation", topology.SHAPES)
def test_the_smallest_and_largest_of_every_table_exist(generation):
    for shape in (topology.SHAPES[generation][0], topology.SHAPES[generation][-1]):
        devices, _ = topology.devices_of(f"{generation}:{shape}")
        assert len(devices) == topology._chips(shape)
