"""Checkpoints: what is restored is what was saved, on whatever devices."""

import jax
import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import InputError, MeshConfig
from memsinks_jax.training import sharding
from memsinks_jax.training.checkpoint import Checkpoints
from memsinks_jax.training.step import init_state


def saved(folder, config, mesh, step):
    shapes = jax.eval_shape(lambda: init_state(config, 10))
    shardings = sharding.shardings(shapes, mesh)
    state = jax.jit(lambda: init_state(config, 10), out_shardings=shardings)()
    checkpoints = Checkpoints(folder, config.training)
    (folder / "config.json").write_text("{}")
    for number in range(1, step + 1):
        checkpoints.save(number, state._replace(step=jax.numpy.int32(number)), tokens=100 * number)
    checkpoints.close()
    return state


def test_any_mesh_restores_what_any_mesh_saved(tmp_path):
    config = tiny_config()
    meshes = [sharding.make_mesh(MeshConfig(2, 2, 2)), sharding.make_mesh(MeshConfig(), jax.devices()[:1])]
    state = saved(tmp_path, config, meshes[0], step=3)
    shapes = jax.eval_shape(lambda: init_state(config, 10))
    for mesh in meshes:
        shardings = sharding.shardings(shapes, mesh)
        checkpoints = Checkpoints(tmp_path)
        restored = checkpoints.restore(shapes, shardings)
        params = checkpoints.restore_params(shapes.params, shardings.params)
        checkpoints.close()
        assert int(restored.step) == 3
        assert checkpoints.progress(3)["tokens"] == 300
        assert jax.tree.all(jax.tree.map(lambda a, s: a.sharding == s, restored, shardings))
        for found in (restored.params, params):
            assert jax.tree.all(jax.tree.map(np.array_equal, jax.device_get(found), jax.device_get(state.params)))
        assert jax.tree.structure(restored.optimizer) == jax.tree.structure(state.optimizer)


def test_only_the_last_are_kept(tmp_path):
    saved(tmp_path, tiny_config(), sharding.make_mesh(MeshConfig()), step=4)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]
    assert Checkpoints(tmp_path).newest() == 4


def test_a_workdir_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no complete checkpoint; train with --workdir"):
        Checkpoints(tmp_path).restore_params({}, {})
