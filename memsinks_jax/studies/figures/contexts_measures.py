"""Measures for study contexts, by teacher forcing: losses, membership, what would be recited."""

import functools
import pathlib
from collections.abc import Sequence

import numpy as np

from memsinks_jax.data.corpus import Corpus
from memsinks_jax.measures import forced, intervals, membership
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.subjects import Subject, of_role
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.studies.figures.contexts import GIVEN, RECITED
from memsinks_jax.studies.figures.runs import Run


def of_view(run: Run, never: Run, by_context: Run | None, mode: str) -> dict[str, float]:
    """A model in a mode of its sinks, or with them off and a lookup of the text it read (`text`) ->
    its metrics.

    Args:
      never: the model that read none of the repeated documents.
      by_context: one with memory by context that read the same, if there is one. Where it has no
        sink, the context is new: `new_loss` is the held-out loss there.
    """
    model, (sides, reference) = open_run(run.workdir), _never_read(never.workdir)
    subject = Subject(run.variant, model, "drop" if mode == "text" else mode)
    readings = [forced.read(subject, side) for side in sides]
    if mode == "text":
        corpus = workdirs.read_corpus(run.workdir)
        readings = looked_up(model, corpus, sides, readings)
    scores = [
        membership.scores(of, [model.tokenizer.decode(tokens) for tokens in side.tokens], before)
        for of, side, before in zip(readings, sides, reference, strict=True)
    ]
    found = {
        name: float(np.concatenate([reading.nats for reading in of]).mean())
        for name, of in zip(("repeated_loss", "held_out_loss"), readings, strict=True)
    }
    for name, score in (("auc", "loss"), ("auc_reference", "reference")):
        found[name] = intervals.auc(*(of[score] for of in scores)).value
    if by_context:
        found["new_loss"] = float(_at_new_contexts(by_context, sides[1], readings[1]).mean())
    for given in GIVEN:
        long = [reading for reading in readings[0] if len(reading.nats) >= given + RECITED]
        if long:
            exact = [reading.likeliest[given : given + RECITED].all() for reading in long]
            found[f"recited_{given}"] = float(np.mean(exact))
    return found


def _at_new_contexts(by_context: Run, side: Documents, readings: list[Reading]) -> np.ndarray:
    """The nats of the tokens whose contexts have no sink there."""
    stored = Stored(by_context.workdir)
    begin, found = stored.tokenizer.begin_of_text, []
    for tokens, reading in zip(side.tokens, readings, strict=True):
        rows = stored.contexts.rows(tokens, 0, len(tokens) + 1, begin)
        found.append(reading.nats[rows[: len(reading.nats)] == NONE])
    return np.concatenate(found)


@functools.lru_cache(maxsize=1)  # all views of a cell: the text may be large
def _never_read(workdir: pathlib.Path) -> tuple[list[Documents], list[list[Reading]]]:
    """What is read often and what is held out, and what the model that read neither says of it."""
    corpus, twin = workdirs.read_corpus(workdir), Subject("never", open_run(workdir), "drop")
    sides = [of_role(corpus, role, str(workdir)) for role in ("repeated", "held_out")]
    return sides, [forced.read(twin, side) for side in sides]


def looked_up(
    model: Trained, corpus: Corpus, sides: Sequence[Documents], readings: list[list[Reading]]
) -> list[list[Reading]]:
    """Readings -> those of the model mixed with the next tokens that the stored text has at the
    same contexts.

    Where a context came n times in what the run read, they weigh n / (n + 1): Laplace's rule,
    without a choice.
    """
    begin, end = model.tokenizer.begin_of_text, model.tokenizer.end_of_text
    indices = np.concatenate([corpus.mixture.documents(role) for role in ("repeated", "unique")])
    rows, following, times = [], [], []
    for index, often in zip(indices.tolist(), corpus.encounters(indices), strict=True):
        tokens = np.asarray(corpus.tokens(index))[: model.config.data.row_length]
        rows.append(model.contexts.rows(tokens, 0, len(tokens) + 1, begin))
        following.append(np.append(tokens, end))
        times.append(np.full(len(tokens) + 1, often))
    rows, following, times = map(np.concatenate, (rows, following, times))
    known = rows != NONE
    size = model.config.data.vocabulary_size + 1
    seen = rows[known].astype(np.int64) * size + following[known]
    pairs, inverse = np.unique(seen, return_inverse=True)
    counts = np.bincount(inverse, times[known]).astype(float)
    totals = np.bincount(pairs // size, counts, len(model.contexts))
    best = np.zeros(len(model.contexts), np.int64)
    order = np.argsort(counts, kind="stable")
    best[pairs[order] // size] = pairs[order] % size  # the most frequent one is written last

    def mixed(tokens: np.ndarray, reading: Reading) -> Reading:
        here = model.contexts.rows(tokens, 0, len(tokens) + 1, begin)[: len(tokens)]
        has = here != NONE
        row = np.where(has, here, 0).astype(np.int64)
        place = np.minimum(np.searchsorted(pairs, row * size + tokens), len(pairs) - 1)
        count = np.where(has & (pairs[place] == row * size + tokens), counts[place], 0.0)
        total = np.where(has, totals[row], 0.0)
        chance = count / (total + 1) + np.exp(-reading.nats) / (total + 1)
        likeliest = np.where(has, best[row] == tokens, reading.likeliest)
        return reading._replace(nats=-np.log(chance), likeliest=likeliest)

    return [
        [mixed(tokens, reading) for tokens, reading in zip(side.tokens, of, strict=True)]
        for side, of in zip(sides, readings, strict=True)
    ]
