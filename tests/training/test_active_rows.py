"""Sparse sinks against masked ones with the same masks: losses, gradients, updates, rows that no
document uses.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_step import first_batches

from memsinks_jax.config import MeshConfig, with_fields
from memsinks_jax.model.decoder import build_model
from memsinks_jax.model.losses import token_losses
from memsinks_jax.planning.account import COLLECTIVES, arrays_of, group, parse
from memsinks_jax.sinks.blocks import sinks_for_mode
from memsinks_jax.sinks.draws import document_sinks
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.sinks.learning import slowed
from memsinks_jax.sinks.opening import opened
from memsinks_jax.training import active_rows, sharding
from memsinks_jax.training.method import method_of
from memsinks_jax.training.optimizer import scale_by_adam
from memsinks_jax.training.program import shared_program
from memsinks_jax.training.step import init_state

pytestmark = [pytest.mark.slow, pytest.mark.long]

SHARED, POOL = 16, 40


@pytest.fixture
def tiny(tiny):
    """16 shared neurons, 40 sinks, 6 of them a document; of 8 documents some share sinks."""
    return with_fields(
        tiny,
        {"sinks.pool": POOL, "sinks.active": 6, "sinks.sampling": "floyd", "sinks.sparse": True},
    )


def masked(config):
    """The same sinks, all of them computed."""
    return dataclasses.replace(config, sinks=dataclasses.replace(config.sinks, sparse=False))


def as_tables(params):
    """Parameters with all neurons in the MLPs' matrices -> with the sinks in tables."""
    layers, tables = dict(params["layers"]), {}
    for name in ("up", "gate"):
        if f"{name}_kernel" in layers:
            tables[f"sink_{name}"] = layers[f"{name}_kernel"][..., SHARED:].transpose(2, 0, 1)
            layers[f"{name}_kernel"] = layers[f"{name}_kernel"][..., :SHARED]
        if f"{name}_bias" in layers:
            tables[f"sink_{name}_bias"] = layers[f"{name}_bias"][:, SHARED:].T
            layers[f"{name}_bias"] = layers[f"{name}_bias"][:, :SHARED]
    tables["sink_down"] = layers["down_kernel"][:, SHARED:].transpose(1, 0, 2)
    layers["down_kernel"] = layers["down_kernel"][:, :SHARED]
    return params | {"layers": layers} | tables


def initial(config):
    """Of the masked model, with biases that are not 0."""
    draw = np.random.default_rng(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            leaf + 0.1 * draw.normal(size=leaf.shape).astype(np.float32)
            if "bias" in str(path)
            else leaf
        ),
        _initial(config),
    )


@functools.cache
def _initial(config):
    return jax.device_get(jax.jit(lambda: init_state(config, 10).params)())


def losses_and_gradients(config, params, batch):
    """Of one batch, as a step computes them; of tables all rows."""
    model, parts = build_model(config)
    batch = dict(batch)
    learning_BT, gradient_scale = method_of(config).slowing(batch)
    if config.sinks.sparse:
        about = batch["identities"], 0, parts.sinks, config.sinks, batch["segments"]
        batch["sinks"] = sinks_for_mode("own", *about, opened(batch, config.sinks))

    def loss(params):
        losses_BT = model(
            params,
            batch["inputs"],
            batch["segments"],
            batch["positions"],
            method_of(config).interventions(batch, 0, 0),
            gradient_scale=gradient_scale,
            read_out=lambda x, head: token_losses(x, head, batch["targets"], batch["weights"]),
        )
        slowed_BT = losses_BT if learning_BT is None else slowed(losses_BT, learning_BT)
        return slowed_BT.sum(), losses_BT

    (_, losses_BT), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return losses_BT, gradients


def batch_of(config, several):
    """Rows of several documents, some of which come for the first, the second and the 40th time."""
    enough = 3 if several else 1
    batch = next(b for b in first_batches(config, 5) if (b["segments"].max(axis=1) >= enough).any())
    seen = np.arange(batch["seen"].size).reshape(batch["seen"].shape) % 3
    return batch | {"seen": np.array([0, 1, 39], np.int32)[seen]}


@pytest.mark.parametrize(
    ("family", "rows", "opens_at", "slows_at"),
    [
        ("gpt2", "one_document", 1, 0),
        ("llama", "packed", 1, 0),
        ("gpt2", "packed", 2, 16),
        ("llama", "best_fit", 2, 16),
        ("llama", "one_document", 2, 16),
    ],
)
def test_losses_and_gradients_are_those_of_masked_sinks(tiny, family, rows, opens_at, slows_at):
    fields = {"model.family": family, "data.rows": rows, "sinks.opens_at": opens_at}
    fields |= {"sinks.slows_at": slows_at}
    fields |= {"data.row_length": 160 if rows == "one_document" else 400}
    tiny = with_fields(tiny, fields)
    batch = batch_of(tiny, rows != "one_document")
    params = initial(masked(tiny))
    assert jax.tree.map(jnp.shape, as_tables(params)) == jax.tree.map(
        jnp.shape, jax.eval_shape(lambda: init_state(tiny, 10).params)
    )
    losses_BT, gradients = losses_and_gradients(tiny, as_tables(params), batch)
    expected_BT, expected = losses_and_gradients(masked(tiny), params, batch)
    np.testing.assert_allclose(losses_BT, expected_BT, rtol=1e-5, atol=1e-5)
    assert_close(gradients, as_tables(expected))
    assert (np.abs(gradients["sink_down"]).max(axis=(1, 2)) > 0).mean() > 0.2


def assert_close(ones, others):
    """As far as sums in another order are; the gradient of a key's bias is 0 but for rounding."""
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(
            one, other, rtol=1e-5, atol=1e-5 * float(jnp.abs(other).max()) + 1e-8
        )


def steps(config, params, data, devices=1, schedule=10):
    """The state after a step on each batch, from these parameters, and the metrics of every
    step.
    """
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
    with jax.set_mesh(mesh):
        program = shared_program(config, schedule, mesh, data[0]["identities"].shape[1])
        state, lines = program.init(), []
        state = state._replace(
            params=jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, state.params))
        )
        for batch in data:
            state, metrics = program.step(
                state, sharding.put_batch(batch, program.batch), np.uint32(0)
            )
            lines.append({name: float(value) for name, value in metrics.items()})
    return jax.device_get(state), lines


def test_sinks_that_are_used_in_every_step_are_updated_as_densely(tiny):
    """Weight decay, the multiple of the learning rate and clipping among it."""
    fields = {"sinks.pool": 12, "sinks.active": 12, "sinks.opens_at": 1, "mesh.data": 1}
    fields |= {"sinks.learning_rate_multiple": 3.0, "optimizer.clip_norm": 0.3}
    fields |= {"optimizer.weight_decay": 0.5, "optimizer.warmup_steps": 1}
    tiny = with_fields(tiny, fields)
    params, data = initial(masked(tiny)), first_batches(tiny, 4)
    found, lines = steps(tiny, as_tables(params), data)
    expected, others = steps(masked(tiny), params, data)
    for line, other in zip(lines, others, strict=True):
        assert line == pytest.approx(other, rel=1e-5)
    for one, other in zip(
        jax.tree.leaves(found.params), jax.tree.leaves(as_tables(expected.params)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-4)  # as in test_step.py
    one = found.params["sink_up"]
    assert np.abs(one - as_tables(params)["sink_up"]).max() > 0.01
    np.testing.assert_allclose(one, as_tables(expected.params)["sink_up"], atol=1e-5)


def test_a_step_leaves_sinks_that_no_document_uses_as_they_are(tiny):
    """Their moments and counts too; and those of documents whose sinks are closed."""
    tiny = with_fields(tiny, {"mesh.data": 1})
    batch = first_batches(tiny, 1)[0]
    batch["identities"][4:] = batch["identities"][:1]
    batch["seen"] = np.array([[1], [1]] + [[0]] * 6, np.int32)
    chosen = document_sinks(batch["identities"][:2], 0, POOL, tiny.sinks)
    used = np.isin(np.arange(POOL), chosen)
    assert 6 < used.sum() < 13
    before = as_tables(initial(masked(tiny)))
    state, _ = steps(tiny, before, [batch, batch])
    adam = state.optimizer[1][0]
    for name in ("sink_up", "sink_down", "sink_up_bias"):
        moved = (state.params[name] != before[name]).reshape(POOL, -1)
        assert (moved.any(axis=1) == used).all() and moved[used].mean() > 0.9
        for moment in (adam.mu, adam.nu):
            assert ((moment[name] != 0).reshape(POOL, -1).any(axis=1) == used).all()
        assert (adam.counts[name] == 2 * used).all()


def test_bias_correction_counts_the_updates_of_a_row():
    """A row that is first used late moves by the learning rate then, as any parameter does at
    first.
    """
    adam, params = scale_by_adam(0.9, 0.99), {"dense": jnp.ones(2), "sink_up": jnp.ones((3, 1, 2))}
    state = adam.init(params)
    for _ in range(5):
        rows = active_rows.find(jnp.array([[[0, 2]]]), 3)
        gradients = {"dense": jnp.full(2, 0.3), "sink_up": jnp.full((2, 1, 2), 0.3)}
        updates, part = adam.update(gradients, active_rows.gather(state, rows))
        state = active_rows.scatter(state, part, rows)
    rows = active_rows.find(jnp.array([[[1, 2]]]), 3)
    updates, part = adam.update(
        {"dense": jnp.zeros(2), "sink_up": jnp.full((2, 1, 2), 0.3)},
        active_rows.gather(state, rows),
    )
    state = active_rows.scatter(state, part, rows)
    assert updates["sink_up"][0] == pytest.approx(1) and updates["sink_up"][1] == pytest.approx(1)
    assert (updates["dense"] < 0.95).all()
    assert state.counts["sink_up"].tolist() == [5, 1, 6] and state.count == 6


@pytest.mark.parametrize("pool", [6, 10, 100])
def test_rows_that_documents_share_are_gathered_once(pool):
    """Also where a pool has fewer rows than the batch has sinks: then all have their places."""
    found = active_rows.find(jnp.array([[[5, 3]], [[NONE, NONE]], [[3, pool - 1]]]), pool)
    rows_U = found.rows_nU.ravel()
    assert sorted(set(rows_U.tolist()) - {NONE}) == sorted({3, 5, pool - 1})
    assert len(rows_U) == 6
    assert (rows_U != NONE).sum() == len({3, 5, pool - 1})
    assert rows_U[found.places[jnp.array([0, 2])]].tolist() == [[[5, 3]], [[3, pool - 1]]]
    assert (found.places[1] == NONE).all()


PLAINLY = {}  # {pool: (initial parameters, batches, state, metrics)} on one device


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"compute.remat": "full"},
        {"compute.accumulate": 2, "compute.remat": "products", "mesh.data": 4},
        {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2},
        {"mesh.fsdp": 8},
        {"pool": 2000, "mesh.fsdp": 8},
        {"pool": 2000, "mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2},
    ],
)
def test_how_it_is_computed_changes_nothing(tiny, change):
    """Pools of which a step updates few rows, or all."""
    fields = {"data.rows": "packed", "mesh.data": 1, "sinks.pool": change.pop("pool", POOL)}
    tiny = with_fields(tiny, fields)
    if tiny.sinks.pool not in PLAINLY:
        params, data = as_tables(initial(masked(tiny))), first_batches(tiny, 3)
        PLAINLY[tiny.sinks.pool] = (params, data, *steps(tiny, params, data))
    params, data, state, lines = PLAINLY[tiny.sinks.pool]
    for name, value in change.items():
        section, field = name.split(".")
        tiny = with_fields(tiny, {f"{section}.{field}": value})
    devices = tiny.mesh.data * tiny.mesh.fsdp * tiny.mesh.tensor
    other, others = steps(tiny, params, data, devices)
    for line, again in zip(lines, others, strict=True):
        assert again == pytest.approx(line, rel=1e-5)
    for one, another in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(other.params), strict=True
    ):
        np.testing.assert_allclose(one, another, atol=2e-4)  # as in test_step.py


def test_a_skipped_update_leaves_the_tables_as_they_were(tiny):
    tiny = with_fields(tiny, {"mesh.data": 1})
    params, batch = as_tables(initial(masked(tiny))), first_batches(tiny, 1)[0]
    params["final_norm"]["scale"] = np.full_like(params["final_norm"]["scale"], np.nan)
    state, lines = steps(tiny, params, [batch])
    assert lines[0]["skipped_updates"] == 1
    for name in ("sink_up", "sink_down"):
        np.testing.assert_array_equal(state.params[name], params[name])
        assert not state.optimizer[1][0].counts[name].any()


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2)])
@pytest.mark.parametrize("pool", [40, 2000])
def test_devices_exchange_the_rows_that_they_ask_for(tiny, shape, pool):
    """No device holds, or passes on, the rows of all documents: of the tables, their moments or
    gradients.
    """
    tiny = with_fields(tiny, {"sinks.pool": pool, "mesh": MeshConfig(*shape)})
    mesh, documents = sharding.make_mesh(tiny.mesh), 3
    with jax.set_mesh(mesh):
        program = shared_program(tiny, 10, mesh, documents)
        text = program.step.lower(program.state, program.batch, program.seed).compile().as_text()
    sent = {}  # kind: [(rows, devices that talk to each other)]
    for computation in parse(text)[0].values():
        for instruction in computation:
            kind, devices = instruction.opcode, len(group(instruction.attributes) or range(8))
            counts = kind in COLLECTIVES and devices > 1
            for array in arrays_of(instruction.shape) if counts else ():
                if array.sizes[-2:] == (tiny.model.layers, tiny.model.d_model):
                    sent.setdefault(kind, []).append((math.prod(array.sizes[:-2]), devices))
    # Gradients are added up over `data`, of as many rows as a device has room for.
    room = min(pool // shape[1], tiny.training.batch_size * documents * tiny.sinks.active)
    assert set(sent.pop("all-reduce", [])) == ({(room, shape[0])} if shape[0] > 1 else set())
    assert set(sent) == {"all-to-all"}
    assert {devices for _, devices in sent["all-to-all"]} == {shape[1]}
