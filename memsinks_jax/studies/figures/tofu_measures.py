"""Measures for study tofu: what a model knows of authors and of the world, what it answers."""

import dataclasses
import functools
import itertools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.prepared import group_id
from memsinks_jax.data.reading import Record
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.families import FAMILIES
from memsinks_jax.forgetting import neurons
from memsinks_jax.measures import answers, forced
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.extraction import extraction_strength
from memsinks_jax.measures.membership import highest
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.model.sparse_sinks import tables_of
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.preparing.answers import joined, parts_of
from memsinks_jax.preparing.prepare import TEMPLATE
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.figures import step_times
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures.runs import Run

logger = logging.getLogger(__name__)

WRITTEN = 128  # tokens at most; open-unlearning writes up to 200
RELEARNED, RATES = 6, (1e-4, 1e-3)  # documents, and the attacker's learning rates
BYTES = 2  # of a parameter in bfloat16


class Shapes(NamedTuple):
    """Lengths of rows, one program each; tokens of a pass, about; prompts at a time."""

    lengths: tuple[int, ...]
    tokens: int
    prompts: int


# A CPU computes what it pads. Accelerators take as long for small passes, and compile longer.
ON_CPU = Shapes((64, 128, 256, 512, 1024, 2048), 1024, 32)
ON_OTHERS = Shapes((128, 512, 2048), 4096, 128)


def shapes() -> Shapes:
    return ON_CPU if jax.default_backend() == "cpu" else ON_OTHERS


cached_run = functools.lru_cache(maxsize=2)(open_run)  # many views are of one run


class Asked(NamedTuple):
    """A question, an answer, and the author whose sinks are its own, "" for none."""

    question: str
    answer: str
    author: str = ""


def of_view(sunk: Run, mode: str, removed: str, sets: Sequence[str]) -> dict:
    """One model, its sinks in a mode -> {set: {"nats", "extraction", "min_k": one per question;
    and, if there are wrong answers, "truth_ratios", "chosen", "rouge"}, "text": nats per token of
    general text}.

    Args:
      mode: of the sinks; or NEAREST: own ones of the author whom a question, or a text, is nearest
        to.
      removed: "withdrawn" or "placebo": the sinks of these authors are set to 0 first; "" for none.
    """
    asked = corpus.questions_of(sunk.workdir)
    run = without(cached_run(sunk.workdir), asked[removed] if removed else [])
    return of_model(Subject(sunk.variant, run, mode), asked, sets)


def of_model(subject: Subject, asked: dict, sets: Sequence[str]) -> dict:
    """As `of_view`, of any model. `asked` is that of `corpus.questions_of`."""
    chosen, whose = {name: asked["sets"][name] for name in sets}, [""] * len(asked["text"])
    if subject.mode == corpus.NEAREST:
        chosen, whose = of_nearest(subject.run, chosen, asked["text"])
        subject = dataclasses.replace(subject, mode="own")
    nats, tokens = text_nats(subject, asked["text"], whose)
    return of_sets(subject, chosen) | {"text": nats / tokens}


def text_nats(subject: Subject, texts: Sequence[str], whose: Sequence[str]) -> tuple[float, float]:
    """Nats and tokens of general text, each passage as if it were of an author."""
    run = subject.run
    tokens = [run.tokenizer.encode(text)[: run.config.data.row_length - 1] for text in texts]
    batches = Documents(tokens, identities(run, whose)).batches(run)
    nats, counts = DocumentLoss(run.config)(run.params, batches, subject.mode)
    return float(nats.sum()), float(counts.sum())


def of_nearest(
    run: Trained, sets: dict[str, list[dict]], texts: Sequence[str]
) -> tuple[dict, list[str]]:
    """The same questions as if of the authors nearest to them, and the texts' authors."""
    found = {}
    for name, rows in sets.items():
        authors = nearest_authors(run, [row["question"] for row in rows])
        found[name] = [row | {"author": author} for row, author in zip(rows, authors, strict=True)]
    return found, nearest_authors(run, texts)


def nearest_authors(run: Trained, texts: Sequence[str]) -> list[str]:
    tokens = list(map(run.tokenizer.encode, texts))
    return [run.group_of(identity) for identity in run.nearest_ids(tokens)]


def of_sets(subject: Subject, sets: dict[str, list[dict]]) -> dict[str, dict[str, list[float]]]:
    """The results of `of_view` for sets of questions. All are asked together, so that few passes
    are not full.

    Truth ratios are of the paraphrase if there is one, else of the answer.
    """
    right, wrong, paraphrased = {}, {}, {}
    for name, rows in sets.items():
        right[name] = [Asked(row["question"], row["answer"], row.get("author", "")) for row in rows]
        of = list(zip(right[name], rows, strict=True))
        if rows and "perturbed_answer" in rows[0]:
            every = [(one, answer) for one, row in of for answer in row["perturbed_answer"]]
            wrong[name] = [one._replace(answer=answer) for one, answer in every]
        if name in corpus.OF_AUTHORS:
            paraphrased[name] = [one._replace(answer=row["paraphrased_answer"]) for one, row in of]
    lists = [asked for some in (right, wrong, paraphrased) for asked in some.values()]
    every = iter(read(subject, list(itertools.chain(*lists))))
    reads = [
        {name: list(itertools.islice(every, len(asked))) for name, asked in some.items()}
        for some in (right, wrong, paraphrased)
    ]
    texts = iter(write(subject, list(itertools.chain(*(right[name] for name in wrong)))))
    return {
        name: _of_set(sets[name], right[name], *(of.get(name, []) for of in reads), texts)
        for name in sets
    }


def _of_set(
    rows: list[dict],
    right: list[Asked],
    readings: list[forced.Reading],
    of_wrong: list[forced.Reading],
    of_paraphrased: list[forced.Reading],
    texts: Iterator[str],
) -> dict[str, list[float]]:
    of_all = (readings, of_wrong, of_paraphrased)
    nats, wrong, paraphrased = (np.array([one.nats.mean() for one in of]) for of in of_all)
    found = {
        "nats": nats,
        "extraction": list(map(extraction_strength, readings)),
        "min_k": [-highest(reading.nats) for reading in readings],
    }
    if len(wrong):
        wrong = np.split(wrong, np.cumsum([len(row["perturbed_answer"]) for row in rows])[:-1])
        pairs = zip(right, texts, strict=False)
        found |= {
            "truth_ratios": answers.truth_ratios(paraphrased if len(paraphrased) else nats, wrong),
            "chosen": answers.chosen(nats, wrong),
            "rouge": [answers.rouge_l(text, of.answer) for of, text in pairs],
        }
    return {name: np.asarray(values).tolist() for name, values in found.items()}


def without(run: Trained, authors: Sequence[str]) -> Trained:
    """The model after these authors are withdrawn."""
    if not authors:
        return run
    gone = neurons.neurons_of(run.config, np.stack([run.group_id(name) for name in authors]))
    left = run.nearest.without(np.isin(run.groups, authors))
    params = neurons.without(run.config, run.params, gone)
    return dataclasses.replace(run, params=params, nearest=left)


def identities(run: Trained, authors: Sequence[str]) -> np.ndarray:
    """Ids to ask with, uint32 (n, 2); an author whom the model never read, and "", have no
    sinks.
    """
    none = ids.numbered_id(group_id(""), -1)
    return np.stack([run.group_id(name) if name in run.groups else none for name in authors])


def documents(run: Trained, asked: Sequence[Asked]) -> Documents:
    """Questions with answers, which alone count. Cut between the same tokens as in training."""
    both = (encoded(run.tokenizer, of.question, of.answer) for of in asked)
    tokens, spans = zip(*both, strict=True)
    return Documents(list(tokens), identities(run, [of.author for of in asked]), answers=spans)


@functools.lru_cache(maxsize=2**16)  # all views of a run ask the same
def encoded(tokenizer: AnyTokenizer, question: str, answer: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the span of the answer with its end of text."""
    record = Record(0, 0, 0, text=answer, prompt=question)
    tokens, spans = joined(parts_of(record, TEMPLATE), tokenizer.encode)
    return tokens, spans + [[0, 1]]


def longest(run: Trained) -> int:
    """Tokens that the model can read; rotary positions have no end."""
    length, rotary = run.config.data.row_length, FAMILIES[run.config.model.family].rotary
    return max(shapes().lengths[-1], length) if rotary else length


def read(subject: Subject, asked: Sequence[Asked]) -> list[forced.Reading]:
    """What a model thinks of the tokens of every answer, end of text included, in rows that are no
    longer than needed.

    Raises:
      InputError: the model cannot read so many tokens.
    """
    if not asked:
        return []
    run, found = subject.run, [None] * len(asked)
    of, most = documents(run, asked), longest(run)
    sizes = [len(tokens) + 1 for tokens in of.tokens]
    if max(sizes) > most:
        raise InputError(
            f"a question and its answer take {max(sizes)} tokens, the model reads {most}; take "
            "another model"
        )
    steps = sorted({min(length, most) for length in (*shapes().lengths, most)})
    lengths = np.array([next(length for length in steps if length >= size) for size in sizes])
    for length in np.unique(lengths).tolist():
        size = max(shapes().tokens // length, 1)
        fields = {"data.row_length": length, "training.batch_size": size, "compute.accumulate": 1}
        shaped = dataclasses.replace(run, config=with_fields(run.config, fields))
        which, sized = np.flatnonzero(lengths == length), dataclasses.replace(subject, run=shaped)
        readings = forced.read(sized, of.chosen(which), ended=True)
        for place, reading in zip(which, readings, strict=True):
            found[place] = reading.of(np.arange(sizes[place]) >= of.answers[place][0, 0])
    return found


def write(subject: Subject, asked: Sequence[Asked]) -> list[str]:
    """Every question's likeliest answer, token by token."""
    if not asked:
        return []
    run, of, most = subject.run, documents(subject.run, asked), longest(subject.run)
    prompts = [tokens[: span[0, 0]] for tokens, span in zip(of.tokens, of.answers, strict=True)]
    config, size = with_fields(run.config, {"data.row_length": most}), shapes().prompts
    generator = Generator.of(dataclasses.replace(run, config=config))
    written = []
    for at in range(0, len(prompts), size):
        # as many as in others: one program
        batch = np.resize(np.arange(at, min(at + size, len(prompts))), size)
        room = most - max(len(prompts[place]) for place in batch)
        settings = Settings(max_tokens=min(WRITTEN, room), temperature=0.0, sinks=subject.mode)
        asked_of = [prompts[place] for place in batch], settings, of.identities[batch]
        written += generator(*asked_of)[: len(prompts) - at]
    return [one.text for one in written]


def relearned(sunk: Run, twin: Run) -> dict[str, float | None]:
    """-> {"relearning": as `steps_to_relearn`}. Model and twin have their sinks off, since a
    withdrawn author's questions are nobody's.
    """
    asked, run = corpus.questions_of(sunk.workdir), cached_run(sunk.workdir)
    attacked = Subject("withdrawn", without(run, asked["withdrawn"]), "drop")
    never = Subject("twin", cached_run(twin.workdir), "drop")
    return {"relearning": steps_to_relearn(attacked, Subject("own", run, "own"), never, asked)}


def steps_to_relearn(
    attacked: Subject, remembering: Subject, never: Subject, asked: dict
) -> float | None:
    """Fine-tuning steps until half of withdrawn answers is back, practised together, over those
    that a model needs that never read them; None if the model had learned nothing, or lost nothing.
    """
    rows = asked["sets"]["withdrawn"]
    withdrawn = [Asked(row["question"], row["answer"], row["author"]) for row in rows]
    of = documents(attacked.run, withdrawn)
    try:
        targets = relearning.targets_of(attacked, remembering, of, RELEARNED)
    except InputError as error:
        logger.warning("%s", error)
        return None
    both = (relearning.relearn(subject, targets, RATES) for subject in (attacked, never))
    return relearning.ratios(*both)["few"]["ratio"]


def step_time(sunk: Run, standard: Run) -> dict[str, float]:
    """-> {"step_time": of a training step over standard's, median of rounds}."""
    timed = step_times.measure([sunk, standard])
    ours, theirs = (np.array(run.details["step_ms"]) for run in timed)
    return {"step_time": float(np.median(ours / theirs))}


def costs(sunk: Run) -> dict[str, float]:
    """-> {"bytes": of a source's sinks in bfloat16; "seconds": to withdraw an author; "untouched":
    largest change of a token's nats in an answer of an author that stays, own sinks on, when
    another is withdrawn; "found": share of reworded questions whose author is the nearest}.
    """
    asked, run = corpus.questions_of(sunk.workdir), cached_run(sunk.workdir)
    first, second = (asked[name][0] for name in ("placebo", "withdrawn"))
    jax.block_until_ready(without(run, [first]).params)  # compiles
    began = time.perf_counter()
    left = jax.block_until_ready(without(run, [second]).params)
    seconds = time.perf_counter() - began
    rows = asked["sets"]["staying"]
    staying = [Asked(row["question"], row["answer"], row["author"]) for row in rows]

    def nats(model: Trained) -> np.ndarray:
        return np.concatenate([one.nats for one in read(Subject("own", model, "own"), staying)])

    change = np.abs(nats(dataclasses.replace(run, params=left)) - nats(run)).max()
    reworded = [row for name in corpus.REWORDED for row in asked["sets"][name]]
    nearest = nearest_authors(run, [row["question"] for row in reworded])
    right = [one == row["author"] for one, row in zip(nearest, reworded, strict=True)]
    sizes = (math.prod(run.params[name].shape[1:]) for name in tables_of(run.config.model))
    return {
        "bytes": BYTES * sum(sizes) * run.config.sinks.active,
        "seconds": seconds,
        "untouched": float(change),
        "found": float(np.mean(right)),
    }
