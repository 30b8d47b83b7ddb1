"""Common text: which tokens `prepare` marks, and what a run does with them."""

import collections
import gzip
import json

import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import NO_GROUP, Prepared
from memsinks_jax.data.tokenizer import PADDING, train_tokenizer
from memsinks_jax.preparing import common_text, inputs
from memsinks_jax.preparing.prepare import prepare

TEXTS = [stories.story(1, index).text for index in range(400)]
NGRAM = 8
SENTENCE = "All of them say that the old mill by the river burned down in the year of the flood."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder `groups`: stories, each a group, in five shards. Three have one sentence. Two have another, one of
    them twice. Folder `clusters`: without groups, with four near-duplicates.
    """
    folder = tmp_path_factory.mktemp("common")
    (folder / "tokenizer.model").write_bytes(train_tokenizer([*TEXTS, SENTENCE], 400).model)
    sentences = dict.fromkeys((10, 150, 300), SENTENCE) | dict.fromkeys((20, 21, 151), SENTENCE.upper())
    rows = [
        {"text": f"{text} {sentences.get(n, '')} {text[:40]}", "group": f"story {n - (n == 21)}"}
        for n, text in enumerate(TEXTS)
    ]
    copied = " ".join(TEXTS[:8])
    rows += [{"text": f"{copied} {number}", "group": f"copy {number}"} for number in range(4)]
    for part in range(5):
        lines = "".join(json.dumps(row) + "\n" for row in rows[part::5])
        (folder / f"{part}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common_text, "_TASK_BYTES", 2**15)
        patch.setattr(inputs, "_SMALLEST", 0)  # a shard per file
        for name, settings in {"groups": {"group_field": "group", "near_duplicates": "none"}, "clusters": {}}.items():
            prepare(
                [str(folder / "*.jsonl.gz")],
                str(folder / "tokenizer.model"),
                folder / name,
                common_at=3,
                common_ngram=NGRAM,
                **settings,
            )
            assert not (folder / name / "work").exists() and len(list((folder / name / "common").iterdir())) == 5
    return folder


def common_text_by(corpus):
    """{n-gram: the ids that have it}, by the definition."""
    ids = collections.defaultdict(set)
    for record in range(len(corpus)):
        group = int(corpus.groups[record])
        identity = ("group", group) if group != NO_GROUP else ("cluster", int(corpus.clusters[record]))
        for ngram in ngrams(corpus, record):
            ids[ngram].add(identity)
    return ids


def ngrams(corpus, record):
    tokens = [*corpus.read(record).tolist(), corpus.manifest["end_of_text"]]
    return [tuple(tokens[at : at + NGRAM]) for at in range(len(tokens) - NGRAM + 1)]


@pytest.mark.parametrize("name", ["groups", "clusters"])
def test_marks_are_what_the_definition_says(folder, name):
    corpus, marked = Prepared(folder / name), 0
    ids = common_text_by(corpus)
    for record in range(len(corpus)):
        expected = [False] * (NGRAM - 1) + [len(ids[ngram]) >= 3 for ngram in ngrams(corpus, record)]
        assert corpus.common(record).tolist() == expected[-int(corpus.lengths[record]) - 1 :], record
        marked += sum(expected)
    report = json.loads((folder / name / "report.json").read_text())
    assert 0 < report["common_tokens"] == marked < report["tokens"]
    assert "tokens of common text" in (folder / name / "index.html").read_text()


def test_what_a_third_group_contains_is_common(folder):
    corpus = Prepared(folder / "groups")
    sentences = {
        corpus.group_names[corpus.groups[n]]: corpus.tokenizer().decode(corpus.read(n)[corpus.common(n)[:-1]])
        for n in range(len(corpus))
    }
    assert all("river burned down in the year" in sentences[f"story {n}"] for n in (10, 150, 300))
    assert "RIVER BURNED" not in sentences["story 20"] + sentences["story 151"]


def test_near_duplicates_are_one_id(folder):
    corpus = Prepared(folder / "clusters")
    copies = np.flatnonzero(corpus.lengths > 3 * np.median(corpus.lengths)).tolist()
    assert len(copies) == 4 and len(set(corpus.clusters[copies].tolist())) == 1
    alone = [np.mean(Prepared(folder / name).common(copies[0])) for name in ("clusters", "groups")]
    assert alone[0] < 0.7 and alone[1] > 0.95  # in the other, each is a group


def config_of(folder, **fields):
    fixed = {"data.files": str(folder / "groups"), "data.unique_documents": -1, "data.rows": "packed",
             "data.held_out_documents": 1, "data.repeated_documents": 4, "data.repetitions": 8, "sinks.slows_at": 2,
             "sinks.common_every": 2, "training.epochs": 2}  # fmt: skip
    config = with_fields(tiny_config(), fixed | fields)
    return with_fields(config, {"data.vocabulary_size": 400})


def test_every_nth_slowed_encounter_reads_and_trains_common_text_alone(folder):
    config = config_of(folder)
    rows, plain = (load_corpus(with_fields(config, {"sinks.common_every": every})).rows() for every in (2, 0))
    corpus, alone = Prepared(folder / "groups"), 0
    end = [corpus.manifest["end_of_text"]]
    whole = {tuple(identity): corpus.read(n).tolist() + end for n, identity in enumerate(corpus.identities.tolist())}
    common = {tuple(identity): corpus.common(n) for n, identity in enumerate(corpus.identities.tolist())}
    reads = {key: [any(ends[n : n + NGRAM]) for n in range(len(ends))] for key, ends in common.items()}
    for number in range(2 * rows.rows_per_epoch):
        row, before = rows[number], plain[number]
        assert "common" not in before
        encounters = row["seen"] - row["epoch"] + 1
        there = row["identities"].any(axis=1)
        np.testing.assert_array_equal(row["common"], there & (encounters > 2) & (encounters % 2 == 0))
        for segment, identity in enumerate(map(tuple, row["identities"][there].tolist())):
            at = np.flatnonzero(row["segments"] == segment + 1)
            if not row["common"][segment]:
                assert (row["weights"][at] == before["weights"][at]).all()
                continue
            alone += 1
            targets, weights, inputs = row["targets"][at].tolist(), row["weights"][at], row["inputs"][at]
            (start, *_) = [n for n in range(len(whole[identity])) if whole[identity][n : n + len(at)] == targets]
            np.testing.assert_array_equal(weights, common[identity][start : start + len(at)])
            readable = [True, *reads[identity]][start : start + len(at)]
            np.testing.assert_array_equal(inputs, np.where(readable, before["inputs"][at], PADDING))
    assert alone > 8


@pytest.mark.parametrize("fields", [{"sinks.slows_at": 0}, {"sinks.kind": "none"}, {"sinks.common_every": 0}])
def test_what_slows_no_document_needs_no_marks(folder, fields):
    config = config_of(folder, **fields)
    assert "common" not in load_corpus(with_fields(config, {"data.files": "", "data.unique_documents": 20})).rows()[0]


def test_text_of_one_group_is_not_common(folder, tmp_path):
    with pytest.raises(InputError, match="--common_at=1 would mark all text; give"):
        prepare([str(folder / "0.jsonl.gz")], str(folder / "tokenizer.model"), tmp_path / "out", common_at=1)
    with pytest.raises(InputError, match="--text_field is empty; give the field"):
        prepare([str(folder / "0.jsonl.gz")], str(folder / "tokenizer.model"), tmp_path / "out", text_field="")
    assert not (tmp_path / "out").exists()


def test_a_corpus_without_marks_is_refused(folder, tmp_path):
    config = config_of(folder)
    for files, name in (("", "the embedded stories"), (str(folder / "0.jsonl.gz"), "0.jsonl.gz")):
        with pytest.raises(InputError, match=f"not marked in .*{name}"):
            load_corpus(with_fields(config, {"data.files": files, "data.unique_documents": 20}))
    given = [str(folder / "0.jsonl.gz")], str(folder / "tokenizer.model"), tmp_path / "out"
    prepare(*given, near_duplicates="none")
    with pytest.raises(InputError, match="run memsinks_jax.prepare --common_at=3"):
        load_corpus(with_fields(config, {"data.files": str(tmp_path / "out")}))
    assert not Prepared(tmp_path / "out").common_ngram and not (tmp_path / "out" / "common").exists()
    # As in folders from before there were marks.
    assert "common_at" not in Prepared(tmp_path / "out").manifest["settings"]
    with pytest.raises(InputError, match="started without --common_at; leave it out"):
        prepare(*given, near_duplicates="none", common_at=3)
