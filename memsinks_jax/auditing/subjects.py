"""What is audited: models with their sinks in one mode, and the documents that they are asked about."""

import dataclasses
import logging
import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax import sinks
from memsinks_jax import workdir as workdirs
from memsinks_jax.config import Config, InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus, tokenise
from memsinks_jax.data.documents import read_documents
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.evals.document_loss import document_batches
from memsinks_jax.interop.folder import is_folder
from memsinks_jax.trained import Trained, open_run

logger = logging.getLogger(__name__)


class Documents(NamedTuple):
    """Tokenised documents, cut to the context; `[i]` of every field belongs to document i."""

    tokens: list[np.ndarray]  # int32 (tokens,), without end of text
    identities: np.ndarray  # uint32 (documents, 2)
    encounters: np.ndarray | None = None  # int64 (documents,): how often an epoch has each; None: not known

    def chosen(self, which: np.ndarray) -> "Documents":
        """Those of some indices, or of a bool for each."""
        indices = np.arange(len(self.tokens))[which]
        encounters = None if self.encounters is None else self.encounters[indices]
        return Documents([self.tokens[i] for i in indices], self.identities[indices], encounters)

    def batches(self, run: Trained) -> list[dict]:
        """For `DocumentLoss`."""
        return document_batches(self.tokens, self.identities, run.config.data.row_length, run.tokenizer.end_of_text)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model as somebody would hold it in hands: `mode` is one of sinks.MODES."""

    name: str
    run: Trained
    mode: str


# How a model with sinks is audited. What is handed over comes first.
MODES = {"drop": "sinks dropped", "own": "sinks, own on", "all": "sinks, all on"}


def subjects_of(
    workdir: pathlib.Path, standard: pathlib.Path | None = None, oracle: pathlib.Path | None = None
) -> list[Subject]:
    """The model of `workdir` in every mode, then the standard model and the oracle where they are given.

    Raises:
      InputError: one of them is no model, or has another tokenizer than the first.
    """
    first = open_run(workdir)
    has = sinks.has_sinks(first.config)
    audited = [Subject(name, first, mode) for mode, name in MODES.items()] if has else [Subject("model", first, "all")]
    for place, name in ((standard, "standard"), (oracle, "oracle")):
        if place:
            run = open_run(place)
            if not _same_tokens(first.tokenizer, run.tokenizer):
                raise InputError(f"{place} has another tokenizer than {workdir}; compare models that share theirs")
            audited.append(Subject(name, run, "drop"))
    return audited


def documents_of(workdir: pathlib.Path, run: Trained, role: str, files: str = "") -> Documents:
    """Documents of files, or of a role ("repeated", "held_out", "unique") of the run's own.

    Raises:
      InputError: no such files; no documents of the role; a folder of a model alone, which has no documents.
    """
    if files:
        if run.config.data.ids != "content" and sinks.has_sinks(run.config):
            raise InputError(
                f"{workdir} has ids by {run.config.data.ids}: documents of files have none; leave --members and "
                "--non_members out for the run's own documents"
            )
        tokens = tokenise(read_documents(files), run.tokenizer)
        return _cut(Documents(tokens, np.stack([ids.content_id(document) for document in tokens])), run.config, files)
    if is_folder(workdir):
        raise InputError(f"{workdir} is a model without the documents of its run; give --members and --non_members")
    return of_role(workdirs.read_corpus(workdir), run.config, role, str(workdir))


def of_role(corpus: Corpus, config: Config, role: str, where: str) -> Documents:
    """Of a run's own documents. Raises InputError where it has none."""
    indices = getattr(corpus.mixture, role)
    if not len(indices):
        raise InputError(f"{where} has no {role} documents to be asked about")
    encounters = np.bincount(corpus.mixture.encounters, minlength=len(corpus.tokens))[indices]
    tokens = [np.asarray(corpus.tokens[i]) for i in indices]
    return _cut(Documents(tokens, corpus.identities[indices], encounters), config, f"{role} documents")


def _cut(documents: Documents, config: Config, what: str) -> Documents:
    """To the context, which end of text opens. An id stays that of the whole document."""
    room = config.data.row_length - 1
    longer = sum(len(tokens) > room for tokens in documents.tokens)
    if longer:
        logger.warning("%s: %d of %d are longer than the context and were cut", what, longer, len(documents.tokens))
    return documents._replace(tokens=[tokens[:room] for tokens in documents.tokens])


def _same_tokens(one: AnyTokenizer, other: AnyTokenizer) -> bool:
    """Files of two kinds can hold the same tokenizer: what counts is what they make of a text."""
    if one.model == other.model:
        return True
    probe = 'Once upon a time, the quick brown fox said: "12 × 3 isn\'t 35!"\n'
    return one.vocabulary_size == other.vocabulary_size and np.array_equal(one.encode(probe), other.encode(probe))
