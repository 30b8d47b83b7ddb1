"""A trained model in Python: its loss on texts and its continuations, with its sinks in any mode.

    import memsinks_jax

    model = memsinks_jax.open_model("runs/sinks")
    print(model.loss(["Once upon a time there was a fox."]))  # nats per token, sinks dropped
    print(model.loss(["Once upon a time there was a fox."], sinks="own"))
    print(model.generate("Once upon a time", max_tokens=40, temperature=0.8))

Importing the package does not import jax; opening a model does.
"""

import dataclasses
import functools
import itertools
import logging
import os
import pathlib
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data import ids
from memsinks_jax.data.chat import check_messages
from memsinks_jax.data.corpus import entropy_floor, read_tokens
from memsinks_jax.data.documents import Document, in_words, printable
from memsinks_jax.data.mixture import LISTED
from memsinks_jax.data.packing import reads_whole
from memsinks_jax.data.table import truncated
from memsinks_jax.editing.memory import interventions
from memsinks_jax.editing.memory_file import load_all
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents, batches_by_length, of_corpus
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import no_change
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models.origin import open_chat
from memsinks_jax.models.stored import Stored
from memsinks_jax.models.trained import nearest_groups, numbered_id, open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import MODES, has_sinks

logger = logging.getLogger(__name__)

ROLES = ("held_out", "repeated", "unique")


class Model:
    """A run or a Hugging Face folder, on the local devices. `run` has its config, tokenizer,
    parameters and step.

    `sinks` is one of memsinks_jax.sinks.kinds.MODES: drop, own, all or other. With own a document
    has its own sinks if it came back in training (`run.opened`); any other has none. Where each
    group has sinks of its own (`sinks.sampling=disjoint`), a text's group is found by what it is
    about (data/nearest.py), unless it is named.

    Args:
      memories: files that edit has written, all of which are in the model.
      only: names of those source files of a folder that are read; None: all.
    """

    def __init__(
        self,
        place: str | os.PathLike,
        memories: Sequence[str] = (),
        only: Collection[str] | None = None,
    ):
        """Raises InputError if there is no model, or a damaged one."""
        if not isinstance(place, str | os.PathLike):
            raise InputError(
                f"{place!r:.60} is no place of a model; give the path of a run or a folder"
            )
        self.place = pathlib.Path(place)
        self.run = open_run(self.place, only=only)
        loaded = load_all(memories, self.run.config, self.run.params)
        self._change = functools.partial(interventions, loaded) if loaded else no_change
        self.generator = Generator.of(self.run, self._change)

    def loss(self, texts: Sequence[str], sinks: str = "drop", group: str = "") -> np.ndarray:
        """Nats per token of every text, end of text included, each alone in its context -> float64
        (texts,).

        With sinks="own" a text has the sinks of the document with exactly this text, of `group`, or
        of the nearest group.

        Raises:
          InputError: no texts, or an empty one; an unknown mode, or one that needs ids for a model
            without ids by content and without `group`; no such group.
        """
        if (
            isinstance(texts, str)
            or not len(texts)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise InputError(f"texts is {texts!r:.60}; give a list of at least one text")
        tokens = [self.run.tokenizer.encode(text) for text in texts]
        if not all(map(len, tokens)):
            raise InputError(
                f"texts[{list(map(len, tokens)).index(0)}] has no token; leave empty ones out"
            )
        documents = Documents(tokens, self.identities(tokens, sinks, group))
        nats, counts = self.document_losses(documents, sinks)
        return nats / counts

    def generate(
        self,
        prompt: str | list[dict],
        sinks: str = "drop",
        document: str = "",
        chat: bool = False,
        group: str | Sequence[str] = "",
        **settings,
    ) -> str:
        """Generates a continuation of a prompt.

        Args:
          document: id of the document that starts with the prompt, 16 hexadecimal digits; for the
            modes own and other.
          chat: the prompt is what a user says, or the messages of a conversation so far, each
            {"role", "content"}: the model's chat template goes around it, and the result is the
            answer.
          group: instead of `document`, the name of the group whose document it is, or of several
            that it is about (see model/mixture.py), for models with ids by group.
          settings: other fields of model.generation.Settings, such as max_tokens, temperature,
            top_k, top_p, seed.
        Raises:
          InputError: no text, an invalid setting, a mode without its id, more tokens than the
            context, a model without chat template.
        """
        if chat and not isinstance(prompt, str):
            check_messages(prompt, f"prompt={prompt!r:.60}")
        elif not isinstance(prompt, str):
            raise InputError(f"prompt is {prompt!r:.60}; give one text")
        identity = self.identity(document, group)
        if identity is None and self.finds_groups(sinks):
            text = self.run.tokenizer.encode(_said(prompt))
            identity = self.run.ids_of_groups(nearest_groups(self.run, [text]))
        asked = open_chat(self.place, self.run.tokenizer)(prompt) if chat else prompt
        return self.generator(
            [asked], Settings.of(sinks=sinks, **settings), identity, complete=chat
        )[0].text

    def identity(self, document: str, group: str | Sequence[str]) -> np.ndarray | None:
        """The id of a document, given in hexadecimal, or that of a group's documents, by its name
        -> uint32 (2,); of several groups (1, groups, 2).

        Raises:
          InputError: no such id or group; ids are not by group; both are given.
        """
        names = group if isinstance(group, list | tuple) else [group]
        for name, value in (("document", document), *(("group", name) for name in names)):
            if not isinstance(value, str):
                raise InputError(f"{name} is {value!r:.60}; give a text")
        if document and group:
            raise InputError("document and group choose whose sinks are on: give one of them")
        if not group:
            return ids.from_hex(document) if document else None
        if self.run.config.data.ids != "group":
            raise InputError(
                f"{self.place} has ids by {self.run.config.data.ids}, not by group; leave out "
                "the group"
            )
        if len(names) == 1:
            return self.run.group_id(names[0])
        return self.run.ids_of_groups([names])

    def finds_groups(self, sinks: str) -> bool:
        """Whether a text's own sinks are those of the group that it is about."""
        return sinks == "own" and self.run.nearest is not None

    def needs_ids(self, sinks: str) -> bool:
        """Whether the mode asks whose a text is. Contexts are found by what they say."""
        return sinks in ("own", "other") and not self.run.config.sinks.traits.by_context

    def identities(self, tokens: Sequence[np.ndarray], sinks: str, group: str = "") -> np.ndarray:
        """Ids of documents that are known by their text alone, or as those of a group -> uint32
        (documents, 2).

        Raises:
          InputError: the mode needs ids, and those of the run are not of the text; no such group.
        """
        kind = self.run.config.data.ids
        if not isinstance(group, str):  # a text alone is read with the sinks of one
            raise InputError(f"group is {group!r:.60}; give a text")
        if group:
            return np.tile(self.identity("", group), (len(tokens), 1))
        if self.finds_groups(sinks):
            return self.run.nearest_ids(tokens)
        if kind != "content" and self.needs_ids(sinks):
            raise InputError(
                f"{self.place} was trained with ids by {kind}: sinks={sinks} is not defined for "
                f"other documents{'; give the group' if kind == 'group' else ''}"
            )
        return np.stack([ids.content_id(document) for document in tokens])

    def document_losses(self, documents: Documents, sinks: str) -> tuple[np.ndarray, np.ndarray]:
        """(nats, number of tokens) of every document, each alone in its context: float64
        (documents,) each.

        Both are 0 for a document of which nothing counts.

        Raises:
          InputError: an unknown mode.
        """
        if sinks not in MODES:
            raise InputError(f"sinks is {sinks!r:.60}; choose one of: {', '.join(MODES)}")
        run, data = self.run, self.run.config.data
        tokens = documents.tokens
        if sinks == "own":
            documents = documents._replace(opened=run.opened(documents.identities))
        about = run.config, placement.mesh_of(run.params), run.tokenizer, run.contexts
        batches = batches_by_length(documents, *about)
        longer, _ = truncated(np.array([len(document) for document in tokens]), data.row_length)
        if longer:
            what = "measured in windows of it" if reads_whole(data) else "truncated, as in training"
            logger.warning(
                "longer than the context, %s: %d of %s",
                what,
                longer,
                in_words(len(tokens), "document"),
            )
        return DocumentLoss(run.config, change=self._change)(run.params, batches, sinks)


def open_model(place: str | os.PathLike) -> Model:
    """Opens a run or a Hugging Face folder. Raises InputError if there is no model, or a damaged
    one.
    """
    return Model(place)


def evaluate(
    workdir: pathlib.Path,
    mode: str,
    files: str = "",
    role: str = "held_out",
    memories: tuple[str, ...] = (),
    group: str = "",
) -> dict:
    """Loss of documents under one mode of the sinks.

    Args:
      mode: one of sinks.kinds.MODES.
      files: glob of the documents to measure, or a folder of memsinks_jax.prepare, of which answers
        alone are measured if it has prompts; empty for the run's own documents of `role`.
      memories: files that edit has written, all of which are in the model.
      group: the group that the files are of, for models with ids by group.
    Returns:
      {"loss": nats per token over all documents, "documents", "tokens", "sinks", "per_document":
      [{"source", "id", "tokens", "loss"}], "entropy_floor": nats per token where it is known}.
    """
    whose = _whose(workdir, mode, [], [group]) if group and files else None
    model, floor = Model(workdir, memories, whose and whose[0]), None
    if files:
        texts, found = _of_files(model, mode, files, group)
    elif group:
        raise InputError("--group is the group of other files; name them by --files=GLOB")
    else:
        texts, found, floor = _of_run(model, role)
    texts, found = _answering(model, texts, found, files or str(workdir))
    nats, counts = model.document_losses(found, mode)
    if not has_sinks(model.run.config):
        logger.info("this model has no sinks: --sinks=%s changes nothing", mode)
    per_document = [
        {
            "source": text.source,
            "id": ids.to_hex(identity),
            "tokens": int(count),
            "loss": float(nat / count),
        }
        for text, identity, nat, count in zip(texts, found.identities, nats, counts, strict=True)
    ]
    return {
        "loss": float(nats.sum() / counts.sum()),
        "documents": len(texts),
        "tokens": int(counts.sum()),
        "sinks": mode,
        "per_document": per_document,
        "entropy_floor": floor,
    }


def _of_files(model: Model, mode: str, files: str, group: str) -> tuple[list[Document], Documents]:
    texts, tokens, answers, around = read_tokens(files, model.run.tokenizer)
    if group or not model.finds_groups(mode):
        identities = model.identities(tokens, mode, group)
    else:  # whose a question is must not be read in its answer
        opens = [
            0 if of is None or not len(of) else of[0, 0] for of in answers or [None] * len(tokens)
        ]
        asked = [each[:stop] if stop else each for each, stop in zip(tokens, opens, strict=True)]
        identities = model.identities(asked, mode)
        known = np.count_nonzero(model.run.opened(identities))
        logger.info(
            "about a group that has sinks: %d of %s", known, in_words(len(tokens), "document")
        )
    return texts, Documents(tokens, identities, answers=answers, around=around)


def _of_run(model: Model, role: str) -> tuple[list[Document], Documents, float | None]:
    """Documents of a role, and the lowest loss that any model can reach on them, if it is known."""
    if not model.run.stored.is_run:
        raise InputError(
            f"{model.place} is a model without the documents of a run; give others by --files=GLOB"
        )
    corpus = workdirs.read_corpus(model.place)
    indices = corpus.mixture.documents(role)
    if not len(indices):
        raise InputError(
            f"{model.place} has no {role} documents; choose another of "
            f"--documents={'|'.join(ROLES)}"
        )
    if role == "unique" and len(indices) == LISTED:
        logger.warning(
            "at most %s are measured: the first ones", in_words(LISTED, "unique document")
        )
    texts = [corpus.document(index) for index in indices]
    return texts, of_corpus(corpus, indices), entropy_floor(corpus, indices)


def _answering(
    model: Model, texts: list[Document], documents: Documents, where: str
) -> tuple[list[Document], Documents]:
    """Without those whose prompts fill the context."""
    data = model.run.config.data
    if not documents.answers or reads_whole(data):
        return texts, documents
    usable = np.flatnonzero(documents.measurable(data.row_length))
    if len(usable) < len(texts):
        logger.warning(
            "their prompts fill the context, left out: %d of %s",
            len(texts) - len(usable),
            in_words(len(texts), "document"),
        )
    if not len(usable):
        raise InputError(
            f"{where}: no document has an answer within the context; give shorter prompts"
        )
    return [texts[i] for i in usable], documents.chosen(usable)


def _said(prompt: str | Sequence[dict]) -> str:
    """The text by which the source of a prompt is found: in a conversation all messages."""
    return (
        prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
    )


def _whose(
    place: pathlib.Path,
    mode: str,
    prompts: Sequence[str | list[dict]],
    groups: Sequence[str],
) -> list[list[str]] | None:
    """Whose sinks are on for each prompt, in a folder with a file for each source: the other files
    need not be read. None: it is no such folder, or all are on.
    """
    if mode != "own" or not (stored := Stored(place)).sources or not stored.groups:
        return None
    if groups:
        for group in groups:
            numbered_id(group, stored.groups)  # raises InputError for another name
        return [list(groups)]
    return nearest_groups(stored, [stored.tokenizer.encode(_said(prompt)) for prompt in prompts])


def generate(
    workdir: pathlib.Path,
    prompts: list[str | list[dict]],
    settings: Settings,
    document: str = "",
    show: Callable[[str], None] = lambda text: None,
    memories: tuple[str, ...] = (),
    chat: bool = False,
    groups: Sequence[str] = (),
) -> dict:
    """What a trained model writes after each prompt.

    Args:
      document: id of the document that starts with the prompts, 16 hexadecimal digits; for the
        modes own and other.
      show: called with what has been written after the first prompt so far.
      memories: files that edit has written, all of which are in the model.
      chat: the prompts are what a user says, or messages of a conversation so far, and go through
        the model's chat template.
      groups: instead of `document`, names of the groups that all prompts are about, mostly one.
    Returns:
      {"text": what follows the prompt, a list of it for several; "tokens": number of tokens
      written, end of text not counted; "tokens_per_second": of all prompts together, compilation
      left out; "sinks"}.
    Raises:
      InputError: no model, no prompt, a bad id, a mode without its id, more tokens than the
      context.
    """
    if not prompts:
        raise InputError("--prompt is missing; give a text, or --prompt= for text from nothing")
    whose = None if document else _whose(workdir, settings.sinks, prompts, groups)
    if whose is not None and not any(whose):
        logger.info("about none of the sources: their sinks are dropped")
        settings = dataclasses.replace(settings, sinks="drop")
    trained = Model(workdir, memories, whose and set(itertools.chain(*whose)))
    run, identity = trained.run, trained.identity(document, groups)
    if identity is None and trained.finds_groups(settings.sinks):
        tokens = map(run.tokenizer.encode, map(_said, prompts))
        whose = whose or nearest_groups(run, list(tokens))
        identity = run.ids_of_groups(whose)
        logger.info(
            "groups: %s", "; ".join(", ".join(map(printable, of)) or "none" for of in whose)
        )
    if identity is None and trained.needs_ids(settings.sinks):
        raise InputError(
            f"--sinks={settings.sinks} needs --document=ID, the id of the document that starts "
            "with the prompt (see documents.jsonl of the run), or --group=NAME"
        )
    asked = list(map(open_chat(workdir, run.tokenizer), prompts)) if chat else prompts
    if not has_sinks(run.config) and whose is None:
        logger.info("this model has no sinks: --sinks=%s changes nothing", settings.sinks)
    if settings.sinks == "own" and (document or groups) and not np.any(run.opened(identity)):
        name = ", ".join(map(printable, groups)) or f"document {document}"
        logger.info("%s never came back, so it has no sinks: they are dropped", name)
        settings = dataclasses.replace(settings, sinks="drop")
    next(
        trained.generator.stream(asked, settings, identity, complete=chat)
    )  # all is compiled now, and the clock can start
    begin = time.perf_counter()
    for written in trained.generator.stream(asked, settings, identity, complete=chat):
        show(written[0].text)
    seconds = time.perf_counter() - begin
    texts, tokens = [row.text for row in written], sum(len(row.tokens) for row in written)
    text = texts[0] if len(texts) == 1 else texts
    return {
        "text": text,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "sinks": settings.sinks,
    }
