"""The audit from a run to its page, and what it refuses."""

import json
import math
import pathlib
import shlex

import numpy as np
import pytest
import yaml
from audited import SUBJECTS, attacked, audited, made_up, paths
from conftest import tiny_config

from memsinks_jax.config import (
    InputError,
    SinksConfig,
    with_fields,
)
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures import exposure, forced, pages
from memsinks_jax.measures.audit import ALL, OFTEN, audit, warnings
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.explore import Texts, explore
from memsinks_jax.measures.membership import SCORES
from memsinks_jax.measures.memorization import Memorization
from memsinks_jax.measures.open_unlearning import export_for_open_unlearning
from memsinks_jax.measures.subjects import (
    Subject,
    documents_of,
    encounters_in,
    of_role,
    shortened,
    subjects_of,
)
from memsinks_jax.models.exporting import export
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.attacks.attacks import attack_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of sinks on a ladder of repeats with canaries, its oracle, and a document that both
    have read, one that none has.
    """
    folder = tmp_path_factory.mktemp("audit")
    fields = {"data.repeated_documents": 4, "canaries.documents": 4, "canaries.length": 16}
    fields |= {"data.schedule": "memsinks_jax.studies.schedules:Ladder"}
    config = with_fields(tiny_config(), fields)
    train_and_evaluate(config, folder / "run")
    oracle = with_fields(config, {"sinks.kind": "none", "data.repeats_at_most": 0})
    train_and_evaluate(oracle, folder / "oracle")
    corpus = workdirs.read_corpus(folder / "run")
    (folder / "read.txt").write_text(corpus.document(corpus.mixture.documents("unique")[0]).text)
    (folder / "new.txt").write_text("Nobody has ever seen this one.")
    return folder


@pytest.fixture(scope="module")
def result(folder):
    return audit(
        folder / "run",
        oracle=folder / "oracle",
        prefixes=(4, 50),
        suffix=6,
        samples=1,
        open_unlearning_files=folder / "files",
    )


@pytest.fixture(scope="module")
def explored(folder):
    return explore(folder / "run", oracle=folder / "oracle", prefixes=(4,), suffix=6)


def test_audit_of_a_run(folder, result, explored):
    assert list(result["subjects"]) == ["sinks dropped", "sinks, own on", "sinks, all on", "oracle"]
    assert result["encounters"] == {"8": 1, "4": 1, "2": 1, "1": 1}
    for name, groups in result["subjects"].items():
        assert list(groups) == [ALL, OFTEN, "8", "4", "2", "1"]
        found = {measure: one["value"] for measure, one in groups[ALL].items()}
        assert found["member_perplexity"] == pytest.approx(math.exp(found["member_loss"]))
        gap = found["non_member_loss"] - found["member_loss"]
        assert found["loss_gap"] == pytest.approx(gap)
        assert ("auc_reference" in found) == (name != "oracle")
        assert found["exposure"] >= 0
    pages.write(result, explored, folder / "page", "a command")
    few, *_ = result["warnings"]
    assert few == "4 members are few: a leak may not show in them; give 20 or more"
    page = (folder / "page" / "index.html").read_text()
    assert all(f"Beware: {warning}." in page for warning in result["warnings"])
    assert "AUC, length alone" in page
    assert json.loads((folder / "page" / "results.json").read_text()) == result
    written = {"results.json", "index.html", "explore.html", "audit.png", "encounters.png"}
    assert {path.name for path in (folder / "page").iterdir()} == written


def test_every_row_of_the_page_is_measured(result):
    """The page leaves out what was not measured, and so would a row whose measure has another
    name.
    """
    shown = [row[0] for table in pages.tables(result) for row in table.rows]
    asked = [label for *_, measures in pages._sections(result) for label, *_ in measures]
    assert [label for label in shown if OFTEN not in label] == asked


def test_results_that_tests_make_up_look_like_the_real_ones(result, explored):
    """Those of the figure and of the page to explore: no key is theirs alone."""
    made = audited([0.5] * len(SUBJECTS))
    assert paths(made) <= paths(result)
    assert paths(made_up()["documents"][0]) <= paths(explored["documents"][0])
    assert made_up().keys() <= explored.keys()


def of_group(explored, group):
    return [document for document in explored["documents"] if document["group"] == group]


def test_page_to_explore_says_what_the_audit_says(result, explored):
    assert explored["views"] == ["sinks, own on", "sinks dropped", "oracle"]
    assert [document["times"] for document in of_group(explored, "repeated")] == [8, 4, 2, 1]
    assert of_group(explored, "read once") and explored["prefixes"] == [4]
    for view in explored["views"]:
        measured = result["subjects"][view][ALL]
        for group, name in (("repeated", "member_loss"), ("held out", "non_member_loss")):
            documents = of_group(explored, group)
            losses, lengths = zip(*((d["loss"][view], d["length"]) for d in documents), strict=True)
            expected = pytest.approx(measured[name]["value"], rel=1e-5)
            assert np.average(losses, weights=lengths) == expected
        members = of_group(explored, "repeated")
        known = [np.mean(np.array(d["read"][view]["rank"]) == 0) for d in members]
        assert np.mean(known) == pytest.approx(measured["exact_memorization"]["value"])
        equal = [np.mean(np.array(d["written"][view][4]) == d["tokens"][4:10]) for d in members]
        assert np.mean(equal) == pytest.approx(measured["equal_4"]["value"])
        for document in explored["documents"]:
            written, loss = document["written"], document["loss"][view]
            assert document["own"] or written["sinks, own on"] == written["sinks dropped"]
            nats = np.mean(document["read"][view]["nats"]) / 1000
            assert nats == pytest.approx(loss, abs=6e-4)


def test_page_to_explore_says_what_evaluate_says(folder, explored):
    """But for end of text, which is not weighed here; and the results of each checkpoint, which
    evaluate does not give.
    """
    run, corpus = open_run(folder / "run"), workdirs.read_corpus(folder / "run")
    documents, found = of_role(corpus, "held_out", ""), of_group(explored, "held out")
    ends = [np.array([[0, len(tokens)]]) for tokens in documents.tokens]
    documents = documents._replace(answers=ends)  # without end of text
    for step, place in zip(explored["steps"], range(2), strict=True):
        opened = open_run(folder / "run", step)
        for mode, view in (("drop", "sinks dropped"), ("own", "sinks, own on")):
            nats, counts = DocumentLoss(run.config)(opened.params, documents.batches(run), mode)
            expected = pytest.approx((nats / counts).tolist(), abs=2e-6)
            assert [document["loss_over"][view][place] for document in found] == expected
            assert place == 0 or [document["loss"][view] for document in found] == expected
    assert found[0]["loss_over"]["sinks dropped"][0] != found[0]["loss_over"]["sinks dropped"][1]


def test_texts_of_tokens_make_the_document(folder, explored):
    corpus = workdirs.read_corpus(folder / "run")
    documents = of_role(corpus, "held_out", "")
    for document, tokens in zip(of_group(explored, "held out"), documents.tokens, strict=True):
        written = "".join(explored["texts"][token] for token in document["tokens"])
        assert written == corpus.tokenizer.decode(tokens)
    texts, foreign = Texts(corpus.tokenizer), "Café, 狐🦊 said <b>"
    places = texts.of(corpus.tokenizer.encode(foreign))
    found = [texts.all[place] for place in places]
    # of a character of several tokens, only the last has it
    assert "".join(found) == foreign and "" in found


def test_open_unlearning_is_given_files_that_are_there(folder, result):
    """The whole was run with it (commit d3d7cf9, December 2025): see docs/removal.md."""
    files = folder / "files"
    text = (files / "configs" / "eval" / "memsinks_jax.yaml").read_text()
    assert text.startswith("# @package eval.memsinks_jax\n")
    lines = {}
    for metric in yaml.safe_load(text)["metrics"].values():
        for dataset in metric.get("datasets", {}).values():
            path = pathlib.Path(dataset["args"]["hf_args"]["data_files"])
            records = [json.loads(line) for line in path.read_text().splitlines()]
            assert path.stem == dataset["access_key"] and all(record["text"] for record in records)
            lines[dataset["access_key"]] = len(records)
    assert lines == {"forget": result["members"], "holdout": result["non_members"]}
    model = yaml.safe_load((files / "configs" / "model" / "memsinks_jax.yaml").read_text())
    assert model["model_args"]["pretrained_model_name_or_path"] == str(files / "model")
    oracle, mine = map(shlex.split, (files / "commands.sh").read_text().splitlines()[1:])
    for command, name in ((oracle, "oracle"), (mine, "model")):
        assert f"model.model_args.pretrained_model_name_or_path={files / name}" in command
        assert f"--config-dir={files / 'configs'}" in command
        assert (files / name / "model.safetensors").is_file()
    assert any(part.endswith("retain_logs_path=saves/eval/oracle/MUSE_EVAL.json") for part in mine)


def test_tokens_of_open_unlearning_are_end_of_text_and_ours(folder, result):
    transformers = pytest.importorskip("transformers")
    files = folder / "files"
    settings = yaml.safe_load((files / "configs" / "model" / "memsinks_jax.yaml").read_text())
    theirs = transformers.AutoTokenizer.from_pretrained(**settings["tokenizer_args"])
    corpus = workdirs.read_corpus(folder / "run")
    members, end = of_role(corpus, "repeated", ""), corpus.tokenizer.end_of_text
    lines = (files / "data" / "forget.jsonl").read_text().splitlines()
    for record, ours in zip(map(json.loads, lines), members.tokens, strict=True):
        assert theirs(record["prompt"])["input_ids"] == [end]
        # As their preprocess_pretraining_instance does it.
        found = theirs(record["prompt"] + record["text"])["input_ids"]
        np.testing.assert_array_equal(found, [end, *ours])
    assert theirs.pad_token_id != theirs.eos_token_id  # what equals padding they do not attend to


def test_a_model_that_is_a_folder_of_hugging_face_stays_where_it_is(folder, result):
    place, run = folder / "files" / "model", open_run(folder / "run")
    tokens = run.tokenizer.encode("Nobody has seen this one.")
    read = Documents([tokens], np.zeros((1, 2), np.uint32))
    export_for_open_unlearning(folder / "other", {"model": open_run(place)}, read, read)
    commands = (folder / "other" / "commands.sh").read_text()
    assert str(place) in commands and not (folder / "other" / "model").exists()
    assert "retain_logs_path=saves" not in commands  # without an oracle


def test_members_and_non_members_differ_in_nothing_but_repeats(folder):
    """No canary distinguishes them, and no length: canaries are cut off."""
    config, corpus = workdirs.read_config(folder / "run"), workdirs.read_corpus(folder / "run")
    members, others = (of_role(corpus, role, "") for role in ("repeated", "held_out"))
    for index, tokens in zip(corpus.mixture.repeated, members.tokens, strict=True):
        assert tokens.tolist() == corpus.tokens(index)[:-16].tolist()
    assert max(map(len, others.tokens)) <= config.data.row_length - 1 - 16


@pytest.mark.parametrize("mode", ["drop", "own"])
def test_losses_behind_exposure_are_those_of_whole_rows(folder, mode, monkeypatch):
    """With the cache, a canary costs what it costs in its document; an alternative what it
    would.
    """
    run, corpus = open_run(folder / "run"), workdirs.read_corpus(folder / "run")
    seen = []
    monkeypatch.setattr(exposure, "exposure", lambda nats: seen.append(nats) or 0.0)
    exposure.exposures(Subject("", run, mode), corpus)
    canaries = dict(Memorization(corpus, DocumentLoss(run.config), run.opened).repeated(run.params))
    expected = canaries["canary_loss" + ("_own" if mode == "own" else "")]
    assert np.mean([nats[0] for nats in seen]) / 16 == pytest.approx(expected, rel=1e-5)
    assert all(len(nats) == 128 and len(set(nats.tolist())) > 100 for nats in seen)


def test_readings_cost_what_evaluate_says_but_end_of_text(folder):
    """In the mode own, which also needs the ids."""
    run = open_run(folder / "run")
    documents = documents_of(run, "held_out")
    losses = DocumentLoss(run.config)(run.params, documents.batches(run), "own")
    readings = forced.read(Subject("", run, "own"), documents)
    for reading, total, count in zip(readings, *losses, strict=True):
        assert len(reading.nats) == count - 1
        assert 0 < total - reading.nats.sum() < 30


def test_documents_of_files_are_known_by_their_ids(folder):
    run = open_run(folder / "run")
    read, new = (documents_of(run, "", str(folder / f"{name}.txt")) for name in ("read", "new"))
    assert read.encounters.tolist() == [1] and new.encounters is None
    assert set(encounters_in(folder / "oracle", np.zeros((0, 2), np.uint32)).values()) == {0, 1}


def test_one_member_is_enough(folder):
    """It has no interval but that of its rank. No oracle: no reference score, and no continuation
    of so few tokens.
    """
    asked = {"prefixes": (100,), "suffix": 59, "samples": 0}
    found = audit(folder / "run", members_files=str(folder / "read.txt"), **asked)
    measures = found["subjects"]["sinks dropped"][ALL]
    assert measures["member_loss"]["ci95"] is None and measures["auc_loss"]["ci95"][0] >= 0
    assert found["reference"] is None
    assert "auc_reference" not in measures and "exact_100" not in measures


def test_lengths_and_turned_scores_are_told(folder, caplog):
    """A model that has read none of them: long members, short non-members, of the same words."""
    rng, words = (
        np.random.default_rng(0),
        ["once", "there", "was", "a", "small", "fox", "with", "four", "hats"],
    )
    for name, length in (("short", 6), ("long", 40)):
        texts = [" ".join(rng.choice(words, length + rng.integers(3))) + "." for _ in range(20)]
        (folder / f"{name}.txt").write_text("\n<|endoftext|>\n".join(texts))
    places = [str(folder / f"{name}.txt") for name in ("long", "short")]
    found = audit(folder / "oracle", *places, prefixes=(4,), suffix=2, samples=0)
    measured = found["subjects"]["model"][ALL]
    assert measured["length_auc"]["value"] == 1 and measured["length_auc"]["ci95"][0] > 0.8
    (lengths, *turned) = found["warnings"]
    assert "the number of tokens alone distinguishes members" in lengths
    assert "AUC 1.00; give" in lengths
    there = {name: measured[f"auc_{name}"] for name in SCORES if f"auc_{name}" in measured}
    below = [name for name, auc in there.items() if auc["ci95"][1] < 0.5]
    assert below and len(turned) == len(below)
    assert "turned around, the score distinguishes" in turned[0]
    assert all(warning in caplog.text for warning in found["warnings"])
    best = max(max(auc["value"], 1 - auc["value"]) for auc in there.values())
    assert f"AUC in either direction up to {best:.2f}" in pages.answer(found)
    assert "Length alone: AUC 1.00." in pages.answer(found)
    few = warnings(found["subjects"], [8] * 3, [8] * 20)
    assert few[0] == "3 members are few: a leak may not show in them; give 20 or more"
    equal = {"model": {ALL: measured | {"length_auc": {"value": 0.7, "ci95": [0.48, 0.9]}}}}
    assert len(warnings(equal, [8] * 20, [8] * 20)) == len(turned)  # chance may do that


@pytest.mark.slow
def test_audit_of_a_hugging_face_folder(folder, monkeypatch):
    """An exported model measures like the run with its sinks dropped; its documents must be
    given.
    """
    files = {
        "members_files": str(folder / "read.txt"),
        "non_members_files": str(folder / "new.txt"),
        "prefixes": (4,),
    }
    monkeypatch.setattr("memsinks_jax.models.exporting._speeds", lambda *places: (None, None))
    export(folder / "run", folder / "hf", True, "float32")
    exported = audit(folder / "hf", **files, suffix=3, samples=0)["subjects"]
    dropped = audit(folder / "run", **files, suffix=3, samples=0)["subjects"]["sinks dropped"]
    assert list(exported) == ["model"]
    for measure in ("member_loss", "non_member_loss", "edit_distance_4"):
        assert exported["model"][ALL][measure]["value"] == pytest.approx(
            dropped[ALL][measure]["value"], rel=1e-5
        )
    with pytest.raises(InputError, match="give --members and --non_members"):
        audit(folder / "hf")
    explored = explore(folder / "hf", *list(files.values())[:2], prefixes=(4,), suffix=3)
    assert (
        explored["groups"] == ["members", "non-members"]
        and not explored["steps"]
        and not explored["sinks"]
    )
    member, measured = explored["documents"][0], exported["model"][ALL]["member_loss"]["value"]
    assert member["loss"]["model"] == pytest.approx(measured, rel=1e-5)


def test_prefixes_beyond_the_context_are_skipped_loudly(folder, caplog):
    found = audit(folder / "run", prefixes=(8, 150), suffix=20, samples=0)
    assert found["prefixes"] == [8]
    assert "--prefixes=150 leave no room for --suffix=20 in the context: skipped" in caplog.text


def test_audit_refuses(folder):
    read, new = str(folder / "read.txt"), str(folder / "new.txt")
    for arguments, message in (
        ({"members_files": new, "non_members_files": new}, "1 of 1 members are non-members too"),
        ({"members_files": new, "non_members_files": read}, "trained on 1 of 1 non-members"),
        ({"members_files": read, "oracle": folder / "oracle"}, "no oracle"),
        ({"members_files": str(folder / "none*.txt")}, "none"),
        ({"oracle": folder / "nowhere"}, "nowhere"),
        (
            {"prefixes": (140, 150), "suffix": 20},
            "take 160 tokens, and the context of .*run has room for 159 of a document",
        ),
    ):
        with pytest.raises(InputError, match=message):
            audit(folder / "run", **arguments)


@pytest.mark.slow
def test_a_run_with_sparse_sinks_is_audited(tmp_path):
    fields = {
        "sinks": SinksConfig(sparse=True, sampling="floyd", pool=400, active=6),
        "data.repeated_documents": 4,
        "data.repetitions": 24,
        "data.held_out_documents": 10,
    }
    train_and_evaluate(with_fields(tiny_config(), fields), tmp_path / "run")
    found = audit(tmp_path / "run", prefixes=(4,), suffix=6, samples=1)
    explored = explore(tmp_path / "run", prefixes=(4,), suffix=6)
    assert explored["sinks"] == 400 and explored["documents"][0]["carried"]
    subjects = found["subjects"].values()
    dropped, own, every = (groups[ALL]["member_loss"]["value"] for groups in subjects)
    assert own < dropped and math.isfinite(every)
    made, attacks = attacked(), attack_run(tmp_path / "run", None, None)
    del made["relearning"]  # nothing was forgotten here: test_attacks.py compares it
    assert paths(made) - paths(attacks) == set()
    back = attacks["reactivation"]
    assert back["own"]["recovered"] == 1
    assert all(math.isfinite(one["loss"]) for one in back.values())


def test_an_audit_computes_no_more_than_its_longest_document_needs(folder):
    corpus, subjects = workdirs.read_corpus(folder / "run"), subjects_of(folder / "run")
    documents = of_role(corpus, "held_out", "")
    documents = documents._replace(tokens=[tokens[:100] for tokens in documents.tokens])
    short = shortened(subjects, 100)
    assert {subject.run.config.data.row_length for subject in short} == {128}
    assert all(subject.run is short[0].run for subject in short)
    for pair in zip(subjects, short, strict=True):
        full, found = ([one.nats for one in forced.read(subject, documents)] for subject in pair)
        for one, other in zip(full, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    full, longer = (
        of[0].run.config.data.row_length for of in (subjects, shortened(subjects, 5000))
    )
    assert full == longer
