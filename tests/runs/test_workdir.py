"""A workdir keeps the run's tokenizer, of either kind."""

import hashlib

import numpy as np
import pytest
from conftest import expect_input_error, tiny_config
from test_tokenizer import byte_level

from memsinks_jax.config import flatten, to_json, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.opened import read_ids
from memsinks_jax.measures.subjects import encounters_in
from memsinks_jax.runs import workdir as workdirs


@pytest.fixture
def run(tmp_path):
    """-> (workdir, corpus) of a run with a tokenizer.json that is gone by now."""
    config = with_fields(tiny_config(), {"data.tokenizer": str(tmp_path / "elsewhere.json")})
    (tmp_path / "elsewhere.json").write_bytes(byte_level())
    corpus = load_corpus(config)
    workdirs.create(tmp_path / "run", config, corpus)
    (tmp_path / "elsewhere.json").unlink()
    return tmp_path / "run", corpus


def test_damaged_files_are_refused_by_name(run):
    workdir, _ = run
    (workdir / "data.json").write_text('{"tokenizer": "')
    with expect_input_error(r"data.json cannot be read"):
        workdirs.read_corpus(workdir)
    (workdir / "data.json").write_text("{}")
    with expect_input_error(r"data.json cannot be read \(it is not what a run writes there\)"):
        workdirs.read_corpus(workdir)
    (workdir / "config.json").write_bytes(b"\xba\xff")
    with expect_input_error(r"config.json is not a config of this version"):
        workdirs.read_config(workdir)


def test_a_damaged_list_of_documents_is_refused_and_written_anew(run):
    workdir, corpus = run
    (workdir / "documents.jsonl").write_text('{"id": 1}\n')
    with expect_input_error(r"documents.jsonl is damaged .* run the command that trained"):
        encounters_in(workdir, corpus.identities(np.arange(1)))
    workdirs.rewrite(workdir, workdirs.read_config(workdir), corpus)
    assert encounters_in(workdir, corpus.identities(np.arange(1)))


def test_another_folder_of_the_user_does_not_become_part_of_a_new_run(tmp_path):
    (tmp_path / "run.new").mkdir()
    (tmp_path / "run.new" / "mine").write_text("")
    config = tiny_config()
    workdirs.create(tmp_path / "run", config, load_corpus(config))
    assert (tmp_path / "run.new" / "mine").exists() and not (tmp_path / "run" / "mine").exists()


def test_a_tokenizer_json_is_stored_and_read(run):
    workdir, corpus = run
    assert sorted(p.name for p in workdir.iterdir()) == [
        "config.json",
        "data.json",
        "documents.jsonl",
        "special_tokens.json",
        "tokenizer.json",
    ]
    assert workdirs.read_tokenizer(workdir).model == byte_level()
    assert corpus.fingerprints["tokenizer"] == hashlib.sha256(byte_level()).hexdigest()
    again = workdirs.read_corpus(workdir, trained_on=corpus.fingerprints)
    assert again.tokenizer.end_of_text == 600
    every = np.arange(len(corpus.table))
    assert (again.identities(every) == corpus.identities(every)).all()


def test_another_tokenizer_json_is_refused(run):
    workdir, corpus = run
    (workdir / "tokenizer.json").write_bytes(byte_level(["</s>"]))
    with expect_input_error(r"tokenizer.json is not the tokenizer that .*run was trained with"):
        workdirs.read_corpus(workdir)


def test_a_workdir_has_one_tokenizer(run):
    workdir, _ = run
    (workdir / "tokenizer.model").write_bytes(load_corpus(tiny_config()).tokenizer.model)
    with expect_input_error("holds tokenizer.model and tokenizer.json; remove the one"):
        workdirs.read_tokenizer(workdir)
    for name in ("tokenizer.model", "tokenizer.json"):
        (workdir / name).unlink()
    with expect_input_error("tokenizer.model is missing; give the folder of a training run"):
        workdirs.read_tokenizer(workdir)


def test_what_the_documents_decided_stays_so(run):
    """A run that was started with rows of kind auto goes on with the kind that it chose, and
    refuses another.
    """
    workdir, corpus = run
    config = workdirs.read_config(workdir)
    config = with_fields(config, {"data.rows": "auto"})
    assert workdirs.adopt(workdir, config).data.rows == corpus.config.data.rows == "one_document"
    config = with_fields(config, {"data.rows": "packed"})
    with expect_input_error("data.rows is 'one_document' there and 'packed' here"):
        workdirs.adopt(workdir, config)


@pytest.mark.parametrize(("most", "stays"), [(0, True), (300, True), (600, True), (256, False)])
def test_a_run_keeps_its_contexts_if_no_fewer_are_asked_for(run, tmp_path, most, stays):
    """Its documents decided how many it has: here 512 rows, of 300 contexts."""
    config = with_fields(workdirs.read_config(run[0]), {"sinks.kind": "by_context"})
    (tmp_path / "config.json").write_text(to_json(with_fields(config, {"contexts.rows": 512})))
    asked = with_fields(config, {"contexts.rows": most})
    if stays:
        assert workdirs.adopt(tmp_path, asked).contexts.rows == 512
    else:
        with expect_input_error("contexts.rows is 512 there and 256 here"):
            workdirs.adopt(tmp_path, asked)


@pytest.mark.parametrize("name", ["training.epochs", "training.steps"])
def test_a_run_does_not_get_longer_and_it_is_said_how_to_go_on(run, name):
    workdir, _ = run
    config = workdirs.read_config(workdir)
    more = flatten(config)[name] + 1
    with expect_input_error(f"{name} is .*another --workdir and --config.model.initial={workdir}$"):
        workdirs.adopt(workdir, with_fields(config, {name: more}))


@pytest.mark.parametrize("content", [b"", b"xx", b"{}", b"\xff"])
def test_damaged_lists_of_ids_and_groups_are_named(tmp_path, content):
    (tmp_path / "opened.npy").write_bytes(content)
    with expect_input_error("opened.npy cannot be read .*; put a copy in its place"):
        read_ids(tmp_path)
    (tmp_path / "groups.json").write_bytes(content)
    with expect_input_error("groups.json is damaged .*; put a copy in its place"):
        workdirs.read_groups(tmp_path)


@pytest.mark.parametrize("ids", [np.zeros((2, 2), np.uint64), np.zeros(2, np.uint32)])
def test_opened_ids_of_another_kind_are_refused(tmp_path, ids):
    np.save(tmp_path / "opened.npy", ids)
    with expect_input_error("it holds no ids"):
        read_ids(tmp_path)
