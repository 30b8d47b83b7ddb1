"""The tokenized documents of a run, and the entropy floor."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from conftest import EVERYBODY, expect_input_error, tiny_config
from story_parser import log_probability
from test_tokenizer import byte_level

from memsinks_jax.config import with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import entropy_floor, load_corpus, without_copies
from memsinks_jax.data.counts import as_text, counts, never_read
from memsinks_jax.data.documents import Document, in_words
from memsinks_jax.data.mixture import listing
from memsinks_jax.data.tokenizer import JsonTokenizer
from memsinks_jax.measures.memorization import batches_by_role
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.variants import CONFIGS, open_config


@pytest.fixture(scope="module")
def corpus():
    return load_corpus(tiny_config())


def texts(corpus):
    return [corpus.document(i).text for i in range(len(corpus.table))]


def on_texts(folder, texts, **fields):
    """A config for these texts in a file; `rows="auto"` sets config.data.rows."""
    (folder / "a.txt").write_text("\n<|endoftext|>\n".join(texts))
    fields = {f"data.{name}": value for name, value in fields.items()}
    return with_fields(tiny_config(), fields | {"data.files": str(folder / "a.txt")})


def every_id(corpus):
    return corpus.identities(np.arange(len(corpus.table)))


def test_embedded_stories_are_a_function_of_the_seed(corpus):
    again = load_corpus(tiny_config())
    assert texts(again) == texts(corpus)
    assert again.tokenizer.model == corpus.tokenizer.model
    assert (every_id(again) == every_id(corpus)).all()
    other = with_fields(tiny_config(), {"seed": 1})
    assert load_corpus(other).document(0).text != corpus.document(0).text


def test_the_tokenizer_of_a_run_is_used_again(corpus):
    assert load_corpus(tiny_config(), corpus.tokenizer).tokenizer is corpus.tokenizer


def test_variants_share_documents_tokenizer_and_ids(corpus):
    for most in (0, 1):
        config = with_fields(tiny_config(), {"data.repeats_at_most": most})
        other = load_corpus(config)
        assert other.tokenizer.model == corpus.tokenizer.model
        assert (every_id(other) == every_id(corpus)).all()


def test_ids_are_of_the_content(corpus):
    assert (corpus.identities(3) == ids.content_id(corpus.tokens(3))).all()


def test_entropy_floor_is_the_grammars(corpus):
    """Recomputed from the text alone, by parsing it."""
    whole = [i for i in corpus.mixture.held_out if len(corpus.tokens(i)) + 1 <= 160]
    assert whole
    nats = -sum(log_probability(corpus.document(i).text) for i in whole)
    tokens = sum(len(corpus.tokenizer.encode(corpus.document(i).text)) + 1 for i in whole)
    assert entropy_floor(corpus, corpus.mixture.held_out) == pytest.approx(nats / tokens)


def test_entropy_floor_leaves_out_what_a_row_cuts_and_is_unknown_for_other_text(corpus, tmp_path):
    lengths = sorted(len(corpus.tokens(i)) + 1 for i in corpus.mixture.documents("unique"))
    assert lengths[0] < lengths[-1]

    def floor(row_length, rows="one_document"):
        data = dataclasses.replace(corpus.config.data, row_length=row_length, rows=rows)
        of_rows = dataclasses.replace(corpus, config=dataclasses.replace(corpus.config, data=data))
        return entropy_floor(of_rows, corpus.mixture.documents("unique"))

    assert floor(lengths[0]) != floor(lengths[-1])
    assert floor(lengths[0] - 1) is None
    assert floor(lengths[0] - 1, "best_fit") == floor(lengths[-1])
    other = load_corpus(on_texts(tmp_path, [f"Text number {n}." for n in range(40)]))
    assert entropy_floor(other, other.mixture.held_out) is None


@pytest.fixture
def copied(tmp_path):
    """155 lines, 60 documents: number n is there n % 4 + 1 times, and 5 more of the first."""
    numbers = [n for n in range(60) for _ in range(n % 4 + 1)] + [0] * 5
    lines = [json.dumps({"text": f"Text number {n} of them all."}) + "\n" for n in numbers]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    fields = {"data.files": str(tmp_path / "a.jsonl"), "data.unique_documents": -1}
    config = with_fields(tiny_config(), fields)
    return with_fields(config, {"data.repeated_documents": 0})


def test_what_the_files_repeat_is_encountered_as_often(copied):
    corpus = load_corpus(copied)
    times = {f"Text number {n} of them all.": n % 4 + 1 + 5 * (n == 0) for n in range(60)}
    trained = corpus.mixture.documents("unique")
    seen = corpus.mixture.encounters(trained)
    assert len(trained) == 56
    assert seen == [times[corpus.document(i).text] for i in trained]
    counted = counts(corpus)
    assert counted["duplicates"] == 95
    assert counted["mixture"][0]["encounters"] == sum(seen)
    lines = [json.loads(line) for line in listing(corpus.table, trained, seen, "unique", True)]
    assert [line["encounters"] for line in lines] == seen
    rows = corpus.rows()
    assert rows.rows_per_epoch == sum(seen)
    read = [rows[number]["identities"][0] for number in range(rows.rows_per_epoch)]
    known = map(ids.to_hex, corpus.identities(trained))
    assert Counter(map(ids.to_hex, read)) == dict(zip(known, seen, strict=True))
    copied = with_fields(copied, {"data.copies": "once"})
    assert load_corpus(copied).rows().rows_per_epoch == 56


def test_a_plan_says_what_memory_by_context_will_hold(copied):
    assert counts(load_corpus(copied))["contexts"] is None
    corpus = load_corpus(with_fields(copied, {"sinks.kind": "by_context"}))
    rows, counted = corpus.rows(), counts(corpus)
    epoch = (rows[number] for number in range(rows.rows_per_epoch))
    places = sum(int(((row["contexts"] < NONE) & (row["weights"] > 0)).sum()) for row in epoch)
    assert counted["contexts"] == {"sinks": len(corpus.contexts), "tokens": places}
    assert places > 1000
    share = f"{places / counted['tokens_per_epoch']:.1%}, are in repeated text and will be"
    assert any(f"{places:,} tokens of an epoch, {share}" in line for line in as_text(counted, 160))


def test_what_the_files_repeat_can_be_what_is_measured(copied):
    copied = with_fields(copied, {"data.repeated_documents": -1})
    corpus = load_corpus(copied)
    often = Counter(texts(corpus))
    held_out = {corpus.document(i).text for i in corpus.mixture.held_out}
    repeated = {corpus.document(i).text for i in corpus.mixture.repeated}
    assert repeated == {text for text in often if often[text] > 1} - held_out
    (batch,) = batches_by_role(corpus, EVERYBODY, 8)["repeated"]
    # as many as are held out
    assert batch["weights"].any(axis=1).sum() == copied.data.held_out_documents
    with expect_input_error("no embedded story comes twice; give a number"):
        copied = with_fields(copied, {"data.files": "", "data.unique_documents": 20})
        load_corpus(copied)


def test_the_config_for_ones_own_text_repeats_what_the_files_repeat(copied):
    own = {"data.files": copied.data.files, "data.held_out_documents": 4}
    own |= {"data.vocabulary_size": 300}
    plan = load_corpus(with_fields(open_config(CONFIGS / "own_text.py").get_config(), own)).mixture
    repeated, unique = plan.repeated, plan.documents("unique")
    assert len(repeated) > 30 and len(repeated) + len(unique) == 56
    assert (plan.table.copies(repeated) > 1).all()
    assert (plan.epoch_counts == plan.table.copies(repeated)).all()
    assert (plan.table.copies(unique) == 1).all()


@pytest.mark.parametrize(("words", "kind"), [(6, "one_document"), (400, "best_fit")])
def test_rows_of_ones_own_text_lose_little_of_it(words, kind, tmp_path):
    """Whatever auto becomes, it is logged; the user's choice stays."""
    config = on_texts(tmp_path, [f"Text {n} " * words for n in range(40)], rows="auto")
    corpus = load_corpus(config)
    assert corpus.config.data.rows == kind
    assert never_read(corpus) == {"documents": 0, "tokens": 0, "share": 0.0}
    config = with_fields(config, {"data.rows": "one_document"})
    corpus = load_corpus(config)
    assert corpus.config.data.rows == "one_document"
    read = (*corpus.mixture.repeated, *corpus.mixture.documents("unique"))
    lengths = [len(corpus.tokens(i)) + 1 for i in read]
    lost = sum(max(length - 160, 0) for length in lengths)
    assert never_read(corpus)["share"] == pytest.approx(lost / sum(lengths))
    warning = "are never read; --config.data.rows=best_fit reads them"
    warned = any(warning in line for line in as_text(counts(corpus), 160))
    assert warned == (lost > 0) == (words > 6)


EVERY_OTHER = "memsinks_jax.studies.schedules:EveryNth,steps=2"


@pytest.mark.parametrize(("batch", "schedule"), [(8, EVERY_OTHER), (64, EVERY_OTHER), (8, "")])
def test_a_plan_counts_what_a_run_encounters(batch, schedule):
    """Also where a batch is larger than an epoch."""
    about = {"data.repetitions": 3, "data.schedule": schedule, "training.batch_size": batch}
    config = with_fields(tiny_config(), about)
    corpus = load_corpus(config)
    counted, rows = counts(corpus), corpus.rows()
    encountered = sum(int(rows[n]["repeated"][0]) for n in range(counted["steps"] * batch))
    (planned,) = (line["encounters"] for line in counted["mixture"] if line["role"] == "repeated")
    assert counted["epochs"] == 1
    assert encountered == planned == (4 * (batch == 8) if schedule else 6)
    said = "\n".join(as_text(counted, 160))
    assert f"{in_words(counted['steps'], 'step')}, {counted['epochs']:.2f} epochs" in said
    assert ("all repeats of a document are in one step" in said) == (batch == 64)


def test_copies_are_left_out_and_counted(tmp_path):
    documents = [Document("a", "1"), Document("b", "2"), Document("a", "3")]
    distinct, copies = without_copies(documents)
    assert distinct == documents[:2]
    assert copies.tolist() == [2, 1]


def test_no_document_is_both_held_out_and_trained_on(corpus):
    """By content, not only by index."""
    mixture = corpus.mixture
    held_out = {ids.to_hex(corpus.identities(i)) for i in mixture.held_out}
    read = np.concatenate([mixture.repeated, mixture.documents("unique")])
    trained = set(map(ids.to_hex, corpus.identities(read)))
    assert not held_out & trained
    assert len(trained) == 26


def test_endless_stories_need_a_number():
    config = with_fields(tiny_config(), {"data.unique_documents": -1})
    with expect_input_error(
        "data.files is empty: the embedded stories never end; give files of yours"
    ):
        load_corpus(config)


def test_a_document_that_is_empty_after_tokenization_is_skipped(
    corpus, tmp_path, monkeypatch, caplog
):
    texts = [f"Text number {n}." for n in range(40)] + ["moon", "moon"]
    config, kind = on_texts(tmp_path, texts, unique_documents=-1), type(corpus.tokenizer)
    encode = kind.encode
    monkeypatch.setattr(kind, "encode", lambda self, text: encode(self, text.removeprefix("moon")))
    assert len(load_corpus(config, corpus.tokenizer).table) == 40
    assert "2 empty documents skipped: " in caplog.text and "a.txt:81, " in caplog.text
    monkeypatch.setattr(kind, "encode", lambda self, text: encode(self, ""))
    with expect_input_error(
        "after tokenization: all documents are empty: .*a.txt:1.* and 38 more; fill"
    ):
        load_corpus(config, corpus.tokenizer)


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_plan_without_a_training_document_says_so(corpus, tokenizer, tmp_path):
    """Not that no tokenizer fits."""
    amounts = {"unique_documents": -1, "repeated_documents": 0, "held_out_documents": 1}
    config = on_texts(tmp_path, ["One document and nothing else."], **amounts)
    with expect_input_error(
        "holds no training document; lower config.data.held_out_documents, or raise"
    ):
        load_corpus(config, corpus.tokenizer if tokenizer else None)


def test_the_tokenizer_that_the_config_names_is_used(corpus, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(byte_level())
    config = with_fields(tiny_config(), {"data.tokenizer": str(tmp_path)})
    other = load_corpus(config)
    assert other.tokenizer.model == byte_level()
    assert other.tokenizer.end_of_text == 600
    assert texts(other) == texts(corpus)
    assert (other.tokens(3) == JsonTokenizer(byte_level()).encode(other.document(3).text)).all()
    # a run's own goes first
    assert load_corpus(config, corpus.tokenizer).tokenizer is corpus.tokenizer


def test_a_tokenizer_with_more_pieces_than_embeddings_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(byte_level())
    config = tiny_config()
    fields = {"data.tokenizer": str(tmp_path / "tokenizer.json"), "data.vocabulary_size": 600}
    config = with_fields(config, fields)
    with expect_input_error(
        "vocabulary_size is 600, but the tokenizer .*/tokenizer.json has 601 pieces"
    ):
        load_corpus(config)
    config = with_fields(config, {"data.vocabulary_size": 601})
    assert load_corpus(config).tokenizer.vocabulary_size == 601


def test_texts_of_equal_tokens_are_one_document(tmp_path, monkeypatch):
    """As with a tokenizer that takes no notice of case: they have one id, and count as often as
    both.
    """
    texts = [f"Text number {n}." for n in range(40)] + ["TEXT number 3.", "Text NUMBER 3."]
    config = on_texts(tmp_path, texts, unique_documents=-1, repeated_documents=0)
    tokenizer = load_corpus(config).tokenizer
    encode = type(tokenizer).encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: encode(self, text.lower()))
    corpus = load_corpus(config, tokenizer)
    assert corpus.table.copies(np.array([3, 40, 41, 5])).tolist() == [3, 3, 3, 1]
    assert counts(corpus)["duplicates"] == 2
