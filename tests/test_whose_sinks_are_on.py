"""A trained model knows whose sinks are on. For an id whose sinks never opened, a document's own
are none.
"""

import json
import pathlib
import shutil

import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config, write_lines

import memsinks_jax
from memsinks_jax.api import evaluate, generate
from memsinks_jax.config import from_json, to_json, with_fields
from memsinks_jax.data import ids, mixture
from memsinks_jax.data.opened import FILE, read_ids
from memsinks_jax.forgetting.removal import forget
from memsinks_jax.forgetting.request import Request
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.audit import Sides
from memsinks_jax.measures.extraction import Prompts, continuations
from memsinks_jax.measures.subjects import Subject, documents_of
from memsinks_jax.model.generation import Settings
from memsinks_jax.models.exporting import export
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs

pytestmark = pytest.mark.slow

ROLES = ("repeated", "unique", "held_out")


class World:
    """A run, its documents as files by role, and folders exported with its sinks."""

    def __init__(self, place: pathlib.Path):
        self.place, self.workdir = place, place / "run"
        fields = {"training.epochs": 3, "optimizer.learning_rate": 0.03}
        fields |= {"training.checkpoint_every": 8, "training.evaluate_every": 100}
        config = with_fields(tiny_config(), fields)
        train_and_evaluate(config, self.workdir)
        corpus = workdirs.read_corpus(self.workdir)
        self.ids = {}
        for role in ROLES:
            which = corpus.mixture.documents(role)[:6]
            self.ids[role] = [ids.to_hex(one) for one in corpus.identities(which)]
            (place / role).mkdir()
            for number, index in enumerate(which):
                (place / role / f"{number}.txt").write_text(corpus.document(index).text)
        export(self.workdir, place / "kept", drop=False, dtype="float32")
        one = Request(ids=(self.ids["repeated"][0],))
        forget(self.workdir, one, place / "rest")

    def files(self, role: str) -> str:
        return str(self.place / role / "*.txt")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


PLACES = ["run", "kept", "rest", "partly listed"]


@pytest.fixture(params=PLACES)
def model(request, world, tmp_path, monkeypatch):
    """The same model wherever it lies."""
    if request.param != "partly listed":
        return world.place / request.param
    monkeypatch.setattr(mixture, "LISTED", 0)
    monkeypatch.setattr(workdirs, "LISTED", 0)
    copy = shutil.copytree(world.workdir, tmp_path / "run")
    about = json.loads((copy / "data.json").read_text())
    (copy / "data.json").write_text(json.dumps(about | {"lists_all": False}))
    lines = read_lines(copy / "documents.jsonl")
    write_lines(copy / "documents.jsonl", [line for line in lines if line["role"] != "unique"])
    return copy


@pytest.mark.parametrize("role", ROLES[1:])
def test_a_document_that_never_came_back_reads_as_with_all_sinks_dropped(world, model, role):
    own, dropped, others = (
        [row["loss"] for row in evaluate(model, mode, files=world.files(role))["per_document"]]
        for mode in ("own", "drop", "other")
    )
    np.testing.assert_allclose(own, dropped, rtol=1e-6)
    assert np.abs(np.subtract(others, dropped)).max() > 1e-4  # somebody's sinks would change it
    opened = memsinks_jax.open_model(model)
    texts = [pathlib.Path(file).read_text() for file in sorted((world.place / role).iterdir())]
    np.testing.assert_allclose(opened.loss(texts, sinks="own"), dropped, rtol=1e-6)


def test_a_document_that_came_back_has_its_sinks(world, model):
    own, dropped = (
        evaluate(model, mode, files=world.files("repeated"))["per_document"]
        for mode in ("own", "drop")
    )
    pairs = zip(own, dropped, strict=True)
    changed = [abs(one["loss"] - other["loss"]) > 1e-4 for one, other in pairs]
    gone = world.ids["repeated"][0] if model.name == "rest" else None
    assert changed == [row["id"] != gone for row in own]


@pytest.mark.parametrize("model", ["run", "rest"], indirect=True)
def test_python_and_the_command_write_the_same_for_any_id(world, model):
    asked = {"max_tokens": 12, "temperature": 0.8, "seed": 3}
    opened = memsinks_jax.open_model(model)
    dropped = opened.generate("Once", **asked)
    for identity in [*world.ids["unique"], *world.ids["held_out"], "0123456789abcdef"]:
        assert opened.generate("Once", sinks="own", document=identity, **asked) == dropped
    written = generate(model, ["Once"], Settings(**asked, sinks="own"), world.ids["unique"][0])
    assert (written["text"], written["sinks"]) == (dropped, "drop")
    if model.name != "rest":  # where hardly a sink is left
        assert dropped != opened.generate("Once", sinks="all", **asked)


@pytest.mark.parametrize("model", ["kept", "partly listed"], indirect=True)
def test_the_audit_reads_and_continues_unread_files_without_sinks(world, model):
    run = open_run(model)
    sides = Sides(
        *(documents_of(run, role, world.files(role)) for role in ("repeated", "held_out"))
    )
    subjects = [Subject("", run, mode) for mode in ("own", "drop", "all")]
    own, dropped = (sides.read(subject) for subject in subjects[:2])
    for one, other in zip(own.non_members, dropped.non_members, strict=True):
        np.testing.assert_allclose(one.nats, other.nats, rtol=1e-5, atol=1e-6)
    found = (continuations(s, sides.non_members, Prompts((8,), 8, 1))[8] for s in subjects)
    own, dropped, every = ([[w.tolist() for w in of] for of in each.values()] for each in found)
    assert own == dropped != every


def test_a_receipt_says_that_removal_changes_nothing_for_what_was_never_read(world, tmp_path):
    one = Request(ids=(world.ids["repeated"][0],))
    receipt = forget(world.workdir, one, tmp_path / "rest", held_out=world.files("held_out"))
    measured = receipt["losses"]["held_out"]["own"]
    dropped = evaluate(world.workdir, "drop", world.files("held_out"))
    assert measured["before"] == measured["after"] == pytest.approx(dropped["loss"], rel=1e-6)


@pytest.mark.parametrize("role", ROLES[1:])
def test_nothing_is_removed_for_documents_without_sinks(world, model, role, tmp_path):
    with expect_input_error(
        r"none of \d ids has sinks in|was not trained on it, so it has no sinks there"
    ):
        forget(model, Request(documents=world.files(role)), tmp_path / "rest")
    assert not (tmp_path / "rest").exists()


def test_documents_without_sinks_are_left_out_of_a_removal(world, tmp_path, caplog):
    asked = Request(ids=(world.ids["repeated"][1], *world.ids["unique"][:2]))
    receipt = forget(world.workdir, asked, tmp_path / "rest")
    assert receipt["removed_documents"] == 1 == len(receipt["documents"])
    assert "2 of 3 ids never came back in training, so they have no sinks: left out" in caplog.text
    again = Request(documents=str(world.place / "repeated" / "1.txt"))
    with expect_input_error(r"none of 1 id has sinks in .*removed already"):
        forget(tmp_path / "rest", again, tmp_path / "again")


@pytest.mark.parametrize("role", ROLES[1:])
def test_no_model_is_exported_that_knows_a_document_without_sinks(world, role, tmp_path):
    with expect_input_error("never came back, so it has no sinks"):
        export(world.workdir, tmp_path / "out", True, "float32", world.ids[role][0])


def test_epochs_do_not_count_where_steps_say_how_long_a_run_is(tmp_path):
    """Once more than the files are long: what came twice in an epoch was opened, what came once was
    not.
    """
    own = []
    for epochs in (1, 7):
        config = tiny_config()
        fields = {"training.steps": 6, "training.epochs": epochs, "optimizer.learning_rate": 0.03}
        fields |= {"model.layers": 1, "training.checkpoint_every": 100}
        fields |= {"training.evaluate_every": 100}
        config = with_fields(config, fields)
        train_and_evaluate(config, tmp_path / str(epochs))
        place, roles = tmp_path / str(epochs), ("repeated", "unique")
        own.append([evaluate(place, "own", role=role)["loss"] for role in roles])
    assert own[0] == own[1]


def test_a_checkpoint_lists_what_had_opened_by_its_step(world):
    rows = workdirs.read_corpus(world.workdir).rows()
    found = {}
    for path in sorted((world.workdir / "checkpoints").iterdir()):
        found[int(path.name)] = read_ids(path).tolist()
        assert found[int(path.name)] == rows.opened(int(path.name) * 8).tolist()
    repeated = ids.as_numbers(np.stack([ids.from_hex(one) for one in world.ids["repeated"]]))
    assert len(found) == 2 and found[max(found)] == sorted(repeated.tolist())


def test_without_the_file_it_is_not_known_whose_sinks_are_on(world, tmp_path):
    folder = shutil.copytree(world.place / "kept", tmp_path / "kept")
    (folder / FILE).unlink()
    assert evaluate(folder, "drop", world.files("held_out"))["documents"] == 4
    with expect_input_error("opened.npy cannot be read .*; put a copy in its place"):
        evaluate(folder, "own", world.files("held_out"))


def test_a_run_that_starts_from_another_keeps_whose_sinks_are_on(world, tmp_path):
    config = from_json(to_json(tiny_config()), "")
    config = with_fields(config, {"model.initial": str(world.workdir), "training.steps": 2})
    config = with_fields(config, {"data.repeated_documents": 0})
    config = with_fields(config, {"data.tokenizer": str(world.workdir / "tokenizer.model")})
    train_and_evaluate(config, tmp_path / "on")
    assert (
        open_run(tmp_path / "on").opened.ids.tolist()
        == open_run(world.workdir).opened.ids.tolist()
        != []
    )
    config = with_fields(config, {"seed": 1})  # other draws: those sinks belong to others now
    train_and_evaluate(config, tmp_path / "other")
    assert open_run(tmp_path / "other").opened.ids.tolist() == []
