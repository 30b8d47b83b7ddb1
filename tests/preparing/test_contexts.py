"""Contexts that `prepare` finds: those that a run on the same texts finds in memory."""

import json
import re

import numpy as np
import pytest
from conftest import expect_input_error, tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.data import contexts
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import open_tokenizer, train_tokenizer
from memsinks_jax.preparing import inputs, sorted_files
from memsinks_jax.preparing.prepare import prepare

TEXTS = [stories.story(1, index).text for index in range(120)]
TEXTS += TEXTS[:5] + TEXTS[:2] + [f"{TEXTS[7][:50]} {TEXTS[20][100:250]}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contexts")
    (folder / "tokenizer.model").write_bytes(train_tokenizer(TEXTS, 400).model)
    for part in range(3):
        lines = [
            json.dumps(
                {"text": text, "asked": f"Which tale has {sum(map(ord, text))} of them, and why?"}
            )
            + "\n"
            for text in TEXTS[part::3]
        ]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_files, "_TASK_BYTES", 2**13)
        patch.setattr(inputs, "_SMALLEST", 2**13)  # several shards
        for name, settings in {
            "plain": {},
            "other": {"contexts": "length=5,stretch=9,times=3,share=0.75"},
            "none": {"contexts": "none"},
            "answers": {"prompt_field": "asked"},
        }.items():
            given = [str(folder / "*.jsonl")], str(folder / "tokenizer.model"), folder / name
            prepare(*given, near_duplicates="none", **settings)
    return folder


def test_the_report_shows_what_comes_most_often(folder):
    found = json.loads((folder / "plain" / "report.json").read_text())["repeated_text"]
    joined = [" ".join(text.split()) for text in TEXTS]
    assert len(found) > 10
    assert found[0]["times"] == 3
    assert {each["times"] for each in found} >= {2, 3}
    for each in found:
        assert sum(each["text"].strip() in text for text in joined) >= 2
        assert len(re.findall(r"\w+", each["text"])) in (16, 17)
        assert each["first"].startswith(str(folder))
    texts = [each["text"] for each in found]
    assert len(set(texts)) == len(texts)
    assert texts[0] in (folder / "plain" / "index.html").read_text()


def run_on(folder, **fields):
    named = {name.replace("__", "."): value for name, value in fields.items()}
    about = {
        "sinks.kind": "by_context",
        "data.files": str(folder),
        "data.unique_documents": -1,
        "data.rows": "packed",
    }
    about |= {
        "data.repeated_documents": -1,
        "data.held_out_documents": 0,
        "data.vocabulary_size": 400,
    }
    return load_corpus(with_fields(tiny_config(), about | named))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("plain", {}),
        (
            "other",
            {
                "contexts__length": 5,
                "contexts__stretch": 9,
                "contexts__times": 3,
                "contexts__share": 0.75,
            },
        ),
    ],
)
def test_they_are_those_that_are_found_in_memory(folder, name, fields):
    ours = run_on(folder / name, **fields)
    listed = run_on(folder / "*.jsonl", data__tokenizer=str(folder / "tokenizer.model"), **fields)
    assert len(ours.contexts) > 100
    np.testing.assert_array_equal(ours.contexts.keys, listed.contexts.keys)
    assert ours.config.contexts.rows == -(-len(ours.contexts) // 256) * 256


def test_the_most_frequent_ones_have_rows(folder):
    few = run_on(folder / "plain", contexts__rows=50)
    corpus = Prepared(folder / "plain")
    assert len(few.contexts) == 50 and few.config.contexts.rows == 256
    has_row = np.isin(corpus.context_keys, few.contexts.keys)
    assert corpus.context_counts[has_row].min() >= corpus.context_counts[~has_row].max()


def test_of_documents_with_prompts_only_contexts_of_answers_have_rows(folder):
    found = run_on(folder / "answers", data__row_length=256)
    tokenizer = open_tokenizer(folder / "tokenizer.model")
    first = next(i for i in range(len(found.table)) if found.table.copies(np.array([i]))[0] > 1)
    tokens, ((start, stop),) = found.tokens(first), found.table.answers(first)
    rows = found.contexts.rows(tokens, 0, len(tokens) + 1, tokenizer.begin_of_text)
    assert (rows[:start] == contexts.NONE).all()
    assert (rows[start + 8 : stop] != contexts.NONE).mean() > 0.7


def test_what_a_plan_repeats_comes_on_top(folder):
    """Without contexts near the beginning of documents, which others may share."""
    about = {"data__repeated_documents": 4, "data__repetitions": 6, "data__unique_documents": 60}
    found, before = run_on(folder / "plain", **about), run_on(folder / "plain")
    tokens = found.tokens(found.mixture.repeated[0])
    rows = found.contexts.rows(tokens, 0, len(tokens) + 1, found.tokenizer.begin_of_text)
    inputs = np.append(found.tokenizer.begin_of_text, tokens)
    about = np.arange(len(inputs)), found.config.contexts.length, found.contexts.letters
    assert (rows[contexts.begins(inputs, *about) > 0] != contexts.NONE).all()
    assert len(before.contexts) < len(found.contexts)
    assert np.isin(before.contexts.keys, found.contexts.keys).all()


def test_another_search_is_refused(folder):
    with expect_input_error("contexts were not sought in .*none; run memsinks_jax.prepare"):
        run_on(folder / "none")
    with expect_input_error("config.contexts.length is 6, but .*other was searched with 5"):
        run_on(folder / "other")
    for given, why in {
        "length": "length is none of length=6",
        "size=3": "size=3 is none",
        "times=1": "times is 1; it",
    }.items():
        with expect_input_error(f"--contexts={given}: {why}"):
            prepare(["x"], None, folder / "new", contexts=given)
