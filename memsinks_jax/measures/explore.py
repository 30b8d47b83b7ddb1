"""The data of the explore page: the losses of every token of some documents by each model, their
sinks, and how they were learned. Only numbers and texts; reporting/explore_page.py makes the page.
"""

import itertools
import logging
import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.measures import forced
from memsinks_jax.measures.carried import (
    Own,
    carried,
    has_own,
    own_removed,
    own_sinks,
    said,
    without_own_contexts,
)
from memsinks_jax.measures.document_loss import reader
from memsinks_jax.measures.documents import Documents, rows_at_once, together
from memsinks_jax.measures.extraction import PREFIXES, SUFFIX, Prompts, continuations
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.rows import in_batches, rows_of
from memsinks_jax.measures.subjects import (
    Subject,
    check_documents,
    corpus_of,
    documents_of,
    in_matrices,
    shortened,
    subjects_of,
)
from memsinks_jax.model import placement
from memsinks_jax.model.generation import text_after
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import partition
from memsinks_jax.training.checkpoint import steps_in
from memsinks_jax.training.metrics import read_metrics

logger = logging.getLogger(__name__)

# by role; of files, other names
GROUPS = {"repeated": "repeated", "unique": "read once", "held_out": "held out"}
REMOVED = "its own removed"
_SHARES = (2, 1, 1)  # of the documents of the page, by group
# shown per document; further tokens are read but not shown
_DOCUMENTS, _TOKENS, _LONGEST = 200, 25_600, 512
_STEPS = 6  # checkpoints
_CURVES = ("repeated_loss", "repeated_loss_own", "held_out_loss")
_POINTS = 200  # of a curve
_END, _PART = "⟨end of text⟩", "\ufffd"  # how a tokenizer decodes an incomplete character
_MILLI = 1000  # losses of tokens are whole thousandths of nats


def explore(
    workdir: pathlib.Path,
    members_files: str = "",
    non_members_files: str = "",
    standard: pathlib.Path | None = None,
    oracle: pathlib.Path | None = None,
    prefixes: tuple[int, ...] = PREFIXES,
    suffix: int = SUFFIX,
) -> dict:
    """Reads some of the documents in every way that an audit does; arguments as in `audit.audit`.

    Returns:
      {"workdir", "step", "views": [names], "groups", "prefixes", "suffix", "texts": [tokens as
      text], "sinks": of an MLP, 0 if documents have none of their own, "layers", "opens_at",
      "steps": [checkpoints], "step_views": [names], "curves": {metric: [[step, nats per token]]},
      "documents": [{"group", "id", "times", "length", "opening": tokens before its answer,
      "tokens": [places in texts], "loss": {view: nats per token}, "read": {view: {"nats":
      thousandths, "rank", "guess": places in texts}}, "written": {view: {prefix: places in texts}},
      "says": places in texts of what the sink of the context before each token says, -1 without
      one; None without memory by context,
      "over": {view: [thousandths of nats of each token, a list a checkpoint]}, "loss_over": {view:
      [nats per token]}, "own": of `own_sinks`, "carried": of `carried`}]}.
    Raises:
      InputError: models or documents that cannot be compared.
    """
    subjects = [
        s for s in subjects_of(workdir, standard, oracle) if s.mode != "all" or s.name == "model"
    ]
    subjects.sort(key=lambda subject: subject.mode != "own")  # first the model that remembers
    corpus = corpus_of(subjects[0].run, members_files, non_members_files)
    groups = _groups(subjects[0].run, corpus, members_files, non_members_files)
    names, sides = [*groups], [*groups.values()]
    if len(groups) > 1 and GROUPS["unique"] not in (names[0], names[-1]):
        check_documents(sides[0], sides[-1], subjects)
    documents, prompts = together(sides), Prompts(tuple(prefixes), suffix)
    subjects = shortened(subjects, max(*map(len, documents.tokens), prompts.longest))
    run = subjects[0].run
    own, views = own_sinks(run, documents), {s.name: forced.read(s, documents) for s in subjects}
    # else the model is not meant for use with all sinks on
    if has_own(run.config) and run.config.sinks.opens_at == 1:
        everything = in_matrices(Subject(REMOVED, run, "all"))
        views[REMOVED] = forced.read(everything, documents, own_removed(everything.run.config))
    by_context = run.config.sinks.traits.by_context
    if by_context and corpus and workdirs.lists_all(workdir):
        removed = Subject(REMOVED, without_own_contexts(run, corpus), "own")
        views[REMOVED] = forced.read(removed, documents)
    mine = [subject for subject in subjects if subject.run is run]
    steps, over = _over_training(workdir, documents, mine)
    for name, losses in over.items():
        losses.append([reading.nats for reading in views[name]])
    shown = _Shown(
        texts=Texts(run.tokenizer),
        documents=documents,
        counted=documents.counted(),
        groups=[name for name, of in groups.items() for _ in of.tokens],
        times=[time for of in sides for time in _times(of)],
        views=views,
        written={s.name: continuations(s, documents, prompts) for s in subjects},
        over=over,
        own=own,
        carried=carried(run, documents, own),
        said=said(run, documents) if by_context else None,
    )
    of_documents = [shown.document(place) for place in range(len(documents.tokens))]
    model, settings = run.config.model, run.config.sinks
    return {
        "workdir": str(workdir),
        "step": run.step,
        "views": list(views),
        "groups": names,
        "prefixes": sorted(prompts.fitting(documents)),
        "suffix": suffix,
        "texts": shown.texts.all,
        "sinks": partition(model, settings).sinks if has_own(run.config) else 0,
        "layers": model.layers,
        "opens_at": settings.opens_at,
        "steps": steps,
        "step_views": list(over),
        "curves": _curves(workdir),
        "documents": of_documents,
    }


def _groups(
    run: Trained, corpus: Corpus | None, members_files: str, non_members_files: str
) -> dict[str, Documents]:
    """Documents by group, up to the limits of the page."""
    longest = min(run.config.data.row_length, _LONGEST)
    room = max(min(_DOCUMENTS, _TOKENS // longest), 4)
    files = {"repeated": members_files, "held_out": non_members_files}
    found = {}
    for (role, name), share in zip(GROUPS.items(), _SHARES, strict=True):
        if role == "unique" and (corpus is None or not len(corpus.mixture.documents(role))):
            continue
        if files.get(role):
            name = "members" if role == "repeated" else "non-members"
        most = room * share // sum(_SHARES)
        documents = documents_of(run, role, files.get(role, ""), corpus, most)
        found[name] = documents.chosen(np.arange(min(most, len(documents.tokens))))
    return found


def _times(documents: Documents) -> list[int | None]:
    """How often an epoch has each, if that is known."""
    known = documents.encounters
    return [None] * len(documents.tokens) if known is None else known.tolist()


class Texts:
    """Tokens as text, each distinct text once: what a token adds to those before it."""

    def __init__(self, tokenizer: AnyTokenizer):
        self._tokenizer, self._places, self._alone = tokenizer, {}, {}
        self._opening = tokenizer.encode("a")

    @property
    def all(self) -> list[str]:
        return list(self._places)

    def _place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def _text(self, token: int) -> str:
        """The text of a token without context."""
        if token not in self._alone:
            self._alone[token] = text_after(
                self._tokenizer, self._opening, np.array([token], np.int32)
            )
        return self._alone[token]

    def of(self, tokens: np.ndarray, start: int = 0) -> list[int]:
        """Places of the texts from token `start` on. The last token of a character has its text,
        earlier ones are empty.
        """
        found = [self._text(token) for token in tokens[start:].tolist()]
        if any(_PART in text for text in found):
            ends = [
                self._tokenizer.decode(tokens[:end]).rstrip(_PART)
                for end in range(start, len(tokens) + 1)
            ]
            found = [text[len(before) :] for before, text in itertools.pairwise(ends)]
        elif start == 0 and found:
            # many tokenizers drop a space at the beginning of a text
            found[0] = self._tokenizer.decode(tokens[:1])
        return list(map(self._place, found))

    def said(self, tokens: np.ndarray) -> list[int]:
        """As `guesses`; -1 stays."""
        found = self.guesses(np.maximum(tokens, 0))
        return [place if token >= 0 else -1 for place, token in zip(found, tokens, strict=True)]

    def guesses(self, tokens: np.ndarray) -> list[int]:
        ends = self._tokenizer.stops
        texts = [_END if token in ends else self._text(token) for token in tokens.tolist()]
        return list(map(self._place, texts))


class _Shown(NamedTuple):
    """All that was found of the documents of the page; `[i]` of every list belongs to document
    i.
    """

    texts: Texts
    documents: Documents
    counted: list[np.ndarray]
    groups: list[str]
    times: list[int | None]
    views: dict[str, list[Reading]]
    written: dict[str, dict[int, dict[int, list[np.ndarray]]]]  # by view, of `continuations`
    over: dict[str, list[list[np.ndarray]]]  # by view, of `_over_training`
    own: list[Own]
    carried: list[list[list[float]] | None]
    said: list[np.ndarray] | None

    def document(self, i: int) -> dict:
        """One of "documents" of `explore`."""
        tokens, counted, rises = self.documents.tokens[i], self.counted[i], self.carried[i]
        opening = int(np.argmax(counted))
        views = {name: readings[i] for name, readings in self.views.items()}
        over = {name: [of[i] for of in steps] for name, steps in self.over.items()}

        def written(prefix: int, likeliest: np.ndarray) -> list[int]:
            start = opening + prefix
            return self.texts.of(np.concatenate([tokens[:start], likeliest]), start)

        return {
            "group": self.groups[i],
            "id": ids.to_hex(self.documents.identities[i]),
            "times": self.times[i],
            "length": len(tokens),
            "opening": opening,
            "tokens": self.texts.of(tokens[:_LONGEST]),
            "loss": {name: _mean(reading.nats[counted]) for name, reading in views.items()},
            "read": {
                name: {
                    "nats": _thousandths(reading.nats),
                    "rank": reading.rank[:_LONGEST].tolist(),
                    "guess": self.texts.guesses(reading.guess[:_LONGEST]),
                }
                for name, reading in views.items()
            },
            "written": {
                name: {prefix: written(prefix, of[i][0]) for prefix, of in found.items() if i in of}
                for name, found in self.written.items()
                if found
            },
            "says": self.said and self.texts.said(self.said[i][:_LONGEST]),
            "over": {name: list(map(_thousandths, steps)) for name, steps in over.items()},
            "loss_over": {
                name: [_mean(nats[counted]) for nats in steps] for name, steps in over.items()
            },
            "own": self.own[i],
            "carried": rises and [[round(rise, 5) for rise in layer] for layer in rises],
        }


def _over_training(
    workdir: pathlib.Path, documents: Documents, subjects: list[Subject]
) -> tuple[list[int], dict[str, list[list[np.ndarray]]]]:
    """(steps of the checkpoints that are there, {subject: for each but the newest the nats of every
    document's tokens}). Damaged ones are passed over; a folder of a model alone has none.
    """
    newest = subjects[0].run
    if not newest.stored.is_run:
        return [], {}
    every = documents._replace(answers=None)  # the page shows prompts, too
    rows, size = (
        rows_of(every, newest),
        rows_at_once(newest.config, placement.mesh_of(newest.params)),
    )
    programs = {
        subject.name: placement.jit(reader(newest.config, subject.mode)) for subject in subjects
    }
    steps, found = [], {name: [] for name in programs}
    before = [step for step in steps_in(workdir / "checkpoints") if step < newest.step]
    for place in np.linspace(0, len(before) - 1, min(len(before), _STEPS - 1)).round().astype(int):
        try:
            run = open_run(workdir, before[place])
        except InputError as error:
            logger.warning("%s", error)
            continue
        steps.append(run.step)
        for name, program in programs.items():
            read = [np.asarray(program(run.params, batch)) for batch in in_batches(rows, size)]
            nats = np.concatenate(read).astype(float)
            found[name].append(
                [nats[i, : len(tokens)] for i, tokens in enumerate(documents.tokens)]
            )
    return [*steps, newest.step], found


def _curves(workdir: pathlib.Path) -> dict[str, list[list[float]]]:
    """The losses in a run's metrics, over training."""
    lines, found = read_metrics(workdir), {}
    for name in _CURVES:
        points = [[line["step"], round(line[name], 5)] for line in lines if name in line]
        if points:
            found[name] = points[:: -(-len(points) // _POINTS)]
    return found


def _mean(nats: np.ndarray) -> float:
    return round(float(np.mean(nats)), 6)


def _thousandths(nats: np.ndarray) -> list[int]:
    return np.round(nats[:_LONGEST] * _MILLI).astype(int).tolist()
