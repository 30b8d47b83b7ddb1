"""Counts what a run will read, before it starts: documents, encounters and tokens of every source
and role.
"""

import numpy as np

from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.mixture import general_sources
from memsinks_jax.data.packing import reads_whole
from memsinks_jax.data.table import truncated


def counts(corpus: Corpus) -> dict:
    """The plan of a run in numbers, for JSON.

    Returns:
      {"steps", "epochs": in these steps, "rows": their kind, "rows_per_epoch", "tokens_per_epoch",
      "filled": share of the rows' positions with a target, "duplicates": exact copies of documents,
      "left_out": documents without a role because others of their cluster have one, "truncated":
      {"documents", "tokens", "share": of the tokens of all documents to be read}, "without_answer":
      documents of the files whose prompt fills a row, "mixture": [{"source", "role", "documents",
      "encounters" per epoch, "tokens" per epoch, end of text included, "canaries"}],
      "contexts": {"sinks", "tokens" per epoch that these remember}; None without memory by
      context}. Truncated tokens are not counted; prompts are.
    """
    config, rows, table = corpus.config, corpus.rows(), corpus.table
    plan, sums = corpus.mixture, corpus.mixture.sums
    names = [
        config.data.files or "embedded stories",
        *(files for files, _ in general_sources(config.general)),
    ]
    whole = reads_whole(config.data)
    times = plan.epoch_counts
    if plan.schedule.lists:
        times = np.array(rows.epochs.often(plan.repeated), np.int64)
    sizes = corpus.lengths[plan.repeated] + 1
    sizes = sizes if whole else np.minimum(sizes, config.data.row_length)
    mixture = []
    for number, name in enumerate(names):
        runs = table.runs[:, 2] == number
        unique = np.array([sums.documents[number], sums.slots[runs].sum(), sums.tokens[runs].sum()])
        unique[2] -= 0 if whole else sums.beyond[number]
        roles = {}
        if not number:
            roles["repeated"] = np.array([len(plan.repeated), times.sum(), times @ sizes])
            roles["held_out"] = np.array([len(plan.held_out), 0, 0])
            if not plan.injected:  # they are read at their place in the table
                read = plan.epoch_counts > 0
                unique -= [read.sum(), *roles["repeated"][1:]]
        roles["unique"] = unique
        for role in ("repeated", "unique", "held_out"):
            if role in roles and roles[role][0]:
                documents, encounters, tokens = roles[role].tolist()
                canaries = len(plan.canaries) if role == "repeated" else 0
                line = {
                    "source": name,
                    "role": role,
                    "documents": documents,
                    "encounters": encounters,
                }
                mixture.append(line | {"tokens": tokens, "canaries": canaries})
    tokens = sum(line["tokens"] for line in mixture)
    return {
        "steps": rows.steps,
        "epochs": rows.end / rows.rows_per_epoch,
        "rows": config.data.rows,
        "rows_per_epoch": rows.rows_per_epoch,
        "tokens_per_epoch": tokens,
        "filled": tokens / (rows.rows_per_epoch * config.data.row_length),
        "duplicates": sum(
            len(source) - table.documents(number) for number, source in enumerate(table.sources)
        ),
        "left_out": len(plan.left_out),
        "truncated": never_read(corpus),
        "without_answer": table.without_answer(config.data.row_length),
        "mixture": mixture,
        "contexts": corpus.contexts
        and {"sinks": len(corpus.contexts), "tokens": corpus.contexts.places},
    }


def never_read(corpus: Corpus) -> dict:
    """What rows of one document truncate in training: {"documents", "tokens", "share": of the
    training documents' tokens}.

    Exact copies in the files count as often as they are read, repeats of the plan once.
    """
    plan, row_length = corpus.mixture, corpus.config.data.row_length
    sums, lengths = plan.sums, corpus.lengths[plan.repeated if plan.injected else plan.repeated[:0]]
    if reads_whole(corpus.config.data):
        return {"documents": 0, "tokens": 0, "share": 0.0}
    documents, beyond = truncated(lengths, row_length)
    documents, beyond = documents + int(sums.longer.sum()), beyond + int(sums.beyond.sum())
    share = beyond / max(int(sums.tokens.sum() + (lengths + 1).sum()), 1)
    return {"documents": documents, "tokens": beyond, "share": share}


def as_advice(never: dict, row_length: int) -> str:
    """`never_read` as a readable line, with the setting that helps; empty if everything is read."""
    if not never["documents"]:
        return ""
    return (
        f"a row of {in_words(row_length, 'token')} is too short for "
        f"{in_words(never['documents'], 'document')}: "
        f"{in_words(never['tokens'], 'token')}, {never['share']:.1%} of all, are never read; "
        "--config.data.rows=best_fit reads them"
    )


def unanswered(documents: int, row_length: int) -> str:
    """A readable line if documents have prompts that fill a row; else empty."""
    if not documents:
        return ""
    return (
        f"the prompts of {in_words(documents, 'document')} fill a row of "
        f"{in_words(row_length, 'token')}, in which then "
        "nothing counts; raise config.data.row_length, or leave them out"
    )


def repeats_in_a_step(epochs_per_step: float) -> str:
    """A readable line if a step reads an epoch or more; else empty."""
    if epochs_per_step < 1:
        return ""
    return (
        f"a step reads {epochs_per_step:.1f} epochs: all repeats of a document are in one step; "
        "lower "
        "config.training.batch_size, or add documents"
    )


def ends_early(epochs: float) -> str:
    """A readable line if a run ends within its first epoch; else empty."""
    if epochs >= 1:
        return ""
    return (
        f"config.training.steps ends the run after {epochs:.1%} of an epoch: it never reads the "
        "rest; "
        "raise it, or set it to 0 for whole epochs"
    )


def as_text(counted: dict, row_length: int) -> list[str]:
    """`counts` as readable lines."""
    lines = [
        f"{'source':40s} {'role':8s} {'documents':>10s} {'encounters':>10s} {'tokens':>14s} "
        f"{'share':>6s} canaries"
    ]
    for line in counted["mixture"]:
        lines.append(
            f"{line['source'][-40:]:40s} {line['role']:8s} {line['documents']:10,d} "
            f"{line['encounters']:10,d} "
            f"{line['tokens']:14,d} {line['tokens'] / counted['tokens_per_epoch']:6.1%} "
            f"{line['canaries'] or '':8}"
        )
    lines.append(
        f"an epoch: {in_words(counted['rows_per_epoch'], 'row')} ({counted['rows']}), "
        f"{in_words(counted['tokens_per_epoch'], 'token')}, "
        f"{counted['filled']:.1%} of the positions filled; the run: "
        f"{in_words(counted['steps'], 'step')}, "
        f"{counted['epochs']:.2f} epochs; exact copies: {counted['duplicates']:,}"
    )
    if counted["contexts"]:
        sinks, tokens = counted["contexts"].values()
        lines.append(
            f"memory by context: {in_words(tokens, 'token')} of an epoch, "
            f"{tokens / counted['tokens_per_epoch']:.1%}, are in repeated text and will be "
            f"remembered, by {in_words(sinks, 'sink')}"
        )
    if counted["left_out"]:
        lines.append(
            "a cluster of near-duplicates or a group has one role; "
            f"{in_words(counted['left_out'], 'document')} left out, "
            "since others of their cluster have another: --config.data.held_out_by=document "
            "draws each by itself"
        )
    lines += [
        as_advice(counted["truncated"], row_length),
        unanswered(counted["without_answer"], row_length),
    ]
    lines += [
        repeats_in_a_step(counted["epochs"] / counted["steps"]),
        ends_early(counted["epochs"]),
    ]
    return [line.rstrip() for line in lines if line]
