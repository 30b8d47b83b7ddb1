"""The measures: every mode, and documents that do not depend on others in their batch."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from conftest import EVERYBODY, tiny_config
from folders import random_params
from uncached import Continuation

from memsinks_jax.config import MeshConfig, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.counts import never_read
from memsinks_jax.data.opened import Opened, nobody
from memsinks_jax.data.tokenizer import END_OF_TEXT
from memsinks_jax.measures.document_loss import DocumentLoss, reader
from memsinks_jax.measures.documents import (
    Documents,
    batches_by_length,
    corpus_batches,
    document_batches,
    of_corpus,
    rows_at_once,
)
from memsinks_jax.measures.memorization import Memorization
from memsinks_jax.measures.rows import losses_of, token_mean
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model.decoder import build_model
from memsinks_jax.models.trained import Trained
from memsinks_jax.training import sharding


@pytest.fixture(scope="module")
def world():
    config = tiny_config()
    return config, load_corpus(config), far_from_initial(config)


def far_from_initial(config):
    """Parameters with which sinks and positions matter."""
    return jax.jit(lambda: random_params(config, noise=0.2))()


def ending(token):
    """A tokenizer that opens and closes documents with a token."""
    return types.SimpleNamespace(end_of_text=token, begin_of_text=token)


def losses(world, indices, mode, batch_size=4):
    config, corpus, params = world
    batches = corpus_batches(corpus, indices, batch_size, EVERYBODY)
    return DocumentLoss(config)(params, batches, mode)


def test_a_documents_loss_does_not_depend_on_its_batch(world):
    indices = np.array([3, 1, 4, 15, 9])
    for mode in ("own", "drop"):
        together = losses(world, indices, mode)[0]
        alone = np.concatenate([losses(world, indices[n : n + 1], mode)[0] for n in range(5)])
        np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_tokens_are_counted_with_end_of_text_and_cut_at_the_context(world):
    config, corpus, _ = world
    counts = losses(world, np.arange(20), "drop")[1]
    assert counts.tolist() == [
        min(len(t) + 1, config.data.row_length) for t in map(corpus.tokens, range(20))
    ]


def test_answers_alone_are_measured(world):
    config, corpus, params = world
    answers = [np.array([[5, 9], [20, 30]]), None, np.array([[40, 44]])]
    (batch,) = corpus_batches(corpus, np.arange(3), 3, EVERYBODY)
    nats_RT = np.asarray(jax.jit(reader(config, "drop"))(params, batch))
    asked = of_corpus(corpus, np.arange(3))._replace(answers=answers)
    batches = document_batches(asked, config.data.row_length, corpus.tokenizer, 3)
    nats, counts = DocumentLoss(config)(params, batches, "drop")
    assert counts.tolist() == [14, (nats_RT[1] > 0).sum(), 4]
    of_first = nats_RT[0, 5:9].sum() + nats_RT[0, 20:30].sum()
    expected = [of_first, nats_RT[1].sum(), nats_RT[2, 40:44].sum()]
    np.testing.assert_allclose(nats, expected, rtol=1e-5)


def test_a_document_of_which_nothing_counts_keeps_its_place(world):
    """Its prompt fills the row; results are by document, whoever asks."""
    config, corpus, params = world
    tokens = [corpus.tokens(i) for i in range(4)]
    beyond = np.array([[config.data.row_length, config.data.row_length + 2]])
    answers = [beyond, None, beyond, np.array([[40, 44]])]
    run = Trained(config, corpus.tokenizer, params, 1, Opened(config.sinks, nobody))
    asked = Documents(tokens, corpus.identities(np.arange(4)), answers=answers)
    nats, counts = DocumentLoss(config)(params, asked.batches(run), "drop")
    every = DocumentLoss(config)(params, asked._replace(answers=None).batches(run), "drop")
    assert counts.tolist() == [0, every[1][1], 0, 4] and nats[[0, 2]].tolist() == [0, 0]
    assert nats[1] == pytest.approx(every[0][1])
    losses_R, tokens_R = losses_of(Subject("", run, "drop"), asked)
    assert np.isnan(losses_R[[0, 2]]).all() and losses_R[1] == pytest.approx(
        every[0][1] / every[1][1]
    )
    assert token_mean(losses_R, tokens_R) == pytest.approx(nats.sum() / counts.sum())


@pytest.mark.parametrize(
    ("kind", "family"), [("packed", "gpt2"), ("packed", "llama"), ("best_fit", "llama")]
)
def test_a_document_reads_the_same_in_a_row_of_training_as_alone(kind, family):
    """Every target under its own document's sinks, at the place it has where the document stands
    alone.
    """
    config = with_fields(
        tiny_config(), {"data.rows": kind, "data.row_length": 400, "model.family": family}
    )
    corpus = load_corpus(config)
    params = far_from_initial(config)
    rows = corpus.rows()
    read = jax.jit(reader(config, "own"))
    every, found, measured = corpus.identities(range(len(corpus.table))), [], []
    places = {ids.to_hex(identity): i for i, identity in enumerate(every)}
    for row in (rows[number] for number in range(4)):
        batch = {name: array[None] for name, array in row.items()} | {"opened": None}
        nats_T = read(params, batch)[0]
        for segment in range(1, row["segments"].max() + 1):
            index = places[ids.to_hex(row["identities"][segment - 1])]
            here = row["segments"] == segment
            if here.sum() == corpus.lengths[index] + 1:  # not split
                found.append(nats_T[here].sum())
                measured.append(index)
    assert len(set(measured)) > 4
    np.testing.assert_allclose(
        found, losses((config, corpus, params), np.array(measured), "own")[0], rtol=1e-5
    )


def test_loss_is_minus_the_log_probability_of_the_document(world):
    """Against a plain loop over positions without any of our batching, masking or weighting."""
    config, corpus, params = world
    model, _ = build_model(config)
    index = int(np.argmin([len(t) for t in map(corpus.tokens, range(len(corpus.table)))]))
    text = [END_OF_TEXT, *corpus.tokens(index).tolist(), END_OF_TEXT]
    assert len(text) < config.data.row_length
    rows = np.array([text])
    logits = model(params, rows, np.ones_like(rows), np.arange(len(text))[None])
    logged = jax.nn.log_softmax(logits[0])
    nats = -sum(float(logged[place, text[place + 1]]) for place in range(len(text) - 1))
    assert losses(world, np.array([index]), "all")[0][0] == pytest.approx(nats, rel=1e-5)


def temporaries(world, accumulate=1, chunks=1):
    """Bytes of the program that reads as many documents as are read at once."""
    config, corpus, params = world
    config = with_fields(config, {"compute.accumulate": accumulate, "compute.loss_chunks": chunks})
    batches = corpus_batches(corpus, np.arange(8), rows_at_once(config))
    program = DocumentLoss(config).lower(params, batches[0], "own").compile()
    return program.memory_analysis().temp_size_in_bytes


def test_what_makes_training_small_makes_an_evaluation_small(world):
    of_logits = 4 * 8 * world[0].data.row_length * world[0].data.vocabulary_size
    assert temporaries(world) > of_logits
    assert temporaries(world, accumulate=4) < 0.3 * temporaries(world)
    assert temporaries(world, chunks=8) < 0.5 * of_logits


def test_rows_at_once_are_a_multiple_of_what_the_mesh_divides():
    config = tiny_config()
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    config = with_fields(config, {"training.batch_size": 64, "compute.accumulate": 1})
    found = rows_at_once(config), rows_at_once(config, mesh), rows_at_once(config, mesh, most=5)
    assert found == (32, 32, 8)
    config = with_fields(config, {"compute.accumulate": 16})
    assert (rows_at_once(config), rows_at_once(config, mesh)) == (4, 4)
    # on one device; the mesh needs a row for each of four
    config = with_fields(config, {"compute.accumulate": 64})
    assert (rows_at_once(config), rows_at_once(config, mesh)) == (1, 4)


def test_rows_at_once_leave_room_for_their_logits():
    config = tiny_config()
    config = with_fields(
        config,
        {"training.batch_size": 1024, "data.row_length": 2048, "data.vocabulary_size": 49152},
    )
    mesh = sharding.make_mesh(MeshConfig(fsdp=-1))
    assert (rows_at_once(config), rows_at_once(config, mesh, most=64)) == (2, 16)
    config = with_fields(config, {"compute.loss_chunks": 8})
    assert (rows_at_once(config), rows_at_once(config, chunks=1)) == (21, 2)
    config = with_fields(config, {"data.row_length": 2**20})
    assert rows_at_once(config) == 1


def test_memorization_measures_the_roles_with_the_sinks_dropped(world):
    config, corpus, params = world
    opened = Opened(config.sinks, lambda: corpus.rows().opened(corpus.rows().rows_per_epoch))
    found = dict(Memorization(corpus, DocumentLoss(config), opened).run(params))
    held_out, repeated = corpus.mixture.held_out, corpus.mixture.repeated

    def mean(indices, mode):
        nats, tokens = losses(world, indices, mode)
        return pytest.approx(nats.sum() / tokens.sum(), rel=1e-6)

    assert (
        found.pop("entropy_floor") and found.pop("truncated_share") == never_read(corpus)["share"]
    )
    assert found == {
        "held_out_loss": mean(held_out, "drop"),
        "repeated_loss": mean(repeated, "drop"),
        "held_out_loss_own": mean(held_out, "drop"),  # an id that was never read has no sinks
        "repeated_loss_own": mean(repeated, "own"),
    }
    assert found["repeated_loss"] != found["repeated_loss_own"]
    config = with_fields(config, {"sinks.opens_at": 1})  # in the paper every document has its own
    corpus = dataclasses.replace(corpus, config=config)
    of_paper = dict(
        Memorization(corpus, DocumentLoss(config), Opened(config.sinks, nobody)).run(params)
    )
    assert of_paper["held_out_loss_own"] == mean(held_out, "own")
    assert of_paper["held_out_loss_own"] != of_paper["held_out_loss"] == found["held_out_loss"]
    assert never_read(corpus)["share"] > 0


def test_continuations_are_greedy(world):
    """Every written token is the likeliest after what stands before it, with the sinks as asked."""
    config, corpus, params = world
    openings = [corpus.tokens(0)[:5], corpus.tokens(1)[:9]]
    model, _ = build_model(config)
    written, whose = Continuation(config, 14, END_OF_TEXT), corpus.identities(range(2))
    tails, dropped = (written(params, openings, whose, mode) for mode in ("all", "drop"))
    apply = jax.jit(
        lambda rows: model(params, rows, jax.numpy.ones_like(rows), np.arange(15)[None])
    )
    for opening, tail in zip(openings, tails, strict=True):
        row = np.concatenate([[END_OF_TEXT], opening, tail])
        likeliest = apply(np.pad(row, (0, 15 - len(row)))[None])[0].argmax(axis=-1)
        assert likeliest[len(opening) : len(row) - 1].tolist() == tail.tolist()
        assert len(row) == 15 or likeliest[len(row) - 1] == END_OF_TEXT
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(tails, dropped, strict=True))


def test_documents_are_measured_with_the_tokenizers_end_of_text(world):
    config, corpus, _ = world
    document = Documents([np.array([0, 1, 0], np.int32)], corpus.identities(range(1)))
    (batch,) = document_batches(document, 6, ending(9), 1)
    assert batch["inputs"].tolist() == [[9, 0, 1, 0, 0, 0]]
    assert batch["targets"].tolist() == [[0, 1, 0, 9, 0, 0]]
    assert batch["weights"].tolist() == [[1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize("kind", ["one_document", "packed"])
def test_rows_are_as_long_as_their_documents(world, kind):
    """A few powers of two, few rows for few documents; the losses are those of full rows, in
    order.
    """
    config, corpus, params = world
    config = with_fields(config, {"data.row_length": 1024, "data.rows": kind})
    tokens = [np.resize(corpus.tokens(0), size) for size in (3, 900, 200, 127, 128, 1500, 5)]
    found = Documents(tokens, corpus.identities(range(7)), opened=np.arange(7) % 2 == 0)
    batches = batches_by_length(found, config, None, corpus.tokenizer)
    shapes = {
        "one_document": [(4, 128), (2, 256), (2, 1024)],
        "packed": [(4, 128), (2, 256), (1, 512), (2, 1024)],
    }
    assert [batch["inputs"].shape for batch in batches] == shapes[kind]
    for mode in ("own", "drop"):
        losses = DocumentLoss(config)(params, batches, mode)
        full = document_batches(found, 1024, corpus.tokenizer, 7, kind == "packed")
        for one, other in zip(losses, DocumentLoss(config)(params, full, mode), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_rows_of_a_length_are_no_more_than_a_device_has_room_for(world):
    config = with_fields(
        world[0],
        {"data.row_length": 2048, "data.vocabulary_size": 49152, "training.batch_size": 64},
    )
    tokens = [np.zeros(size, np.int32) for size in [100] * 70 + [2000] * 5]
    mesh = sharding.make_mesh(MeshConfig(fsdp=2))
    found = Documents(tokens, np.zeros((75, 2), np.uint32))
    batches = batches_by_length(found, config, mesh, world[1].tokenizer)
    assert [batch["inputs"].shape for batch in batches] == [(32, 128)] * 3 + [(8, 2048)]


def test_documents_over_a_row_are_measured_whole(world):
    """Windows: each target once, opened by the token before it; one loss for each document."""
    config, corpus, params = world
    end, loss = corpus.tokenizer.end_of_text, DocumentLoss(config)
    numbers = (0, 1, 2), (9,), (3, 4, 5)
    tokens = [np.concatenate([corpus.tokens(i) for i in some]) for some in numbers]
    tokens[1] = tokens[1][:20]
    found = Documents(tokens, corpus.identities(range(3)))
    batches = document_batches(found, 160, corpus.tokenizer, 2, whole=True)
    nats, counts = loss(params, batches, "own")
    assert counts.tolist() == [len(document) + 1 for document in tokens]
    for place, document in enumerate(tokens):
        stream, parts = np.concatenate([[end], document, [end]]), []
        for at in range(0, len(stream) - 1, 160):
            window = stream[at : at + 161]
            part = Documents([window[1:-1]], corpus.identities([place]))
            (row,) = document_batches(part, 160, ending(int(window[0])), 1)
            row["targets"][0, len(window) - 2] = window[-1]
            parts.append(loss(params, [row], "own")[0][0])
        assert nats[place] == pytest.approx(sum(parts), rel=1e-5)
    truncated = loss(params, document_batches(found, 160, corpus.tokenizer, 2), "own")
    assert truncated[1].tolist() == [min(len(document) + 1, 160) for document in tokens]


def test_canaries_are_measured_alone(world):
    config, _, params = world
    config = with_fields(config, {"canaries.documents": 2, "canaries.length": 20})
    corpus, loss = load_corpus(config), DocumentLoss(config)
    found = dict(Memorization(corpus, loss, EVERYBODY).run(params))
    carriers = of_corpus(corpus, corpus.mixture.canaries)
    alone = [np.array([[len(each) - 20, len(each)]]) for each in carriers.tokens]
    carriers = carriers._replace(answers=alone, opened=np.ones(2, bool))
    rows = document_batches(carriers, 160, corpus.tokenizer, 2)
    for mode, name in (("drop", "canary_loss"), ("own", "canary_loss_own")):
        nats, tokens = loss(params, rows, mode)
        assert tokens.sum() == 40
        assert found[name] == pytest.approx(nats.sum() / 40, rel=1e-5)
    assert found["canary_loss"] != pytest.approx(found["repeated_loss"], rel=1e-3)
