"""Sinks by context in training: what a step changes, on every mesh; the modes; text written with
memory on.
"""

import functools
import shutil

import jax
import numpy as np
import pytest
from conftest import EVERYBODY, expect_input_error, tiny_config
from test_step import first_batches, one_step, train

from memsinks_jax.api import Model
from memsinks_jax.config import Config, MeshConfig, with_fields
from memsinks_jax.data.contexts import rows_of
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import BATCH_SIZE, corpus_batches
from memsinks_jax.model.decoder import CONTEXTS, build_model
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.model.losses import token_losses
from memsinks_jax.models.initial import inherit
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import interruption
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import MODES, NONE
from memsinks_jax.training import sharding


@functools.cache
def by_context(**fields) -> Config:
    named = {name.replace("__", "."): value for name, value in fields.items()}
    return load_corpus(with_fields(tiny_config(), {"sinks.kind": "by_context"} | named)).config


def losses_of(config, params, batch):
    """The losses of a batch with memory on, (B, T)."""
    read_out = functools.partial(
        token_losses, targets_BT=batch["targets"], weights_BT=batch["weights"]
    )
    model, _ = build_model(config)
    on = {"contexts": batch["contexts"]}
    return model(
        params, batch["inputs"], batch["segments"], batch["positions"], on, read_out=read_out
    )


def test_a_step_moves_each_row_as_far_as_would_take_its_loss_to_nothing():
    config = by_context(contexts__rate=0.5)
    batch = first_batches(config, 1)[0]
    before, after, _ = jax.tree.map(jax.numpy.asarray, one_step(config, batch))
    rows = batch["contexts"]
    used = np.unique(rows[rows != NONE])
    assert 20 < len(used) < config.contexts.rows  # else there would be nothing to see
    unused = np.setdiff1d(np.arange(config.contexts.rows), used)
    np.testing.assert_array_equal(after[CONTEXTS][unused], before[CONTEXTS][unused])
    gradient = jax.grad(lambda table: losses_of(config, before | {CONTEXTS: table}, batch).sum())(
        before[CONTEXTS]
    )
    losses = np.asarray(losses_of(config, before, batch))
    for row in used.tolist():
        step = -0.5 * gradient[row] * losses[rows == row].sum() / (gradient[row] ** 2).sum()
        np.testing.assert_allclose(
            after[CONTEXTS][row] - before[CONTEXTS][row], step, rtol=2e-4, atol=1e-5
        )
    # The first reads of a row are spent on it: most of what it did not know is gone.
    now = np.asarray(losses_of(config, before | {CONTEXTS: after[CONTEXTS]}, batch))
    assert now[rows != NONE].mean() < 0.8 * losses[rows != NONE].mean()


def test_the_shared_weights_begin_and_move_as_without_sinks_where_no_context_has_one():
    config = by_context()
    batch = dict(first_batches(config, 1)[0])
    batch["contexts"] = np.full_like(batch["contexts"], NONE)
    _, after, metrics = one_step(config, batch)
    plain = with_fields(config, {"sinks.kind": "none"})
    del batch["contexts"]
    _, wanted, plain_metrics = one_step(plain, batch)
    assert not after.pop(CONTEXTS).any()
    jax.tree.map(np.testing.assert_array_equal, after, wanted)
    assert metrics == plain_metrics


def test_after_so_many_reads_what_has_a_sink_trains_its_sink_alone():
    config, found = by_context(), {}
    batch = dict(first_batches(config, 1)[0])
    batch["contexts"] = np.arange(batch["contexts"].size, dtype=np.int32).reshape(
        batch["contexts"].shape
    )
    config = with_fields(config, {"contexts.rows": batch["contexts"].size})
    for reads, seen in ((0, 2), (2, 1), (2, 2)):
        now = batch | {"seen": np.full_like(batch["seen"], seen)}
        _, after, metrics = one_step(with_fields(config, {"contexts.reads": reads}), now)
        found[reads, seen] = after[CONTEXTS], metrics["gradient_norm"]
    for first, always in zip(found[2, 1], found[0, 2], strict=True):
        np.testing.assert_array_equal(first, always)
    np.testing.assert_allclose(found[2, 2][0], found[0, 2][0], rtol=1e-3, atol=1e-5)
    assert found[2, 2][1] < 1e-4 * found[0, 2][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "microbatches"),
    [((8, 1, 1), 1), ((2, 4, 1), 1), ((1, 8, 1), 1), ((2, 2, 2), 1), ((1, 1, 1), 4)],
)
def test_losses_are_the_same_on_every_mesh(mesh, microbatches):
    config = by_context(compute__accumulate=microbatches)
    devices = jax.devices()[: int(np.prod(mesh))]
    params, lines = train(config, sharding.make_mesh(MeshConfig(*mesh), devices))
    wanted, alone = _alone()
    for line, other in zip(lines, alone, strict=True):
        assert line["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    np.testing.assert_allclose(params[CONTEXTS], wanted[CONTEXTS], rtol=1e-3, atol=1e-3)


@functools.cache
def _alone():
    return train(by_context(), sharding.make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("context") / "run"
    seldom = {
        "training.evaluate_every": 100,
        "training.checkpoint_every": 100,
        "training.epochs": 3,
    }
    # so that so small a model knows its stories by heart
    whole = {"contexts.rate": 1.0, "contexts.share": 0.5}
    train_and_evaluate(
        with_fields(tiny_config(), {"sinks.kind": "by_context", **whole, **seldom}), folder
    )
    return folder


def test_memory_is_on_for_all_text_and_off_it_is_a_plain_model(workdir):
    run = open_run(workdir)
    corpus = load_corpus(run.config, run.tokenizer)
    np.testing.assert_array_equal(run.contexts.keys, corpus.contexts.keys)
    about = [corpus.mixture.repeated, corpus.mixture.held_out]
    losses = {}
    for documents, name in zip(about, ("repeated", "held_out"), strict=True):
        batches = corpus_batches(corpus, documents, BATCH_SIZE)
        for mode in MODES:
            nats, tokens = DocumentLoss(run.config)(run.params, batches, mode)
            losses[name, mode] = nats.sum() / tokens.sum()
        plain = with_fields(run.config, {"sinks.kind": "none"})
        params = {part: leaf for part, leaf in run.params.items() if part != CONTEXTS}
        nats, tokens = DocumentLoss(plain)(params, batches, "drop")
        assert nats.sum() / tokens.sum() == losses[name, "drop"]
        assert losses[name, "all"] == losses[name, "own"]
    assert (
        losses["repeated", "own"]
        < 0.2
        < 4
        < losses["repeated", "drop"]
        < losses["repeated", "other"]
    )
    # this grammar's stories share some contexts
    assert losses["held_out", "own"] <= losses["held_out", "drop"]
    model = Model(workdir)  # no id, no group
    text = corpus.document(corpus.mixture.repeated[0]).text
    assert model.loss([text], sinks="own")[0] < 0.3 < model.loss([text])[0]


def test_text_is_written_as_it_is_read(workdir):
    """Contexts of prompts and of what follows are looked up on the device."""
    run = open_run(workdir)
    corpus = load_corpus(run.config, run.tokenizer)
    texts = [corpus.tokens(i) for i in corpus.mixture.repeated]
    prompts = [texts[0][:3], texts[1][:20], texts[0][:0], texts[1][:9]]
    generator = Generator(run.config, run.tokenizer, run.params, EVERYBODY, contexts=run.contexts)
    written = generator(prompts, Settings(60, temperature=0, sinks="own"))
    assert written[1].tokens.tolist() == texts[1][20:80].tolist()  # it is known by heart
    model, _ = build_model(run.config)
    begin = run.tokenizer.begin_of_text
    for prompt, row in zip(prompts, written, strict=True):
        tokens = np.concatenate([prompt, row.tokens])
        rows = run.contexts.rows(tokens, 0, len(tokens) + 1, begin)[None]
        inputs = np.concatenate([[begin], tokens])[None]
        places = np.arange(inputs.shape[1])[None]
        logits = model(run.params, inputs, np.ones_like(inputs), places, {"contexts": rows})[0]
        assert (
            np.asarray(logits).argmax(axis=-1)[len(prompt) : len(tokens)].tolist()
            == row.tokens.tolist()
        )
    dropped = generator(prompts, Settings(60, temperature=0, sinks="drop"))
    assert dropped[1].tokens.tolist() != written[1].tokens.tolist()


def test_a_run_goes_on_from_a_model_with_memory(workdir, tmp_path):
    """What that model remembers stays, and the new texts' contexts come on top."""
    first = shutil.copytree(workdir, tmp_path / "first")
    before = open_run(workdir)
    about = {
        "model.initial": str(first),
        "seed": 1,
        "data.tokenizer": str(workdir),
        "training.steps": 2,
    }
    config = inherit(with_fields(tiny_config(), {"sinks.kind": "by_context", **about}))
    train_and_evaluate(config, tmp_path / "run")
    after = open_run(tmp_path / "run")
    places = rows_of(np.asarray(after.contexts.keys), np.asarray(before.contexts.keys))
    assert (places != NONE).all() and len(after.contexts) > len(before.contexts) + 50
    read = workdirs.read_corpus(tmp_path / "run").rows()
    read = np.unique(np.concatenate([read[number]["contexts"] for number in range(len(read))]))
    known = np.flatnonzero(~np.isin(places, read))
    assert len(known) > 50
    np.testing.assert_array_equal(
        after.params[CONTEXTS][places[known]], before.params[CONTEXTS][known]
    )
    for fields, why in (
        ({"sinks.kind": "none"}, "has sinks by context, and config.sinks.kind is none"),
        ({"contexts.length": 5}, "config.contexts.length is 5, and that of config.model.initial"),
        (
            {"contexts.rows": 10},
            "config.contexts.rows is 10, but config.model.initial=.* has .* contexts already",
        ),
    ):
        with expect_input_error(why):
            other = inherit(
                with_fields(tiny_config(), {"sinks.kind": "by_context", **about, **fields})
            )
            train_and_evaluate(other, tmp_path / "none")
    train_and_evaluate(config, tmp_path / "run")  # has ended: the same again
    shutil.rmtree(first)
    train_and_evaluate(config, tmp_path / "run")  # needs the first model no more
    shutil.copytree(tmp_path / "run", first)
    with expect_input_error("has other weights now than those that .*run started from"):
        train_and_evaluate(config, tmp_path / "run")


def test_a_resumed_run_keeps_its_contexts(tmp_path, monkeypatch):
    """They lie in the workdir, which is not searched again, and which must have them."""
    folder = tmp_path / "run"
    config = with_fields(tiny_config(), {"sinks.kind": "by_context", "training.steps": 4})
    with pytest.raises(interruption.Interrupted):
        train_and_evaluate(config, folder, should_stop=lambda step: step == 2)
    whole = tmp_path / "whole"
    train_and_evaluate(config, whole)
    (folder / "contexts.npz").rename(tmp_path / "contexts.npz")
    with expect_input_error("contexts.npz is missing or damaged"):
        train_and_evaluate(config, folder)
    (tmp_path / "contexts.npz").rename(folder / "contexts.npz")
    monkeypatch.delattr("memsinks_jax.data.contexts.find")
    train_and_evaluate(config, folder)
    jax.tree.map(np.testing.assert_array_equal, open_run(folder).params, open_run(whole).params)


def test_a_frozen_base_stays_and_its_contexts_learn():
    config = by_context(optimizer__base_multiple=0.0)
    before, after, _ = one_step(config, first_batches(config, 1)[0])
    assert np.abs(after.pop(CONTEXTS) - before.pop(CONTEXTS)).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_a_skipped_update_leaves_the_table_as_it_is():
    config = by_context(optimizer__learning_rate=1e30)  # the second loss is not finite
    mesh = sharding.make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    (once, _), (thrice, lines) = (train(config, mesh, count) for count in (1, 3))
    assert lines[-1]["skipped_updates"] == 2 and once[CONTEXTS].any()
    np.testing.assert_array_equal(thrice[CONTEXTS], once[CONTEXTS])


@pytest.mark.slow
def test_muon_updates_the_matrices_of_layers_and_not_the_table():
    config = by_context(optimizer__kind="muon")
    before, after, _ = one_step(config, first_batches(config, 1)[0])
    _, adam, _ = one_step(by_context(), first_batches(config, 1)[0])
    np.testing.assert_allclose(after[CONTEXTS], adam[CONTEXTS], rtol=1e-5, atol=1e-6)
    assert np.abs(after["layers"]["up_kernel"] - before["layers"]["up_kernel"]).max() > 1e-4
