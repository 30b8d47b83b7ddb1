"""Retrieval, a rival of sinks in study tofu: the texts that are most like a question are put before
it. To withdraw an author is to delete texts.

They are found by BM25, among all questions that are read and their answers. The model that reads
them is the frozen base, or `reader`: the base after standard fine-tuning on such prompts about
authors whom no other model reads.
"""

import dataclasses
import functools
import importlib.util
import json
import logging
import pathlib
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures.runs import Run

ALL = 10**6  # texts: as many as there are
KEPT_FREE = 256  # tokens of a row, for question and answer
TIMED = 12  # questions
READER_READS, READER_ROW = 20, 512  # authors; tokens of a row
_WORDS = {"token_pattern": r"(?u)\b\w+\b", "show_progress": False}  # of one letter too


class Way(NamedTuple):
    """How texts are chosen: at most so many; of the author alone whom the question is about."""

    texts: int
    named: bool = False


WAYS = {
    "one": Way(1),
    "three": Way(3),
    "eight": Way(8),
    "named_three": Way(3, named=True),
    "named_all": Way(ALL, named=True),
}


def check() -> None:
    """Raises InputError without the library."""
    if importlib.util.find_spec("bm25s") is None:
        raise InputError(
            "study tofu compares with retrieval, by bm25s, which is not installed: pip install "
            "'.[retrieval]'"
        )


class Texts:
    """Questions with their answers, {"question", "answer", "author"} each, to be found by words."""

    def __init__(self, records: Sequence[dict]):
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it would print each index
        self._records, self._authors = list(records), np.array([row["author"] for row in records])
        self._index, self._words = bm25s.BM25(), functools.partial(bm25s.tokenize, **_WORDS)
        both = [f"{row['question']}\n{row['answer']}" for row in records]
        self._index.index(self._words(both), show_progress=False)

    def best(self, question: str, way: Way, author: str = "") -> list[dict]:
        """The records that are most like a question, the best one first.

        Args:
          author: of the question; for ways that are `named`.
        """
        words = self._words(question, return_ids=False)[0]
        scores = self._index.get_scores(words) if words else np.zeros(len(self._records))
        allowed = self._authors == author if way.named else scores > 0
        order = np.argsort(-np.where(allowed, scores, -1), kind="stable")
        return [self._records[at] for at in order[: min(way.texts, allowed.sum())]]


def prompt(question: str, found: Sequence[dict]) -> str:
    """A question after the texts that were found for it, the best one next to it. `prepare` and
    the measures put TEMPLATE around it.
    """
    before = (f"{row['question']}\nAnswer: {row['answer']}" for row in reversed(found))
    return "\n\nQuestion: ".join([*before, question])


def fitting(tokenizer: AnyTokenizer, found: list[dict], room: int) -> list[dict]:
    """The first ones of `found` that have room."""
    sizes = [len(tokenizer.encode(prompt("", [row]))) for row in found]
    return found[: int(np.searchsorted(np.cumsum(sizes), room, side="right"))]


def asked_with(
    texts: Texts, rows: Sequence[dict], way: Way, tokenizer: AnyTokenizer, room: int
) -> list[dict]:
    """The same questions, after texts. `room`: tokens of a row."""
    changed = []
    for row in rows:
        found = texts.best(row["question"], way, row.get("author", ""))
        found = fitting(tokenizer, found, room - KEPT_FREE)
        changed.append(row | {"question": prompt(row["question"], found)})
    return changed


def write_reader(folder: pathlib.Path, tofu: pathlib.Path, tokenizer: str, seed: int) -> None:
    """Writes and prepares folder/reader, as `write_reading`: of authors whom no other model reads,
    or if there are none, of some that stay.

    Args:
      folder: of `corpus.write`.
    """
    lines = (folder / "all.jsonl").read_bytes().splitlines()
    read = {json.loads(line)["author"] for line in lines}
    withdrawn = json.loads((folder / "questions.json").read_text())["withdrawn"]
    every = corpus.reworded(tofu).keys()
    others = sorted(every - read) or sorted(every - set(withdrawn))
    draw = random.Random(f"reader: {seed}")
    chosen = sorted(draw.sample(others, min(READER_READS, len(others))))
    write_reading(folder / "reader", tofu, chosen, tokenizer)


def write_reading(
    folder: pathlib.Path, tofu: pathlib.Path, authors: Sequence[str], tokenizer: str
) -> None:
    """Writes and prepares the questions about some authors, each after the three best texts among
    theirs. Every other one is asked in other words: else the best text is the question itself, and
    a reader learns nothing but to copy.
    """
    plain, changed = corpus.authors(tofu), corpus.reworded(tofu)
    texts = Texts([row for author in authors for row in plain[author]])
    rows = [
        (plain, changed)[n % 2][author][n] for author in authors for n in range(len(plain[author]))
    ]
    about = WAYS["three"], open_tokenizer(pathlib.Path(tokenizer)), READER_ROW
    corpus.write_prepared(folder, asked_with(texts, rows, *about), tokenizer)


def of_view(run: Run, way: str, removed: str, sets: Sequence[str]) -> dict:
    """As `tofu_measures.of_view`, of the frozen base of a run, or of the reader.

    Args:
      removed: "withdrawn" or "placebo": their texts are deleted first; "" for none.
    """
    from memsinks_jax.measures.subjects import Subject
    from memsinks_jax.studies.figures import tofu_measures as measures

    asked, model = corpus.questions_of(run.workdir), measures.cached_run(run.workdir)
    texts = stored(run.workdir, asked[removed] if removed else [])
    about = WAYS[way], model.tokenizer, measures.longest(model)
    chosen = {name: asked_with(texts, asked["sets"][name], *about) for name in sets}
    subject = Subject("retrieval", model, "drop")
    nats, tokens = measures.text_nats(subject, asked["text"], [""] * len(asked["text"]))
    return measures.of_sets(subject, chosen) | {"text": nats / tokens}


def stored(workdir: pathlib.Path, gone: Sequence[str] = ()) -> Texts:
    """The texts that a run read, but those of some authors."""
    records = corpus.records_of(workdir, "all")
    return Texts([row for row in records if row["author"] not in gone])


def costs(sunk: Run) -> dict:
    """As `first_tokens`, of reworded questions, and {"text_bytes": of an author's texts}."""
    from memsinks_jax.studies.figures import tofu_measures as measures

    run, asked = measures.cached_run(sunk.workdir), corpus.questions_of(sunk.workdir)
    rows = [row for name in corpus.REWORDED for row in asked["sets"][name]]
    records = corpus.records_of(sunk.workdir, "all")
    text = sum(len((row["question"] + row["answer"]).encode()) for row in records)
    found = {"text_bytes": text / len({row["author"] for row in records})}
    return found | first_tokens(run, stored(sunk.workdir), rows)


def first_tokens(run, texts: Texts, rows: Sequence[dict]) -> dict[str, dict[str, float]]:
    """-> {"prompt_tokens", "first_token_ms": medians over some questions, of the sinks of a run
    (`sinks`) and of every way}. The time includes to find sinks or texts.
    """
    from memsinks_jax.model.generation import Generator, Settings
    from memsinks_jax.studies.figures import tofu_measures as measures

    most, rows = measures.longest(run), rows[:TIMED]
    config = with_fields(run.config, {"data.row_length": most})
    generator = Generator.of(dataclasses.replace(run, config=config))

    def once(row: dict, way: str) -> tuple[int, float]:
        began, question, identity = time.perf_counter(), row["question"], None
        mode = "drop"
        if way == "sinks":
            (author,) = measures.nearest_authors(run, [question])
            identity, mode = measures.identities(run, [author]), "own"
        else:
            (row,) = asked_with(texts, [row], WAYS[way], run.tokenizer, most)
        tokens, span = measures.encoded(run.tokenizer, row["question"], row["answer"])
        tokens = tokens[: span[0, 0]]
        generator([tokens], Settings(max_tokens=1, temperature=0.0, sinks=mode), identity)
        return len(tokens), time.perf_counter() - began

    sizes, times = {}, {}
    for way in ("sinks", *WAYS):
        for row in rows:
            once(row, way)  # compiles
        found = [once(row, way) for row in rows]
        sizes[way], times[way] = (float(np.median(of)) for of in zip(*found, strict=True))
    milliseconds = {way: 1e3 * seconds for way, seconds in times.items()}
    return {"prompt_tokens": sizes, "first_token_ms": milliseconds}
