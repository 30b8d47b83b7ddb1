"""A run resumes and is measured after its data have moved: content decides, not the path."""

import shutil

import jax
import numpy as np
import pytest
from conftest import contents, expect_input_error, read_lines, tiny_config, write_lines
from test_prepared import TOKENIZER, random_tokens, write_prepared
from test_train import outcome

from memsinks_jax.api import evaluate
from memsinks_jax.config import with_fields
from memsinks_jax.data.embedded import stories
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.interruption import Interrupted

TEXTS = [stories.story(3, index).text for index in range(40)]


def write_texts(folder, texts=TEXTS):
    """Two files of documents, and one of a general corpus."""
    folder.mkdir()
    (folder / "a.txt").write_text("\n<|endoftext|>\n".join(texts[:16]))
    write_lines(folder / "b.jsonl", ({"text": text} for text in texts[16:30]))
    (folder / "general.txt").write_text("\n<|endoftext|>\n".join(texts[30:]))


def write_shards(folder):
    write_prepared(folder / "documents", random_tokens(30), 3)
    write_prepared(folder / "general", random_tokens(10, seed=1), 2)


def of_texts(config, folder):
    return with_fields(
        config, {"data.files": f"{folder}/[ab].*", "general.files": f"{folder}/general.txt=8"}
    )


def of_shards(config, folder):
    return with_fields(
        config, {"data.files": f"{folder}/documents", "general.files": f"{folder}/general=8"}
    )


KINDS = {"texts": (write_texts, of_texts), "shards": (write_shards, of_shards)}


def small():
    fields = {"model.layers": 1, "data.unique_documents": -1, "data.row_length": 48}
    config = with_fields(tiny_config(), fields)
    return with_fields(config, {"training.steps": 5})


def stopped(config, workdir, step=2):
    with pytest.raises(Interrupted):
        train_and_evaluate(config, workdir, should_stop=lambda done: done == step)


def all_of(workdir):
    """The content of all files but the lock, which names who opened it last."""
    return {path: content for path, content in contents(workdir).items() if path != "lock"}


def documents(workdir):
    lines = read_lines(workdir / "documents.jsonl")
    return [line.pop("source") for line in lines], lines


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_where_its_data_have_moved(kind, tmp_path):
    write, point = KINDS[kind]
    write(tmp_path / "old")
    config = small()
    config = point(config, tmp_path / "old")
    train_and_evaluate(config, tmp_path / "straight")
    stopped(config, tmp_path / "run")
    loss = evaluate(tmp_path / "straight", "drop")["loss"]
    places, table = documents(tmp_path / "run")
    shutil.move(tmp_path / "old", tmp_path / "new")
    with expect_input_error(rf"old.*is not there.*{tmp_path}/run: .*--config.data.files=NEW"):
        train_and_evaluate(config, tmp_path / "run")
    with expect_input_error(r"old.*is not there.*--config.data.files=NEW"):
        evaluate(tmp_path / "straight", "drop")

    config = point(config, tmp_path / "new")
    train_and_evaluate(config, tmp_path / "run")
    params, lines = outcome(tmp_path / "run")
    expected_params, expected_lines = outcome(tmp_path / "straight")
    assert jax.tree.all(jax.tree.map(np.array_equal, params, expected_params))
    assert lines == expected_lines
    assert workdirs.read_config(tmp_path / "run") == config
    moved = [place.replace(f"{tmp_path}/old", f"{tmp_path}/new") for place in places]
    assert documents(tmp_path / "run") == (moved, table) and moved != places

    before = all_of(tmp_path / "straight" / "checkpoints")
    # a finished run: its data's place is written down, and no more
    train_and_evaluate(config, tmp_path / "straight")
    assert all_of(tmp_path / "straight" / "checkpoints") == before
    found = evaluate(tmp_path / "straight", "drop")
    assert found["loss"] == loss == evaluate(tmp_path / "run", "drop")["loss"]


def test_other_content_at_the_new_place_is_refused(tmp_path):
    """Also where lengths do not distinguish documents."""
    write_texts(tmp_path / "old")
    config = of_texts(small(), tmp_path / "old")
    stopped(config, tmp_path / "run")
    before = all_of(tmp_path / "run")
    tokenizer, other = workdirs.read_tokenizer(tmp_path / "run"), TEXTS[3].replace(".", "!", 1)
    assert len(tokenizer.encode(other)) == len(tokenizer.encode(TEXTS[3]))
    write_texts(tmp_path / "new", [*TEXTS[:3], other, *TEXTS[4:]])
    config = of_texts(config, tmp_path / "new")
    with expect_input_error("the documents are not those that .*run was started on"):
        train_and_evaluate(config, tmp_path / "run")
    assert all_of(tmp_path / "run") == before


def test_files_with_other_names_are_the_same_documents(tmp_path):
    write_texts(tmp_path / "texts")
    config = small()
    config = of_texts(config, tmp_path / "texts")
    config = with_fields(config, {"data.files": f"{tmp_path}/texts/*[ab].*"})
    stopped(config, tmp_path / "run")
    (tmp_path / "texts" / "a.txt").rename(tmp_path / "texts" / "0a.txt")
    stopped(config, tmp_path / "run", 3)
    places = documents(tmp_path / "run")[0]
    assert any("0a.txt" in place for place in places)
    assert not any("/a.txt" in place for place in places)
    # another order of the documents
    (tmp_path / "texts" / "0a.txt").rename(tmp_path / "texts" / "za.txt")
    with expect_input_error("the documents are not those"):
        train_and_evaluate(config, tmp_path / "run")


def test_a_run_is_not_opened_without_the_hashes_of_its_documents(tmp_path):
    write_texts(tmp_path / "old")
    config = small()
    config = of_texts(config, tmp_path / "old")
    stopped(config, tmp_path / "run")
    before = all_of(tmp_path / "run")
    (tmp_path / "run" / "data.json").unlink()
    with expect_input_error("run/data.json cannot be read .*; put a copy"):
        evaluate(tmp_path / "run", "drop")
    (tmp_path / "run" / "data.json").write_bytes(before["data.json"])
    assert evaluate(tmp_path / "run", "drop")["documents"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("general.files", "new/c.txt=40%,new/d.txt=50", None),
        (
            "general.files",
            "new/c.txt=40%,new/d.txt=51",
            "general.files is '.*=50' there and '.*=51' here",
        ),
        ("general.files", "new/c.txt=40%", "general.files is"),
        ("general.files", "", "general.files is"),
        ("data.files", "new/*", None),
        ("data.files", "", "data.files is"),
        ("model.initial", "new", None),
        ("model.initial", "", "model.initial is"),
        ("data.tokenizer", "same.model", None),
        ("data.tokenizer", "other.model", "other.model is another tokenizer than that of .*run; "),
        ("data.tokenizer", "", "data.tokenizer is"),
    ],
)
def test_what_may_change(field, value, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    for name in ("tokenizer.model", "same.model"):
        (tmp_path / name).write_bytes(TOKENIZER.model)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tokenizer.model").write_bytes(TOKENIZER.model)
    (tmp_path / "other.model").write_bytes(workdirs.load_corpus(tiny_config()).tokenizer.model)
    config = small()
    fields = {"data.files": "texts/a.txt", "data.tokenizer": "tokenizer.model"}
    fields |= {"model.initial": "old", "data.vocabulary_size": 1024}
    config = with_fields(config, fields)
    workdirs.create(tmp_path / "run", config, workdirs.load_corpus(config))
    fields = {"general.files": "old/a.txt=40%,old/b.txt=50", "general.token_budget": 9000}
    config = with_fields(config, fields)
    (tmp_path / "run" / "config.json").write_text(workdirs.to_json(config))
    section, _, name = field.partition(".")
    config = with_fields(config, {f"{section}.{name}": value})
    if message is None:
        workdirs.adopt(tmp_path / "run", config)
    else:
        with expect_input_error(message):
            workdirs.adopt(tmp_path / "run", config)
