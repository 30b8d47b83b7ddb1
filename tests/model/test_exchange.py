"""Looking up rows by number on a mesh, against the whole table on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import MeshConfig
from memsinks_jax.model.exchange import rows_of
from memsinks_jax.model.placement import BATCH
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.training import sharding

POOL = 48


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2), (1, 4, 2)])
@pytest.mark.parametrize("numbers", ["drawn", "of one device", "none"])
def test_rows_and_gradients_are_those_of_the_whole_table(shape, numbers):
    """Where all want rows of one device, some of them none, there are several turns."""
    random = np.random.default_rng(0)
    wanted = random.integers(
        0, {"drawn": POOL, "of one device": 5, "none": 1}[numbers], (8, 2, 60), np.int32
    )
    wanted[random.random(wanted.shape) < (1 if numbers == "none" else 0.1)] = NONE
    rows = {"a": (2, 3), "b": (2,)}
    tables = {
        name: random.standard_normal((POOL, *row)).astype(np.float32) for name, row in rows.items()
    }
    weights = {
        name: random.standard_normal((*wanted.shape, *row)).astype(np.float32)
        for name, row in rows.items()
    }

    def both(tables, wanted):
        rows, back = jax.vjp(lambda tables: rows_of(tables, wanted, jnp.float32), tables)
        return rows, back(weights)[0]

    expected, mesh = jax.jit(both)(tables, wanted), sharding.make_mesh(MeshConfig(*shape))
    with jax.set_mesh(mesh):
        program = jax.jit(both, in_shardings=(P("fsdp"), P(BATCH)))
        found = program(tables, wanted)
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5),
        found[1],
        expected[1],
    )
    np.testing.assert_array_equal(
        found[0]["a"][wanted != NONE], tables["a"][wanted[wanted != NONE]]
    )
    assert not np.asarray(found[0]["b"])[wanted == NONE].any()
