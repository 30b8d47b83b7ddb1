"""Measures for study passages, all by teacher forcing: the loss of passages and of text that no model read, and how much of
a passage a model would write greedily."""

import dataclasses
import functools
import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax.auditing import forced
from memsinks_jax.auditing.subjects import Subject
from memsinks_jax.config import with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.evals.documents import Documents
from memsinks_jax.runs.trained import open_run
from memsinks_jax.studies.figures import passages_corpus as corpus
from memsinks_jax.studies.figures.passages_corpus import Passage
from memsinks_jax.studies.figures.runs import Run

# Models that differ in these alone share their programs.
_OF_TRAINING = {"variant": "", "data.files": "", "goldfish.every": 0, "sinks.passages_at": 0}
LICENCES = ("Permission is hereby granted, free of charge", "is free software", "Apache License, Version 2.0")


class Asked(NamedTuple):
    """What the models of a corpus are asked."""

    texts: dict[str, list[np.ndarray]]  # "often", "never", "held_out", "unread": tokens of each, a row at most
    new: np.ndarray  # bool (held-out tokens,): in no n-gram that training has
    passages: list[Passage]
    licences: list[int]  # places in `passages`: the most frequent that opens with each of LICENCES, if there is one


@functools.lru_cache(maxsize=1)
def asked_in(folder: pathlib.Path, row_length: int) -> Asked:
    """Held-out documents are cut into pieces that fill a row. `unread` are pieces of their new text."""
    read, texts = Prepared(folder / "all"), corpus.texts_asked(folder)
    encode, room, passages = read.tokenizer().encode, row_length - 1, corpus.passages_of(read)
    held_out = list(map(encode, texts.held_out))
    known = corpus.known(read, held_out)
    tokens = {name: [encode(text)[:room] for text in getattr(texts, name)] for name in ("often", "never")}
    tokens["held_out"] = [piece for of in held_out for piece in _pieces(of, room)]
    pairs = ((piece, there) for both in zip(held_out, known, strict=True) for piece, there in zip(*(
        _pieces(of, corpus.LENGTH) for of in both), strict=True))  # fmt: skip
    tokens["unread"] = [of for of, there in pairs if len(of) == corpus.LENGTH and not there.any()][: corpus.UNREAD]
    opens = [" ".join(read.tokenizer().decode(each.tokens[: corpus.LENGTH]).split()) for each in passages]
    licences = [
        [place for place, text in enumerate(opens) if words in text and len(passages[place].tokens) == corpus.SHOWN]
        for words in LICENCES
    ]
    return Asked(tokens, ~np.concatenate(known), passages, [places[0] for places in licences if places])


def _pieces(tokens: np.ndarray, size: int) -> list[np.ndarray]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def of_view(run: Run, mode: str, other: bool) -> dict:
    """One model, its sinks in a mode -> {
      "passages", "unread": nats per token of each, see `loss`;
      "written": of each passage, the share of what follows its first half that it would write;
      "places": of each passage, in how many documents it stands; "licences": which of them are, see `Asked`;
      "often", "never", "held_out", "new": nats per token, if sinks are dropped: these texts have no passages' ids}.

    Args:
      other: the sinks that are on are those of another passage.
    """
    model = open_run(run.workdir)
    model = dataclasses.replace(model, config=with_fields(model.config, _OF_TRAINING))
    asked = asked_in(corpus.folder_of(run.workdir), model.config.data.row_length)
    own = np.stack([passage.identity for passage in asked.passages])
    parts = {"passages": [passage.tokens for passage in asked.passages], "unread": asked.texts["unread"]}
    parts |= {name: asked.texts[name] for name in ("often", "never", "held_out") if mode == "drop"}
    tokens = sum(parts.values(), [])
    identities = np.stack([ids.content_id(each) for each in tokens])
    identities[: len(own)] = np.roll(own, 1, axis=0) if other else own
    readings = forced.read(Subject(run.variant, model, mode), Documents(tokens, identities))
    ends = np.cumsum([len(of) for of in parts.values()])
    found = {
        name: [reading.nats for reading in readings[end - len(of) : end]]
        for (name, of), end in zip(parts.items(), ends.tolist(), strict=True)
    }
    numbers = {name: list(map(loss, found[name])) for name in ("passages", "unread")}
    numbers["written"] = [written(each.likeliest) for each in readings[: len(own)]]
    numbers["places"], numbers["licences"] = [passage.places for passage in asked.passages], asked.licences
    for name in found.keys() - numbers.keys():
        numbers[name] = float(np.concatenate(found[name]).mean())
    if mode == "drop":
        numbers["new"] = float(np.concatenate(found["held_out"])[asked.new].mean())
    return numbers


def loss(nats: np.ndarray) -> float:
    """The mean of the first LENGTH tokens, float (tokens,), without the first CONTEXT.

    A passage was never read without what stands before it, such as the end of a sentence. So the loss of its first tokens
    differs between models that have read the same, by more than what is left of a passage.
    """
    return float(nats[corpus.CONTEXT : corpus.LENGTH].mean())


def written(likeliest: np.ndarray) -> float:
    """Share of what follows the first half of a passage that a model would write greedily, up to its first mistake.

    Args:
      likeliest: bool (tokens,), whether each token is the likeliest after those before it.
    """
    given = len(likeliest) // 2
    return float(np.append(likeliest[given : 2 * given], False).argmin() / given)
