"""The masks: their statistics, and that they depend only on seed and id."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error, python
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from memsinks_jax.config import KINDS, MeshConfig, ModelConfig, SinksConfig
from memsinks_jax.data import ids
from memsinks_jax.sinks.blocks import cut_into_blocks, sinks_for_mode
from memsinks_jax.sinks.draws import document_masks, document_sinks
from memsinks_jax.sinks.gates import apply_gates, chance_gates, gates_for_mode
from memsinks_jax.sinks.kinds import NONE, Partition, partition, share_on
from memsinks_jax.training.sharding import make_mesh

COUNT = 154


def masks(identities, config=None, seed=0, count=COUNT, **options) -> np.ndarray:
    options |= {"count": count, "sinks": config or SinksConfig()}
    return np.asarray(jax.jit(functools.partial(document_masks, **options))(identities, seed))


def hashed(count: int) -> np.ndarray:
    return np.stack([ids.content_id(np.array([7, index], np.int32)) for index in range(count)])


def sequential(count: int) -> np.ndarray:
    return ids.as_lanes(np.arange(1, count + 1, dtype=np.uint64))


@pytest.mark.parametrize(
    "identities", [hashed(20_000), sequential(20_000)], ids=["hashed", "sequential"]
)
@pytest.mark.parametrize("active", [0.1, 0.3, 0.7])
def test_statistics(identities, active):
    """Specs' U2: rate of every neuron, agreement of neighbours, overlap of pairs."""
    drawn = masks(identities, SinksConfig(active_fraction=active)).astype(float)
    assert np.abs(drawn.mean(axis=0) - active).max() < 0.015
    agreement = (drawn[1:] == drawn[:-1]).mean()
    assert abs(agreement - (active**2 + (1 - active) ** 2)) < 0.02
    overlap = (drawn[0::2] * drawn[1::2]).mean()
    assert abs(overlap - active**2) < 0.002


def test_exact_sampling_gives_every_document_the_same_number():
    drawn = masks(hashed(500), SinksConfig(sampling="exact", active_fraction=0.3))
    assert set(drawn.sum(axis=1)) == {round(0.3 * COUNT)}
    assert np.abs(drawn.mean(axis=0) - 0.3).max() < 0.1  # and not always the same ones


def test_an_active_fraction_of_one_switches_all_on():
    assert masks(hashed(100), SinksConfig(active_fraction=1.0)).all()


def test_both_lanes_and_the_seed_count():
    one = masks(np.array([[5, 9], [6, 9], [5, 8], [9, 5]], np.uint32))
    for first in range(4):
        for second in range(first):
            assert (one[first] != one[second]).mean() > 0.2
    assert (masks(hashed(1)) != masks(hashed(1), seed=1)).mean() > 0.2


def test_other_sinks_are_fixed_and_independent_of_the_own():
    own, other = masks(hashed(2000)), masks(hashed(2000), other=True)
    assert abs((own * other).mean() - 0.09) < 0.005
    assert (other == masks(hashed(2000), other=True)).all()


def test_place_in_the_batch_and_batch_size_change_nothing():
    identities = hashed(64)
    all_at_once = masks(identities)
    order = np.random.default_rng(0).permutation(64)
    assert (masks(identities[order]) == all_at_once[order]).all()
    assert (masks(identities.reshape(8, 8, 2)).reshape(64, -1) == all_at_once).all()
    assert (masks(identities[17:18])[0] == all_at_once[17]).all()


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("tensor", [1, 2])
def test_meshes_change_nothing(devices, tensor):
    if tensor > devices:
        tensor = devices
    mesh = make_mesh(MeshConfig(tensor=tensor), jax.devices()[:devices])
    identities = hashed(64)
    put = jax.device_put(identities[:, None], NamedSharding(mesh, P(("data", "fsdp"))))
    parts = Partition(shared=10, sinks=22)
    drawn = jax.jit(
        lambda i: gates_for_mode("own", i, 0, parts, SinksConfig()),
        out_shardings=NamedSharding(mesh, P(("data", "fsdp"), None, "tensor")),
    )(put)
    assert (np.asarray(drawn)[:, 0, 10:] == masks(identities, count=22)).all()


def test_remat_changes_nothing():
    identities = jnp.asarray(hashed(8))

    def seen(x, identities):
        mask = document_masks(identities, 0, COUNT, SinksConfig()).astype(jnp.float32)
        return (mask * x).sum()

    plain = jax.grad(seen)(jnp.ones((8, COUNT)), identities)
    again = jax.jit(jax.grad(jax.checkpoint(seen)))(jnp.ones((8, COUNT)), identities)
    assert (plain == again).all()
    assert (plain == masks(hashed(8))).all()


@pytest.mark.parametrize("setting", ["default_prng_impl", "threefry_partitionable"])
def test_another_process_draws_the_same_whatever_its_settings_of_random_numbers(setting):
    value = {"default_prng_impl": "rbg", "threefry_partitionable": False}[setting]
    code = f"""
import json, jax, numpy as np
jax.config.update("jax_{setting}", {value!r})
from memsinks_jax.sinks.draws import document_masks
from memsinks_jax.config import SinksConfig
draw = lambda identities: document_masks(identities, 5, 40, SinksConfig())
drawn = [way(draw)(np.array([[1, 2], [3, 4]], np.uint32)) for way in (lambda f: f, jax.jit, jax.checkpoint)]
print(json.dumps(np.stack(drawn).astype(int).tolist()))
"""
    done = python("-c", code, check=True)
    here = masks(np.array([[1, 2], [3, 4]], np.uint32), seed=5, count=40)
    assert json.loads(done.stdout) == [here.astype(int).tolist()] * 3


def test_golden_mask():
    """Sinks of documents already trained must never move. If this fails, checkpoints of the past
    are misread: do not update the value, mend the code.
    """
    drawn = masks(np.array([[0x01234567, 0x89ABCDEF]], np.uint32), count=32)[0]
    assert "".join(map(str, drawn.astype(int))) == "01010101000100000000101000100110"


FLOYD = SinksConfig(sampling="floyd", active=7)


def drawn_sinks(identities, config=FLOYD, seed=0, count=COUNT, **options) -> np.ndarray:
    options |= {"count": count, "sinks": config}
    return np.asarray(jax.jit(functools.partial(document_sinks, **options))(identities, seed))


def test_golden_sinks_by_number():
    """As of the golden mask: do not update the value, mend the code."""
    drawn = drawn_sinks(np.array([[0x01234567, 0x89ABCDEF]], np.uint32), count=1_000_000)[0]
    assert drawn.tolist() == [906922, 636556, 150421, 517915, 686274, 173071, 939998]


@pytest.mark.parametrize(("count", "active"), [(154, 7), (46, 46), (1, 1), (1_000_000, 100)])
def test_sinks_by_number_are_distinct_and_those_of_the_mask(count, active):
    config = SinksConfig(sampling="floyd", active=active)
    drawn = drawn_sinks(hashed(20), config, count=count)
    assert drawn.shape == (20, active) and drawn.min() >= 0 and drawn.max() < count
    assert all(len(set(row)) == active for row in drawn.tolist())
    on = np.flatnonzero(masks(hashed(20), config, count=count)) % count
    assert (on == np.sort(drawn).ravel()).all()


def test_every_set_of_sinks_is_equally_likely():
    """All 20 sets of 3 of 6; 99.99% of such draws have a chi^2 of 19 degrees of freedom below
    51.
    """
    drawn = np.sort(drawn_sinks(hashed(20_000), SinksConfig(sampling="floyd", active=3), count=6))
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    assert ((counts - 1000) ** 2 / 1000).sum() < 51


def test_sinks_by_number_depend_on_seed_and_id_alone():
    identities = hashed(64)
    drawn = drawn_sinks(identities)
    assert (drawn_sinks(identities.reshape(8, 8, 2)).reshape(64, -1) == drawn).all()
    rows = NamedSharding(make_mesh(MeshConfig(tensor=2)), P(("data", "fsdp")))
    put = jax.device_put(identities, rows)
    on_mesh = jax.jit(lambda i: document_sinks(i, 0, COUNT, FLOYD))(put)
    assert (np.asarray(on_mesh) == drawn).all()
    for others in (drawn_sinks(identities, seed=1), drawn_sinks(identities, other=True)):
        assert (others != drawn).mean() > 0.9


@pytest.mark.parametrize("pool", [0, 100])
def test_partition_of_every_kind(pool):
    """A pool is added to the shared neurons."""
    model, added = ModelConfig(hidden=4096), pool or 1229
    for kind, parts in (
        ("by_document", (2867, added)),
        ("by_chance", (2867, added)),
        ("none", (4096, 0)),
        ("cut", (2867, 0)),
    ):
        assert partition(model, SinksConfig(pool=pool, kind=kind)) == parts
    assert partition(model, SinksConfig(shared_fraction=1.0)) == (4096, 0)


def test_a_number_of_active_sinks_is_exact():
    drawn = masks(hashed(500), SinksConfig(active=7))
    assert set(drawn.sum(axis=1)) == {7}
    assert np.abs(drawn.mean(axis=0) - 7 / COUNT).max() < 0.1  # and not always the same ones
    assert share_on(SinksConfig(active=7), 14) == 0.5
    assert share_on(SinksConfig(), 14) == 0.3
    with expect_input_error(
        "active is 7, but an MLP has 6 sinks; lower it, or raise config.sinks.pool"
    ):
        partition(ModelConfig(), SinksConfig(active=7, pool=6))


def test_modes():
    parts, identities = Partition(5, 9), hashed(4)[:, None]
    arguments = (identities, 0, parts, SinksConfig(active_fraction=0.5))
    own = np.asarray(gates_for_mode("own", *arguments))
    assert own.shape == (4, 1, 14)
    assert (own[..., :5] == 1).all()
    assert 0 < own[..., 5:].mean() < 1
    drop = np.asarray(gates_for_mode("drop", *arguments))
    assert (drop[..., :5] == 1).all()
    assert (drop[..., 5:] == 0).all()
    assert drop[..., 5:].size == 9
    assert gates_for_mode("all", *arguments) is None
    other = np.asarray(gates_for_mode("other", *arguments))
    assert (other[..., :5] == 1).all()
    assert (other != own).any()
    with pytest.raises(ValueError, match="own, drop, all, other"):
        gates_for_mode("off", *arguments)


@pytest.mark.parametrize("kind", [name for name, traits in KINDS.items() if traits.on_for_all])
def test_where_gradients_are_masked_every_document_has_all_sinks(kind):
    settings = SinksConfig(kind=kind)
    parts = Partition(2, 3)
    identities = jnp.ones((1, 1, 2), jnp.uint32)
    drop = gates_for_mode("drop", identities, 0, parts, settings)
    assert drop[0, 0].tolist() == [True, True, False, False, False]
    for mode in ("own", "all", "other"):
        assert gates_for_mode(mode, identities, 0, parts, settings) is None


def test_chance_gates_are_fresh_at_every_position_and_step():
    parts = Partition(5, 400)
    rows = jnp.arange(2)
    asked = rows, 3, 0, parts, SinksConfig()
    gates = [np.asarray(chance_gates(jnp.int32(step), *asked)) for step in (0, 1)]
    assert gates[0].shape == (2, 3, 405)
    assert (gates[0][..., :5] == 1).all()
    assert abs(np.mean(gates)) < 0.35
    assert abs(gates[0][..., 5:].mean() - 0.3) < 0.05
    assert (gates[0][0, 0] != gates[0][0, 1]).any()
    assert (gates[0][0] != gates[0][1]).any()
    assert (gates[0] != gates[1]).any()


def test_gates_reach_the_positions_of_their_document():
    gates = np.random.default_rng(0).random((2, 3, 4)) < 0.5  # two rows of up to three documents
    segments = np.array([[1, 1, 2, 3, 0], [1, 2, 2, 2, 3]])

    @jax.jit
    def out_of(gates):
        return apply_gates(gates, segments)["mlp"](jnp.ones((2, 5, 4)), jnp.int32(1))

    out = np.asarray(out_of(gates))
    for row in range(2):
        for place in range(5):
            assert (out[row, place] == gates[row, max(segments[row, place] - 1, 0)]).all()
    assert apply_gates(None, segments) == {}


@pytest.mark.parametrize(("length", "documents"), [(24, 3), (25, 4), (7, 7), (16, 5)])
def test_blocks_are_of_one_document_and_hold_every_position_once(length, documents):
    random, k = np.random.default_rng(0), 2
    lengths = [[length] + [0] * (documents - 1), [1] * documents, [0] * documents]
    even = np.ones(documents) / documents
    lengths += [random.multinomial(random.integers(length + 1), even) for _ in range(20)]
    # absent documents are the last
    lengths = np.array([sorted(each, key=lambda n: n == 0) for each in lengths])
    segments = np.zeros((len(lengths), length), np.int32)
    for row, each in enumerate(lengths):
        segments[row, : each.sum()] = np.repeat(np.arange(documents) + 1, each)
    numbers = np.arange(len(lengths) * documents * k).reshape(-1, documents, k)
    scales = np.arange(len(lengths) * documents).reshape(-1, documents)
    blocks = jax.jit(cut_into_blocks)(numbers, segments, scales)
    sinks_BRk, positions, places, scale_BR = map(np.asarray, blocks)
    size = positions.shape[1] // sinks_BRk.shape[1]
    assert positions.shape[1] <= 2 * length
    for row, own in enumerate(segments):
        held = sorted(p for p in positions[row].tolist() if p < length)
        assert held == np.flatnonzero(own).tolist()
        for place, position in enumerate(positions[row].tolist()):
            if position < length:
                block, document = (row, place // size), (row, own[position] - 1)
                assert places[row, position] == place
                assert sinks_BRk[block].tolist() == numbers[document].tolist()
                assert scale_BR[block] == scales[document]
        assert (places[row, own == 0] == positions.shape[1]).all()
        empty = (positions[row].reshape(-1, size) == length).all(axis=1)
        assert (sinks_BRk[row][empty] == NONE).all()


def test_sinks_by_number_in_every_mode():
    identities, segments = hashed(4).reshape(2, 2, 2), np.array([[1, 1, 2], [1, 1, 0]])
    of_three = SinksConfig(sampling="floyd", active=3)
    arguments = (identities, 0, 9, of_three, segments)
    own = np.asarray(sinks_for_mode("own", *arguments))
    drawn = drawn_sinks(hashed(4)[:3], of_three, count=9)
    assert (own[[0, 0, 1], [0, 1, 0]] == drawn).all()
    assert (own[1, 1] == NONE).all()  # the row has no second document
    opened = np.array([[True, False], [True, True]])
    closed = np.asarray(sinks_for_mode("own", *arguments, opened))
    assert (closed[0, 1] == NONE).all() and (closed[0, 0] == own[0, 0]).all()
    assert (np.asarray(sinks_for_mode("other", *arguments)) != own).any()
    assert sinks_for_mode("drop", *arguments) is None
    assert sinks_for_mode("all", *arguments).tolist() == [[list(range(9))]]
    with pytest.raises(ValueError, match="own, drop, all, other"):
        sinks_for_mode("off", *arguments)


def test_sparse_sinks_are_drawn_by_number():
    with expect_input_error(r"sinks.sparse .*sampling=floyd"):
        partition(ModelConfig(), SinksConfig(sparse=True))
    sparse = SinksConfig(sparse=True, sampling="floyd", pool=4096)
    assert partition(ModelConfig(), sparse) == (358, 4096)
