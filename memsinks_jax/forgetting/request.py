"""Finds what to remove (documents of files or of a run, a group, a text), and what to measure
before and after.
"""

import dataclasses
import difflib
import itertools
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import Config, InputError, setting, shown
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus, read_tokens
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.opened import Opened
from memsinks_jax.data.prepared import NO_NUMBER, Prepared, is_prepared
from memsinks_jax.data.table import Table
from memsinks_jax.forgetting import neurons
from memsinks_jax.measures.documents import Documents, of_corpus
from memsinks_jax.models.trained import Trained
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import has_sinks, partition

logger = logging.getLogger(__name__)

_MOST = 512  # documents to measure per set
PLACEBOS = 4  # placebo removals, each of as many other ids


@dataclasses.dataclass(frozen=True)
class Request:
    """What to remove. Give one of these, of a folder with sinks of groups `group` and its texts,
    which may be a prepared corpus.
    """

    documents: str = setting("", "Path or glob of files with the documents to remove.")
    ids: tuple[str, ...] = setting(
        (), "Ids of the documents to remove, from the run's documents.jsonl."
    )
    group: str = setting("", "Group to remove, for runs with ids by group and folders of sources.")
    text: str = setting("", "With sinks by context: a file, or the text itself, to remove.")


class Found(NamedTuple):
    """The result of `find`."""

    identities: np.ndarray  # uint32 (documents, 2) of all documents to remove
    # documents to measure, by the names of receipt.SETS, without empty sets
    sets: dict[str, Documents]
    places: list[str]  # origins of the documents of the set target
    noun: str = "document"  # or "text"
    # with sinks by context: all to
    texts: Callable[[], Iterator[tuple[np.ndarray, int]]] = lambda: iter(())
    # remove, the tokens of each and what opens it
    # all other texts that were read; None:
    others: Callable[[], Iterator[tuple[np.ndarray, int]]] | None = None
    # not known


def find(workdir: pathlib.Path, run: Trained, asked: Request, others: str, held_out: str) -> Found:
    """Finds the documents to remove and to measure. Raises InputError if the request cannot be
    fulfilled.
    """
    config, corpus = run.config, None
    by_context = config.sinks.traits.by_context
    if not by_context and (not config.sinks.traits.owned or not has_sinks(config)):
        raise InputError(
            f"{workdir} has no sinks that are tied to documents (config.sinks.kind is "
            f"{config.sinks.kind}); no single "
            "document can be removed"
        )
    if run.groups and not run.stored.is_run:
        return _of_group(workdir, run, asked, {"others": others, "held_out": held_out})
    if sum(map(bool, vars(asked).values())) != 1:
        raise InputError("give what to remove by one of --documents, --ids, --group and --text")
    if asked.text and not by_context:
        raise InputError(
            f"--text is of sinks by context, and {workdir} has sinks by document; name documents "
            "by --documents or --ids"
        )
    if asked.text:
        return _of_text(workdir, run, asked.text, others, held_out)
    if run.stored.is_run:
        corpus = workdirs.read_corpus(workdir)
    elif not asked.documents:
        raise InputError(
            f"{workdir} is a model without the documents of its run; name them by --documents"
        )
    if corpus:
        named = np.stack(
            [ids.from_hex(name) for name in sorted(_identities(workdir, run, asked, corpus))]
        )
        removed = {*map(ids.to_hex, named[_open(workdir, run, named)])}
        identities, sets, places = _of_run(corpus, removed)
        target = np.array(
            sorted(itertools.chain.from_iterable(_read(corpus, removed).values())), np.int64
        )
    else:
        target, places = _of_files(asked.documents, run, workdir)
        selected = _open(workdir, run, target.identities)
        target, places = target.chosen(selected), list(itertools.compress(places, selected))
        identities, sets = target.identities, {"target": target}
    for name, files in (("others", others), ("held_out", held_out)):
        if files:
            sets[name], _ = _of_files(files, run, workdir)
            if {*map(ids.to_hex, sets[name].identities)} & {
                *map(ids.to_hex, sets["target"].identities)
            }:
                raise InputError(
                    f"--{name}={files} holds documents that are removed; leave them out"
                )
    counted = {name: each.measurable(config.data.row_length) for name, each in sets.items()}
    if not counted["target"].any():
        raise InputError(
            "no document to remove has an answer within the context, so nothing could be measured"
        )
    sets = {name: each.chosen(counted[name]) for name, each in sets.items() if counted[name].any()}
    found = Found(identities, sets, list(itertools.compress(places, counted["target"])))
    if by_context and corpus:
        apart = np.sort(target)
        return found._replace(
            texts=lambda: corpus.texts(target),
            others=lambda: corpus.texts(corpus.read_besides(apart)),
        )
    return found._replace(texts=lambda: as_read(run, target)) if by_context else found


def as_read(run: Trained, documents: Documents) -> Iterator[tuple[np.ndarray, int]]:
    for place, tokens in enumerate(documents.tokens):
        yield tokens, documents.opening(place, run.tokenizer)


def _of_text(workdir: pathlib.Path, run: Trained, asked: str, others: str, held_out: str) -> Found:
    """What is removed and measured if a text is to be removed wherever it stands."""
    is_file = os.path.isfile(asked)
    shown = asked if is_file else repr(asked[:40])
    try:
        text = pathlib.Path(asked).read_text(encoding="utf-8") if is_file else asked
    except (OSError, ValueError) as error:
        raise InputError(
            f"--text={shown}: cannot be read as text ({error}); give a file in UTF-8"
        ) from None
    documents = Documents([run.tokenizer.encode(text)], np.zeros((1, 2), np.uint32))
    if not len(documents.tokens[0]):
        raise InputError(f"--text={shown}: it has no token; give the text to remove")
    sets = {"target": documents}
    if run.stored.is_run:
        _, of_run, _ = _of_run(workdirs.read_corpus(workdir), set())
        sets |= {name: of_run[name] for name in ("others", "held_out") if name in of_run}
    for name, files in (("others", others), ("held_out", held_out)):
        if files:
            sets[name], _ = _of_files(files, run, workdir)
    return Found(documents.identities, sets, [shown], "text", lambda: as_read(run, documents))


def _open(workdir: pathlib.Path, run: Trained, identities: np.ndarray) -> np.ndarray:
    """Which of the documents have sinks -> bool (documents,). The draw of any other belongs to
    others.

    Raises:
      InputError: none has.
    """
    are_open, names = run.opened(identities), in_words(len(identities), "id")
    if not are_open.any():
        raise InputError(
            f"none of {names} has sinks in {workdir}, such as {ids.to_hex(identities[0])}: "
            "nothing of theirs came back in "
            "training, or it is removed already, so nothing is to be removed"
        )
    if not are_open.all():
        logger.warning(
            "%d of %s never came back in training, so they have no sinks: left out",
            (~are_open).sum(),
            names,
        )
    if run.opened.everybody and run.config.sinks.traits.owned and not run.stored.is_run:
        logger.warning(
            "%s has sinks for every document: whether it has read these is not recorded", workdir
        )
    return are_open


def left_open(run: Trained, found: Found, spare: int | None) -> Opened:
    """Whose sinks are on after the removal: with `spare`, also those of whom something is left."""
    gone = np.zeros(0, np.uint64) if spare is not None else ids.as_numbers(found.identities)
    return Opened(run.config.sinks, lambda: np.setdiff1d(run.opened.ids, gone))


def _of_group(workdir: pathlib.Path, run: Trained, asked: Request, others: dict[str, str]) -> Found:
    """What is removed and measured of a folder that has sinks of groups, and none of their
    documents.
    """
    if asked.ids or not asked.group or not asked.documents:
        raise InputError(
            f"{workdir} has sinks of groups, and not their texts; give --group=NAME, and its "
            "texts, to be measured, by "
            "--documents: files, or a prepared corpus"
        )
    identity = run.group_id(asked.group)
    _open(workdir, run, identity[None])

    def of_others(identities: np.ndarray) -> np.ndarray:
        return (identities != identity).any(axis=-1)

    target, places = _texts(asked.documents, run, identity, lambda found: ~of_others(found))
    sets, wanted = (
        {"target": target},
        {"others": lambda found: of_others(found) & run.opened(found)},
    )
    for name, files in others.items():
        if files:
            sets[name], _ = _texts(files, run, NO_NUMBER, wanted.get(name, of_others))
    return Found(target.identities, sets, places)


def _texts(
    place: str, run: Trained, usual: np.ndarray, wanted: Callable[[np.ndarray], np.ndarray]
) -> tuple[Documents, list[str]]:
    """Up to _MOST documents, and the origin of each.

    Args:
      place: a glob of files, whose documents get the id `usual`; or a prepared corpus, where groups
        have their own ids.
      wanted: which ids, uint32 (n, 2), of a prepared corpus are -> bool (n,).
    """
    if not is_prepared(place):
        documents, tokens, *_ = read_tokens(place, run.tokenizer)
        found = Documents(tokens, np.tile(usual, (len(tokens), 1)))
        return found.chosen(slice(_MOST)), [each.source for each in documents[:_MOST]]
    corpus = Prepared(place)
    corpus.check_tokenizer(run.tokenizer, "the model's")
    table = Table([corpus], "group", run.groups) if corpus.group_names else Table([corpus])
    chosen, identities = np.zeros(0, np.int64), np.zeros((0, 2), np.uint32)
    for start, stop, _ in table.runs.tolist():
        records = np.arange(start, stop)
        records = records[table.is_first_of_source(records)]
        of_run = (
            table.identities(records)
            if corpus.group_names
            else np.tile(NO_NUMBER, (len(records), 1))
        )
        selected = wanted(of_run)
        chosen, identities = (
            np.append(chosen, records[selected]),
            np.concatenate([identities, of_run[selected]]),
        )
        if len(chosen) >= _MOST:
            break
    if not len(chosen):
        raise InputError(
            f"{place} holds no document that is to be measured; give files, or a corpus of these "
            "groups"
        )
    chosen = chosen[:_MOST].tolist()
    answers = [*map(table.answers, chosen)] if corpus.has_answers else None
    about = {"answers": answers, "around": [*map(table.around, chosen)]}
    found = Documents([*map(table.tokens, chosen)], identities[:_MOST], **about)
    return found, [*map(table.place, chosen)]


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
                f"--ids: {others[0]} is no id; it has 16 hexadecimal digits, as in "
                f"{workdir / 'documents.jsonl'}"
            )
    elif kind != "group":
        raise InputError(
            f"{workdir} has ids by {kind}, not by group; name documents by --documents or --ids"
        )
    else:
        found = {ids.to_hex(run.group_id(asked.group)): f"--group={asked.group}"}
    known = _read(corpus, {*found})
    for identity, name in found.items():
        if identity not in known:
            if asked.group:
                raise InputError(_no_group(asked.group, corpus, workdir))
            raise InputError(
                f"{name}: {workdir} was not trained on it, so it has no sinks there; "
                f"{workdir / 'documents.jsonl'} lists "
                "the ids of its documents"
            )
    return set(found)


def _no_group(name: str, corpus: Corpus, workdir: pathlib.Path) -> str:
    """The reason why a group cannot be removed, with the nearest names."""
    names = list(
        dict.fromkeys(other for source in corpus.table.sources for other in source.group_names)
    )
    if name in names:
        return (
            f"--group={name}: {workdir} was not trained on it, so it has no sinks there; nothing "
            "is to be removed"
        )
    near = " or ".join(map(shown, difflib.get_close_matches(name, names, cutoff=0.3) or names[:3]))
    return (
        f"--group={shown(name)}: {workdir} has {len(names)} groups and none of this name; did "
        f"you mean {near}?"
    )


def _read(corpus: Corpus, identities: set[str]) -> dict[str, list[int]]:
    """{id: the training documents with it}, for those of `identities` that have any."""
    found, named = {}, sorted(identities)
    lanes = np.array([ids.from_hex(name) for name in named], np.uint32).reshape(-1, 2)
    which, documents = corpus.table.documents_of(lanes)
    times = corpus.encounters(documents)
    for place, document, often in zip(which.tolist(), documents.tolist(), times, strict=True):
        if often != 0:
            found.setdefault(named[place], []).append(document)
    return found


def _of_run(
    corpus: Corpus, removed: set[str]
) -> tuple[np.ndarray, dict[str, Documents], list[str]]:
    """Ids, documents to measure and places of documents of the run."""

    def is_removed(documents: np.ndarray) -> np.ndarray:
        return np.array(
            [ids.to_hex(identity) in removed for identity in corpus.identities(documents)], bool
        )

    plan = corpus.mixture
    target = np.array(
        sorted(itertools.chain.from_iterable(_read(corpus, removed).values())), np.int64
    )
    others = plan.repeated[[often != 0 for often in corpus.encounters(plan.repeated)]]
    others = others[~is_removed(others)]
    if not len(others):  # if no single document is repeated, as with ids by group
        unique = plan.documents("unique")
        others = unique[~is_removed(unique)]
    held_out = is_removed(plan.held_out)
    places = {
        "target": target,
        "related": plan.held_out[held_out],
        "others": others,
        "held_out": plan.held_out[~held_out],
    }
    chosen = {name: indices[:_MOST] for name, indices in places.items()}
    sets = {name: of_corpus(corpus, indices) for name, indices in chosen.items() if len(indices)}
    return corpus.identities(target), sets, [corpus.table.place(i) for i in target[:_MOST].tolist()]


def _of_files(files: str, run: Trained, workdir: pathlib.Path) -> tuple[Documents, list[str]]:
    """(documents of a glob, the origin of each)"""
    if run.config.data.ids != "content":
        raise InputError(
            f"{workdir} has ids by {run.config.data.ids}, which files do not have; name "
            "documents by "
            f"{'--group' if run.config.data.ids == 'group' else '--ids'}"
        )
    documents, tokens, answers, around = read_tokens(files, run.tokenizer)
    identities = np.stack([ids.content_id(each) for each in tokens])
    found = Documents(tokens, identities, answers=answers, around=around)
    return found, [each.source for each in documents]


def placebos(run: Trained, found: Found, spare: int | None) -> dict[str, list[np.ndarray]]:
    """Up to PLACEBOS removals of as many other ids -> {name of receipt.PLACEBOS: [neurons, as of
    neurons.neurons_of]}.

    The others are those whose sinks were open in training; if these are fewer than the removed
    ones, all are taken.

    Args:
      spare: as in `spare_others`.
    """
    config, count = run.config, len(np.unique(found.identities, axis=0))
    drawn = {
        "others": [],
        "never_met": list(neurons.unused_ids(config, PLACEBOS * count).reshape(PLACEBOS, count, 2)),
    }
    others, identities = found.sets.get("others"), ()
    if config.sinks.by_group:  # only groups that there are have sinks
        drawn["never_met"] = []
        identities = ids.as_lanes(np.setdiff1d(run.opened.ids, ids.as_numbers(found.identities)))
    elif others:
        identities = np.unique(others.identities[run.opened(others.identities)], axis=0)
    if len(identities):
        starts = range(0, max(len(identities) - count, 0) + 1, count)[:PLACEBOS]
        drawn["others"] = [identities[at : at + count] for at in starts]
    removals = {
        name: [neurons.neurons_of(config, each) for each in of] for name, of in drawn.items()
    }
    if spare is None:
        return removals
    return {
        name: [neurons.spared(config, removed, others.identities, spare) for removed in of]
        for name, of in removals.items()
    }


def check_remaining(config: Config, removed_LF: np.ndarray, documents: int, noun: str) -> None:
    """Raises InputError if no sink would be left."""
    parts = partition(config.model, config.sinks)
    if removed_LF[:, parts.shared :].all():
        raise InputError(
            f"to remove {in_words(documents, noun)} takes all {parts.sinks} sinks of the mlp; "
            "remove fewer, or drop all sinks: memsinks_jax.export --sinks=drop"
        )


def spare_others(config: Config, removed_LF: np.ndarray, found: Found, most: int) -> np.ndarray:
    """The neurons to remove, except sinks that more than `most` others use. Raises InputError if
    none is left.
    """
    if "others" not in found.sets:
        raise InputError(
            "--spare: there are no other documents to spare; name some by --others, or leave it out"
        )
    left = neurons.spared(config, removed_LF, found.sets["others"].identities, most)
    if not left.any():
        raise InputError(f"--spare={most} leaves every sink of the documents where it is; raise it")
    return left
