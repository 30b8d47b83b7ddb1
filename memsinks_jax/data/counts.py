"""What a run would read, counted before it begins: documents, encounters and tokens of every source and role."""

import numpy as np

from memsinks_jax.data.corpus import Corpus, truncated
from memsinks_jax.data.mixture import general_sources
from memsinks_jax.data.packing import reads_whole
from memsinks_jax.data.pipeline import steps_of


def counts(corpus: Corpus) -> dict:
    """The plan of a run in numbers, for JSON.

    Returns:
      {"steps", "rows": their kind, "rows_per_epoch", "tokens_per_epoch", "filled": share of the rows' positions that has a
      target, "duplicates": exact copies of documents, "roles_by": document or cluster, "left_out": documents that have no
      role since their cluster has one, "truncated": {"documents", "tokens", "share": of the tokens of all documents to be
      read}, "mixture": [{"source", "role", "documents", "encounters" an epoch, "tokens" an epoch, end of text included,
      "canaries"}]}. Tokens that a row truncates are not counted.
    """
    config, rows = corpus.config, corpus.rows()
    plan, sizes = corpus.mixture, corpus.lengths + 1
    if not reads_whole(config.data):
        sizes = np.minimum(sizes, config.data.row_length)
    seen = np.bincount(plan.encounters, minlength=len(sizes))
    if len(plan.scheduled):
        seen[plan.scheduled] = rows.rows_per_epoch // config.training.batch_size // config.data.repeat_every
    has_canary = np.isin(np.arange(len(sizes)), plan.canaries)
    names = [config.data.files or "embedded stories", *(files for files, _ in general_sources(config.general))]
    mixture = []
    for number, name in enumerate(names):
        for role in ("repeated", "unique", "held_out"):
            there = getattr(plan, role)
            there = there[corpus.sources[there] == number]
            if len(there):
                read = {"encounters": int(seen[there].sum()), "tokens": int((seen * sizes)[there].sum())}
                mixture.append(
                    {"source": name, "role": role, "documents": len(there)}
                    | read
                    | {"canaries": int(has_canary[there].sum())}
                )
    tokens = sum(line["tokens"] for line in mixture)
    return {
        "steps": steps_of(config, rows),
        "rows": config.data.rows,
        "rows_per_epoch": rows.rows_per_epoch,
        "tokens_per_epoch": tokens,
        "filled": tokens / (rows.rows_per_epoch * config.data.row_length),
        "duplicates": int(corpus.copies.sum()) - len(corpus.copies),
        "roles_by": "document" if corpus.clusters is None else "cluster",
        "left_out": _left_out(corpus),
        "truncated": never_read(corpus),
        "mixture": mixture,
    }


def never_read(corpus: Corpus) -> dict:
    """What rows of one document truncate of those that are trained on: {"documents", "tokens", "share": of their tokens}."""
    lengths = corpus.lengths[np.concatenate([corpus.mixture.repeated, corpus.mixture.unique])]
    whole = reads_whole(corpus.config.data)
    documents, tokens = (0, 0) if whole else truncated(lengths, corpus.config.data.row_length)
    return {"documents": documents, "tokens": tokens, "share": tokens / max(int((lengths + 1).sum()), 1)}


def as_advice(never: dict, row_length: int) -> str:
    """`never_read` as a line for people, with the setting that helps; empty where all is read."""
    if not never["documents"]:
        return ""
    return (
        f"{never['documents']:,} documents are longer than a row of {row_length:,} tokens and are truncated: "
        f"{never['tokens']:,} tokens, {never['share']:.1%} of all, are never read; --config.data.rows=best_fit reads them"
    )


def _left_out(corpus: Corpus) -> int:
    if corpus.clusters is None:
        return 0
    plan, clusters = corpus.mixture, corpus.clusters
    with_role = np.zeros(len(corpus.lengths), bool)
    for documents in (plan.repeated, plan.unique, plan.held_out):
        with_role[documents] = True
    with_role = with_role[: len(clusters)]
    return int((np.isin(clusters, clusters[with_role]) & ~with_role).sum())


def as_text(counted: dict, row_length: int) -> list[str]:
    """Lines of `counts` for people."""
    lines = [
        f"{'source':40s} {'role':8s} {'documents':>10s} {'encounters':>10s} {'tokens':>14s} {'share':>6s} canaries"
    ]
    for line in counted["mixture"]:
        lines.append(
            f"{line['source'][-40:]:40s} {line['role']:8s} {line['documents']:10,d} {line['encounters']:10,d} "
            f"{line['tokens']:14,d} {line['tokens'] / counted['tokens_per_epoch']:6.1%} {line['canaries'] or '':8}"
        )
    lines.append(
        f"an epoch: {counted['rows_per_epoch']:,} rows ({counted['rows']}), {counted['tokens_per_epoch']:,} tokens, "
        f"{counted['filled']:.1%} of the positions filled; the run: {counted['steps']:,} steps; {counted['duplicates']:,} "
        "exact copies"
    )
    if counted["roles_by"] == "cluster":
        lines.append(
            f"a cluster of near-duplicates or a group has one role; {counted['left_out']:,} documents are left out, since "
            "others of their cluster have another: --config.data.held_out_by=document draws each by itself"
        )
    lines.append(as_advice(counted["truncated"], row_length))
    return [line.rstrip() for line in lines if line]
