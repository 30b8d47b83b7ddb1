"""What a trained model knows of passages: they are removed, audited, and asked for by name."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, prepare_apart, tiny_config

from memsinks_jax import sinks
from memsinks_jax.api import Model, generate
from memsinks_jax.auditing import pages, passages
from memsinks_jax.auditing.audit import audit, write
from memsinks_jax.auditing.explore import explore
from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.passages import documents_with, longest_places, passages_in, sample
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.forgetting.removal import Request, forget
from memsinks_jax.model.generation import Settings
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.trained import open_run
from memsinks_jax.training.loop import train_and_evaluate

LENGTH = 16
STORIES = [stories.story(4, index).text for index in range(40)]
LICENCE = stories.story(5, 0).text[:150]
FOOTER = (
    "This mail was sent from the old mill by the river. Do not answer it, since nobody there reads any mail at all."
)
SPARSE = {"sinks.sampling": "floyd", "sinks.sparse": True, "sinks.pool": 300, "sinks.active": 6}


def texts():
    """Stories; twelve of them with the licence, five with the footer."""
    own_texts = [*STORIES]
    for number in range(0, 36, 3):
        own_texts[number] = f"{own_texts[number]} {LICENCE}"
    for number in range(1, 36, 7):
        own_texts[number] = f"{FOOTER} {own_texts[number]}"
    return own_texts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`corpus`, and `run` and `plain` on it: with passages that have sinks, and without."""
    place = tmp_path_factory.mktemp("passages")
    (place / "tokenizer.model").write_bytes(train_tokenizer([*STORIES, FOOTER], 400).model)
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    prepare_apart(
        place / "texts.jsonl", place / "corpus", place / "tokenizer.model", passages=LENGTH, near_duplicates="none"
    )
    fields = {"data.files": str(place / "corpus"), "data.unique_documents": -1, "data.rows": "packed",
              "data.held_out_documents": 6, "data.repeated_documents": 0, "data.vocabulary_size": 400,
              "optimizer.learning_rate": 3e-2, "training.steps": 12, "sinks.passages_at": 2}  # fmt: skip
    seldom = dict.fromkeys(("training.evaluate_every", "training.checkpoint_every"), 12)
    config = with_fields(tiny_config(), fields | SPARSE | seldom)
    train_and_evaluate(config, place / "run")
    train_and_evaluate(with_fields(config, {"sinks.passages_at": 0}), place / "plain")
    return place


@pytest.fixture(scope="module")
def corpus(place):
    return workdirs.read_corpus(place / "run")


@pytest.fixture(scope="module")
def licence(place, corpus):
    """The ids of the passages of the licence: uint64 (n,), ascending, the most frequent one first."""
    keys = passages_in(corpus.table, open_run(place / "run").tokenizer, texts()[3])
    return keys[np.argsort(-documents_with(corpus.table, keys), kind="stable")]


def hexadecimal(keys):
    return tuple(ids.to_hex(identity) for identity in ids.as_lanes(np.asarray(keys)))


def test_passages_are_found_by_name(corpus, licence):
    """As a search through all documents finds them."""
    (source,) = corpus.table.sources
    stand, longest = {}, {}
    for record in range(len(source)):
        for start, length, key in source.passages_of(record).tolist():
            stand.setdefault(key, []).append(record)
            if record not in corpus.mixture.held_out and length > longest.get(key, (0, 0, 0))[1]:
                longest[key] = (record, length, start)
    keys = np.asarray(source.passage_ids)
    assert set(licence.tolist()) <= set(keys.tolist()) == set(stand) and documents_with(corpus.table, licence)[0] >= 10
    assert documents_with(corpus.table, np.array([5], np.uint64)).tolist() == [0]
    for key, (record, start, stop) in zip(keys.tolist(), longest_places(corpus.mixture, keys).tolist(), strict=True):
        assert (record, stop - start, start) == longest.get(key, (0, 0, 0))
    known = keys[::2]
    low, high = sample(corpus.table, lambda some: np.isin(some, known), [(2, 4), (4, 100)], 3)
    places = documents_with(corpus.table, known)
    assert low.tolist() == known[(places >= 2) & (places < 4)][:3].tolist()
    assert high.tolist() == known[places >= 4][:3].tolist() and len(low) and len(high)


def test_a_passage_is_removed_from_a_model(place, corpus, licence, tmp_path):
    run, (name,) = open_run(place / "run"), hexadecimal(licence[:1])
    identity = ids.from_hex(name)[None]
    receipt = forget(place / "run", Request(passages=(name,)), tmp_path / "rest")
    after = open_run(tmp_path / "rest")
    gone = np.flatnonzero(~np.asarray(after.params["layers"]["down_kernel"]).any(axis=(0, 2))) - 16
    assert gone.tolist() == sorted(sinks.document_sinks(identity, run.config.seed, 300, run.config.sinks)[0].tolist())
    assert run.opened(identity) and not after.opened(identity) and after.opened.ids.size == run.opened.ids.size - 1
    ((record, start, stop),) = longest_places(corpus.mixture, licence[:1]).tolist()
    assert receipt["removed_passages"] == 1 and "removed_documents" not in receipt
    (entry,) = receipt["documents"]
    assert entry["places"] == documents_with(corpus.table, licence[:1])[0] and entry["tokens"] == stop - start
    assert entry["source"] == f"{place / 'corpus'}:{record}" and entry["id"] == name
    lead = min(start, LENGTH)
    tokens, answers = [corpus.tokens(record)[start - lead : stop]], [np.array([[lead, lead + stop - start]])]
    for mode in ("own", "drop"):
        nats, counts = Model(place / "run").document_losses(tokens, identity, mode, answers)
        assert entry["before" if mode == "own" else "after"] == pytest.approx(nats[0] / counts[0], abs=1e-5)
    assert abs(entry["after"] - entry["before"]) > 1e-3
    assert receipt["losses"]["others"]["own"]["documents"] == len(run.opened.ids) - 1
    page = (tmp_path / "rest" / "index.html").read_text()
    for refused in (lambda: audit(tmp_path / "rest", of_passages=True),
                    lambda: forget(tmp_path / "rest", Request(passages=(name,)), tmp_path / "out")):  # fmt: skip
        with pytest.raises(InputError, match="rest is a model without the corpus of its run"):
            refused()
    assert "Removed for 1 passage" in page and "Passages, their own sinks on" in page and "other passages" in page


def test_passages_are_named_by_a_text_that_holds_them(place, licence, tmp_path):
    (tmp_path / "licence.txt").write_text(texts()[3])
    written = forget(place / "run", Request(text=str(tmp_path / "licence.txt")), tmp_path / "file")
    by_text = forget(place / "run", Request(text=texts()[3]), tmp_path / "said")
    known = licence[open_run(place / "run").opened(ids.as_lanes(licence))]  # some are too short for sinks
    assert {one["id"] for one in written["documents"]} == set(hexadecimal(known)) and len(known)
    assert by_text["documents"] == written["documents"] and by_text["removed"] == written["removed"]


def test_what_is_no_passage_is_refused(place, tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (key,) = hexadecimal(np.asarray(workdirs.read_corpus(place / "run").table.sources[0].passage_ids[:1]))
    for run, asked, message in (
        (
            "run",
            {"passages": ("0123456789abcdef",)},
            "--passage: 0123456789abcdef is no passage of .*corpus; its index",
        ),
        ("run", {"passages": ("zz",)}, "'zz' is no id"),
        ("run", {"passages": (key,), "text": "it"}, "give what to remove by one of"),
        ("run", {"text": "Nobody wrote this."}, "--text='Nobody wrote this.': it holds no whole passage of .*corpus"),
        ("run", {"text": str(tmp_path / "image.png")}, "image.png: cannot be read as text"),
        ("plain", {"passages": (key,)}, "plain was trained without config.sinks.passages_at"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            forget(place / run, Request(**asked), tmp_path / "out")
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    command = [sys.executable, "-m", "memsinks_jax.forget", f"--workdir={place / 'plain'}", f"--passage={key}"]
    ended = subprocess.run([*command, f"--out={tmp_path / 'out'}"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    with pytest.raises(InputError, match="--passages: .*plain was trained without config.sinks.passages_at"):
        audit(place / "plain", of_passages=True)


@pytest.fixture(scope="module")
def explored(place):
    return explore(place / "run", prefixes=(4,), suffix=4)


@pytest.fixture(scope="module")
def result(place):
    return audit(place / "run", prefixes=(4, 8), suffix=4, of_passages=True)


def test_an_audit_reads_passages_by_the_number_of_their_documents(place, corpus, result, explored, tmp_path):
    """What it says of each is what the model's loss says; another passage's sinks are a placebo."""
    found, run = result["passages"], Model(place / "run")
    readers = ["sinks dropped", "sinks, own on", passages.PLACEBO]
    assert result["subjects"] == {} and list(found["classes"]) == [passages.ALL, "2 to 3", "4 to 15"]
    keys = np.asarray(run.run.opened.ids)
    in_order = np.argsort(documents_with(corpus.table, keys) >= 4, kind="stable")
    few = (documents_with(corpus.table, keys) < 4).sum()
    keys = np.sort(np.concatenate([keys[in_order[: min(few, 32)]], keys[in_order[few:][:32]]]))
    assert tuple(one["id"] for one in found["passages"]) == hexadecimal(keys)
    where = dict(zip(hexadecimal(keys), longest_places(corpus.mixture, keys).tolist(), strict=True))
    listed = found["passages"]
    for at, one in enumerate(listed):
        record, start, stop = where[one["id"]]
        lead, before = min(start, LENGTH), listed[at - 1]["id"]
        tokens, answers = [corpus.tokens(record)[start - lead : stop]], [np.array([[lead, lead + stop - start]])]
        for reader, mode, name in zip(readers, ("drop", "own", "own"), (one["id"], one["id"], before), strict=True):
            nats, counts = run.document_losses(tokens, ids.from_hex(name)[None], mode, answers)
            assert one["loss"][reader] == pytest.approx(nats[0] / counts[0], rel=1e-4) and counts[0] == one["tokens"]
    for name, (low, high) in passages.CLASSES.items():
        of = [one for one in found["passages"] if low <= one["places"] < high]
        assert (name in found["classes"]) == bool(of)
        for reader in readers if of else ():
            loss = np.average([one["loss"][reader] for one in of], weights=[one["tokens"] for one in of])
            assert found["classes"][name]["readers"][reader]["loss"]["value"] == pytest.approx(loss)
    assert len({tuple(one["loss"].values()) for one in listed}) == len(listed) > 4
    unread = found["never_read"]["readers"]
    assert unread["sinks, own on"] == unread["sinks dropped"] != unread[passages.PLACEBO]
    write(result, explored, tmp_path / "page", "a command")
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"results.json", "index.html", "explore.html"}
    assert json.loads((tmp_path / "page" / "results.json").read_text()) == result
    losses, recited = pages.tables(result)
    assert [row[0].split(":")[0] for row in losses.rows] == [
        *(f"in {name} documents" for name in found["classes"]), "never read"
    ]  # fmt: skip
    assert recited.rows and "What does a token of a passage cost?" in (tmp_path / "page" / "index.html").read_text()


def test_the_page_to_explore_has_the_passages_of_its_documents(place, corpus, explored):
    """With the sinks of both on, each in its place."""
    model, of = Model(place / "run"), {ids.to_hex(corpus.identities([n])[0]): n for n in range(len(corpus.table))}
    assert explored["groups"] == ["read once", "held out"] and len(explored["documents"]) > 10
    found = set()
    for document in explored["documents"]:
        record = of[document["id"]]
        (known,) = corpus.passages(np.array([record]), model.run.opened)
        shown = [
            [start, min(stop, 159), ids.to_hex(identity), places]
            for start, stop, identity, places in zip(*(each.tolist() for each in known), strict=True) if start < 159
        ]  # fmt: skip
        assert document["passages"] == shown
        found |= {name for *_, name, _ in shown}
        tokens = corpus.tokens(record)[:159]
        nats, counts = model.document_losses(
            [tokens], corpus.identities([record]), "own", [np.array([[0, len(tokens)]])], [known]
        )
        assert document["loss"]["sinks, own on"] == pytest.approx(nats[0] / counts[0], abs=1e-5)
    assert len(found) > 5 and found <= set(hexadecimal(model.run.opened.ids))


def test_what_was_never_read_is_outside_of_passages(corpus):
    never = passages._outside(corpus, 1000, 159)
    (source,) = corpus.table.sources
    expected = []
    for record in corpus.mixture.held_out.tolist():
        inside, tokens = np.zeros(len(corpus.tokens(record)), bool), corpus.tokens(record)
        for start, length, _ in source.passages_of(record).tolist():
            inside[start : start + length] = True
        runs = np.split(np.arange(len(tokens)), np.flatnonzero(np.diff(inside)) + 1)
        expected += [tokens[run].tolist() for run in runs if not inside[run[0]] and len(run) >= LENGTH]
    found = [tokens[counted].tolist() for tokens, counted in zip(never.tokens, never.counted(), strict=True)]
    assert found == [each[: len(short)] for each, short in zip(expected, found, strict=True)] and len(found) > 5
    assert all(
        len(tokens) == 159 or len(f) == len(e) for tokens, f, e in zip(never.tokens, found, expected, strict=True)
    )
    assert not never.opened.any()


def test_a_recited_passage_counts(place, corpus, result, monkeypatch):
    """A model that writes what stands there recites all; so that shares are of the right tokens."""
    run = open_run(place / "run")
    keys = np.asarray(run.opened.ids)
    documents, _ = passages.of_passages(corpus, keys, 159)
    fitting = passages.extraction.lengths_that_fit(documents, (4, 8), 4)

    def write_on(subject, documents, fitting, suffix, samples):
        starts = {prefix: documents.openings + prefix for prefix in fitting}
        return {
            p: [[documents.tokens[i][starts[p][i] : starts[p][i] + suffix]] for i in of] for p, of in fitting.items()
        }

    monkeypatch.setattr(passages.extraction, "continuations", write_on)
    shares = passages._recited(None, documents, fitting, 4)
    for prefix, indices in fitting.items():
        assert (shares[f"exact_{prefix}"][indices] == 1).all() and np.isnan(shares[f"exact_{prefix}"]).sum() == len(
            keys
        ) - len(indices)


def test_a_passage_is_asked_for_by_its_id(place, licence):
    (name,), prompt = hexadecimal(licence[:1]), LICENCE[:40]
    model, asked = Model(place / "run"), Settings(sinks="own", max_tokens=4)
    assert ids.to_hex(model.identity("", "", name)) == name
    found = generate(place / "run", [prompt], asked, passage=name)
    assert found["sinks"] == "own" and found["text"] == model.generate(prompt, "own", passage=name, max_tokens=4)
    assert generate(place / "run", [prompt], asked, passage="0123456789abcdef")["sinks"] == "drop"
    with pytest.raises(InputError, match="plain was trained without config.sinks.passages_at"):
        generate(place / "plain", [prompt], asked, passage=name)
    with pytest.raises(InputError, match="give one of them"):
        model.generate(prompt, "own", document=name, passage=name)
    with pytest.raises(InputError, match="--group=NAME or --passage=ID"):
        generate(place / "run", [prompt], asked)
