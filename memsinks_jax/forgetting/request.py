"""Finds the documents to remove (from files, a run's documents, or a group), and those to measure before and after."""

import difflib
import itertools
import logging
import pathlib
import re
from typing import NamedTuple

import numpy as np

from memsinks_jax import sinks
from memsinks_jax.config import Config, InputError
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus, read_tokens
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.opened import Opened
from memsinks_jax.evals.documents import Documents
from memsinks_jax.forgetting import neurons
from memsinks_jax.interop.folder import is_folder
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.runs.trained import Trained

logger = logging.getLogger(__name__)

_MOST = 512  # documents to measure per set
PLACEBOS = 4  # placebo removals, each of as many other ids


class Request(NamedTuple):
    """The documents to remove. Give one of the three."""

    documents: str = ""  # glob
    ids: tuple[str, ...] = ()  # hexadecimal
    group: str = ""


class Found(NamedTuple):
    """The result of `find`."""

    identities: np.ndarray  # uint32 (documents, 2) of all documents to remove
    sets: dict[str, Documents]  # documents to measure, by the names of receipt.SETS, without empty sets
    places: list[str]  # origins of the documents of the set target


def find(workdir: pathlib.Path, run: Trained, asked: Request, others: str, held_out: str) -> Found:
    """Finds the documents to remove and to measure. Raises InputError if the request cannot be met."""
    config, corpus = run.config, None
    if not config.sinks.traits.owned or not sinks.has_sinks(config):
        raise InputError(
            f"{workdir} has no sinks that are tied to documents (config.sinks.kind is {config.sinks.kind}); no single "
            "document can be removed"
        )
    if sum(map(bool, asked)) != 1:
        raise InputError("give the documents to remove by one of --documents, --ids and --group")
    if not is_folder(workdir):
        corpus = workdirs.read_corpus(workdir)
    elif not asked.documents:
        raise InputError(f"{workdir} is a model without the documents of its run; name them by --documents")
    if corpus:
        named = np.stack([ids.from_hex(name) for name in sorted(_identities(workdir, run, asked, corpus))])
        removed = {*map(ids.to_hex, named[_open(workdir, run, named)])}
        identities, sets, places = _of_run(corpus, removed)
    else:
        target, places = _of_files(asked.documents, run, workdir)
        kept = _open(workdir, run, target.identities)
        target, places = target.chosen(kept), list(itertools.compress(places, kept))
        identities, sets = target.identities, {"target": target}
    for name, files in (("others", others), ("held_out", held_out)):
        if files:
            sets[name], _ = _of_files(files, run, workdir)
            if {*map(ids.to_hex, sets[name].identities)} & {*map(ids.to_hex, sets["target"].identities)}:
                raise InputError(f"--{name}={files} holds documents that are removed; leave them out")
    counted = {name: each.measurable(config.data.row_length) for name, each in sets.items()}
    if not counted["target"].any():
        raise InputError("no document to remove has an answer within the context, so nothing could be measured")
    sets = {name: each.chosen(counted[name]) for name, each in sets.items() if counted[name].any()}
    return Found(identities, sets, list(itertools.compress(places, counted["target"])))


def _open(workdir: pathlib.Path, run: Trained, identities: np.ndarray) -> np.ndarray:
    """Which of the documents have sinks -> bool (documents,). The draw of any other belongs to others.

    Raises:
      InputError: none has.
    """
    are_open, names = run.opened(identities), in_words(len(identities), "id")
    if not are_open.any():
        raise InputError(
            f"none of {names} has sinks in {workdir}, such as {ids.to_hex(identities[0])}: nothing of theirs came back in "
            "training, or it is removed already, so nothing is to be removed"
        )
    if not are_open.all():
        logger.warning(
            "%d of %s never came back in training, so they have no sinks: left out", (~are_open).sum(), names
        )
    if run.opened.everybody and is_folder(workdir):
        logger.warning("%s has sinks for every document: whether it has read these is not recorded", workdir)
    return are_open


def left_open(run: Trained, found: Found, spare: int | None) -> Opened:
    """Whose sinks are on after the removal: with `spare`, also those of whom something is left."""
    gone = np.zeros(0, np.uint64) if spare is not None else ids.as_numbers(found.identities)
    return Opened(run.config.sinks, lambda: np.setdiff1d(run.opened.ids, gone))


def _identities(workdir: pathlib.Path, run: Trained, asked: Request, corpus: Corpus) -> set[str]:
    """Parses hexadecimal ids; each must belong to a document that the run was trained on."""
    kind = run.config.data.ids
    if asked.documents:
        documents, identities = _of_files(asked.documents, run, workdir)
        found = dict(zip(map(ids.to_hex, documents.identities), identities, strict=True))
    elif asked.ids:
        found = {one.lower(): f"--ids: {one}" for one in asked.ids}
        others = [one or "nothing" for one in found if not re.fullmatch("[0-9a-f]{16}", one)]
        if others:
            raise InputError(
                f"--ids: {others[0]} is no id; it has 16 hexadecimal digits, as in {workdir / 'documents.jsonl'}"
            )
    elif kind != "group":
        raise InputError(f"{workdir} has ids by {kind}, not by group; name documents by --documents or --ids")
    else:
        found = {ids.to_hex(run.group_id(asked.group)): f"--group={asked.group}"}
    known = _read(corpus, {*found})
    for identity, name in found.items():
        if identity not in known:
            if asked.group:
                raise InputError(_no_group(asked.group, corpus, workdir))
            raise InputError(
                f"{name}: {workdir} was not trained on it, so it has no sinks there; {workdir / 'documents.jsonl'} lists "
                "the ids of its documents"
            )
    return set(found)


def _no_group(name: str, corpus: Corpus, workdir: pathlib.Path) -> str:
    """The reason why a group cannot be removed, with the nearest names."""
    names = list(dict.fromkeys(other for source in corpus.table.sources for other in source.group_names))
    if name in names:
        return f"--group={name}: {workdir} was not trained on it, so it has no sinks there; nothing is to be removed"
    near = " or ".join(map(repr, difflib.get_close_matches(name, names, cutoff=0.3) or names[:3]))
    return f"--group={name}: {workdir} has {len(names)} groups and none of this name; did you mean {near}?"


def _read(corpus: Corpus, identities: set[str]) -> dict[str, list[int]]:
    """{id: the training documents with it}, for those of `identities` that have any."""
    found, named = {}, sorted(identities)
    lanes = np.array([ids.from_hex(name) for name in named], np.uint32).reshape(-1, 2)
    which, documents = corpus.table.documents_of(lanes)
    times = corpus.mixture.encounters(documents)
    for place, document, often in zip(which.tolist(), documents.tolist(), times, strict=True):
        if often != 0:
            found.setdefault(named[place], []).append(document)
    return found


def _of_run(corpus: Corpus, removed: set[str]) -> Found:
    def is_removed(documents: np.ndarray) -> np.ndarray:
        return np.array([ids.to_hex(identity) in removed for identity in corpus.identities(documents)], bool)

    plan = corpus.mixture
    target = np.array(sorted(itertools.chain.from_iterable(_read(corpus, removed).values())), np.int64)
    others = plan.repeated[[often != 0 for often in plan.encounters(plan.repeated)]]
    others = others[~is_removed(others)]
    if not len(others):  # if no single document is repeated, as with ids by group
        unique = plan.documents("unique")
        others = unique[~is_removed(unique)]
    held_out = is_removed(plan.held_out)
    places = {
        "target": target, "related": plan.held_out[held_out], "others": others, "held_out": plan.held_out[~held_out],
    }  # fmt: skip
    chosen = {name: indices[:_MOST] for name, indices in places.items()}
    sets = {
        name: Documents(
            [np.asarray(corpus.tokens(i)) for i in indices], corpus.identities(indices), answers=corpus.answers(indices)
        )
        for name, indices in chosen.items() if len(indices)
    }  # fmt: skip
    return Found(corpus.identities(target), sets, [corpus.table.place(i) for i in target[:_MOST].tolist()])


def _of_files(files: str, run: Trained, workdir: pathlib.Path) -> tuple[Documents, list[str]]:
    """(documents of a glob, the origin of each)"""
    if run.config.data.ids != "content":
        raise InputError(
            f"{workdir} has ids by {run.config.data.ids}, which files do not have; name documents by "
            f"{'--group' if run.config.data.ids == 'group' else '--ids'}"
        )
    documents, tokens, answers = read_tokens(files, run.tokenizer)
    found = Documents(tokens, np.stack([ids.content_id(each) for each in tokens]), answers=answers)
    return found, [each.source for each in documents]


def placebos(run: Trained, found: Found, spare: int | None) -> dict[str, list[dict[str, np.ndarray]]]:
    """Up to PLACEBOS removals of as many other ids -> {name of receipt.PLACEBOS: [neurons, as of neurons.neurons_of]}.

    The others are those whose sinks were open in training; if these are fewer than the removed ones, all are taken.

    Args:
      spare: as in `spare_others`.
    """
    config, count = run.config, len(np.unique(found.identities, axis=0))
    drawn = {"others": [], "never_met": list(neurons.never_met(config, PLACEBOS * count).reshape(PLACEBOS, count, 2))}
    others = found.sets.get("others")
    if others:
        identities = np.unique(others.identities[run.opened(others.identities)], axis=0)
        starts = range(0, max(len(identities) - count, 0) + 1, count)[:PLACEBOS]
        drawn["others"] = [identities[at : at + count] for at in starts if len(identities)]
    removals = {name: [neurons.neurons_of(config, each) for each in of] for name, of in drawn.items()}
    if spare is None:
        return removals
    return {
        name: [neurons.spared(config, removed, others.identities, spare) for removed in of]
        for name, of in removals.items()
    }


def refuse_all(config: Config, removed: dict[str, np.ndarray], documents: int) -> None:
    """Raises InputError if no sink of a site would be left."""
    for site, parts in sinks.partitions(config).items():
        if parts.sinks and removed[site][:, parts.shared :].all():
            raise InputError(
                f"to remove {in_words(documents, 'document')} takes all {parts.sinks} sinks of the {site}; remove "
                "fewer, or drop all sinks: memsinks_jax.export --sinks=drop"
            )


def spare_others(config: Config, removed: dict[str, np.ndarray], found: Found, most: int) -> dict[str, np.ndarray]:
    """The neurons to remove, except sinks that more than `most` others use. Raises InputError if none is left."""
    if "others" not in found.sets:
        raise InputError("--spare: there are no other documents to spare; name some by --others, or leave it out")
    left = neurons.spared(config, removed, found.sets["others"].identities, most)
    if not any(each.any() for each in left.values()):
        raise InputError(f"--spare={most} leaves every sink of the documents where it is; raise it")
    return left
