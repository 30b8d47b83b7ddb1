"""The seal: damage is found and named for any file, without unnecessary reads."""

import gc
import json
import logging
import pathlib
import shutil

import jax
import numpy as np
import pytest
from conftest import tiny_config
from test_checkpoint import files_of, shapes_of

from memsinks_jax.config import InputError, MeshConfig, TrainingConfig, with_fields
from memsinks_jax.data.opened import nobody
from memsinks_jax.runs.workdir import newest_weights
from memsinks_jax.training import seal, sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.seal import find_damage

# Where a restore fails, Orbax leaves the tasks that were reading with the one that failed, and
# Python says so whenever it comes to collect them: here at the latest, so that no other file's
# tests get them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def what_orbax_leaves_is_collected():
    yield
    gc.collect()


@pytest.fixture(scope="module")
def one_device():
    return sharding.make_mesh(MeshConfig(), jax.devices()[:1])


def large_config():
    """Of a model whose arrays make files too large to be hashed."""
    return with_fields(tiny_config(), {"model.d_model": 256, "model.hidden": 1024})


def random_state(config, mesh):
    """No two elements of it are alike, nor do they compress."""
    shapes = shapes_of(config)
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(shapes))))
    state = jax.tree.map(lambda a: jax.random.normal(next(keys), a.shape).astype(a.dtype), shapes)
    return jax.device_put(state, sharding.shardings(shapes, mesh))


@pytest.fixture(scope="module")
def large(tmp_path_factory, one_device):
    """A workdir with the checkpoints of steps 2 and 3 of a model with large files, not to be
    changed; the bytes read in the saves.
    """
    folder, config = tmp_path_factory.mktemp("large") / "run", large_config()
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    state = random_state(config, one_device)
    checkpoints = Checkpoints(folder, config.training)
    before = bytes_read()
    checkpoints.save(2, state, tokens=200, ids=nobody())
    checkpoints.save(3, state._replace(step=jax.numpy.int32(3)), tokens=300, ids=nobody())
    checkpoints.close()
    return folder, bytes_read() - before


def bytes_read():
    """By this process so far, from files or their cache (rchar)."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


def large_files(folder):
    files = {name: (folder / name).stat().st_size for name in files_of(folder)}
    return {name: size for name, size in files.items() if size > 2**20}


def flip(path, place):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 16]))


def test_a_checkpoint_names_its_weights_and_no_array_is_read(large, tmp_path, one_device):
    shutil.copytree(large[0], tmp_path / "copy")
    before = bytes_read()
    name = newest_weights(large[0])
    assert newest_weights(tmp_path / "copy") == name and bytes_read() - before < 2**20
    places = []
    for number, config in enumerate((large_config(), large_config(), tiny_config(), tiny_config())):
        places.append(tmp_path / f"run{number}")
        places[-1].mkdir()
        (places[-1] / "config.json").write_text("{}")
        state = random_state(config, one_device)
        if number == 1:  # in one element alone
            leaves, tree = jax.tree.flatten(state.params)
            leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].add(1.0)
            state = state._replace(params=jax.tree.unflatten(tree, leaves))
        checkpoints = Checkpoints(places[-1], config.training)
        checkpoints.save(3, state, tokens=300, ids=nobody())
        checkpoints.close()
    names = list(map(newest_weights, places))
    assert names[0] == name != names[1] and len(set(names)) == 4
    (places[0] / "checkpoints" / "3" / "seal.json").write_text("[")
    with pytest.raises(InputError, match="3 is damaged"):
        newest_weights(places[0])
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        newest_weights(tmp_path)


def test_an_error_that_is_no_damage_is_not_called_damage(large, one_device, monkeypatch):
    def fails(*_):
        raise MemoryError("too large")

    monkeypatch.setattr("memsinks_jax.training.checkpoint.ocp.load_checkpointables", fails)
    placed = sharding.placed(shapes_of(large_config()), one_device)
    for step in (None, 2):
        with pytest.raises(MemoryError, match="too large"):
            Checkpoints(large[0]).restore_params(placed.params, step)


def test_a_save_does_not_read_back_what_it_wrote(large):
    folder, read = large
    written = sum(sum(large_files(folder / "checkpoints" / step).values()) for step in ("2", "3"))
    assert written > 30 * 2**20
    assert read < written / 10


def test_a_reader_of_parameters_leaves_the_optimizer_unread(large, tmp_path, one_device):
    shutil.copytree(large[0], tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "3"
    name = next(name for name in large_files(folder) if name.startswith("optimizer"))
    flip(folder / name, 2**19)
    placed = sharding.placed(shapes_of(large_config()), one_device)
    size = sum(path.stat().st_size for path in (folder / "params").rglob("*") if path.is_file())
    before = bytes_read()
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.restore_params(placed.params)
    assert bytes_read() - before < 1.5 * size  # nor the parameters twice
    assert checkpoints.newest() == 3
    with pytest.raises(
        InputError, match=rf"3 is damaged: .* was changed, which is in {name}; remove it"
    ):
        checkpoints.restore(placed)
    checkpoints.close()
    resuming = Checkpoints(tmp_path / "run", TrainingConfig())
    assert resuming.newest() == 2
    resuming.close()
    assert [path.name for path in (tmp_path / "run" / "damaged").iterdir()] == ["3-0"]


@pytest.mark.parametrize("way", ["flip", "cut short", "noise"])
def test_a_reader_of_damaged_parameters_takes_those_before(
    large, tmp_path, one_device, caplog, way
):
    """It finds out while it restores them, or, a layer at a time, refuses what it read."""
    logging.getLogger("memsinks_jax").propagate = True
    shutil.copytree(large[0], tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "3"
    name, size = next(
        (name, size) for name, size in large_files(folder).items() if name.startswith("params")
    )
    if way == "flip":
        flip(folder / name, 2**19)
    else:
        content = (folder / name).read_bytes()
        noise = bytes(range(256)) * 4
        (folder / name).write_bytes(
            content[:-1] if way == "cut short" else noise * (size // 1024) + noise[: size % 1024]
        )
    layerwise = Checkpoints(tmp_path / "run")
    if way == "cut short":
        assert layerwise.newest() == 2
    else:
        with pytest.raises(
            InputError, match=rf"3 is damaged: .*which is in {name}; remove it to use"
        ):
            for name_of_array, (shape, _) in layerwise.progress(3)["arrays"].items():
                path = name_of_array.removeprefix("params/")
                if path.startswith("layers/"):
                    for layer in range(shape[0]):
                        layerwise.read(path, layer)
                elif path != name_of_array:
                    layerwise.read(path)
    layerwise.close()
    checkpoints = Checkpoints(tmp_path / "run")
    placed = sharding.placed(shapes_of(large_config()), one_device)
    params = checkpoints.restore_params(placed.params)
    assert checkpoints.newest() == 2
    checkpoints.close()
    assert "3 is damaged: " in caplog.text
    assert name in caplog.text
    whole = Checkpoints(large[0]).restore_params(placed.params)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, whole))


def test_any_damage_to_a_large_file_is_found_by_name(large, tmp_path):
    """Also where the file has no hash: what matters of it is in the digests of the arrays."""
    shutil.copytree(large[0] / "checkpoints" / "3", tmp_path / "3")
    folder = tmp_path / "3"
    assert find_damage(folder) is None
    names = large_files(folder)
    assert {name.split("/")[0] for name in names} == {"params", "optimizer"}
    dice = np.random.default_rng(0)
    for name, size in names.items():
        path = folder / name
        # The end of a file may hold an index that a later one replaced.
        for place in dice.integers(size - 2**14, size=8).tolist():
            flip(path, place)
            assert f"was changed, which is in {name}" in (find_damage(folder) or ""), place
            flip(path, place)
        content = path.read_bytes()
        path.write_bytes(
            content[: size // 2] + content[size // 2 + 4 : size // 2 + 8] + content[size // 2 + 4 :]
        )
        assert name in find_damage(folder)  # four bytes twice
        path.write_bytes(content[:-1])
        assert f"{name} has {size - 1} bytes instead of {size}" in find_damage(folder)
        path.unlink()
        assert find_damage(folder) == f"{name} is missing"
        path.write_bytes(content)
        (folder / "params" / "d" / "more").write_bytes(b"more")
        assert find_damage(folder) == "params/d/more was added later"
        (folder / "params" / "d" / "more").unlink()
    assert find_damage(folder) is None


def test_layers_that_change_places_are_found(large, tmp_path):
    """The chunks are whole, each for itself, and so is the index."""
    shutil.copytree(large[0] / "checkpoints" / "3", tmp_path / "3")
    array = seal.array_opener(tmp_path / "3" / "params")("layers/up_kernel")
    array.write(array.read().result()[::-1]).result()
    seal.write_seal(tmp_path / "3")
    assert "layer 0 of params/layers/up_kernel was changed" in find_damage(tmp_path / "3")


def test_hosts_share_the_looking(large, tmp_path, monkeypatch):
    """Together they check everything once; a damage is found by one of them."""
    shutil.copytree(large[0] / "checkpoints" / "3", tmp_path / "3")
    checked = []
    for function in ("_damage_of_file", "_damage_of_slice"):
        do = getattr(seal, function)
        monkeypatch.setattr(
            seal,
            function,
            lambda folder, name, *rest, do=do: (
                checked.append((name, rest[0])),
                do(folder, name, *rest),
            )[1],
        )
    assert find_damage(tmp_path / "3") is None
    alone, checked[:] = sorted(checked, key=str), []
    shares = []
    for host in range(3):
        assert find_damage(tmp_path / "3", share=(host, 3)) is None
        shares.append(len(checked))
    assert sorted(checked, key=str) == alone
    assert shares[0] == pytest.approx(len(alone) / 3, abs=1)
    flip(tmp_path / "3" / next(iter(large_files(tmp_path / "3"))), 2**19)
    assert sum(find_damage(tmp_path / "3", share=(host, 3)) is not None for host in range(3)) == 1


def test_a_checkpoint_with_hashes_of_all_files_is_read_and_checked(
    large, tmp_path, monkeypatch, one_device
):
    """As they were before arrays had digests."""
    shutil.copytree(large[0], tmp_path / "run")
    for step in ("2", "3"):
        folder = tmp_path / "run" / "checkpoints" / step
        saved = json.loads((folder / "progress" / "data.json").read_text())
        del saved["digests"]
        (folder / "progress" / "data.json").write_text(json.dumps(saved))
        with monkeypatch.context() as patch:
            patch.setattr(seal, "_HASHED_BYTES", 2**40)
            seal.write_seal(folder)
    checkpoints = Checkpoints(tmp_path / "run", TrainingConfig())
    assert (
        int(checkpoints.restore(sharding.placed(shapes_of(large_config()), one_device)).step) == 3
    )
    checkpoints.close()
    name, size = next(iter(large_files(folder).items()))
    flip(folder / name, size - 1)
    assert find_damage(folder) == f"{name} was changed"
    assert Checkpoints(tmp_path / "run", TrainingConfig()).newest() == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_digests_depend_on_every_bit_and_place_and_on_no_mesh(dtype):
    array = jax.random.bits(
        jax.random.key(1), (4, 8, 16), f"uint{8 * jax.numpy.dtype(dtype).itemsize}"
    ).view(dtype)
    whole, found = np.asarray(array), []
    for mesh in (
        sharding.make_mesh(MeshConfig(), jax.devices()[:1]),
        sharding.make_mesh(MeshConfig(2, 2, 2)),
    ):
        for spec in ((None, "fsdp", "tensor"), ("fsdp",), ()):
            placed = jax.device_put(whole, jax.NamedSharding(mesh, jax.P(*spec)))
            found.append(
                seal.digests({"params": {"layers/up_kernel": placed, "head_kernel": placed}})
            )
    assert all(other == found[0] for other in found)
    assert found[0]["params/layers/up_kernel"] == [seal.digest(layer) for layer in whole]
    assert found[0]["params/head_kernel"] == [seal.digest(whole)]
    seen = {seal.digest(whole[0])}
    bits = whole[0].view(f"u{whole.dtype.itemsize}").copy()
    for bit in range(8 * whole.dtype.itemsize):
        for place in range(bits.size):
            bits.flat[place] ^= bits.dtype.type(1 << bit)
            seen.add(seal.digest(bits))
            bits.flat[place] ^= bits.dtype.type(1 << bit)
    assert len(seen) == 1 + 8 * bits.nbytes
    bits.flat[[3, 5]] = bits.flat[[5, 3]]
    assert seal.digest(bits) not in seen
    bits.flat[[3, 5]] = bits.flat[[5, 3]]
    bits.flat[[3, 5]] ^= bits.dtype.type(1 << (8 * whole.dtype.itemsize - 1))
    assert seal.digest(bits) not in seen


def test_a_digest_counts_places_over_blocks(monkeypatch):
    array = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    once = seal.digest(array)
    monkeypatch.setattr(seal, "_BLOCK", 64)
    assert seal.digest(array) == once
