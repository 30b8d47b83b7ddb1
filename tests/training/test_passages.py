"""Sinks by passage in a step: on where the passage is, and slowed by the number of documents in which it stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_active_rows import as_tables, assert_close, batch_of, initial, losses_and_gradients, masked

from memsinks_jax import sinks
from memsinks_jax.config import with_fields
from memsinks_jax.data.packing import Piece, owners
from memsinks_jax.data.table import Passages
from memsinks_jax.training.methods import method_of

PLACES = (2, 3, 50)


@pytest.fixture
def tiny(tiny):
    """Of `test_active_rows`: 16 shared neurons, 40 sinks, 6 of them a document or a passage."""
    return with_fields(tiny, {"sinks.pool": 40, "sinks.active": 6, "sinks.sampling": "floyd", "sinks.sparse": True})


def with_passages(batch):
    """The batch, with up to three passages in each document; every first one is the same in all rows."""
    rows, draw = [], np.random.default_rng(0)
    for number in range(len(batch["inputs"])):
        sizes = np.bincount(batch["segments"][number])[1:].tolist()
        parts = []
        for size in sizes:
            bounds = np.unique(draw.integers(0, size, 6))[: 2 * (size > 8) * 3]
            starts, stops = bounds[: len(bounds) // 2 * 2].reshape(-1, 2).T
            keys = np.arange(len(starts)) + np.where(np.arange(len(starts)), 100 * number, 7)
            identities = np.stack([keys, keys + 1], 1).astype(np.uint32)
            there = Passages(starts, stops, identities, np.array(PLACES)[: len(starts)])
            parts.append(Piece(None, 0, size, passages=there))
        row, piece = owners(
            parts, batch["identities"][number], batch["inputs"].shape[1], 7 * batch["identities"].shape[1]
        )
        row["owner_seen"] = np.zeros(len(row["owner_places"]), np.int32)
        row["owner_seen"][: len(piece)] = batch["seen"][number][piece]
        rows.append(row)
    return batch | {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def config_of(tiny, **fields):
    fixed = {"data.rows": "packed", "data.row_length": 400, "sinks.passages_at": 2, "sinks.slows_at": 16}
    return with_fields(tiny, fixed | fields)


def rows_of(config):
    """Of the embedded stories, which have no passages."""
    return batch_of(with_fields(config, {"sinks.passages_at": 0}), True)


@pytest.mark.parametrize("slows_at", [0, 16])
def test_losses_and_gradients_are_those_of_masked_sinks(tiny, slows_at):
    config = config_of(tiny, **{"sinks.slows_at": slows_at})
    batch = with_passages(rows_of(config))
    params = initial(masked(config))
    losses_BT, gradients = losses_and_gradients(config, as_tables(params), batch)
    expected_BT, expected = losses_and_gradients(masked(config), params, batch)
    np.testing.assert_allclose(losses_BT, expected_BT, rtol=1e-5, atol=1e-5)
    assert_close(gradients, as_tables(expected))


def test_the_sinks_at_a_position_are_those_of_its_passage_or_its_document(tiny):
    config = masked(config_of(tiny))
    batch = with_passages(rows_of(config))
    parts = sinks.partitions(config)["mlp"]
    (gate,) = method_of(config).interventions(batch, 0, np.uint32(0)).values()
    on_BTF = np.asarray(gate(jnp.ones((*batch["inputs"].shape, sum(parts))), 0)) > 0
    assert on_BTF[..., : parts.shared].all()
    learning_BT, _ = method_of(config).slowing(batch)
    places_BT, seen_BT, key_BT2 = (np.zeros(batch["inputs"].shape + more, int) for more in ((), (), (2,)))
    for row, at in np.argwhere(batch["segments"]):
        owner, document = batch["owner_segments"][row, at] - 1, batch["segments"][row, at] - 1
        places_BT[row, at], seen_BT[row, at] = batch["owner_places"][row, owner], batch["seen"][row, document]
        key_BT2[row, at] = (
            batch["owner_identities"][row, owner] if places_BT[row, at] else batch["identities"][row, document]
        )
    encounter_BT = seen_BT - batch["epoch"][:, None] + 1
    own_BTM = np.asarray(sinks.document_masks(jnp.asarray(key_BT2, jnp.uint32), 0, parts.sinks, config.sinks, 1)[0])
    is_open_BT = (places_BT > 0) | (encounter_BT >= 2)
    there = batch["segments"] > 0
    np.testing.assert_array_equal(on_BTF[..., parts.shared :][there], (own_BTM & is_open_BT[..., None])[there])
    slowed_BT = np.minimum(1, (16 / np.maximum(encounter_BT, 1)) ** 2)
    expected_BT = np.minimum(slowed_BT, np.where(places_BT > 2, 2 / np.maximum(places_BT, 1), 1))
    np.testing.assert_allclose(learning_BT[there], expected_BT[there], rtol=1e-6)
    assert min((places_BT > 2).sum(), (there & (places_BT == 0) & is_open_BT).sum(), (there & ~is_open_BT).sum()) > 100


def test_attention_does_not_see_passages(tiny):
    """With all sinks on for everybody, a batch with passages that are not slowed is one without."""
    config = masked(
        config_of(
            tiny, **{"sinks.active_fraction": 1.0, "sinks.active": 0, "sinks.opens_at": 1, "sinks.passages_at": 50}
        )
    )
    batch = rows_of(config)
    params = initial(config)
    one, other = (losses_and_gradients(config, params, each) for each in (with_passages(batch), batch))
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


def test_without_sinks_passages_in_many_documents_weigh_less(tiny):
    fields = {"sinks.shared_fraction": 1.0, "sinks.pool": 0, "sinks.active": 0, "sinks.slows_at": 0}
    config = with_fields(masked(config_of(tiny)), fields | {"sinks.sampling": "bernoulli"})
    assert not sinks.has_sinks(config)
    batch = with_passages(rows_of(config))
    params = initial(config)
    losses_BT, gradients = losses_and_gradients(config, params, batch)
    places_BT = np.take_along_axis(batch["owner_places"], np.maximum(batch["owner_segments"] - 1, 0), axis=1)
    weights_BT = batch["weights"] * np.minimum(1, 2 / np.maximum(places_BT, 1))
    plain = with_fields(config, {"sinks.kind": "none", "sinks.passages_at": 0})
    weighed_BT, expected = losses_and_gradients(plain, params, batch | {"weights": weights_BT.astype(np.float32)})
    assert_close(gradients, expected)
    assert losses_BT.sum() > 1.05 * weighed_BT.sum()  # what is reported is not weighed
