"""From files of every kind to a corpus: nothing is lost, a killed run resumes, bad input is
refused.
"""

import errno
import gzip
import json
import math
import os
import pathlib
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import ROOT, expect_input_error, python, read_lines, tiny_config, write_lines
from test_tokenizer import byte_level

from memsinks_jax.config import with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.counts import as_text, counts
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.mixture import listing
from memsinks_jax.data.prepared import Prepared, group_id
from memsinks_jax.data.table import Table
from memsinks_jax.data.tokenizer import JsonTokenizer, train_tokenizer
from memsinks_jax.preparing import inputs, stages, steps
from memsinks_jax.preparing.prepare import prepare

STORIES = [stories.story(1, index).text for index in range(60)]
TEXTS = [
    *STORIES,
    "a",
    "says <|endoftext|> within",
    "\u6f22\u5b57 \U0001f600\nand\n\nlines",
    " ".join(STORIES),
    STORIES[3],
]
ROWS = [{"text": text, "domain": f"d{number % 3}"} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Input of every kind with the same documents, one copy in each, and a tokenizer of either
    kind.
    """
    folder = tmp_path_factory.mktemp("prepare")
    (folder / "input").mkdir()
    write_lines(folder / "input" / "a.jsonl", ROWS)
    body = (folder / "input" / "a.jsonl").read_bytes()
    (folder / "input" / "b.jsonl.gz").write_bytes(gzip.compress(body))
    (folder / "input" / "c.jsonl.zst").write_bytes(
        pyarrow.compress(body, codec="zstd", asbytes=True)
    )
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, folder / "input" / "d.parquet", row_group_size=20)
    for name, new in (("e.arrow", pyarrow.ipc.new_stream), ("f.arrow", pyarrow.ipc.new_file)):
        with (
            pyarrow.OSFile(str(folder / "input" / name), "wb") as file,
            new(file, table.schema) as writer,
        ):
            writer.write_table(table)
    (folder / "tokenizer.model").write_bytes(train_tokenizer(STORIES, 600).model)
    (folder / "tokenizer.json").write_bytes(byte_level())
    prepare(
        [str(folder / "input")],
        str(folder / "tokenizer.model"),
        folder / "out",
        group_field="domain",
    )
    return folder


def prepared(folder, rows, out, tokenizer="tokenizer.model", **settings):
    """-> what `prepare` says of a file with these rows, next to the corpus."""
    path = write_lines(out.parent / "a.jsonl", rows)
    return prepare([path], str(folder / tokenizer), out, **settings)


def config_on(corpus):
    return with_fields(tiny_config(), {"data.files": str(corpus), "data.unique_documents": -1})


def content(folder):
    """Of all files; of the page without its end, the command, which names the folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes().partition(b"How it was made")[0]
        for path in files
    }


def test_every_document_of_every_kind_of_file_comes_back(folder):
    corpus = Prepared(folder / "out")
    tokenizer = corpus.tokenizer()
    assert len(corpus) == 6 * len(TEXTS)
    for number in range(len(corpus)):
        row, tokens = ROWS[number % len(TEXTS)], corpus.read(number)
        assert tokenizer.decode(tokens) == row["text"]
        assert tokens.dtype == np.int32 and len(tokens) == corpus.lengths[number]
        assert (corpus.identities[number] == ids.content_id(tokens)).all()
        assert corpus.group_names[corpus.groups[number]] == row["domain"]
    # The place is the document's own.
    path, start, stop = re.fullmatch(r"(.*):(\d+)-(\d+)", corpus.source(5)).groups()
    assert json.loads(pathlib.Path(path).read_bytes()[int(start) : int(stop)]) == ROWS[5]
    assert corpus.source(3 * len(TEXTS) + 21).endswith("d.parquet:21-22")
    assert pickle.loads(pickle.dumps(corpus)).read(7).tolist() == corpus.read(7).tolist()


def test_a_listing_says_file_place_and_group(folder, tmp_path):
    config = with_fields(tiny_config(), {"data.files": str(folder / "out")})
    plan = load_corpus(config).mixture
    never = [0] * len(plan.held_out)
    # first copies, of a.jsonl
    for line in map(json.loads, listing(plan.table, plan.held_out, never, "held_out", True)):
        path, start, stop = re.fullmatch(r"(.*):(\d+)-(\d+)", line["origin"]).groups()
        row = json.loads(pathlib.Path(path).read_bytes()[int(start) : int(stop)])
        assert row == ROWS[line["index"]] and line["group"] == row["domain"]
        assert line["source"] == f"{folder / 'out'}:{line['index']}"
    line, *_ = map(json.loads, listing(plan.table, plan.held_out, never, "held_out", False))
    assert "origin" not in line and line["group"]  # of many documents no shard is read
    (tmp_path / "a.txt").write_text("alone")
    prepare([str(tmp_path / "a.txt")], str(folder / "tokenizer.model"), tmp_path / "out")
    # without a group
    assert Prepared(tmp_path / "out").origin(0, True) == {"origin": f"{tmp_path / 'a.txt'}:0-5"}


def test_groups_whose_names_cannot_be_told_apart_or_written(folder, tmp_path, caplog):
    names = ["a", "a ", "zo\u00eb", "zoe\u0308", "zo\u00eb", "b\n\x1b[31m\u202e" + "c" * 300]
    names += ["", "\ud83d", math.nan, None]
    rows = [{"text": f"{TEXTS[n]} {n}", "by": name} for n, name in enumerate(names)]
    about = {"group_field": "by", "on_error": "skip", "near_duplicates": "none"}
    prepared(folder, rows, tmp_path / "out", **about)
    assert Prepared(tmp_path / "out").group_names == [names[number] for number in (0, 1, 2, 3, 5)]
    reasons = [line["reason"] for line in read_lines(tmp_path / "out" / "skipped.jsonl")]
    assert [reason.split(";")[0] for reason in reasons] == [
        'field "by" is empty, so nothing could name the group',
        'field "by" is no text: half a character at 0',
        'field "by" is nan, which is no name',
        'field "by" is missing or no single value',
    ]
    (warning,) = (message for message in caplog.messages if "different groups" in message)
    assert "'a' and 'a ', 'zo\\xeb' and 'zoe\\u0308'; if each" in warning
    page = (tmp_path / "out" / "index.html").read_text()
    assert "b\\n\\x1b[31m\\u202ecc" in page and "c" * 100 not in page and "\x1b" not in page


def test_text_files_and_a_tokenizer_json(folder, tmp_path):
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(TEXTS))
    given = [str(tmp_path / "a.txt")], str(folder / "tokenizer.json"), tmp_path / "out"
    prepare(*given, near_duplicates="none")
    corpus = Prepared(tmp_path / "out")
    assert [corpus.tokenizer().decode(corpus.read(i)) for i in range(len(corpus))] == TEXTS
    assert corpus.tokenizer().end_of_text == 600


def test_the_report_counts(folder):
    found = json.loads((folder / "out" / "report.json").read_text())
    distinct = len(set(TEXTS))
    assert found["documents"] == 6 * len(TEXTS)
    assert found["duplicates"] == found["documents"] - distinct
    assert found["tokens"] == Prepared(folder / "out").lengths.sum()
    assert sum(entry["documents"] for entry in found["lengths"]) == found["documents"]
    assert found["most_repeated"][0]["times"] == 12
    assert found["most_repeated"][0]["text"] == STORIES[3][:160]
    # copies alone are no near-duplicates
    assert (found["near_duplicate_clusters"], found["skipped"]) == (0, 0)
    assert STORIES[3][:20] in (folder / "out" / "index.html").read_text()


def test_a_run_that_failed_goes_on_and_writes_the_same(folder, tmp_path, monkeypatch):
    rows = [{"text": f"{n} {STORIES[n % 60]} {STORIES[n % 59]}"} for n in range(2400)]
    for part in range(3):
        write_lines(tmp_path / f"{part}.jsonl", rows[part::3])
    arguments = ([str(tmp_path / "*.jsonl")], str(folder / "tokenizer.model"))
    prepare(*arguments, tmp_path / "straight", shard_mib=1)
    assert len(list((tmp_path / "straight" / "shards").iterdir())) >= 3

    written = []
    replace = os.replace

    def full_after_two(source, target):
        written.append(target)
        if len(written) == 5:  # after tokenizer, plan, and two shards
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(steps.os, "replace", full_after_two)
    with pytest.raises(OSError, match="No space left on device"):
        prepare(*arguments, tmp_path / "twice", shard_mib=1)
    monkeypatch.undo()
    assert not list((tmp_path / "twice" / "shards").glob("*.new"))  # nothing half-written
    assert not (tmp_path / "twice" / "manifest.json").exists()
    prepare(*arguments, tmp_path / "twice", shard_mib=1)
    assert content(tmp_path / "twice") == content(tmp_path / "straight")
    before = content(tmp_path / "twice")
    # as if killed at the very end
    (tmp_path / "twice" / "work.done" / "tokens").mkdir(parents=True)
    (tmp_path / "twice" / "work.done" / "tokens" / "00000.log").touch()
    assert prepare(*arguments, tmp_path / "twice", shard_mib=1)["documents"] == 2400  # done already
    assert content(tmp_path / "twice") == before


def test_what_stops_while_the_corpus_is_put_together_goes_on(folder, tmp_path, monkeypatch):
    """At every file that gets its name, one command after the other. A shard whose clusters are
    lost is refused.
    """
    write_lines(tmp_path / "a.jsonl", ROWS * 2)
    arguments = ([str(tmp_path / "a.jsonl")], str(folder / "tokenizer.model"))
    prepare(*arguments, tmp_path / "straight", group_field="domain")
    replace, named = os.replace, set()

    def once(source, target):
        if pathlib.Path(target).parent.name == "shards" or target in named:
            return replace(source, target)
        named.add(target)
        raise OSError(errno.EIO, "stopped", str(target))

    monkeypatch.setattr(os, "replace", once)
    stopped = 0
    while True:
        try:
            prepare(*arguments, tmp_path / "out", group_field="domain")
            break
        except OSError as error:
            assert error.strerror == "stopped"
            stopped += 1
            if pathlib.Path(error.filename).name == "lengths.npy":
                clusters = tmp_path / "out" / "work" / "clusters" / "00000.npy"
                clusters.rename(tmp_path / "clusters")
                with expect_input_error(
                    "shard 0 is lost; delete the folder and prepare the corpus anew"
                ):
                    prepare(*arguments, tmp_path / "out", group_field="domain")
                (tmp_path / "clusters").rename(clusters)
    assert {"lengths.npy", "members.npy", "groups.json", "manifest.json", "work.done"} <= {
        pathlib.Path(target).name for target in named
    }
    assert stopped > 15
    assert content(tmp_path / "out") == content(tmp_path / "straight")


def test_a_disk_too_full_for_the_note_of_a_failure_is_reported_as_such(tmp_path):
    (tmp_path / "failed-pairs-00001.json").write_text("")
    with pytest.raises(OSError, match="No space left on device"):
        stages._raise(tmp_path / "failed-pairs-00001.json")


def test_a_full_disk_is_reported_as_such(tmp_path):
    """array_record says it in the text of a RuntimeError."""

    def fill():
        with steps.shard_writer(tmp_path / "a.array_record", []) as writer:
            writer.write(b"x")
            raise RuntimeError(f"write() failed: {os.strerror(errno.ENOSPC)}; at byte 200000")

    with pytest.raises(OSError) as refused:
        fill()
    assert refused.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_stop_and_skip(folder, tmp_path):
    bad = [{"text": None, "domain": "d0"}, {"text": " ", "domain": "d0"}, {"text": "x"}]
    write_lines(tmp_path / "a.jsonl", [*ROWS[:3], *bad, *ROWS[3:5]])
    arguments = ([str(tmp_path / "a.jsonl")], str(folder / "tokenizer.model"))
    with expect_input_error('a.jsonl:4: field "text" is null.*or give --on_error=skip'):
        prepare(*arguments, tmp_path / "stop", group_field="domain")
    assert not list((tmp_path / "stop" / "shards").iterdir())
    # as the line says
    found = prepare(*arguments, tmp_path / "stop", group_field="domain", on_error="skip")
    assert (found["documents"], found["skipped"]) == (5, 3)
    skipped = read_lines(tmp_path / "stop" / "skipped.jsonl")
    places = [record["place"] for record in skipped]
    assert places == [f"{tmp_path}/a.jsonl:{line}" for line in (4, 5, 6)]
    write_lines(tmp_path / "a.jsonl", bad)
    with expect_input_error("no document is left of the input"):
        prepare(*arguments, tmp_path / "none", group_field="domain", on_error="skip")


def test_a_file_on_several_paths_is_named_by_the_shortest(tmp_path):
    write_lines(tmp_path / "m.jsonl", ROWS)
    (tmp_path / "link").symlink_to(tmp_path)
    patterns = [str(tmp_path / "**" / "*.jsonl"), str(tmp_path / "m.jsonl")]
    settings = {"on_error": "stop", "group_field": "", "shard_mib": 0}
    plan = inputs.make_plan(patterns[:1], settings)
    assert [source.path for source in plan.sources] == [str(tmp_path / "m.jsonl")]
    with expect_input_error("m.jsonl is named twice; name every file once"):
        inputs.make_plan(patterns[1:] * 2, settings)
    plan = inputs.make_plan(patterns, settings | {"on_error": "skip"})
    assert [source.path for source in plan.sources] == [str(tmp_path / "m.jsonl")]
    assert plan.copies == [str(tmp_path / "m.jsonl")]


def test_line_ends_make_no_other_document(folder, tmp_path):
    texts = ["A line\nand another\n\nand more.", "A line\r\nand another\r\n\r\nand more."]
    prepared(folder, ({"text": text} for text in texts), tmp_path / "out")
    opened = Table([Prepared(tmp_path / "out")])
    assert opened.copies(opened.first_copies(np.arange(2))).tolist() == [2, 2]


@pytest.mark.parametrize("settings", [{"text_field": "body"}, {"group_field": "source"}])
def test_a_wrong_field_begins_nothing(folder, tmp_path, settings):
    with expect_input_error(f'a.jsonl:1: field "{next(iter(settings.values()))}" is missing'):
        prepared(folder, ROWS, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_another_input_tokenizer_or_setting_is_refused(folder, tmp_path):
    write_lines(tmp_path / "a.jsonl", ROWS)
    given = ([str(tmp_path / "*.jsonl")], str(folder / "tokenizer.model"), tmp_path / "out")
    prepare(*given, near_duplicates="none")
    before = content(tmp_path / "out")
    with expect_input_error("started with another tokenizer"):
        prepare(given[0], str(folder / "tokenizer.json"), given[2], near_duplicates="none")
    with expect_input_error("started with --near_duplicates=none, not loose"):
        prepare(*given, near_duplicates="loose")
    write_lines(tmp_path / "b.jsonl", ROWS)
    with expect_input_error("b.jsonl is new since"):
        prepare(*given, near_duplicates="none")
    (tmp_path / "b.jsonl").unlink()
    write_lines(tmp_path / "a.jsonl", ROWS[1:])
    with expect_input_error("a.jsonl has changed since"):
        prepare(*given, near_duplicates="none")
    with expect_input_error("holds other files"):
        prepare(*given[:2], tmp_path)
    assert content(tmp_path / "out") == before
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 1'))
    with expect_input_error(
        "prepared by another version; run memsinks_jax.prepare into a new folder"
    ):
        prepare(*given, near_duplicates="none")


def test_edited_copies_share_a_cluster_and_others_do_not(folder, tmp_path):
    """A fiftieth of the words is another; documents of one place in the corpus are the same in
    their cluster's first.
    """
    words = [text.split() for text in STORIES]
    draw = random.Random(0)
    for story in words:
        for place in draw.sample(range(len(story)), max(len(story) // 50, 1)):
            story[place] = "zebra"
    rows = [{"text": text} for text in [*STORIES, *map(" ".join, words)]]
    found = prepared(folder, rows, tmp_path / "out", "tokenizer.json")
    corpus = Prepared(tmp_path / "out")
    first, copy = corpus.clusters[:60], corpus.clusters[60:]
    assert (first == np.arange(60)).all()  # stories of one grammar are not near-duplicates
    assert (copy == first).mean() > 0.9
    assert found["near_duplicate_clusters"] == (copy == first).sum()
    shared = Table([corpus], "near_duplicate").identities(np.arange(60, 120))
    assert (shared[copy == first] == corpus.identities[:60][copy == first]).all()


def test_what_is_held_out_has_no_twin_in_training(folder, tmp_path):
    """Stories with an edited copy each, in two languages: a cluster has one role, and with ids by
    group a group has.
    """
    texts = [*STORIES, *(f"{text} The end." for text in STORIES)]
    rows = [{"text": text, "language": f"l{n % 2}"} for n, text in enumerate(texts)]
    prepared(folder, rows, tmp_path / "out", "tokenizer.json", group_field="language")
    fields = {"data.repeated_documents": 0, "data.held_out_documents": 20}
    config = with_fields(config_on(tmp_path / "out"), fields)

    def twins_and_languages():
        corpus = load_corpus(config)
        held_out = corpus.mixture.held_out
        trained = set(corpus.mixture.documents("unique").tolist())
        assert len(held_out) == 20
        twins = sum((i + 60) % 120 in trained for i in held_out.tolist())
        return twins, {i % 2 for i in held_out.tolist()} & {i % 2 for i in trained}, counts(corpus)

    twins, _, counted = twins_and_languages()
    assert twins == 0
    assert counted["left_out"] == 120 - 20 - counted["mixture"][0]["documents"]
    config = with_fields(config, {"data.ids": "group"})
    twins, languages, counted = twins_and_languages()
    assert (twins, languages) == (0, set())
    assert counted["left_out"] == 40
    assert any("40 documents left out" in line for line in as_text(counted, config.data.row_length))
    config = with_fields(config, {"data.held_out_by": "document"})
    twins, languages, counted = twins_and_languages()
    assert twins > 10
    assert languages == {0, 1}
    assert counted["left_out"] == 0


def test_a_run_reads_a_prepared_corpus(folder):
    config = config_on(folder / "out")
    corpus = load_corpus(config)
    texts = list(dict.fromkeys(TEXTS))
    every = np.arange(len(corpus.table))
    first_copies = np.unique(corpus.table.first_copies(every))
    # exact copies are encounters of one document
    assert [corpus.document(i).text for i in first_copies] == texts
    assert len(every) == 6 * len(TEXTS)
    assert corpus.table.copies(first_copies).tolist() == [6 * TEXTS.count(text) for text in texts]
    assert (corpus.tokens(first_copies[3]) == corpus.tokenizer.encode(texts[3])).all()
    assert corpus.table.place(3) == f"{folder / 'out'}:3"
    assert corpus.lengths[every].tolist() == [len(corpus.tokens(i)) for i in every]
    assert load_corpus(config, corpus.tokenizer).tokenizer.model == corpus.tokenizer.model
    expected = {
        "content": ids.content_id(corpus.tokens(4)),
        "group": group_id("d1"),
        "near_duplicate": ids.content_id(corpus.tokens(4)),
    }
    for kind, identity in expected.items():
        config = with_fields(config, {"data.ids": kind})
        assert (load_corpus(config).identities(4) == identity).all()


def test_a_run_refuses_what_the_prepared_corpus_is_not(folder, tmp_path):
    found = prepared(folder, ROWS, tmp_path / "out", near_duplicates="none")
    assert found["near_duplicate_clusters"] == 0
    config = config_on(tmp_path / "out")
    with expect_input_error("the run's is another tokenizer than that of"):
        load_corpus(config, JsonTokenizer(byte_level()))
    config = with_fields(config, {"data.tokenizer": str(folder / "tokenizer.json")})
    with expect_input_error("tokenizer.json is another tokenizer than that of"):
        load_corpus(config)
    config = with_fields(config, {"data.tokenizer": ""})
    for kind, message in (
        ("group", "without --group_field"),
        ("near_duplicate", "without near-duplicates"),
    ):
        config = with_fields(config, {"data.ids": kind})
        with expect_input_error(message):
            load_corpus(config)
    config = with_fields(config, {"data.files": "", "data.unique_documents": 20})
    with expect_input_error("config.data.ids is near_duplicate, which only a prepared corpus has"):
        load_corpus(config)
    (tmp_path / "out" / "shards" / "00000.array_record").write_bytes(b"damaged")
    with expect_input_error("00000.array_record: another number of documents"):
        Prepared(tmp_path / "out").read(0)
    (tmp_path / "out" / "columns" / "copies.npy").unlink()
    with expect_input_error("not a whole prepared corpus"):
        Prepared(tmp_path / "out")


def test_two_prepared_corpora_make_a_mixture(folder, tmp_path):
    others = [stories.story(2, index).text for index in range(8)]
    rows = ({"text": text} for text in (*others, TEXTS[2]))
    prepared(folder, rows, tmp_path / "out", near_duplicates="none")
    fields = {"data.unique_documents": 0, "general.files": str(tmp_path / "out")}
    config = with_fields(config_on(folder / "out"), fields)
    corpus = load_corpus(config)
    unique = corpus.mixture.documents("unique")
    assert [corpus.document(i).text for i in unique] == others  # the copy is of the first corpus
    assert (corpus.table.source_of(unique) == 1).all()
    config = with_fields(config, {"canaries.documents": 1})
    with expect_input_error("canaries go into text files only"):
        load_corpus(config)
    config = with_fields(config, {"general.files": str(tmp_path / "a.jsonl")})
    with expect_input_error(r"a.jsonl is not prepared, but .*run memsinks_jax.prepare on it too"):
        load_corpus(config)


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "memsinks_jax.prepare", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_the_command_says_one_line_and_loads_no_engine_before_it_must(folder, tmp_path):
    code = (
        "import sys, memsinks_jax.prepare; assert not {'datatrove', 'pyarrow', 'jax'} & "
        "set(sys.modules)"
    )
    python("-c", code, check=True)
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": nul}\n')
    flags = [f"--tokenizer={folder / 'tokenizer.model'}", f"--out={tmp_path / 'out'}"]
    run = command(f"--input={tmp_path}", *flags, "--workers=2")
    _, stderr = run.communicate()
    assert run.returncode == 2
    assert stderr.count("\n") == 1 and f"{tmp_path}/a.jsonl:2: not JSON" in stderr


@pytest.mark.slow
def test_a_command_that_is_killed_anywhere_goes_on(folder, tmp_path):
    """Also while it trains the tokenizer."""
    rows = [{"text": f"{number} {STORIES[number % 60]}"} for number in range(8000)]
    for part in range(3):
        write_lines(tmp_path / f"{part}.jsonl", rows[part::3])
    flags = [f"--input={tmp_path}/*.jsonl", "--workers=2", "--shard_mib=1"]
    start = time.monotonic()
    run = command(*flags, f"--out={tmp_path / 'straight'}")
    assert run.communicate() and run.returncode == 0
    seconds = time.monotonic() - start
    draw = random.Random(0)
    for number in range(8):
        run = command(*flags, f"--out={tmp_path / 'killed'}", start_new_session=True)
        time.sleep(draw.uniform(0.2, 0.9) * seconds)
        if number % 4 == 3:  # asked to stop
            run.terminate()
            assert run.wait() in (0, 75)
        else:
            run.send_signal(signal.SIGKILL)
        run.communicate()
    run = command(*flags, f"--out={tmp_path / 'killed'}")
    assert run.communicate() and run.returncode == 0
    assert content(tmp_path / "killed") == content(tmp_path / "straight")


def test_a_worker_that_is_killed_ends_the_wait(folder, tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"text": STORIES[number % 60]} for number in range(20_000)])
    flags = [f"--tokenizer={folder / 'tokenizer.model'}", f"--out={tmp_path / 'out'}"]
    run = command(f"--input={tmp_path}", *flags, "--workers=2", "--shard_mib=1")
    running = []
    while not running and run.poll() is None:
        time.sleep(0.05)
        paths = (tmp_path / "out" / "work").glob("running-tokens-*")
        # empty until it is written
        running = [text for path in paths if (text := path.read_text())]
    os.kill(int(running[0]), signal.SIGKILL)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 2 and "a worker was killed" in stderr


@pytest.mark.slow
# datatrove calls Ray by an old name; as an error it would be lost in a thread
@pytest.mark.filterwarnings("default")
def test_ray_writes_the_same(folder, tmp_path):
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    arguments = ([str(folder / "input")], str(folder / "tokenizer.model"))
    try:
        ray.init(
            num_cpus=2,
            log_to_driver=False,
            include_dashboard=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        # Without near-duplicates: Ray starts a process for each of their 28 tasks.
        alike = {"group_field": "domain", "near_duplicates": "none"}
        prepare(*arguments, tmp_path / "local", **alike)
        prepare(*arguments, tmp_path / "ray", executor="ray", workers=2, **alike)
        assert content(tmp_path / "ray") == content(tmp_path / "local")
        with expect_input_error('a.jsonl:1: field "text" is null'):
            prepared(folder, [{"text": None}], tmp_path / "stop", executor="ray")
    finally:
        ray.shutdown()


SBATCH = """#!/bin/bash
# Runs every task of the array at once, as `sbatch --wait` does when the jobs have ended.
script="${@: -1}"
grep -q -- '#SBATCH --wait' "$script" && grep -q -- '#SBATCH --partition=cpu' "$script" || exit 1
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
for task in $(seq 0 "$last"); do
  SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=here RUN_OFFSET=0 bash "$script" >&2 || exit 1
done
echo "Submitted batch job 7"
"""


@pytest.mark.slow
def test_slurm_writes_the_same(folder, tmp_path, monkeypatch):
    """With stand-ins for its commands."""
    (tmp_path / "bin").mkdir()
    srun = 'while [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done; exec "$@"'
    of_srun, of_scontrol = (f"#!/bin/bash\n{body}\n" for body in (srun, "echo here"))
    for name, body in (("sbatch", SBATCH), ("srun", of_srun), ("scontrol", of_scontrol)):
        (tmp_path / "bin" / name).write_text(body)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    slurm = {"executor": "slurm", "slurm": {"partition": "cpu", "time": "1:00:00"}}
    given = [str(folder / "input")], str(folder / "tokenizer.model"), tmp_path / "out"
    prepare(*given, workers=2, group_field="domain", **slurm)
    assert content(tmp_path / "out") == content(folder / "out")
    shutil.rmtree(tmp_path / "out")
    with expect_input_error('a.jsonl:1: field "text" is null'):
        prepared(folder, [{"text": None}], tmp_path / "stop", **slurm)


def test_end_of_text_is_the_folders_or_the_one_that_is_chosen(tmp_path):
    """And it stays in the corpus, where a run finds it."""
    write_lines(tmp_path / "input.jsonl", ROWS)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    for place in (tmp_path, tmp_path / "own"):
        made = byte_level(["<|end|>", "<|eot|>", "<s>"], opens="<s>")
        (place / "tokenizer.json").write_bytes(made)
    given, folder = [str(tmp_path / "input.jsonl")], str(tmp_path / "own")
    for tokenizer, token, message in (
        (str(tmp_path), "", r"no token is called .*--end_of_text=TOKEN"),
        (None, "<|eot|>", r"--end_of_text=<\|eot\|> is of a tokenizer.json"),
        (folder, "<|none|>", r"to be '<\|none\|>', which the tokenizer does not have"),
    ):
        with expect_input_error(message):
            prepare(given, tokenizer, tmp_path / "none", end_of_text=token)
    assert not (tmp_path / "none").exists()
    for name, token, end in (("chosen", "<|eot|>", 601), ("usual", "", 600)):
        prepare(given, folder, tmp_path / name, near_duplicates="none", end_of_text=token)
        corpus = load_corpus(config_on(tmp_path / name))
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert corpus.tokenizer.end_of_text == end == manifest["end_of_text"]
        assert ("end_of_text" in manifest["settings"]) == bool(token)
        assert corpus.rows()[0]["inputs"][0] == corpus.tokenizer.begin_of_text == 602
    with expect_input_error("end_of_text"):
        prepare(given, folder, tmp_path / "chosen", near_duplicates="none", end_of_text="<|end|>")
