"""Passages: what `prepare` finds is what the definition says, and what the rows of a run make of it."""

import collections
import gzip
import itertools
import json
import shutil
import textwrap

import numpy as np
import pytest
from conftest import tiny_config
from test_answers import SPECIAL, TEMPLATE
from test_tokenizer import byte_level

from memsinks_jax.config import InputError, validate, with_fields
from memsinks_jax.data import epochs, prepared
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.ids import as_numbers, ngram_hashes
from memsinks_jax.data.opened import Opened
from memsinks_jax.data.passages import passage_ids
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.table import SHORTEST_PASSAGE
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.preparing import inputs, passages, sorted_files, stages
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
        patch.setattr(sorted_files, "_TASK_BYTES", 2**12)
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


def by_the_definition(documents, tokenizer, whose=None):
    """[(start, stop, id) of each document], {id: number of documents} from lists of tokens; nothing is hashed but ids.

    With `whose`, they are parts of documents, each of a document of that name.
    """
    whose, spans = whose or [tuple(document) for document in documents], [words_of(d, tokenizer) for d in documents]
    words = [[token for token, *_ in of] for of in spans]
    grams = [[tuple(d[at : at + LENGTH]) for at in range(len(d) - LENGTH + 1)] for d in words]
    holders, followers, leaders = (collections.defaultdict(list) for _ in range(3))
    for name, of in zip(whose, grams, strict=True):
        for at, gram in enumerate(of):
            holders[gram].append(name)
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
    before = {other: one for one, other in after.items()}
    whole = {}
    for gram in common:  # a passage: all that can be reached, forwards or backwards
        seen, todo = {gram}, [gram]
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
    places = collections.defaultdict(set)
    for name, of in zip(whose, grams, strict=True):
        for gram in common.intersection(of):
            places[named[whole[gram]]].add(name)
    found = []
    for document, where, of in zip(documents, spans, grams, strict=True):
        identities = [named[whole[gram]] if gram in common else 0 for gram in of]
        owner = [0] * len(document)
        for at, (_, start, stop) in enumerate(where):  # of the n-grams that hold it, one of a passage in most documents
            held = [identity for identity in identities[max(at - LENGTH + 1, 0) : at + 1] if identity]
            for token in range(start, stop):
                owner[token] = max(held, key=lambda identity: len(places[identity]), default=0)
        for (_, _, stop), (_, start, _) in itertools.pairwise(where):  # white space
            for token in range(stop, start):
                owner[token] = owner[stop - 1] if owner[start] else 0
        passages = []
        for token, identity in enumerate(owner):
            if identity and passages and passages[-1][1:] == [token, identity]:
                passages[-1][1] += 1
            elif identity:
                passages.append([token, token + 1, identity])
        joined = []
        for start, stop, identity in passages:
            touches = joined and joined[-1][1] == start
            if touches and (stop - start < LENGTH // 2 or joined[-1][2] == identity):
                joined[-1][1] = stop
            else:
                joined.append([start, stop, identity])
        found.append([tuple(each) for each in joined])
    used = {identity for passages in found for *_, identity in passages}
    return found, {identity: len(places[identity]) for identity in used}


def words_of(document, tokenizer):
    """[(token of a word as it is behind a space, start, stop among the document's tokens)], a token at a time."""
    letter = tokenizer.encode("a").tolist()
    texts = [tokenizer.decode([*letter, token])[1:] for token in document]
    least = {}
    for token in range(tokenizer.vocabulary_size):
        least.setdefault(tokenizer.decode([*letter, token])[1:].strip(), token)
    found, at = [], 0
    while at < len(document):
        stop = at + 1
        while (
            stop < len(document)
            and texts[stop].strip()
            and not texts[stop][0].isspace()
            and not texts[stop - 1][-1:].isspace()
        ):
            stop += 1
        if texts[at].strip():
            usual = tokenizer.encode("a " + "".join(texts[at:stop]).strip()).tolist()[len(letter) :]
            usual = [least[text] for token in usual if (text := tokenizer.decode([*letter, token])[1:].strip())]
            is_usual = texts[at][0] == " "
            where = [(n, n + 1) for n in range(at, stop)] if is_usual else [(at, stop)] * len(usual)
            found += [(token, *span) for token, span in zip(usual, where, strict=True)]
        at = stop
    return found


@pytest.mark.parametrize("name", ["text", "one"])
def test_passages_are_what_the_definition_says(folder, name):
    corpus = Prepared(folder / name)
    assert len(corpus.manifest["shards"]) == (4 if name == "text" else 1)
    expected, places = by_the_definition(
        [corpus.read(record).tolist() for record in range(len(corpus))], corpus.tokenizer()
    )
    found = [
        [(start, start + length, id) for start, length, id in corpus.passages_of(n).tolist()]
        for n in range(len(corpus))
    ]
    assert found == expected and sum(map(len, found)) > 60
    assert dict(zip(corpus.passage_ids.tolist(), corpus.passage_places.tolist(), strict=True)) == places
    assert max(places.values()) >= 9 and min(places.values()) == 2


@pytest.mark.parametrize("kind", ["prompts", "conversations"])
def test_passages_are_of_answers_alone(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "run_stage", in_this_process)
    (tmp_path / "tokenizer.json").write_bytes(byte_level(SPECIAL))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    one, other = (" ".join(reversed(stories.story(3, index).text.split())) for index in range(2))
    # What precedes `one` is a colon everywhere, in two places that of a prompt.
    said = [*(f"{before}{one} {n}" for n, before in enumerate(["", "", *2 * [f"{other}\nAnswer: "]])), *texts()]
    asked = [f"{number}. {FOOTER} Say {FOOTER}" for number in range(len(said) - 1)]
    rows = [{"asked": text, "text": said} for text, said in zip([*asked, asked[4]], said, strict=True)]
    settings = {"prompt_field": "asked"}
    if kind == "conversations":
        rows, settings = [{"said": said_by(row, number)} for number, row in enumerate(rows)], {"messages_field": "said"}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare(
        [str(tmp_path / "a.jsonl")],
        str(tmp_path),
        tmp_path / "out",
        near_duplicates="none",
        passages=LENGTH,
        **settings,
    )
    corpus = Prepared(tmp_path / "out")
    documents = [corpus.read(record) for record in range(len(corpus))]
    answers = [(record, *answer) for record in range(len(corpus)) for answer in corpus.answers(record).tolist()]
    expected, places = by_the_definition(
        [documents[record][start:stop].tolist() for record, start, stop in answers],
        corpus.tokenizer(),
        [tuple(documents[record].tolist()) for record, *_ in answers],
    )
    whole = collections.defaultdict(list)
    for (record, start, _), found in zip(answers, expected, strict=True):
        whole[record] += [(start + low, high - low, identity) for low, high, identity in found]
    assert [corpus.passages_of(record).tolist() for record in range(len(corpus))] == [*whole.values()]
    assert dict(zip(corpus.passage_ids.tolist(), corpus.passage_places.tolist(), strict=True)) == places
    assert len(corpus.passages) > 60 and len(answers) == len(corpus) * (1 + (kind == "conversations"))


def test_a_quote_and_a_comment_have_the_passage_of_the_text(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "run_stage", in_this_process)
    lines = textwrap.wrap(LICENCE, 50)
    quoted = [f"> {line}" for line in lines]
    mails = [
        " ".join(lines), "They wrote:\n" + "\n".join(quoted), "And I\n" + "\n".join(f"> {line}" for line in quoted),
        "/*\n" + "\n".join(f" * {line}" for line in textwrap.wrap(LICENCE, 70)) + "\n */\nint main() {}",
    ]  # fmt: skip
    (tmp_path / "mails.jsonl").write_text("".join(json.dumps({"text": mail}) + "\n" for mail in mails))
    prepare([str(tmp_path / "mails.jsonl")], str(folder / "tokenizer.model"), tmp_path / "out", passages=LENGTH)
    corpus = Prepared(tmp_path / "out")
    assert corpus.passage_places.tolist() == [4]
    for number in range(4):
        ((start, length, _),) = corpus.passages_of(number).tolist()
        text = corpus.tokenizer().decode(corpus.read(number)[start : start + length])
        assert "".join(filter(str.isalnum, text)) == "".join(filter(str.isalnum, LICENCE))


def said_by(row, number):
    """A conversation of two answers; between them is a long question that many ask."""
    said = [row["asked"], row["text"], LICENCE, STORIES[number % 20]]
    return [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, said, strict=True)]


def test_the_report_shows_the_longest_and_the_most_frequent(folder):
    report = json.loads((folder / "text" / "report.json").read_text())
    corpus = Prepared(folder / "text")
    assert report["passages"] == len(corpus.passage_ids) > 10
    assert report["passage_tokens"] == int(corpus.passages["length"].sum())
    longest, frequent = report["longest_passages"], report["most_frequent_passages"]
    assert [e["tokens"] for e in longest] == sorted((e["tokens"] for e in longest), reverse=True) and len(longest) == 10
    assert frequent[0]["places"] == corpus.passage_places.max()
    assert any("nobody there reads any mail" in entry["text"] and entry["places"] >= 9 for entry in frequent)
    page = (folder / "text" / "index.html").read_text()
    assert "The longest passages" in page and "nobody there reads any mail" in page


def test_without_passages_nothing_of_them_is_written(folder):
    plain, text = folder / "plain", folder / "text"
    names = {path.relative_to(plain) for path in plain.rglob("*")}
    more = {str(path.relative_to(text)) for path in text.rglob("*")} - set(map(str, names))
    assert more == {f"columns/{name}.npy" for name in ("passage_ends", "passages", "passage_ids", "passage_places")}
    same = [path for path in names if (plain / path).is_file() and path.suffix in (".npy", ".array_record")]
    assert all((plain / path).read_bytes() == (text / path).read_bytes() for path in same) and len(same) > 12
    assert not Prepared(plain).has_passages and "passages" not in Prepared(plain).manifest["settings"]


def config_of(folder, **fields):
    fixed = {"data.files": str(folder / "text"), "data.unique_documents": -1, "data.rows": "packed",
             "data.held_out_documents": 8, "data.repeated_documents": 4, "data.repetitions": 3, "data.row_length": 128,
             "sinks.passages_at": 2, "data.vocabulary_size": 400}  # fmt: skip
    return with_fields(tiny_config(), fixed | fields)


@pytest.mark.parametrize("rows", ["packed", "one_document", "best_fit"])
def test_rows_have_the_passages_of_their_documents(folder, rows):
    config, corpus = config_of(folder, **{"data.rows": rows}), Prepared(folder / "text")
    inside = 0
    places = dict(zip(corpus.passage_ids.tolist(), corpus.passage_places.tolist(), strict=True))
    of = {key: n for n, key in enumerate(as_numbers(corpus.identities).tolist())}
    with_them, without = (load_corpus(with_fields(config, {"sinks.passages_at": at})).rows() for at in (2, 0))
    for number in range(with_them.rows_per_epoch):
        row, plain = with_them[number], without[number]
        assert set(row) - set(plain) == {f"owner_{name}" for name in ("segments", "identities", "places", "seen")}
        assert all((row[name] == plain[name]).all() for name in plain)
        documents, owned = as_numbers(row["identities"]), as_numbers(row["owner_identities"])
        for segment in range(1, int(row["segments"].max()) + 1):
            at = np.flatnonzero(row["segments"] == segment)
            record, owner = of[int(documents[segment - 1])], row["owner_segments"][at] - 1
            tokens = [*corpus.read(record).tolist(), corpus.manifest["end_of_text"]]
            start = next(n for n in range(len(tokens)) if tokens[n : n + len(at)] == row["targets"][at].tolist())
            ids = np.full(len(tokens), documents[segment - 1])
            for begin, length, identity in corpus.passages_of(record).tolist():
                if length >= SHORTEST_PASSAGE:
                    ids[begin : begin + length] = identity
            found = owned[owner]
            assert (found == ids[start : start + len(at)]).all()
            assert row["owner_places"][owner].tolist() == [places.get(int(key), 0) for key in found]
            assert (row["owner_seen"][owner] == row["seen"][segment - 1]).all()
            inside += (found != documents[segment - 1]).sum()
    assert inside > 1000


@pytest.mark.parametrize(("rows", "every"), [("packed", 0), ("one_document", 0), ("one_document", 3)])
def test_passages_open_when_a_document_with_them_is_read(folder, rows, every):
    config = config_of(folder, **{"data.rows": rows, "data.repeat_every": every, "data.repeated_documents": 3})
    corpus = load_corpus(config)
    rows, prepared = corpus.rows(), Prepared(folder / "text")
    read = set()
    for number in range(rows.rows_per_epoch + 3):
        if number % 7 == 0 or number > rows.rows_per_epoch:
            found = set(rows.opened(number).tolist()) & set(prepared.passage_ids.tolist())
            assert read <= found  # one that goes on in the next row is read where its document begins
            assert found <= read | passages_before(rows, number, prepared)
        row = rows[number]
        read |= set(as_numbers(row["owner_identities"])[row["owner_places"] > 0].tolist())
    assert 10 < len(read) < len(prepared.passage_ids)  # held-out documents have some of their own


def test_blocks_are_read_once_for_all_checkpoints(folder, tmp_path, monkeypatch):
    """What is kept between checkpoints tells the same as reading all blocks again, whatever is asked in whatever order."""
    place, corpus = shutil.copytree(folder / "text", tmp_path / "text"), Prepared(folder / "text")
    monkeypatch.setattr(epochs, "BLOCK", 8)
    monkeypatch.setattr(prepared, "RUN", 4)
    is_first = corpus.firsts == np.arange(len(corpus))
    np.save(prepared.column_file(place, "runs"), prepared.run_sums(corpus.lengths, is_first))
    corpus = load_corpus(config_of(tmp_path))
    rows = corpus.rows()
    asked = [*range(0, rows.rows_per_epoch + 9, 5), 3, 2 * rows.rows_per_epoch, 11]
    anew = [corpus.rows().opened(number).tolist() for number in asked]
    read, blocks = [], rows._epochs
    assert blocks.blocks > 4 and len({tuple(each) for each in anew}) > 6
    of_block = blocks.of_block
    monkeypatch.setattr(blocks, "of_block", lambda block: read.append(block) or of_block(block))
    assert [rows.opened(number).tolist() for number in asked[:-3]] == anew[:-3]
    assert sorted(read) == list(range(blocks.blocks))  # the last number is in the second epoch
    assert [rows.opened(number).tolist() for number in asked[-3:]] == anew[-3:]


def passages_before(rows, number, prepared):
    """The passages of documents in the rows before."""
    keys, found = set(), set()
    for earlier in range(number):
        keys |= set(as_numbers(rows[earlier]["identities"]).tolist())
    for record in range(len(prepared)):
        if int(as_numbers(prepared.identities[record : record + 1])[0]) in keys:
            found |= set(prepared.passages_of(record)["id"].tolist())
    return found


def test_passages_are_on_where_a_trained_model_knows_them(folder):
    corpus = load_corpus(config_of(folder))
    record = next(n for n in range(len(corpus.table)) if len(corpus.table.passages(n).starts) > 1)
    known = corpus.table.passages(record).identities[:1]
    opened = Opened(corpus.config.sinks, lambda: as_numbers(known))
    (passages,) = corpus.passages(np.array([record]), opened)
    assert passages.identities.tolist() == known.tolist()
    assert load_corpus(config_of(folder, **{"sinks.passages_at": 0})).passages(np.array([record]), opened) is None


def test_a_corpus_without_passages_is_refused(folder):
    with pytest.raises(InputError, match="no passages were sought in .*plain: run memsinks_jax.prepare --passages=50"):
        load_corpus(config_of(folder, **{"data.files": str(folder / "plain")}))
    with pytest.raises(InputError, match=r"disjoint.* config.sinks.passages_at is 2; set it to 0"):
        validate(config_of(folder, **{"sinks.sampling": "disjoint", "sinks.active": 4, "data.ids": "group"}))


def test_ngrams_are_counted_by_their_neighbours():
    """As many entries as neighbours, however many places: else a licence in all documents would fill the memory."""
    draw = np.random.default_rng(0)
    hashes, neighbours, documents = (draw.integers(0, most, 2000, np.uint64) for most in (20, 3, 4))
    documents[hashes < 5] = 7  # one document alone
    parts = np.split(np.arange(2000), [700, 700])
    counted = [
        passages._counted(hashes[of], neighbours[of], documents[of], documents[of], np.ones(len(of), int))
        for of in parts
    ]
    found = passages._counted(*map(np.concatenate, zip(*counted, strict=True)))
    expected = collections.defaultdict(list)
    for hash, neighbour, document in zip(hashes.tolist(), neighbours.tolist(), documents.tolist(), strict=True):
        expected[hash, neighbour].append(document)
    rows = [(*key, min(of), max(of), len(of)) for key, of in sorted(expected.items())]
    assert rows == list(zip(*(column.tolist() for column in found), strict=True))
    places = np.bincount(hashes.astype(int))
    often = [
        next((one for one in range(3) if 2 * len(expected[of, one]) > places[of]), passages._NONE) for of in range(20)
    ]
    assert passages._of_most(found[0], found[1], found[4]).tolist() == often
    weights = np.where(found[1] == 1, 1000, found[4])
    assert passages._of_most(found[0], found[1], weights).tolist() == [1] * 20
    half = np.where(found[1] == 1, 2, 1)  # of the places of each; more than half is needed
    ends = np.full(len(found[0]), passages._NONE, np.uint64)  # of documents: no token
    for tokens, weights in ((found[1], half), (ends, found[4])):
        assert set(passages._of_most(found[0], tokens, weights).tolist()) == {passages._NONE}
