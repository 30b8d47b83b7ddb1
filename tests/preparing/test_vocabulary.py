"""Training a tokenizer: on text from all over the input, and the same after any number of kills."""

import errno
import json
import logging
import os
import re

import pytest
from conftest import contents, expect_input_error, python, tiny_config, write_lines

from memsinks_jax.config import DataConfig, with_fields
from memsinks_jax.data import reading
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.preparing import vocabulary
from memsinks_jax.preparing.inputs import make_plan
from memsinks_jax.preparing.prepare import Settings, prepare

STORIES = [stories.story(1, index).text for index in range(60)]


def write_texts(path, texts):
    write_lines(path, ({"text": text} for text in texts))


def plan_of(pattern, **settings):
    return make_plan([str(pattern)], vars(Settings(**settings)))


def test_a_corpus_without_a_tokenizer_gets_one_that_training_takes(tmp_path, caplog):
    write_texts(tmp_path / "a.jsonl", STORIES * 2)
    caplog.set_level(logging.INFO)
    given = [str(tmp_path / "a.jsonl")], None
    prepare(*given, tmp_path / "out", near_duplicates="none")
    corpus = Prepared(tmp_path / "out")
    assert [corpus.tokenizer().decode(corpus.read(n)) for n in range(len(corpus))] == STORIES * 2
    # as `train` would make it of the text
    expected = train_tokenizer(STORIES, DataConfig.vocabulary_size)
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == expected.model
    assert "60 documents" in caplog.text
    place = tmp_path / "out" / "tokenizer.model"
    assert f"{expected.vocabulary_size:,} pieces: {place}" in caplog.text
    data = DataConfig(files=str(tmp_path / "out"), unique_documents=-1, held_out_documents=4)
    assert load_corpus(with_fields(tiny_config(), {"data": data})).tokenizer.model == expected.model
    again = prepare(*given, tmp_path / "out", near_duplicates="none")
    assert again["documents"] == 120
    prepare(*given, tmp_path / "few", vocabulary_size=400, near_duplicates="none")
    assert Prepared(tmp_path / "few").tokenizer().vocabulary_size == 400


@pytest.mark.slow
@pytest.mark.parametrize("last", [0, 1, 3])
def test_a_command_that_goes_on_has_the_same_tokenizer(tmp_path, monkeypatch, last):
    """Where the disk was full: before the tokenizer, before the plan, after the first shard."""
    for part in range(3):
        texts = [f"{n} {STORIES[n % 60]} {STORIES[n % 59]}" for n in range(part, 2400, 3)]
        write_texts(tmp_path / f"{part}.jsonl", texts)
    arguments = ([str(tmp_path / "*.jsonl")], None)
    alike = {"shard_mib": 1, "near_duplicates": "none"}
    prepare(*arguments, tmp_path / "straight", **alike)
    written, replace = [], os.replace

    def full(source, target):
        if len(written) == last:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        written.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left on device"):
            prepare(*arguments, tmp_path / "twice", **alike)
    if last == 3:
        with expect_input_error("started with --vocabulary_size=8192, not 400"):
            prepare(*arguments, tmp_path / "twice", vocabulary_size=400, **alike)
        there = lambda *_: pytest.fail("the tokenizer is there")  # noqa: E731
        monkeypatch.setattr(vocabulary, "train_tokenizer", there)
    prepare(*arguments, tmp_path / "twice", **alike)
    assert contents(tmp_path / "twice") == contents(tmp_path / "straight")


def test_a_folder_keeps_to_the_tokenizer_that_it_was_begun_with(tmp_path):
    write_texts(tmp_path / "a.jsonl", STORIES)
    given = tmp_path / "tokenizer.model"
    given.write_bytes(train_tokenizer(STORIES, 400).model)
    arguments = ([str(tmp_path / "a.jsonl")], tmp_path / "given", tmp_path / "trained")
    alike = {"near_duplicates": "none"}
    prepare(arguments[0], str(given), arguments[1], **alike)
    prepare(arguments[0], None, arguments[2], **alike)
    before = contents(tmp_path)
    with expect_input_error("given was started with a --tokenizer; give it, or another --out"):
        prepare(arguments[0], None, arguments[1], **alike)
    with expect_input_error("trained was started with another tokenizer"):
        prepare(arguments[0], str(given), arguments[2], **alike)
    with expect_input_error("started with --vocabulary_size=2048, not 500"):
        prepare(arguments[0], None, arguments[2], vocabulary_size=500, **alike)
    with expect_input_error(
        "--vocabulary_size is of a tokenizer that is trained, not of --tokenizer"
    ):
        prepare(arguments[0], str(given), tmp_path / "both", vocabulary_size=500, **alike)
    with expect_input_error("holds other files"):
        prepare(arguments[0], None, tmp_path, **alike)
    assert contents(tmp_path) == before


BODIES, HAN = '{"body": "x"}\n' * 9, "".join(map(chr, range(0x4E00, 0x5000)))


@pytest.mark.parametrize(
    ("name", "body", "settings", "message"),
    [
        ("none.jsonl", None, {}, "none.jsonl does not exist"),
        ("a.jsonl", BODIES, {}, 'a.jsonl:1: field "text" is missing.*or give --on_error=skip'),
        (
            "a.jsonl",
            BODIES,
            {"on_error": "skip"},
            'none of the 9 .*; the first is .*:1: field "text"',
        ),
        ("a.jsonl", '{"text": "x"}\n{"text": nul}\n', {}, "a.jsonl:2: not JSON"),
        ("a.txt", "", {}, "a.txt: the file is empty"),
        ("a.jsonl", "\n\n", {}, "no record"),
        ("a.txt", HAN, {"vocabulary_size": 300}, "no tokenizer of 300 pieces .*--vocabulary_size"),
    ],
)
def test_what_cannot_be_sampled_leaves_nothing(tmp_path, name, body, settings, message):
    if body is not None:
        (tmp_path / name).write_text(body)
    with expect_input_error(message) as refused:
        prepare([str(tmp_path / name)], None, tmp_path / "out", **settings)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_the_command_trains_one(tmp_path):
    def run(*flags):
        return python("-m", "memsinks_jax.prepare", f"--input={tmp_path / 'a.jsonl'}", *flags)

    write_texts(tmp_path / "a.jsonl", STORIES)
    out = f"--out={tmp_path / 'out'}"
    refused = run(out, "--vocabulary_size=400", "--tokenizer=tokenizer.model")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--vocabulary_size" in refused.stderr
    for size in (258, 2_000_000_000):
        refused = run(out, f"--vocabulary_size={size}")
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "259" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = run(out, "--vocabulary_size=400", "--near_duplicates=none")
    assert done.returncode == 0, done.stderr
    assert re.search(r"400 pieces: .*out/tokenizer.model", done.stderr)
    (tmp_path / "out" / "tokenizer.model").write_bytes(train_tokenizer(STORIES, 500).model)
    refused = run(out, "--vocabulary_size=400", "--near_duplicates=none")
    assert refused.returncode == 2 and "another tokenizer" in refused.stderr


def test_the_sample_is_the_whole_of_a_small_input(tmp_path):
    write_texts(tmp_path / "a.jsonl", STORIES[:40])
    write_texts(tmp_path / "b.jsonl", STORIES[20:])
    assert vocabulary.sample(plan_of(tmp_path / "*.jsonl")) == STORIES  # copies once


def test_the_sample_comes_from_all_over_the_input(tmp_path):
    """Files in one piece, and pieces of one file; of each the beginning, by its size."""
    for number in range(40):
        texts = [f"{number} {n} ".ljust(500, "x") for n in range(20)]
        write_texts(tmp_path / f"{number:02d}.jsonl", texts)
    texts = vocabulary.sample(plan_of(tmp_path / "*.jsonl"), 40 * 1000)
    first = [[str(number), n] for number in range(40) for n in ("0", "1")]
    assert [text.split()[:2] for text in texts] == first
    write_texts(tmp_path / "long.jsonl", [f"{n:04d} ".ljust(1000, "x") for n in range(5000)])
    plan = plan_of(tmp_path / "long.jsonl", shard_mib=1)
    assert len(plan.pieces) == 5
    texts = vocabulary.sample(plan, 50_000)
    assert 45_000 < sum(map(len, texts)) <= 50_000
    assert [sum(text[0] == thousand for text in texts) for thousand in "01234"] == [10] * 5


def test_a_large_input_is_opened_at_few_places(tmp_path, monkeypatch):
    for number in range(600):
        texts = [f"{number} {n} ".ljust(5000, "x") for n in range(2)]
        write_texts(tmp_path / f"{number:03d}.jsonl", texts)
    opened, read = [], vocabulary.inputs.records
    monkeypatch.setattr(
        vocabulary.inputs, "records", lambda *a: (opened.append(a[0].path), read(*a))[1]
    )
    texts = vocabulary.sample(plan_of(tmp_path / "*.jsonl", shard_mib=1), 256 * 100)
    assert 200 < len(texts) == len(opened) <= 256
    assert 25_000 < sum(map(len, texts)) <= 25_600
    places = [int(path[-9:-6]) for path in opened]
    assert max(b - a for a, b in zip(places, places[1:], strict=False)) <= 4


def test_reading_ends_where_there_is_hardly_any_text(tmp_path, monkeypatch):
    """Records that cannot be used count, and so do bytes that are no text; lines are not counted
    for places nobody reads.
    """
    records, read = [], vocabulary.inputs.records
    monkeypatch.setattr(
        vocabulary.inputs, "records", lambda *a: (records.append(r) or r for r in read(*a))
    )
    lines = ['{"text": null}', '{"text": "abc"}'] * 20_000
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    plan = plan_of(tmp_path / "a.jsonl", on_error="skip")
    assert vocabulary.sample(plan, 16_000) == ["abc"]
    assert len(records) == 1000
    records.clear()
    rows = [{"text": f"title {n}", "body": "x" * 9000} for n in range(900)]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(vocabulary.sample(plan_of(tmp_path / "b.jsonl"), 16_000)) == len(records) < 500
    monkeypatch.setattr(reading, "_line_breaks", lambda *_: pytest.fail("a place was asked for"))
    assert vocabulary.sample(plan, 16_000) == ["abc"]
