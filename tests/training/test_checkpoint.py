"""Checkpoints: restored state equals saved state on any devices; damage is named and never trained
on.
"""

import json
import logging
import shutil
import time

import jax
import numpy as np
import pytest
from conftest import expect_input_error, tiny_config
from jax.experimental import multihost_utils

from memsinks_jax.config import MeshConfig, TrainingConfig, with_fields
from memsinks_jax.data.opened import nobody
from memsinks_jax.training import checkpoint, sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.seal import find_damage
from memsinks_jax.training.step import init_state


def shapes_of(config):
    return jax.eval_shape(lambda: init_state(config, 10))


def saved(folder, config, mesh, steps, value=None):
    """A workdir with a checkpoint of each of `steps`; -> the last state. Parameters are the step,
    or `value`.
    """
    shardings = sharding.shardings(shapes_of(config), mesh)
    state = jax.jit(lambda: init_state(config, 10), out_shardings=shardings)()
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    checkpoints = Checkpoints(folder, config.training)
    for step in steps:
        number = step if value is None else value
        params = jax.tree.map(lambda a, number=number: a * 0 + number, state.params)
        state = state._replace(step=jax.numpy.int32(step), params=params)
        checkpoints.save(step, state, 100 * step, nobody())
    checkpoints.close()
    return state


@pytest.fixture(scope="module")
def one_device():
    return sharding.make_mesh(MeshConfig(), jax.devices()[:1])


@pytest.fixture(scope="module")
def two(tmp_path_factory, one_device):
    """A workdir with the checkpoints of steps 2 and 3, not to be changed."""
    folder = tmp_path_factory.mktemp("two") / "run"
    saved(folder, tiny_config(), one_device, [2, 3])
    return folder


def equal(one, other):
    one, other = jax.device_get((one, other))
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def restored_step(folder, mesh):
    """Restores the newest sound checkpoint; -> (its step, the number all its parameters are)."""
    config = tiny_config()
    checkpoints = Checkpoints(folder, config.training)
    try:
        state = checkpoints.restore(sharding.placed(shapes_of(config), mesh))
    finally:
        checkpoints.close()
    values = np.unique(np.concatenate(list(map(np.ravel, jax.tree.leaves(state.params)))))
    assert len(values) == 1
    return int(state.step), float(values[0])


def test_any_mesh_restores_what_any_mesh_saved(tmp_path, one_device):
    config = tiny_config()
    four = sharding.make_mesh(MeshConfig(), jax.devices()[:4])
    meshes = [sharding.make_mesh(MeshConfig(2, 2, 2)), one_device, four]
    state = saved(tmp_path / "run", config, meshes[0], [1, 2, 3])
    for mesh in meshes:
        placed = sharding.placed(shapes_of(config), mesh)
        checkpoints = Checkpoints(tmp_path / "run")
        restored = checkpoints.restore(placed)
        params = checkpoints.restore_params(placed.params)
        checkpoints.close()
        assert int(restored.step) == 3
        assert checkpoints.progress(3)["tokens"] == 300
        assert jax.tree.all(jax.tree.map(lambda a, s: a.sharding == s.sharding, restored, placed))
        assert equal(restored.params, state.params) and equal(params, state.params)
        assert jax.tree.structure(restored) == jax.tree.structure(state)


@pytest.mark.parametrize("least", [checkpoint._LEAST_SLICE_BYTES, 1])
def test_devices_that_hold_the_same_array_write_a_slice_each_if_it_is_large(
    tmp_path, monkeypatch, one_device, least
):
    config, mesh = tiny_config(), sharding.make_mesh(MeshConfig(4, 2, 1))
    monkeypatch.setattr(checkpoint, "_LEAST_SLICE_BYTES", least)
    shardings = sharding.shardings(shapes_of(config), mesh)
    state = jax.jit(lambda: init_state(config, 10), out_shardings=shardings)()
    (tmp_path / "config.json").write_text("{}")
    checkpoints = Checkpoints(tmp_path, config.training)
    checkpoints.save(1, state, 0, nobody())
    checkpoints.close()
    path = tmp_path / "checkpoints" / "1" / "params" / "array_metadatas" / "process_0"
    written = [of["array_metadata"] for of in json.loads(path.read_text())["array_metadatas"]]
    shapes = {of["param_name"]: of["write_shape"] for of in written}
    # of 8 devices with the same 16 numbers
    assert shapes["final_norm.scale"] == ([2] if least == 1 else [16])
    restored = Checkpoints(tmp_path).restore(sharding.placed(shapes_of(config), one_device))
    assert equal(restored.params, state.params)


@pytest.mark.parametrize(("every", "left"), [(0, [7, 8]), (3, [3, 6, 7, 8])])
def test_which_checkpoints_are_kept(tmp_path, one_device, every, left):
    config = with_fields(tiny_config(), {"training.keep_every": every})
    saved(tmp_path / "run", config, one_device, range(1, 6))
    saved(tmp_path / "run", config, one_device, range(6, 9))
    assert sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()) == left
    assert Checkpoints(tmp_path / "run").newest() == 8


def test_a_workdir_without_a_checkpoint_is_refused(tmp_path):
    with expect_input_error(r"holds no complete checkpoint; train with --workdir"):
        Checkpoints(tmp_path).restore_params({})


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def damaged_copies(source, target):
    """Every way to hurt one file of the newest checkpoint -> (description, workdir with it)."""
    for name in files_of(source / "checkpoints" / "3"):
        for way in ("cut", "delete", "flip"):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            path = target / "checkpoints" / "3" / name
            content = path.read_bytes()
            if way == "cut":
                path.write_bytes(content[: len(content) // 2])
            elif way == "delete":
                path.unlink()
            else:
                middle = len(content) // 2
                flipped = bytes([content[middle] ^ 1])
                path.write_bytes(content[:middle] + flipped + content[middle + 1 :])
            yield f"{way} {name}", target


# What Orbax writes after the seal says nothing of the state: a change there may go unnoticed, and
# then changes nothing.
HARMLESS = {"cut commit_success.txt", "flip commit_success.txt", "flip _CHECKPOINT_METADATA"}


def test_any_damage_to_any_file_is_found_by_name(two, tmp_path):
    for what, folder in damaged_copies(two, tmp_path / "run"):
        damage = find_damage(folder / "checkpoints" / "3")
        name = what.split()[1]
        assert what in HARMLESS or (damage and (name in damage or name == "seal.json")), what


def test_a_damaged_newest_checkpoint_is_set_aside_loudly_and_the_one_before_used(
    two, tmp_path, one_device, caplog
):
    """One file of each kind; which others are found is the business of the test above."""
    ends = ("progress/data.json", "params/_METADATA", "seal.json")
    ends += ("commit_success.txt", "_CHECKPOINT_METADATA")
    logging.getLogger("memsinks_jax").propagate = True
    seen = 0
    for what, folder in damaged_copies(two, tmp_path / "run"):
        if not what.endswith(ends) or "optimizer" in what:
            continue
        caplog.clear()
        step, value = restored_step(folder, one_device)
        assert step == value
        aside = folder / "damaged"
        if what in HARMLESS and step == 3:
            assert not aside.exists()
            continue
        assert step == 2, what
        assert [path.name for path in aside.iterdir()] == ["3-0"]
        assert "is damaged" in caplog.text
        assert "set aside as" in caplog.text
        seen += 1
    assert seen >= 9


def test_reading_moves_nothing(two, tmp_path):
    shutil.copytree(two, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "3" / "progress" / "data.json").unlink()
    before = files_of(tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.newest() == 2
    checkpoints.close()
    assert files_of(tmp_path / "run") == before


def test_nothing_is_trained_anew_over_damaged_checkpoints(two, tmp_path, caplog):
    logging.getLogger("memsinks_jax").propagate = True
    shutil.copytree(two, tmp_path / "run")
    for step in (2, 3):
        (tmp_path / "run" / "checkpoints" / str(step) / "seal.json").unlink()
    for _ in range(2):  # also when everything has been set aside already
        with expect_input_error(
            r"every checkpoint of .* is damaged; restore .* or remove .*damaged"
        ):
            Checkpoints(tmp_path / "run", TrainingConfig())
    reported = [line for line in caplog.text.splitlines() if "is damaged" in line]
    ends = [line.rpartition("; ")[2] for line in reported]
    assert ends == ["the one before is used", "there is none before it"]


def test_a_save_does_not_ask_the_preemption_service(tmp_path, one_device, monkeypatch):
    """The loop does, under numbers of its own: the service remembers one, and stops all hosts at
    the next.
    """
    asked = []
    name = "reached_preemption_sync_point"
    monkeypatch.setattr(multihost_utils, name, lambda number: asked.append(number))
    saved(tmp_path / "run", tiny_config(), one_device, [1, 2])
    assert Checkpoints(tmp_path / "run").newest() == 2
    assert not asked


def test_what_to_do_about_a_checkpoint_says_which_is_before_it(two, tmp_path):
    shutil.copytree(two, tmp_path / "run")
    checkpoints, folder = Checkpoints(tmp_path / "run"), tmp_path / "run" / "checkpoints"
    for step, remedy in ((3, "remove it to use that of step 2"), (2, "there is none before it")):
        (folder / str(step) / "progress" / "data.json").unlink()
        damage = "is damaged: progress/data.json cannot be read"
        with expect_input_error(f"checkpoints/{step} {damage} .*; .*{remedy}"):
            checkpoints.progress(step)
    checkpoints.close()


def test_a_half_written_checkpoint_is_none(two, tmp_path, one_device):
    shutil.copytree(two, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    (folder / "3").rename(folder / "3.orbax-checkpoint-tmp")
    assert restored_step(tmp_path / "run", one_device) == (2, 2.0)
    assert not (tmp_path / "run" / "damaged").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["2"]


def test_another_model_is_refused_by_the_names_of_its_arrays(two, one_device):
    config = with_fields(tiny_config(), {"model.hidden": 48})
    checkpoints = Checkpoints(two)
    with expect_input_error(
        "has params/layers/down_bias|has optimizer.* of float32.* instead of float32"
    ):
        checkpoints.restore(sharding.placed(shapes_of(config), one_device))
    shapes = shapes_of(tiny_config()).params
    shapes["head"] = shapes.pop("token_embedding")
    with expect_input_error(r"lacks params/head; has besides params/token_embedding"):
        checkpoints.restore_params(shapes)
    checkpoints.close()


def test_of_one_step_no_other_is_read_where_it_is_damaged(two, tmp_path, one_device):
    placed = sharding.placed(shapes_of(tiny_config()).params, one_device)
    shutil.copytree(two, tmp_path / "run")
    for step in (2, 3):
        checkpoints = Checkpoints(tmp_path / "run")
        params = jax.device_get(checkpoints.restore_params(placed, step))
        checkpoints.close()
        assert {value for leaf in jax.tree.leaves(params) for value in np.unique(leaf)} == {step}
    for path in (tmp_path / "run/checkpoints/2/params").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-10])
    checkpoints = Checkpoints(tmp_path / "run")
    with expect_input_error("checkpoints/2 is damaged"):
        checkpoints.restore_params(placed, 2)
    checkpoints.close()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_parameters_that_are_no_numbers_are_refused_by_name(value, tmp_path, one_device):
    saved(tmp_path / "run", tiny_config(), one_device, [1], value=value)
    checkpoints = Checkpoints(tmp_path / "run")
    with expect_input_error(r"checkpoints/\d+: final_norm/bias holds nan or inf"):
        checkpoints.restore_params(sharding.placed(shapes_of(tiny_config()).params, one_device))
    with expect_input_error(r"checkpoints/\d+: layers/up_kernel holds nan or inf"):
        checkpoints.read("layers/up_kernel", 1)
    checkpoints.close()


def test_another_format_is_refused(two, monkeypatch):
    monkeypatch.setattr("memsinks_jax.training.checkpoint.FORMAT", 2)
    checkpoints = Checkpoints(two)
    with expect_input_error(r"has format 1; this version of memsinks_jax reads 2"):
        checkpoints.restore_params({})
    checkpoints.close()


def test_a_save_that_fails_is_reported_at_the_next_step(tmp_path, one_device, monkeypatch):
    config = tiny_config()
    saved(tmp_path / "run", config, one_device, [1])
    checkpoints = Checkpoints(tmp_path / "run", config.training)
    state = jax.jit(lambda: init_state(config, 10))()

    def full(folder):
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr("memsinks_jax.training.seal.write_seal", full)
    checkpoints.save(2, state, 200, nobody())
    message = "cannot save .*checkpoints: .*No space left.*; the last that is there is of step 1"
    with expect_input_error(message):
        for _ in range(1000):
            checkpoints.check()
            time.sleep(0.01)
    with expect_input_error(message):
        checkpoints.close()
    assert Checkpoints(tmp_path / "run").newest() == 1


def test_a_disk_that_is_too_full_is_reported_before_anything_is_written(
    tmp_path, one_device, monkeypatch
):
    config = tiny_config()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("", (), {"free": 1000})())
    with expect_input_error(
        "save the checkpoint of step 1 .* MiB are free; free some space; none is"
    ):
        saved(tmp_path / "run", config, one_device, [1])
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_workdir_that_was_removed_is_not_made_again(tmp_path, one_device):
    config = tiny_config()
    saved(tmp_path / "run", config, one_device, [1])
    checkpoints = Checkpoints(tmp_path / "run", config.training)
    shutil.rmtree(tmp_path / "run")
    with expect_input_error("is gone: it was moved or removed during the run"):
        checkpoints.save(2, init_state(config, 10), 0, nobody())
    assert not (tmp_path / "run").exists()
