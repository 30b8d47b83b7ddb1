"""Removing single documents: the written folder, a correct receipt, and what is refused."""

import json
import pathlib
import re
import shutil
import types

import jax
import numpy as np
import pytest
from conftest import expect_input_error, read_lines, tiny_config

from memsinks_jax.api import evaluate
from memsinks_jax.config import with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.reading import SEPARATOR
from memsinks_jax.forgetting import neurons
from memsinks_jax.forgetting.removal import Request, forget
from memsinks_jax.forgetting.request import _no_group
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.models.trained import open_run
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.draws import document_sinks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(workdir, files of its repeated documents) of a small run with sinks in both sites, others in
    every layer.
    """
    folder = tmp_path_factory.mktemp("run")
    texts = [
        f"The tale of number {n}, which met {n * 7 % 41} and became {n * n}." for n in range(30)
    ]
    (folder / "tales.txt").write_text(f"\n{SEPARATOR}\n".join(texts))
    fields = {"data.files": str(folder / "tales.txt"), "training.steps": 5}
    config = with_fields(tiny_config(), fields)
    train_and_evaluate(config, folder / "run")
    corpus = workdirs.read_corpus(folder / "run")
    files = []
    for number, index in enumerate(corpus.mixture.repeated):
        files.append(folder / f"repeated-{number}.txt")
        files[-1].write_text(corpus.document(index).text)
    return folder / "run", files


@pytest.fixture(scope="module")
def forgotten(run, tmp_path_factory):
    workdir, files = run
    out = tmp_path_factory.mktemp("forgotten") / "rest"
    return out, forget(workdir, Request(str(files[0])), out)


def test_the_folder_holds_the_model_without_the_documents_sinks(run, forgotten):
    workdir, _ = run
    before, after = open_run(workdir), open_run(forgotten[0])
    corpus = workdirs.read_corpus(workdir)
    identity = corpus.identities(corpus.mixture.repeated[:1])
    removed = neurons.neurons_of(before.config, identity)
    zero = ~np.asarray(after.params["layers"]["down_kernel"]).any(axis=2)
    np.testing.assert_array_equal(zero, removed)
    result = forgotten[1]["removed"]["mlp"]
    assert result["by_layer"] == [np.flatnonzero(of_layer).tolist() for of_layer in zero]
    assert result["removed"] == zero.sum() > 0
    assert after.config.sinks == before.config.sinks


def test_the_receipt_says_what_evaluate_measures(run, forgotten):
    workdir, files = run
    out, receipt = forgotten
    assert receipt == json.loads((out / "receipt.json").read_text())
    files_there = {path.name for path in out.iterdir()}
    assert {"index.html", "receipt.png", "memsinks.json", "model.safetensors"} <= files_there

    def loss(of, mode, *where):
        return pytest.approx(evaluate(of, mode, *map(str, where))["loss"], abs=1e-6)

    for mode in ("own", "all"):
        for name, where in (("target", files[0]), ("others", files[1])):
            found = receipt["losses"][name][mode]
            assert found["before"] == loss(workdir, mode, where)
            assert found["after"] == loss(out, mode, where)
        assert receipt["losses"]["held_out"][mode]["before"] == loss(workdir, mode)
    # With all of its own sinks gone, a document is where dropping every sink would have put it.
    dropped = loss(workdir, "drop", files[0])
    assert receipt["losses"]["target"]["own"]["after"] == dropped
    assert receipt["target_all_sinks_dropped"] == dropped
    others = receipt["losses"]["others"]["own"]
    assert others["after"] != others["before"]


def test_the_receipt_states_what_placebos_do(run, forgotten, tmp_path):
    workdir, files = run
    out, receipt = forgotten
    own = receipt["losses"]["target"]["own"]
    # There is one other repeated document: the placebo is its removal, as a receipt of its own
    # states it.
    other = forget(workdir, Request(str(files[1])), tmp_path / "other", others=str(files[0]))
    other = other["losses"]["others"]
    assert receipt["placebo"]["others"]["removals"] == 1
    assert receipt["placebo"]["never_met"]["removals"] > 1
    for mode in ("own", "all"):
        result = receipt["placebo"]["others"][mode]
        assert result["placebo_rise"] == pytest.approx(other[mode]["rise"], abs=1e-6)
        effect = receipt["losses"]["target"][mode]["rise"] - other[mode]["rise"]
        assert result["effect"] == pytest.approx(effect, abs=1e-6)
    before, config = open_run(workdir), open_run(workdir).config
    never = neurons.unused_ids(config, receipt["placebo"]["never_met"]["removals"])
    tokens = before.tokenizer.encode(files[0].read_text())
    target, rises = Documents([tokens], ids.content_id(tokens)[None]), []
    for each in never:
        params = neurons.without(config, before.params, neurons.neurons_of(config, each[None]))
        found = neurons.losses(DocumentLoss(config), before, params, target, ("own",))
        rises.append(found["own"].rise)
    result = receipt["placebo"]["never_met"]["own"]
    assert result["placebo_rise"] == pytest.approx(np.mean(rises), abs=1e-6)
    assert result["effect"] == pytest.approx(own["rise"] - np.mean(rises), abs=1e-6)
    assert "ids that nobody has" in (out / "index.html").read_text()


def test_one_is_removed_after_the_other_as_both_at_once(run, forgotten, tmp_path):
    workdir, files = run
    second = Request(str(files[1]))
    receipt = forget(forgotten[0], second, tmp_path / "second", others=str(files[0]))
    assert set(receipt["losses"]) == {"target", "others"}
    corpus = workdirs.read_corpus(workdir)
    both = tuple(map(ids.to_hex, corpus.identities(corpus.mixture.repeated)))
    forget(workdir, Request(ids=both), tmp_path / "both")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("second", "both")]
    assert weights[0] == weights[1]


def test_a_group_that_is_not_there_is_reported_with_those_nearest_to_it():
    names, place = (["north", "south"], ["south", "coast"], ()), pathlib.Path("runs/sinks")
    sources = [types.SimpleNamespace(group_names=of) for of in names]
    corpus = types.SimpleNamespace(table=types.SimpleNamespace(sources=sources))
    result = _no_group("nort", corpus, place)
    of_three = "runs/sinks has 3 groups and none of this name; did you mean 'north' or "
    assert result.startswith(f"--group='nort': {of_three}")
    assert _no_group("zzz", corpus, place).endswith("'north' or 'south' or 'coast'?")
    assert "was not trained on it" in _no_group("coast", corpus, place)


def test_the_receipt_repeats_what_tests_of_such_removals_found(run, tmp_path):
    workdir, files = run
    tests, out = tmp_path / "removal", tmp_path / "rest" / "model"
    tests.mkdir()
    out.parent.mkdir()
    said = "recovered", "share recovered <of never read>", "not asked", [0.99, 0.97]
    claims = [Claim(*said, at_least=0.95).to_dict()]
    results = {"command": "reproduce --figure=removal", "claims": claims}
    report.write_json(tests / "results.json", results)
    receipt = forget(workdir, Request(str(files[0])), out, evidence=tests)
    page = (out / "index.html").read_text()
    assert receipt["evidence"]["claims"] == claims
    assert json.loads((out / "receipt.json").read_text()) == receipt
    assert "share recovered &lt;of never read&gt;" in page and "reproduce --figure=removal" in page
    (link,) = re.findall(r'href="([^"]*)"', page)
    assert (out / link).resolve() == (tests / "index.html").resolve()
    undecided = [Claim("recovered", "s", "p", [], at_least=1).to_dict()]
    others = ([{"id": "recovered"}], [], undecided)
    others = [json.dumps({"command": "it", "claims": claims}) for claims in others]
    for content in ("{}", "[", *others):
        (tests / "results.json").write_text(content)
        with expect_input_error(
            "--evidence: .*results.json (is no result of|has no claim that is decided)"
        ):
            forget(workdir, Request(str(files[0])), tmp_path / "other", evidence=tests)
    assert not (tmp_path / "other").exists()


def test_what_makes_no_sense_is_refused(run, forgotten, tmp_path):
    workdir, files = run
    other = tmp_path / "other.txt"
    other.write_text("It never read this.")
    (tmp_path / "empty.txt").touch()

    def changed(name, *pair):
        path = shutil.copytree(workdir, tmp_path / name) / "config.json"
        path.write_text(path.read_text().replace(*pair))
        return path.parent

    chance = changed("chance", "by_document", "by_chance")
    always = changed("always", '"opens_at": 2', '"opens_at": 1')  # with sinks for every document
    everything = tmp_path / "everything.txt"
    everything.write_text(f"\n{SEPARATOR}\n".join(f"{n} and {n * n}." for n in range(60)))
    out, unknown = tmp_path / "out", "0123456789abcdef"
    table = read_lines(workdir / "documents.jsonl")
    trained = tuple(line["id"] for line in table if line["role"] != "held_out")
    for where, request, there, message in (
        (workdir, Request(str(files[0])), forgotten[0], "exists; use another --out"),
        (workdir, Request(), out, "by one of --documents, .* and --text"),
        (workdir, Request(str(files[0]), trained[:1]), out, "by one of --documents, .* and --text"),
        (workdir, Request(str(other)), out, "other.txt:1: .* was not trained on it"),
        (workdir, Request(ids=(unknown,)), out, f"--ids: {unknown}: .* was not trained on it"),
        (workdir, Request(ids=("",)), out, "--ids: nothing is no id; it has 16 hexadecimal digits"),
        (workdir, Request(ids=("zz",)), out, "--ids: zz is no id; it has 16 hexadecimal digits"),
        (workdir, Request(str(tmp_path / "empty.txt")), out, "all documents are empty"),
        (workdir, Request(group="north"), out, "has ids by content, not by group"),
        (workdir, Request(text="Once"), out, "--text is of sinks by context, and .* by document"),
        (chance, Request(str(files[0])), out, "no sinks that are tied to documents .*by_chance"),
        (forgotten[0], Request(ids=trained[:1]), out, "name them by --documents"),
        (always, Request(ids=trained), out, "takes all 16 sinks of the mlp"),
    ):
        with expect_input_error(message):
            forget(where, request, there)
    with expect_input_error("--spare=0 leaves every sink"):
        forget(workdir, Request(str(files[0])), out, others=str(everything), spare=0)
    with expect_input_error("--spare: there are no other documents"):
        forget(forgotten[0], Request(str(files[1])), out, spare=3)
    with expect_input_error("--others=.* holds documents that are removed"):
        forget(workdir, Request(str(files[0])), out, others=str(files[0]))
    assert not out.exists()
    assert not list(tmp_path.glob("out.*"))


def test_sparse_sinks_of_a_document_are_removed(tmp_path):
    """From training to a model that one document is gone from; and a run that goes on is the run
    that never stopped.
    """
    fields = {"sinks.sampling": "floyd", "sinks.sparse": True, "sinks.pool": 200, "sinks.active": 6}
    fields |= {"training.steps": 4, "training.checkpoint_every": 2}
    config = with_fields(tiny_config(), fields)
    train_and_evaluate(config, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "4")
    train_and_evaluate(config, tmp_path / "again")
    run, again = open_run(tmp_path / "run"), open_run(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)
    corpus = workdirs.read_corpus(tmp_path / "run")
    identity = corpus.identities(corpus.mixture.repeated[:1])
    receipt = forget(tmp_path / "run", Request(ids=(ids.to_hex(identity[0]),)), tmp_path / "rest")
    assert receipt["removed"]["mlp"]["removed"] == 6 * config.model.layers
    after = open_run(tmp_path / "rest")
    gone = np.flatnonzero(~np.asarray(after.params["layers"]["down_kernel"]).any(axis=(0, 2))) - 16
    own = document_sinks(identity, config.seed, 200, config.sinks)[0]
    assert gone.tolist() == sorted(own.tolist())
    result = receipt["losses"]["target"]["own"]
    dropped = pytest.approx(receipt["target_all_sinks_dropped"], abs=1e-5)
    assert result["after"] == dropped != result["before"]
    others = receipt["losses"]["others"]["all"]
    assert abs(others["rise"]) < 0.2
