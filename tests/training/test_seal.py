"""The seal: damage is found and named for any file, without unnecessary reads."""

import pathlib
import shutil

import jax
import numpy as np
import pytest
from conftest import expect_input_error
from test_checkpoint import files_of, saved, shapes_of, tiny_config

from memsinks_jax.config import MeshConfig, TrainingConfig
from memsinks_jax.data.opened import nobody
from memsinks_jax.runs.workdir import newest_weights
from memsinks_jax.training import checkpoint, seal, sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.seal import find_damage


@pytest.fixture(scope="module")
def one_device():
    return sharding.make_mesh(MeshConfig(), jax.devices()[:1])


@pytest.fixture(scope="module")
def two(tmp_path_factory, one_device):
    """A workdir with the checkpoints of steps 2 and 3, not to be changed. Its arrays are random: they
    do not compress.
    """
    folder, shapes = tmp_path_factory.mktemp("two") / "run", shapes_of(tiny_config())
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(shapes))))
    state = jax.tree.map(lambda a: jax.random.normal(next(keys), a.shape).astype(a.dtype), shapes)
    state = jax.device_put(state, sharding.shardings(shapes, one_device))
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    checkpoints = Checkpoints(folder, tiny_config().training)
    for step in (2, 3):
        params = jax.tree.map(lambda a, step=step: a * step, state.params)
        checkpoints.save(step, state._replace(params=params), 100 * step, nobody())
    checkpoints.close()
    return folder


def bytes_read():
    """By this process so far, from files or their cache (rchar)."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)


def largest(folder, item):
    """The name of the largest file of an item."""
    names = [name for name in files_of(folder) if name.startswith(f"{item}/") and "/d/" in name]
    return max(names, key=lambda name: (folder / name).stat().st_size)


def test_a_checkpoint_names_its_weights_and_no_array_is_read(two, tmp_path, one_device):
    shutil.copytree(two, tmp_path / "copy")
    array = two / "checkpoints" / "3" / largest(two / "checkpoints" / "3", "params")
    before = bytes_read()
    name = newest_weights(two)
    assert bytes_read() - before < 2**15 < array.stat().st_size
    assert newest_weights(tmp_path / "copy") == name
    saved(tmp_path / "run", tiny_config(), one_device, [3])
    assert newest_weights(tmp_path / "run") != name
    (tmp_path / "run" / "checkpoints" / "3" / "seal.json").write_text("[")
    with expect_input_error("3 is damaged"):
        newest_weights(tmp_path / "run")
    with expect_input_error("holds no complete checkpoint"):
        newest_weights(tmp_path)


def test_an_error_that_is_no_damage_is_not_called_damage(two, one_device, monkeypatch):
    def fails(*_):
        raise MemoryError("too large")

    monkeypatch.setattr("memsinks_jax.training.checkpoint.ocp.load_checkpointables", fails)
    placed = sharding.placed(shapes_of(tiny_config()), one_device)
    for step in (None, 2):
        with pytest.raises(MemoryError, match="too large"):
            Checkpoints(two).restore_params(placed.params, step)


def test_a_reader_of_parameters_leaves_the_optimizer_unread(two, tmp_path, one_device):
    shutil.copytree(two, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "3"
    name = largest(folder, "optimizer")
    flip(folder / name, 2**10)
    placed = sharding.placed(shapes_of(tiny_config()), one_device)
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.restore_params(placed.params)
    assert checkpoints.newest() == 3
    with expect_input_error(rf"3 is damaged: {name} was changed; remove it"):
        checkpoints.restore(placed)
    checkpoints.close()
    resuming = Checkpoints(tmp_path / "run", TrainingConfig())
    assert resuming.newest() == 2
    resuming.close()
    assert [path.name for path in (tmp_path / "run" / "damaged").iterdir()] == ["3-0"]


@pytest.mark.parametrize("way", ["flip", "cut short", "missing"])
def test_a_reader_of_damaged_parameters_takes_those_before(two, tmp_path, one_device, caplog, way):
    checkpoint.logger.parent.propagate = True
    shutil.copytree(two, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "3"
    name = largest(folder, "params")
    if way == "flip":
        flip(folder / name, 2**10)
    elif way == "cut short":
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    else:
        (folder / name).unlink()
    checkpoints = Checkpoints(tmp_path / "run")
    placed = sharding.placed(shapes_of(tiny_config()), one_device).params
    params = checkpoints.restore_params(placed)
    assert checkpoints.newest() == 2
    assert np.array_equal(checkpoints.read("layers/up_kernel", 1), params["layers"]["up_kernel"][1])
    checkpoints.close()
    whole = Checkpoints(two).restore_params(placed, 2)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, whole))
    assert f"3 is damaged: {name}" in caplog.text


def test_any_flipped_byte_of_a_file_of_arrays_is_found(two, tmp_path):
    shutil.copytree(two / "checkpoints" / "3", tmp_path / "3")
    name = largest(tmp_path / "3", "params")
    size = (tmp_path / "3" / name).stat().st_size
    for place in [0, *np.random.default_rng(0).integers(size, size=20).tolist(), size - 1]:
        flip(tmp_path / "3" / name, place)
        assert find_damage(tmp_path / "3") == f"{name} was changed"
        flip(tmp_path / "3" / name, place)
    assert find_damage(tmp_path / "3") is None


def test_hosts_share_the_reading(two, tmp_path, monkeypatch):
    """Any number of them reads every file once; a damage is found by one of them."""
    shutil.copytree(two / "checkpoints" / "3", tmp_path / "3")
    read, compute = [], seal._size_and_checksum
    monkeypatch.setattr(
        seal, "_size_and_checksum", lambda path: (read.append(str(path)), compute(path))[1]
    )
    assert find_damage(tmp_path / "3") is None
    alone, read[:] = sorted(read), []
    shares = []
    for host in range(3):
        assert find_damage(tmp_path / "3", share=(host, 3)) is None
        shares.append(len(read))
    assert sorted(read) == alone
    assert shares[0] == pytest.approx(len(alone) / 3, abs=1)
    flip(tmp_path / "3" / largest(tmp_path / "3", "params"), 2**10)
    assert sum(find_damage(tmp_path / "3", share=(host, 3)) is not None for host in range(3)) == 1
