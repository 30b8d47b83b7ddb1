"""Shards to a corpus: one index, the groups by number, clusters, the report, and at last the manifest."""

import collections
import collections.abc
import dataclasses
import itertools
import json
import os
import pathlib
import shutil

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data import ids, prepared
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.preparing.inputs import Plan
from memsinks_jax.preparing.near_duplicates import read_clusters
from memsinks_jax.reporting import report

_SHOWN = 20  # of the most repeated documents, and of the skipped records on the page
_EXCERPT = 160  # characters


def finish(out: pathlib.Path, plan: Plan, tokenizer: AnyTokenizer, advance: collections.abc.Callable) -> dict:
    """Puts the shards in `out` together; the manifest comes last, and the working files go after it.

    Args:
      advance: called with how many shards are done.
    Returns:
      The numbers of the report: documents, tokens, duplicates, near_duplicate_clusters, skipped, ...
    """
    work = out / "work"
    shards = [_read_shard(out, rank) for rank in range(len(plan.pieces))]
    documents = sum(len(index) for index, _ in shards)
    if not documents:
        raise InputError(
            f"{out}: no document is left of the input; see {work} for what was skipped, and mend the input"
        )
    index = np.zeros(documents, prepared.INDEX)
    numbers, offset, clusters = {}, 0, {}
    index["near_duplicate"] = np.arange(documents)
    for rank, (shard, names) in enumerate(shards):
        part = index[offset : offset + len(shard)]
        part["length"], part["identity"] = shard["length"], shard["identity"]
        part["group"] = prepared.NO_GROUP
        if names:  # in the order in which the shard met them; then every document has a group
            by_id = {tuple(prepared.group_id(name).tolist()): numbers.setdefault(name, len(numbers)) for name in names}
            part["group"] = [by_id[lanes] for lanes in map(tuple, shard["group"].tolist())]
        for document, cluster in read_clusters(work, rank).tolist():
            part["near_duplicate"][document] = clusters.setdefault(cluster, offset + document)
        offset += len(shard)
        advance(rank + 1)
    copies = _join_copies(index)
    _write(out / "index.npy", lambda file: np.save(file, index))
    _write(out / "groups.json", lambda file: file.write(json.dumps(list(numbers)).encode()))
    skipped = _gather_skipped(out, work, plan)

    summary = _summary(index, copies, skipped, clusters)
    manifest = {
        "format": prepared.FORMAT,
        "settings": plan.settings,
        "tokenizer": tokenizer.file_name,
        "end_of_text": tokenizer.end_of_text,
        "vocabulary_size": tokenizer.vocabulary_size,
        "documents": documents,
        "tokens": summary["tokens"],
        "sources": [dataclasses.asdict(source) for source in plan.sources],
        "shards": [
            {"documents": len(shard), "tokens": int(shard["length"].sum()), "bytes": _shard(out, rank).stat().st_size}
            for rank, (shard, _) in enumerate(shards)
        ],
    }
    _write(work / prepared.MANIFEST, lambda file: file.write((json.dumps(manifest, indent=1) + "\n").encode()))
    os.replace(work / prepared.MANIFEST, out / prepared.MANIFEST)
    summary["most_repeated"] = _most_repeated(prepared.Prepared(out), copies)
    report.write_json(out / "report.json", summary)
    _write_page(out / "index.html", summary, plan)
    for leftover in (out / "shards").glob("*.new"):
        leftover.unlink(missing_ok=True)
    os.replace(work, _done(out))  # in one go: a folder half deleted would look like a run half done
    remove_done_work(out)
    return summary


def remove_done_work(out: pathlib.Path) -> None:
    """Removes the work folder of a corpus that is finished, or what a command killed while it did so has left of it."""
    shutil.rmtree(_done(out), ignore_errors=True)


def _done(out: pathlib.Path) -> pathlib.Path:
    return out / "work.done"


def _shard(out: pathlib.Path, rank: int) -> pathlib.Path:
    return out / "shards" / f"{rank:05d}.array_record"


def _read_shard(out: pathlib.Path, rank: int) -> tuple[np.ndarray, list[str]]:
    """(index of the shard, names of its groups)"""
    index, groups = out / "work" / f"{rank:05d}.npy", out / "work" / f"{rank:05d}.groups.json"
    if not index.exists() or not groups.exists() or not _shard(out, rank).exists():
        raise InputError(f"{out}: shard {rank} is lost; delete the folder and prepare the corpus anew")
    return np.load(index), json.loads(groups.read_text())


def _join_copies(index: np.ndarray) -> np.ndarray:
    """Puts exact copies into the cluster of the first; -> (documents,) the number of each document's first copy."""
    _, first, inverse = np.unique(prepared.as_numbers(index["identity"]), return_index=True, return_inverse=True)
    copies = first[inverse]
    index["near_duplicate"] = index["near_duplicate"][copies]
    return copies


def _gather_skipped(out: pathlib.Path, work: pathlib.Path, plan: Plan) -> list[dict]:
    lines = [json.dumps({"place": path, "reason": "the file is named twice"}) for path in plan.copies]
    for rank in range(len(plan.pieces)):
        lines += (work / f"{rank:05d}.skipped.jsonl").read_text().splitlines()
    _write(out / "skipped.jsonl", lambda file: file.write("".join(line + "\n" for line in lines).encode()))
    return [json.loads(line) for line in lines]


def _summary(index: np.ndarray, copies: np.ndarray, skipped: list[dict], clusters: dict) -> dict:
    lengths = index["length"].astype(np.int64)
    bounds = 2 ** np.arange(int(lengths.max()).bit_length() + 1)
    counts = np.histogram(lengths, bounds)[0]
    clustered, sizes = np.unique(index["near_duplicate"], return_counts=True)
    # Copies alone are no near-duplicates: a cluster counts if it holds two different documents.
    distinct = np.unique(copies)
    different = np.bincount(np.searchsorted(clustered, index["near_duplicate"][distinct]), minlength=len(clustered))
    return {
        "documents": len(index),
        "tokens": int(lengths.sum()),
        "duplicates": len(index) - len(distinct),
        "near_duplicate_clusters": int((different > 1).sum()),
        "near_duplicate_documents": int(sizes[different > 1].sum()),
        "skipped": len(skipped),
        "skipped_reasons": dict(collections.Counter(_kind(record["reason"]) for record in skipped).most_common()),
        "skipped_first": skipped[:_SHOWN],
        "lengths": [
            {"from": int(low), "to": int(high) - 1, "documents": int(count)}
            for (low, high), count in zip(itertools.pairwise(bounds), counts, strict=True)
        ],
        "longest": int(lengths.max()),
        "median_length": int(np.median(lengths)),
    }


def _kind(reason: str) -> str:
    """A reason without what differs from record to record."""
    return reason.split(" (")[0].split(" at byte")[0].split(" near byte")[0].split(";")[0]


def _most_repeated(corpus: prepared.Prepared, copies: np.ndarray) -> list[dict]:
    firsts, counts = np.unique(copies, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SHOWN]
    tokenizer = corpus.tokenizer()
    return [
        {
            "times": int(counts[place]),
            "id": ids.to_hex(corpus.identities[firsts[place]]),
            "tokens": int(corpus.lengths[firsts[place]]),
            "first": corpus.source(int(firsts[place])),
            "text": tokenizer.decode(corpus.tokens[int(firsts[place])][:_EXCERPT])[:_EXCERPT],
        }
        for place in order
        if counts[place] > 1
    ]


def _write(path: pathlib.Path, fill) -> None:
    """Writes all or nothing."""
    scratch = path.with_name(path.name + ".new")
    with open(scratch, "wb") as file:
        fill(file)
    os.replace(scratch, path)


def _write_page(path: pathlib.Path, summary: dict, plan: Plan) -> None:
    clusters = f"{summary['near_duplicate_clusters']:,} clusters with {summary['near_duplicate_documents']:,} documents"
    if plan.settings["near_duplicates"] == "none":
        clusters = "not looked for"
    counts = [
        ["documents", f"{summary['documents']:,}"],
        ["tokens", f"{summary['tokens']:,}"],
        ["exact copies", f"{summary['duplicates']:,} (further encounters of a document, unless data.copies is once)"],
        ["near-duplicates", clusters],
        ["skipped records", f"{summary['skipped']:,}"],
        ["input files", f"{len(plan.sources):,}"],
    ]
    most = max(entry["documents"] for entry in summary["lengths"])
    histogram = [
        [
            f"{entry['from']:,} to {entry['to']:,}",
            f"{entry['documents']:,}",
            "█" * round(40 * entry["documents"] / most),
        ]
        for entry in summary["lengths"]
    ]
    repeated = [
        [
            f"{entry['times']:,}",
            entry["id"],
            f"{entry['tokens']:,}",
            report.text(entry["first"]),
            report.text(entry["text"]),
        ]
        for entry in summary["most_repeated"]
    ]
    skipped = [[report.text(record["place"]), report.text(record["reason"])] for record in summary["skipped_first"]]
    sections = [
        report.table(["what", "how many"], counts, ["", "number"]),
        report.heading("Lengths of documents, in tokens"),
        report.table(["tokens", "documents", ""], histogram, ["", "number", ""]),
        report.heading("Most repeated documents"),
        report.table(["times", "id", "tokens", "first at", "text"], repeated, ["number", "note", "number", "note", ""])
        if repeated
        else report.paragraph("No document is there twice."),
        report.heading("Skipped records"),
        report.table(["where", "why"], skipped, ["note", ""]) if skipped else report.paragraph("None."),
    ]
    if summary["skipped"] > len(skipped):
        sections.append(
            report.paragraph(f"The first {len(skipped)} of {summary['skipped']:,}; all are in skipped.jsonl.", "note")
        )
    report.write_page(path, "Prepared corpus", sections)
