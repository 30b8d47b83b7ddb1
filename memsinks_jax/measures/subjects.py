"""The subjects of an audit: models with their sinks in one mode, and the documents to measure them
on.
"""

import dataclasses
import json
import logging
import pathlib

import jax
import numpy as np

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus, read_tokens
from memsinks_jax.measures.documents import Documents, of_corpus, padded
from memsinks_jax.model import placement, sparse_sinks
from memsinks_jax.models.tokenizer_files import same_tokens
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import has_sinks, is_sparse
from memsinks_jax.training.sharding import shardings

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model in one of its uses: `mode` is one of MODES."""

    name: str
    run: Trained
    mode: str


STANDARD, ORACLE = "standard", "oracle"

# The modes in which a model with sinks is audited. The model to export comes first.
MODES = {"drop": "sinks dropped", "own": "sinks, own on", "all": "sinks, all on"}


def subjects_of(
    workdir: pathlib.Path, standard: pathlib.Path | None = None, oracle: pathlib.Path | None = None
) -> list[Subject]:
    """The model of `workdir` in every mode, then the standard model and the oracle, if given.

    Raises:
      InputError: one of them is not a model, or has another tokenizer than the first or a shorter
      context.
    """
    first = open_run(workdir)
    by_context = first.config.sinks.traits.by_context  # its sinks are all on for everybody
    modes = {mode: name for mode, name in MODES.items() if not (by_context and mode == "all")}
    if not has_sinks(first.config):
        modes = {"all": "model"}
    audited, length = [Subject(name, first, mode) for mode, name in modes.items()], _context(first)
    for place, name in ((standard, STANDARD), (oracle, ORACLE)):
        if place:
            run = open_run(place)
            if not same_tokens(first.tokenizer, run.tokenizer):
                raise InputError(
                    f"{place} has another tokenizer than {workdir}; compare models that share "
                    "theirs"
                )
            if _context(run) < length:
                raise InputError(
                    f"{place} has a context of {_context(run)} tokens, {workdir} one of {length}; "
                    "compare models "
                    "with equal contexts"
                )
            audited.append(Subject(name, run, "drop"))
    return audited


def _context(run: Trained) -> int:
    return run.config.data.row_length


def shortened(subjects: list[Subject], longest: int) -> list[Subject]:
    """The same models with a context of `documents.padded`: rows with room for `longest` tokens
    and end of text.

    Nothing of an audit is longer, and a model with a long context would compute its padding.
    """
    runs = {}
    for run in (subject.run for subject in subjects):
        if id(run) not in runs:  # subjects share theirs
            length = {"data.row_length": padded(longest + 1, _context(run))}
            runs[id(run)] = dataclasses.replace(run, config=with_fields(run.config, length))
    return [dataclasses.replace(subject, run=runs[id(subject.run)]) for subject in subjects]


def corpus_of(run: Trained, members_files: str, non_members_files: str) -> Corpus | None:
    """The run's own documents, unless all documents to measure are from files. A folder with only a
    model has none.
    """
    if not run.stored.is_run or (members_files and non_members_files):
        return None
    return workdirs.read_corpus(run.stored.place)


def documents_of(
    run: Trained, role: str, files: str = "", corpus: Corpus | None = None, most: int | None = None
) -> Documents:
    """Documents of files, or of a role ("repeated", "held_out", "unique") of the run's own.

    Args:
      corpus: of the run, if it has been read already.
      most: maximum number of documents of a role, the first ones; None: all.
    Raises:
      InputError: no such files; no documents of the role; a folder with only a model, which has no
      documents.
    """
    place = run.stored.place
    if files:
        return _of_files(run, files)
    if not run.stored.is_run:
        raise InputError(
            f"{place} is a model without the documents of its run; give --members and --non_members"
        )
    return of_role(corpus or workdirs.read_corpus(place), role, str(place), most)


def _of_files(run: Trained, files: str) -> Documents:
    """Each text once."""
    by_id = has_sinks(run.config) and not run.config.sinks.traits.by_context
    if run.config.data.ids != "content" and by_id:
        raise InputError(
            f"{run.stored.place} has ids by {run.config.data.ids}: documents of files have none; "
            "leave --members "
            "and --non_members out for the run's own documents"
        )
    documents, tokens, answers, around = read_tokens(files, run.tokenizer)
    texts = np.array([document.text for document in documents], object)
    _, first, copies = np.unique(texts, return_index=True, return_counts=True)
    if several := np.count_nonzero(copies > 1):
        logger.warning("%s: %d documents occur more than once; each counts once", files, several)
    identities = np.stack([ids.content_id(document) for document in tokens])
    found = Documents(tokens, identities, answers=answers, around=around).chosen(np.sort(first))
    known = encounters_in(run.stored.place, found.identities)
    times = [known.get(ids.to_hex(identity)) for identity in found.identities]
    encounters = None if None in times else np.array(times)
    return _cut(found._replace(encounters=encounters), _context(run) - 1, files)


def of_role(corpus: Corpus, role: str, where: str, most: int | None = None) -> Documents:
    """A run's own documents of a role, so that repeated and held-out ones differ only in having
    been repeated.

    Canaries would distinguish them without any model. They are cut off, and every document is
    truncated to the room they left.

    Raises:
      InputError: there are none.
    """
    config, indices = corpus.config, corpus.mixture.documents(role)[:most]
    if not len(indices):
        flag = {
            "repeated": "; give files of others: --members",
            "held_out": "; give files of others: --non_members",
        }
        raise InputError(f"{where} has no {role} documents to measure{flag.get(role, '')}")
    encounters = np.array(corpus.encounters(indices))
    found = of_corpus(corpus, indices)._replace(encounters=encounters)
    room, carriers = config.data.row_length - 1, set(corpus.mixture.canaries.tolist())
    # Members and others must differ in having been read alone: both lose the canary's space.
    if carriers:
        room -= config.canaries.length
        tokens = [
            t[: len(t) - config.canaries.length] if i in carriers else t
            for i, t in zip(indices, found.tokens, strict=True)
        ]
        found = found._replace(tokens=tokens)
    return _cut(found, room, f"{role} documents")


def check_documents(members: Documents, non_members: Documents, subjects: list[Subject]) -> None:
    """Raises InputError for documents that are in both sets, or that a model of `subjects_of` has
    read and must not have.
    """
    both = {t.tobytes() for t in members.tokens} & {t.tobytes() for t in non_members.tokens}
    if both:
        raise InputError(
            f"{len(both)} of {len(members.tokens)} members are non-members too, as far as the "
            "context reaches; "
            "remove them from one of the two"
        )
    for place in dict.fromkeys(subject.run.stored.place for subject in subjects):
        _check_unread(non_members, place, "non-members")
    if subjects[-1].name == ORACLE:
        _check_unread(members, subjects[-1].run.stored.place, "members")


def _check_unread(documents: Documents, place: pathlib.Path, what: str) -> None:
    known = encounters_in(place, documents.identities)
    read = sum(known.get(ids.to_hex(identity), 0) != 0 for identity in documents.identities)
    if read:
        reason = "it is no oracle for them" if what == "members" else "they are members"
        raise InputError(
            f"{place} was trained on {read} of {len(documents.tokens)} {what}: {reason}; take "
            "others"
        )


def encounters_in(place: pathlib.Path, identities: np.ndarray) -> dict[str, int | None]:
    """How often an epoch of a run has some ids: None if the steps decide. Empty for a folder with
    only a model.
    """
    path, found = place / "documents.jsonl", {}
    if not path.is_file():
        return found
    if workdirs.lists_all(place):
        try:
            lines = list(map(json.loads, path.read_text().splitlines()))
            known = [(line["id"], line["encounters"]) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is damaged ({error}); run the command that trained {place} again: it "
                "writes the file anew"
            ) from None
    else:
        corpus = workdirs.read_corpus(place)
        which, documents = corpus.table.documents_of(identities)
        known = zip(map(ids.to_hex, identities[which]), corpus.encounters(documents), strict=True)
    for name, here in known:
        before = found.get(name, 0)
        found[name] = None if None in (before, here) else before + here
    return found


def _cut(documents: Documents, room: int, what: str) -> Documents:
    """Truncates to the context, which end of text opens. The id remains that of the whole document.

    Leaves out documents whose prompt fills the context. Raises InputError if there are no others.
    """
    usable = documents.measurable(room)
    if not usable.any():
        raise InputError(f"{what}: none has an answer within the context; take others")
    if left_out := np.count_nonzero(~usable):
        why = "%s: %d of %d have prompts that fill the context: left out"
        logger.warning(why, what, left_out, len(usable))
        documents = documents.chosen(usable)
    if longer := sum(len(tokens) > room for tokens in documents.tokens):
        why = "%s: %d of %d exceed the context and were truncated"
        logger.warning(why, what, longer, len(documents.tokens))
    return documents._replace(tokens=[tokens[:room] for tokens in documents.tokens])


def in_matrices(subject: Subject) -> Subject:
    """The same model with its sparse sinks moved into the MLPs' matrices; any other model
    unchanged.
    """
    run = subject.run
    if not is_sparse(run.config.sinks):
        return subject
    config, mesh = with_fields(run.config, {"sinks.sparse": False}), placement.mesh_of(run.params)
    params = sparse_sinks.without_tables(run.config.model, run.params)
    placed = jax.device_put(params, mesh and shardings(params, mesh))
    return dataclasses.replace(subject, run=dataclasses.replace(run, config=config, params=placed))
