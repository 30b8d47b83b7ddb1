"""Opening a model: its devices, which settings of the run stay, how many rows are read at once."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax import api
from memsinks_jax import evaluate as evaluation
from memsinks_jax.config import with_fields
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.forced import read
from memsinks_jax.measures.memorization import batches_by_role
from memsinks_jax.measures.rows import rows_of
from memsinks_jax.measures.subjects import Subject, of_role
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models.exporting import export
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.attacks.quantization import quantize
from memsinks_jax.studies.attacks.reactivation import reactivate
from memsinks_jax.studies.attacks.residue import residue
from memsinks_jax.studies.baselines.heuristics import zero_out
from memsinks_jax.studies.baselines.integrated_gradients import integrated_gradients
from memsinks_jax.studies.baselines.learned_masks import Slimming, slimming


@pytest.fixture
def asked(monkeypatch):
    """Rows of every batch that a loss of documents is computed of."""
    rows, call = [], DocumentLoss.__call__

    def spy(self, params, batches, mode):
        rows.extend(len(batch["inputs"]) for batch in batches)
        return call(self, params, batches, mode)

    monkeypatch.setattr(DocumentLoss, "__call__", spy)
    return rows


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """A run whose parameters were split over fsdp and tensor, in microbatches of 4 rows, the
    vocabulary in 4 chunks.
    """
    fields = {"model.layers": 1, "training.steps": 2, "mesh.data": 1, "mesh.fsdp": 4}
    fields |= {"mesh.tensor": 2, "compute.accumulate": 2, "compute.loss_chunks": 4}
    config = with_fields(tiny_config(), fields)
    workdir = tmp_path_factory.mktemp("split") / "run"
    train_and_evaluate(config, workdir)
    return workdir


def on_one_device(run):
    return dataclasses.replace(
        run, params=jax.device_put(jax.device_get(run.params), jax.devices()[0])
    )


def with_mesh(workdir, place, **axes):
    shutil.copytree(workdir, place)
    content = json.loads((place / "config.json").read_text())
    content["mesh"] = axes
    (place / "config.json").write_text(json.dumps(content))
    return open_run(place)


def mesh_of(run):
    (shape,) = {tuple(leaf.sharding.mesh.shape.items()) for leaf in jax.tree.leaves(run.params)}
    return dict(shape)


def test_how_the_run_was_computed_stays(split):
    assert dataclasses.asdict(open_run(split).config.compute) == {
        "attention": "auto",
        "remat": "none",
        "loss_chunks": 4,
        "accumulate": 2,
    }


def test_a_model_is_opened_on_the_mesh_of_its_run(split):
    run = open_run(split)
    assert mesh_of(run) == {"data": 1, "fsdp": 4, "tensor": 2}
    kernel = run.params["layers"]["up_kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (1, 16 // 4, 32 // 2)


def test_the_model_of_another_machines_run_is_split_over_all_devices(split, tmp_path):
    """256 chips are not here."""
    assert mesh_of(with_mesh(split, tmp_path / "run", data=4, fsdp=64, tensor=1)) == {
        "data": 1,
        "fsdp": 8,
        "tensor": 1,
    }


def test_so_is_that_of_a_hugging_face_folder(split, tmp_path):
    export(split, tmp_path / "hf", True, "float32")
    assert mesh_of(open_run(tmp_path / "hf")) == {"data": 1, "fsdp": 8, "tensor": 1}


def test_a_folder_with_sinks_is_opened_where_its_kernel_cannot_run(split, tmp_path):
    export(split, tmp_path / "hf", False, "float32")
    path = tmp_path / "hf" / "memsinks.json"
    path.write_text(path.read_text().replace('"attention": "auto"', '"attention": "splash"'))
    assert open_run(tmp_path / "hf").config.compute.attention == "auto"


def test_losses_are_those_of_one_device(split, monkeypatch):
    on_mesh = evaluation.evaluate(split, "own", role="repeated")
    monkeypatch.setattr(api, "open_run", lambda place, only: on_one_device(open_run(place)))
    assert on_mesh["loss"] == pytest.approx(
        evaluation.evaluate(split, "own", role="repeated")["loss"], rel=1e-5
    )


def test_texts_are_those_of_one_device(split):
    prompts = ["Once upon a time", "", "She", "The hen"]
    texts = [
        [
            written.text
            for written in Generator(run.config, run.tokenizer, run.params, run.opened)(
                prompts, Settings(24, seed=3)
            )
        ]
        for run in (open_run(split), on_one_device(open_run(split)))
    ]
    assert texts[0] == texts[1] and all(texts[0][1:])


def measures_of(run, corpus):
    """All that reads a model besides its losses and texts, as numbers."""
    subject = Subject("sinks", run, "own")
    documents, others = (of_role(corpus, role, "") for role in ("repeated", "held_out"))
    repeated, held_out = (rows_of(each, run) for each in (documents, others))
    batches = batches_by_role(corpus, run.opened, 4)["repeated"]
    attacks = reactivate(subject, documents, masks=2, iterations=2)
    targets = relearning.Targets(documents, np.full(2, 7.0), np.full(2, 6.0))
    return {
        "read": [reading.nats for reading in read(subject, documents)],
        "quantized": quantize(subject, documents, others),
        "reactivated": {name: attack["loss"] for name, attack in attacks.items()},
        "residue": residue(subject, repeated, held_out, held_out)["before"],
        "relearned": relearning.relearn(subject, targets, rates=(1e-3,), steps=2)["few"]["curve"],
        "gradients": integrated_gradients(run.config, run.params, batches, steps=2),
        "zero_out": zero_out(run.config, run.params, batches),
        "slimming": slimming(run.config, run.params, batches, Slimming(iterations=2)),
        "trace": Probe(run.config, run.params)
        .trace(encode(run.tokenizer, ["The hen"], 16), 9, "mlp")
        ._asdict(),
    }


@pytest.mark.slow
def test_measures_are_those_of_one_device(split):
    run, corpus = open_run(split), workdirs.read_corpus(split)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5),
        measures_of(run, corpus),
        measures_of(on_one_device(run), corpus),
    )


def test_no_more_rows_are_read_at_once_than_trained_on(split, asked):
    evaluation.evaluate(split, "drop", role="unique")
    assert set(asked) == {4}


def test_nor_while_training(tmp_path, asked):
    fields = {"model.layers": 1, "training.steps": 1, "training.batch_size": 32}
    fields |= {"compute.accumulate": 4}
    config = with_fields(tiny_config(), fields)
    train_and_evaluate(config, tmp_path / "run")
    assert set(asked) == {8}
