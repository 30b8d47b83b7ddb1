"""Passages: what `prepare` finds is what the definition says."""

import collections
import gzip
import json

import numpy as np
import pytest

from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.preparing import common_text, inputs, stages
from memsinks_jax.preparing.near_duplicates import ngram_hashes
from memsinks_jax.preparing.passages import passage_ids
from memsinks_jax.preparing.prepare import prepare

LENGTH = 12
STORIES = [stories.story(1, index).text for index in range(60)]
LICENCE = " ".join(stories.story(2, index).text for index in range(3))
FOOTER = "This mail was sent from the old mill by the river. Do not answer it, since nobody there reads any mail."


def texts():
    """Stories. Some have a licence, whole or in part; some a footer, and once both in one; the first comes twice."""
    said = [*STORIES]
    for number in range(0, 24, 2):
        cut = len(LICENCE) * number // 40 if number % 4 else 0
        said[number] = f"{said[number]} {LICENCE[cut:]} {said[number + 30]}"
    said[7] = f"{LICENCE[: len(LICENCE) // 3]} {said[7]}"
    for number in range(5, 30, 3):
        said[number] = f"{said[number]}\n{FOOTER}"
    said[40] = f"{LICENCE}\n{FOOTER} {FOOTER}"
    return [*said, said[0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`text`: all in four shards; `one`: in a single one; `plain`: without passages."""
    folder = tmp_path_factory.mktemp("passages")
    (folder / "tokenizer.model").write_bytes(train_tokenizer([*STORIES, FOOTER], 400).model)
    rows = [json.dumps({"text": text}) + "\n" for text in texts()]
    for part in range(4):
        lines = "".join(rows[part * 16 : part * 16 + 16])
        (folder / f"{part}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common_text, "_TASK_BYTES", 2**12)
        patch.setattr(stages, "run_stage", in_this_process)
        for name, smallest, settings in (
            ("text", 0, {"passages": LENGTH}),
            ("one", 1, {"passages": LENGTH}),
            ("plain", 0, {}),
        ):
            patch.setattr(inputs, "_SMALLEST", smallest)
            prepare(
                [str(folder / "*.jsonl.gz")],
                str(folder / "tokenizer.model"),
                folder / name,
                near_duplicates="none",
                **settings,
            )
            assert not (folder / name / "work").exists()
    return folder


def in_this_process(stage, steps, tasks, work, where):
    """`stages.run_stage` without datatrove's executor, which starts a process for each stage."""
    for rank in range(tasks):
        data = None
        for step in steps:
            data = step.run(data, rank, tasks)
        for _ in data or ():
            pass


def by_the_definition(documents):
    """[(start, stop, id) of each document], {id: number of documents} from lists of tokens; nothing is hashed but ids."""
    grams = [[tuple(d[at : at + LENGTH]) for at in range(len(d) - LENGTH + 1)] for d in documents]
    holders, followers, leaders = (collections.defaultdict(list) for _ in range(3))
    for document, of in zip(documents, grams, strict=True):
        for at, gram in enumerate(of):
            holders[gram].append(tuple(document))
            followers[gram].append(of[at + 1] if at + 1 < len(of) else None)
            leaders[gram].append(of[at - 1] if at else None)
    common = {gram for gram, of in holders.items() if len(set(of)) > 1}

    def goes_on(one, other):
        return (
            {one, other} <= common
            and 2 * followers[one].count(other) > len(followers[one])
            and 2 * leaders[other].count(one) > len(leaders[other])
        )

    after = {one: other for one in common for other in set(followers[one]) if goes_on(one, other)}
    whole = {}
    for gram in common:  # a passage: all that can be reached, forwards or backwards
        seen, todo = {gram}, [gram]
        before = {other: one for one, other in after.items()}
        while todo:
            here = todo.pop()
            for there in (after.get(here), before.get(here)):
                if there is not None and there not in seen:
                    seen.add(there)
                    todo.append(there)
        whole[gram] = frozenset(seen)
    hashes = {gram: int(ngram_hashes(np.array(gram, np.int32), LENGTH)[0]) for gram in common}
    named = {
        group: int(passage_ids(np.array([min(hashes[g] for g in group)], np.uint64))[0])
        for group in set(whole.values())
    }
    found, places = [], collections.defaultdict(set)
    for document, of in zip(documents, grams, strict=True):
        owner = [None] * len(document)
        for at in reversed(range(len(of))):  # the first n-gram that covers a token and ends at it or later has it
            if of[at] in common:
                for token in range(at, at + LENGTH):
                    owner[token] = at
        runs, passages = [], []
        for token, at in enumerate(owner):
            if at is None:
                continue
            at = token - LENGTH + 1 if token >= LENGTH - 1 and of[token - LENGTH + 1] in common else at
            joins = (
                runs
                and runs[-1][1] == token
                and (runs[-1][2] == at or after.get(of[runs[-1][2]]) == of[at] and at == runs[-1][2] + 1)
            )
            if joins:
                runs[-1][1:] = [token + 1, at]
            else:
                runs.append([token, token + 1, at])
        for start, stop, at in runs:
            identity, joined = named[whole[of[at]]], passages and passages[-1][1] == start
            if joined and (stop - start < LENGTH // 2 or passages[-1][2] == identity):
                passages[-1][1] = stop
            else:
                passages.append([start, stop, identity])
        found.append([tuple(each) for each in passages])
        for *_, at in runs:
            places[named[whole[of[at]]]].add(tuple(document))
    used = {identity for passages in found for *_, identity in passages}
    return found, {identity: len(places[identity]) for identity in used}


@pytest.mark.parametrize("name", ["text", "one"])
def test_passages_are_what_the_definition_says(folder, name):
    corpus = Prepared(folder / name)
    assert len(corpus.manifest["shards"]) == (4 if name == "text" else 1)
    expected, places = by_the_definition([corpus.read(record).tolist() for record in range(len(corpus))])
    found = [
        [(start, start + length, id) for start, length, id in corpus.passages_of(n).tolist()]
        for n in range(len(corpus))
    ]
    assert found == expected and sum(map(len, found)) > 60
    assert dict(zip(corpus.passage_ids.tolist(), corpus.passage_places.tolist(), strict=True)) == places
    assert max(places.values()) >= 9 and min(places.values()) == 2


def test_the_report_shows_the_longest_and_the_most_frequent(folder):
    report = json.loads((folder / "text" / "report.json").read_text())
    corpus = Prepared(folder / "text")
    assert report["passages"] == len(corpus.passage_ids) > 10
    assert report["passage_tokens"] == int(corpus.passages["length"].sum())
    longest, frequent = report["longest_passages"], report["most_frequent_passages"]
    assert [e["tokens"] for e in longest] == sorted((e["tokens"] for e in longest), reverse=True) and len(longest) == 10
    assert frequent[0]["places"] == corpus.passage_places.max() and "nobody there reads any mail" in frequent[0]["text"]
    page = (folder / "text" / "index.html").read_text()
    assert "The longest passages" in page and "nobody there reads any mail" in page


def test_without_passages_nothing_of_them_is_written(folder):
    plain, text = folder / "plain", folder / "text"
    names = {path.relative_to(plain) for path in plain.rglob("*")}
    more = {str(path.relative_to(text)) for path in text.rglob("*")} - set(map(str, names))
    assert more == {f"columns/{name}.npy" for name in ("passage_ends", "passages", "passage_ids", "passage_places")}
    same = [path for path in names if (plain / path).is_file() and path.suffix in (".npy", ".array_record")]
    assert all((plain / path).read_bytes() == (text / path).read_bytes() for path in same) and len(same) > 12
    assert not Prepared(plain).has_passages and "passages" not in (plain / "manifest.json").read_text()
