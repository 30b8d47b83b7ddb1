"""One update: its numbers, which are the same on every mesh."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

from memsinks_jax.config import RULES, MeshConfig, SinksConfig, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.packing import Piece, row_of
from memsinks_jax.data.pipeline import batches
from memsinks_jax.model.decoder import build_model
from memsinks_jax.sinks.interventions import sink_interventions
from memsinks_jax.sinks.kinds import MODES
from memsinks_jax.training import sharding
from memsinks_jax.training.method import method_of
from memsinks_jax.training.program import shared_program
from memsinks_jax.training.step import init_state, make_train_step

pytestmark = pytest.mark.long


def first_batches(config, count, offsets=None):
    corpus = load_corpus(config)
    return list(
        itertools.islice(batches(corpus.rows(), config.training.batch_size, offsets=offsets), count)
    )


def train(config, mesh, count=3, data=None):
    """Parameters and the metrics of every step, on a mesh."""
    params, lines = train_on_mesh(config, mesh, count, data)
    return jax.device_get(params), lines


def train_on_mesh(config, mesh, count, data=None):
    """The same, with the parameters where they are."""
    data = data or first_batches(config, count, sharding.own_rows(config.training.batch_size, mesh))
    with jax.set_mesh(mesh):
        program = shared_program(config, 10, mesh, data[0]["identities"].shape[1])
        state, lines = program.init(), []
        for batch in data:
            state, metrics = program.step(
                state, sharding.put_batch(batch, program.batch), np.uint32(config.seed)
            )
            lines.append({name: float(value) for name, value in metrics.items()})
    assert program.step._cache_size() == 1  # one trace, whatever the step
    return state.params, lines


def one_step(config, batch):
    """Parameters before and after a step on one device, and its metrics."""
    mesh = single(config)
    with jax.set_mesh(mesh):
        program = shared_program(config, 10, mesh, batch["identities"].shape[1])
        before = program.init()
        params = jax.device_get(before.params)  # the step takes the state away
        after, metrics = program.step(
            before, sharding.put_batch(batch, program.batch), np.uint32(config.seed)
        )
    after = jax.device_get(after.params)
    return params, after, {name: float(value) for name, value in metrics.items()}


def single(config):
    return sharding.make_mesh(MeshConfig(), jax.devices()[:1])


ALL = {name: RULES[name].choices for name in ("sinks.kind", "sinks.sampling")}


@pytest.mark.parametrize(
    ("kinds", "shares", "drawn"),
    [
        (("by_document",), (1.0,), ("floyd",)),
        pytest.param(ALL["sinks.kind"], (0.5, 1.0), ALL["sinks.sampling"], marks=pytest.mark.slow),
    ],
)
def test_a_model_can_be_without_sinks(tiny, kinds, shares, drawn):
    """However they are drawn and computed: traced, in training and in every mode."""
    rows, length = 8, tiny.data.row_length
    of = jax.ShapeDtypeStruct
    names = ("inputs", "targets", "segments", "positions", "contexts")
    shape = dict.fromkeys(names, of((rows, length), np.int32))
    shape |= {"weights": of((rows, length), np.float32), "identities": of((rows, 3, 2), np.uint32)}
    shape |= {"seen": of((rows, 3), np.int32), "epoch": of((rows,), np.int32)}
    shape |= {"repeated": of((rows, 3), bool)}
    for settings in itertools.product(kinds, shares, (False, True), drawn):
        kind, shared, sparse, sampling = settings
        by_group = sampling == "disjoint"
        if (
            sparse
            and sampling not in ("floyd", "disjoint")
            and shared < 1
            and kind == "by_document"
        ) or (by_group and (kind != "by_document" or shared == 1)):
            continue  # refused in one line
        drawn_by = {"sampling": sampling, "active": 2 if by_group else 0}
        of_kind = SinksConfig(kind=kind, shared_fraction=shared, sparse=sparse, **drawn_by)
        config = with_fields(tiny, {"sinks": of_kind, "model.layers": 1, "contexts.rows": 8})
        state = jax.eval_shape(functools.partial(init_state, config, 4))
        after, _ = jax.eval_shape(make_train_step(config, 4), state, shape, of((), np.uint32))
        assert jax.tree.structure(after) == jax.tree.structure(state), settings
        model, _ = build_model(config)
        for mode in MODES:

            def logits_of(params, batch, opened, mode=mode, model=model, config=config):
                about, by = (
                    (batch["segments"], batch["positions"]),
                    {"contexts_BT": batch["contexts"]},
                )
                asked = config, mode, batch["identities"], 0, batch["segments"], opened
                return model(params, batch["inputs"], *about, sink_interventions(*asked, **by))

            logits = jax.eval_shape(logits_of, state.params, shape, of((rows, 3), bool))
            assert logits.shape == (rows, length, tiny.data.vocabulary_size), settings


def test_rows_of_no_document_fill_up_a_batch_and_change_nothing(tiny):
    """Also where they are all of a microbatch."""
    few = with_fields(tiny, {"training.batch_size": 2, "training.steps": 1})
    (alone,) = first_batches(few, 1)
    rows = load_corpus(few).rows()
    filled = {name: np.stack([rows[number][name] for number in range(8)]) for name in alone}
    assert (filled["weights"][2:] == 0).all() and filled["weights"][:2].any()
    _, expected, metrics = one_step(few, alone)
    config = with_fields(tiny, {"training.batch_size": 8, "compute.accumulate": 4})
    _, found, of_filled = one_step(config, filled)
    assert of_filled == pytest.approx(metrics, rel=1e-5)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5),
        found,
        expected,
    )


def test_golden_first_steps(tiny):
    """Update these values only with a change that is meant to change what a step computes, and say
    so in the commit.
    """
    tiny = with_fields(tiny, {"sinks.opens_at": 1, "sinks.slows_at": 0})
    _, lines = train(tiny, single(tiny), count=2)
    expected = [
        {"train_loss": 6.9390349, "tokens": 1214, "gradient_norm": 0.5685622},
        {"train_loss": 6.9031882, "tokens": 1196, "gradient_norm": 0.6176570},
    ]
    for line, golden, rate in zip(lines, expected, (0.003, 0.0029185852), strict=True):
        golden |= {"learning_rate": rate}
        golden |= {"invalid_labels": 0, "skipped_updates": 0, "skipped_in_a_row": 0}
        assert line == pytest.approx(golden, rel=2e-5)


def test_the_loss_of_answers_is_their_mean(tiny):
    """Worked out by hand: minus the log-probability of every counted token given all before it,
    over their number.
    """
    tiny = with_fields(tiny, {"sinks.kind": "none", "data.row_length": 24})
    random = np.random.default_rng(0)
    tokens = [random.integers(3, 1024, n).astype(np.int32) for n in (9, 20, 30, 12)]
    spans = [[4, 10]], [[3, 6], [11, 13], [15, 21]], [[28, 31]], [[0, 13]]
    spans = list(map(np.array, spans))
    rows = [
        row_of([Piece(t, 0, min(len(t) + 1, 24), of)], np.ones((1, 2), np.uint32), 24, 1)
        for t, of in zip(tokens, spans, strict=True)
    ]
    batch = {name: np.stack([row[name] for row in rows * 2]) for name in rows[0]}
    batch |= {"seen": np.zeros((8, 1), np.int32), "epoch": np.zeros(8, np.int32)}
    batch |= {"repeated": np.zeros((8, 1), bool)}
    before, _, metrics = one_step(tiny, batch)
    read_BT, model = np.zeros((4, 24), np.int32), build_model(tiny)[0]
    for read_T, document in zip(read_BT, tokens, strict=True):
        read_T[: len(document) + 1] = [1, *document][:24]
    places_BT = np.tile(np.arange(24, dtype=np.int32), (4, 1))
    logits_BTV = jax.jit(model)(before, read_BT, np.ones_like(read_BT), places_BT)
    chances_BTV = jax.nn.log_softmax(logits_BTV)
    nats, count = 0.0, 0
    for row, (document, of) in enumerate(zip(tokens, spans, strict=True)):
        for place in itertools.chain(*(range(start, min(stop, 24)) for start, stop in of.tolist())):
            nats, count = nats - float(chances_BTV[row, place, [*document, 1][place]]), count + 1
    # of the third no answer is in the row
    assert metrics["tokens"] == 2 * count == 2 * (6 + 3 + 2 + 6 + 13)
    assert metrics["train_loss"] == pytest.approx(nats / count, rel=1e-5)


def test_first_loss_is_that_of_guessing(tiny):
    _, lines = train(tiny, single(tiny), count=1)
    assert lines[0]["train_loss"] == pytest.approx(np.log(tiny.data.vocabulary_size), abs=0.05)


@pytest.mark.parametrize(
    ("shape", "rows", "family"),
    [
        ((8, 1, 1), "one_document", "gpt2"),
        ((2, 2, 2), "packed", "llama"),
        pytest.param((2, 2, 2), "one_document", "gpt2", marks=pytest.mark.slow),
        pytest.param((4, 1, 2), "packed", "gpt2", marks=pytest.mark.slow),
        pytest.param((1, 8, 1), "packed", "gpt2", marks=pytest.mark.slow),
    ],
)
def test_every_mesh_trains_the_same(tiny, shape, rows, family):
    tiny = with_fields(tiny, {"data.rows": rows, "model.family": family})
    data = first_batches(tiny, 3)
    params, lines = train(tiny, single(tiny), data=data)
    tiny = with_fields(tiny, {"mesh": MeshConfig(*shape)})
    other_params, other_lines = train(tiny, sharding.make_mesh(tiny.mesh), data=data)
    for line, other in zip(lines, other_lines, strict=True):
        assert other == pytest.approx(line, rel=1e-5)
    np.testing.assert_allclose(
        np.concatenate([a.ravel() for a in jax.tree.leaves(params)]),
        np.concatenate([a.ravel() for a in jax.tree.leaves(other_params)]),
        # where a gradient is almost 0, Adam turns its last bits into a step of the learning rate
        atol=2e-4,
    )


@pytest.mark.slow
def test_muon_trains_the_same_on_a_mesh(tiny):
    """Its matrices are orthogonalized whole, wherever their parts lie."""
    tiny = with_fields(tiny, {"sinks.kind": "none", "optimizer.kind": "muon", "model.layers": 1})
    data = first_batches(tiny, 3)
    _, lines = train(tiny, single(tiny), data=data)
    tiny = with_fields(tiny, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2})
    _, other_lines = train(tiny, sharding.make_mesh(tiny.mesh), data=data)
    for line, other in zip(lines, other_lines, strict=True):
        # Newton and Schulz's five steps enlarge the last bits
        assert other == pytest.approx(line, rel=1e-4)


@pytest.mark.slow
def test_remat_trains_the_same(tiny):
    _, plain = train(tiny, single(tiny))
    tiny = with_fields(tiny, {"compute.remat": "full"})
    shapes = jax.eval_shape(lambda: init_state(tiny, 10))
    program = str(
        jax.make_jaxpr(make_train_step(tiny, 10))(shapes, first_batches(tiny, 1)[0], np.uint32(0))
    )
    assert "remat" in program
    _, again = train(tiny, single(tiny))
    for line, other in zip(plain, again, strict=True):
        assert other == pytest.approx(line, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 1, 1), (4, 2, 1), (2, 2, 2)])
def test_twenty_steps_on_a_mesh_stay_those_of_one_device(tiny, shape):
    tiny = with_fields(tiny, {"data.rows": "packed"})
    data = first_batches(tiny, 20)
    _, lines = train(tiny, single(tiny), data=data)
    tiny = with_fields(tiny, {"mesh": MeshConfig(*shape)})
    _, others = train(tiny, sharding.make_mesh(tiny.mesh), data=data)
    assert [line["train_loss"] for line in others] == pytest.approx(
        [line["train_loss"] for line in lines], rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"accumulate": 2}, {"loss_chunks": 3}, {"accumulate": 4, "remat": "products"}]
)
@pytest.mark.parametrize("shape", [pytest.param((1, 1, 1), marks=pytest.mark.slow), (2, 1, 1)])
def test_how_it_is_computed_changes_nothing(tiny, change, shape):
    """Documents of different lengths: each token of the batch counts the same, whichever part it
    falls into.
    """
    data = first_batches(tiny, 3)
    params, plain = train(tiny, single(tiny), data=data)
    for name, value in change.items():
        tiny = with_fields(tiny, {f"compute.{name}": value})
    tiny = with_fields(tiny, {"mesh": MeshConfig(*shape)})
    mesh = sharding.make_mesh(tiny.mesh, jax.devices()[: shape[0]])
    others, again = train(tiny, mesh, data=data)
    for line, other in zip(plain, again, strict=True):
        assert other == pytest.approx(line, rel=1e-5)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)  # as above


@pytest.mark.slow
@pytest.mark.parametrize(("accumulate", "shape"), [(2, (1, 1, 1)), (4, (2, 1, 1)), (1, (2, 2, 2))])
def test_chance_falls_the_same_however_it_is_computed(tiny, accumulate, shape):
    """A run may go on with other microbatches and another mesh: each row of a step keeps its
    gates.
    """
    tiny = with_fields(tiny, {"sinks.kind": "by_chance", "model.layers": 1})
    data = first_batches(tiny, 2)
    params, plain = train(tiny, single(tiny), data=data)
    tiny = with_fields(tiny, {"compute.accumulate": accumulate, "mesh": MeshConfig(*shape)})
    others, again = train(
        tiny, sharding.make_mesh(tiny.mesh, jax.devices()[: math.prod(shape)]), data=data
    )
    for line, other in zip(plain, again, strict=True):
        assert other == pytest.approx(line, rel=1e-5)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)  # as above


def test_parts_of_a_batch_drop_out_their_own(tiny):
    """The control's chance is drawn anew for every row of a step, and so for every part."""
    tiny = with_fields(tiny, {"sinks.kind": "by_chance"})
    batch = first_batches(tiny, 1)[0]
    one, two = (
        method_of(tiny).interventions(batch | {"rows": np.arange(8) + first}, 4, 0)
        for first in (0, 8)
    )
    x = np.ones((8, tiny.data.row_length, 32), np.float32)
    assert (one["mlp"](x, 0) != two["mlp"](x, 0)).any()
    assert (np.asarray(one["mlp"](x, 0))[..., :16] == 1).all()


def test_loss_is_over_tokens_not_over_rows(tiny):
    """A batch with a short and a long document: every token counts the same."""
    batch = first_batches(tiny, 1)[0]
    halves = [
        {name: rows[i::2].repeat(2, axis=0) for name, rows in batch.items()} for i in range(2)
    ]
    losses = [train(tiny, single(tiny), data=[half])[1][0] for half in halves]
    whole = train(tiny, single(tiny), data=[batch])[1][0]
    weights = [line["tokens"] for line in losses]
    assert weights[0] != weights[1]
    assert whole["train_loss"] == pytest.approx(
        np.average([x["train_loss"] for x in losses], weights=weights), rel=1e-6
    )


def test_variants_differ_in_what_they_train(tiny):
    seen = {}
    for kind in ("by_document", "by_chance", "none", "cut"):
        tiny = with_fields(tiny, {"sinks.kind": kind})
        params, lines = train(tiny, single(tiny), count=2)
        seen[kind] = (params["layers"]["up_kernel"].shape[-1], lines[1]["train_loss"])
    assert [width for width, _ in seen.values()] == [32, 32, 32, 16]
    assert len({loss for _, loss in seen.values()}) == 4


def test_seed_changes_weights_and_sinks(tiny):
    data = first_batches(tiny, 1)
    one = train(tiny, single(tiny), data=data)[1]
    tiny = with_fields(tiny, {"seed": 1})
    assert train(tiny, single(tiny), data=data)[1] != one


def test_sinks_of_other_documents_keep_their_weights(tiny):
    """One step on one document: no sink outside its own moves, but for weight decay."""
    batch = {name: rows[:1].repeat(8, axis=0) for name, rows in first_batches(tiny, 1)[0].items()}
    moved = moved_neurons(tiny, batch | {"seen": np.ones_like(batch["seen"])})
    assert moved[:, :16].all()
    assert (moved[0] == moved[1]).all()
    assert 0 < moved[:, 16:].mean() < 1


def moved_neurons(config, batch):
    """Whose weights a step on a batch moves -> bool (layers, hidden)."""
    config = with_fields(config, {"optimizer.weight_decay": 0.0})
    before, after, _ = one_step(config, batch)
    return (before["layers"]["up_kernel"] != after["layers"]["up_kernel"]).any(axis=1)


@pytest.mark.parametrize(
    ("seen", "epoch", "opens_at", "opened"),
    [
        (0, 0, 2, False),
        (1, 0, 2, True),
        (0, 0, 1, True),
        (2, 0, 4, False),
        (3, 0, 4, True),
        (3, 3, 2, False),
        (4, 3, 2, True),
    ],  # once an epoch is no return
)
def test_a_document_trains_its_sinks_from_the_encounter_that_opens_them(
    tiny, seen, epoch, opens_at, opened
):
    tiny = with_fields(tiny, {"sinks.opens_at": opens_at})
    batch = first_batches(tiny, 1)[0]
    batch |= {
        "seen": np.full_like(batch["seen"], seen),
        "epoch": np.full_like(batch["epoch"], epoch),
    }
    moved = moved_neurons(tiny, batch)
    assert moved[:, :16].all()
    assert moved[:, 16:].any() == opened


def test_closed_sinks_are_off_for_their_document_alone(tiny):
    tiny = with_fields(tiny, {"data.rows": "packed"})
    batch = next(b for b in first_batches(tiny, 5) if (b["segments"].max(axis=1) > 1).all())
    batch["seen"] = np.arange(batch["seen"].size, dtype=np.int32).reshape(batch["seen"].shape) % 2
    is_open = np.take_along_axis(batch["seen"], np.maximum(batch["segments"] - 1, 0), axis=1) == 1
    gates = method_of(tiny).interventions(batch, 0, 0)
    tiny = with_fields(tiny, {"sinks.opens_at": 1})
    always = method_of(tiny).interventions(batch, 0, 0)
    x = np.ones((8, tiny.data.row_length, 32), np.float32)
    found, own = (np.asarray(each["mlp"](x, 0)) for each in (gates, always))
    np.testing.assert_array_equal(found[is_open], own[is_open])
    assert own[~is_open][:, 16:].any() and not found[~is_open][:, 16:].any()
    assert (found[..., :16] == 1).all()
