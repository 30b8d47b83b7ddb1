"""Completes a corpus from its shards: columns, groups by number, the report, and last the
manifest.
"""

import collections
import collections.abc
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import unicodedata

import numpy as np

from memsinks_jax.atomic import atomic_file
from memsinks_jax.config import ContextsConfig, InputError
from memsinks_jax.data import ids, prepared
from memsinks_jax.data.documents import some
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.preparing import contexts, page, sorted_files
from memsinks_jax.preparing.columns import Columns, Written
from memsinks_jax.preparing.inputs import Plan
from memsinks_jax.preparing.near_duplicates import clusters_file, read_clusters
from memsinks_jax.preparing.steps import answers_file
from memsinks_jax.reporting import report

logger = logging.getLogger(__name__)

_SHOWN = 20  # most repeated documents, and skipped records on the page
_EXCERPT = 160  # characters


def finish(
    out: pathlib.Path,
    plan: Plan,
    tokenizer: AnyTokenizer,
    advance: collections.abc.Callable,
    command: str = "",
) -> dict:
    """Completes the corpus of the shards in `out`. Writes the manifest last, then removes the
    working files.

    Memory holds the indices of one shard, the names of all groups, and the memory of `Columns`.

    Args:
      advance: called with the number of finished shards.
      command: makes the corpus; shown on its page.
    Returns:
      The numbers of the report: documents, tokens, duplicates, near_duplicate_clusters, skipped,
      ...
    """
    work = out / "work"
    clustered = plan.settings["near_duplicates"] != "none"
    documents = [_documents(out, rank, plan.settings) for rank in range(len(plan.pieces))]
    offsets = np.cumsum([0, *documents])
    if not offsets[-1]:
        raise InputError(
            f"{out}: no document is left of the input; see {work} for what was skipped, and fix "
            "the input"
        )
    answered, has_answers = 0, prepared.has_answers(plan.settings)
    columns, shards = Columns(out, work / "sorting", int(offsets[-1]), _SHOWN, has_answers), []
    # number of every name, and its number of documents
    numbers, of_group = {}, np.zeros(0, np.int64)
    for rank, offset in enumerate(offsets[:-1].tolist()):
        index = np.load(_index(out, rank))
        groups = _groups(index, json.loads(_names(out, rank).read_text()), numbers)
        document, shard, first = (
            read_clusters(work, rank).T if clustered else np.zeros((3, 0), np.uint32)
        )
        found = np.bincount(groups[groups != prepared.NO_GROUP], minlength=len(numbers))
        of_group = found + np.pad(of_group, (0, len(found) - len(of_group)))
        clusters = np.stack([offset + document, offsets[shard] + first], axis=1)
        columns.add(index["length"], index["identity"], groups, clusters)
        if has_answers:
            answered += columns.add_answers(
                index["length"], index["opens"], np.load(answers_file(work, rank))
            )
        tokens, size = int(index["length"].sum()), _shard(out, rank).stat().st_size
        shards.append({"documents": len(index), "tokens": tokens, "bytes": size})
        advance(rank + 1)
    written = columns.close()
    _warn_of_similar(numbers)
    with atomic_file(out / "groups.json") as scratch:
        scratch.write_text(json.dumps(list(numbers)))
    skipped = _gather_skipped(out, work, plan)

    summary = _summary(shards, written, skipped) | _largest_groups(list(numbers), of_group)
    if has_answers:
        summary["answer_tokens"] = answered
    of_contexts = {}
    if "contexts" in plan.settings:
        of_contexts, numbers = contexts.write_columns(
            out, sorted_files.tasks(plan.bytes_of_pieces())
        )
        summary |= numbers
    manifest = {
        "format": prepared.FORMAT,
        "settings": plan.settings,
        "tokenizer": tokenizer.file_name,
        "end_of_text": tokenizer.end_of_text,
        "vocabulary_size": tokenizer.vocabulary_size,
        "documents": summary["documents"],
        "tokens": summary["tokens"],
        "sources": [dataclasses.asdict(source) for source in plan.sources],
        "shards": shards,
        "columns": written.hashes | of_contexts,
    }
    with atomic_file(out / prepared.MANIFEST) as scratch:
        scratch.write_text(json.dumps(manifest, indent=1) + "\n")
    corpus = prepared.Prepared(out)
    summary["most_repeated"] = _most_repeated(corpus, written.most_repeated)
    if "contexts" in plan.settings:
        about = (
            sorted_files.tasks(plan.bytes_of_pieces()),
            ContextsConfig(**plan.settings["contexts"]),
        )
        summary["repeated_text"] = contexts.most_frequent(out, corpus, *about, _SHOWN)
    report.write_json(out / "report.json", summary)
    page.write(out / "index.html", work, summary, plan, command)
    for leftover in (out / "shards").glob("*.new"):
        leftover.unlink(missing_ok=True)
    # atomic: a half-deleted folder would look like a half-finished run
    os.replace(work, _done(out))
    remove_done_work(out)
    return summary


def remove_done_work(out: pathlib.Path) -> None:
    """Removes the work folder of a finished corpus, or the rest of it if a command was killed while
    removing it.
    """
    shutil.rmtree(_done(out), ignore_errors=True)


def _done(out: pathlib.Path) -> pathlib.Path:
    return out / "work.done"


def _shard(out: pathlib.Path, rank: int) -> pathlib.Path:
    return out / "shards" / f"{rank:05d}.array_record"


def _index(out: pathlib.Path, rank: int) -> pathlib.Path:
    return out / "work" / f"{rank:05d}.npy"


def _documents(out: pathlib.Path, rank: int, settings: dict) -> int:
    """Number of documents of a shard. Raises InputError if one of its files is missing."""
    files = [_index(out, rank), _names(out, rank), _shard(out, rank)]
    if settings["near_duplicates"] != "none":
        files.append(clusters_file(out / "work", rank))
    if prepared.has_answers(settings):
        files.append(answers_file(out / "work", rank))
    if not all(path.exists() for path in files):
        raise InputError(
            f"{out}: shard {rank} is lost; delete the folder and prepare the corpus anew"
        )
    return len(np.load(_index(out, rank), mmap_mode="r"))


def _names(out: pathlib.Path, rank: int) -> pathlib.Path:
    return out / "work" / f"{rank:05d}.groups.json"


def _groups(index: np.ndarray, names: list[str], numbers: dict[str, int]) -> np.ndarray:
    """Numbers of the documents' groups -> uint32 (documents,). Numbers `names` in the order in
    which they appear.
    """
    if not names:
        return np.full(len(index), prepared.NO_GROUP, np.uint32)
    known = ids.as_numbers(np.stack([prepared.group_id(name) for name in names]))
    order = np.argsort(known)
    places = order[np.searchsorted(known[order], ids.as_numbers(index["group"]))]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.uint32)[places]


def _warn_of_similar(names: collections.abc.Iterable[str]) -> None:
    """Warns of groups that a reader would take for one: a space at an end of a name, or a character
    that is written in two ways, makes another group."""

    def usual(name: str) -> str:
        return unicodedata.normalize("NFC", name).strip()

    similar = {}
    for name in names:
        if usual(name) != name:
            similar.setdefault(usual(name), []).append(name)
    # Most names are usual, so they are looked up and not gathered.
    found = [[*([one] if one in names else []), *others] for one, others in similar.items()]
    if found := [each for each in found if len(each) > 1]:
        shown = some([" and ".join(ascii(name[:60]) for name in each) for each in found])
        logger.warning(
            "names that differ in spaces at their ends or in the form of a character are "
            "different groups: %s; "
            "if each is meant to be one, correct the input",
            shown,
        )


def _gather_skipped(out: pathlib.Path, work: pathlib.Path, plan: Plan) -> dict:
    """Writes skipped.jsonl -> its summary for the report."""
    reasons, first = collections.Counter(), []
    files = [work / f"{rank:05d}.skipped.jsonl" for rank in range(len(plan.pieces))]
    with (
        atomic_file(out / "skipped.jsonl") as scratch,
        scratch.open("w", encoding="utf-8") as target,
    ):
        for line in _skipped(plan.copies, files):
            target.write(line)
            record = json.loads(line)
            reasons[_kind(record["reason"])] += 1
            if len(first) < _SHOWN:
                first.append(record)
    return {
        "skipped": reasons.total(),
        "skipped_reasons": dict(reasons.most_common()),
        "skipped_first": first,
    }


def _skipped(copies: list[str], files: list[pathlib.Path]) -> collections.abc.Iterator[str]:
    for path in copies:
        yield json.dumps({"place": path, "reason": "the file is named twice"}) + "\n"
    for path in files:
        with open(path) as file:
            yield from file


def _summary(shards: list[dict], written: Written, skipped: dict) -> dict:
    documents = sum(shard["documents"] for shard in shards)
    return {
        "documents": documents,
        "tokens": sum(shard["tokens"] for shard in shards),
        "duplicates": documents - written.distinct,
        "near_duplicate_clusters": written.near_duplicate_clusters,
        "near_duplicate_documents": written.near_duplicate_documents,
        **skipped,
        "lengths": [
            {
                "from": 2 ** (digits - 1),
                "to": 2**digits - 1,
                "documents": int(written.digits[digits]),
            }
            for digits in range(1, written.longest.bit_length() + 1)
        ],
        "longest": written.longest,
        "median_length": written.median,
    }


def _largest_groups(names: list[str], documents: np.ndarray) -> dict:
    largest = np.argsort(-documents, kind="stable")[:_SHOWN].tolist()
    return {
        "groups": len(names),
        "largest_groups": [
            {"name": names[number], "documents": int(documents[number])} for number in largest
        ],
    }


def _kind(reason: str) -> str:
    """A reason without the parts that differ between records."""
    return reason.split(" (")[0].split(" at byte")[0].split(" near byte")[0].split(";")[0]


def _most_repeated(corpus: prepared.Prepared, found: np.ndarray) -> list[dict]:
    tokenizer = corpus.tokenizer()
    return [
        {
            "times": copies,
            "id": ids.to_hex(corpus.identities[record]),
            "tokens": int(corpus.lengths[record]),
            "first": corpus.source(record),
            "text": tokenizer.decode(corpus.read(record)[:_EXCERPT])[:_EXCERPT],
        }
        for record, copies in found.tolist()
    ]
