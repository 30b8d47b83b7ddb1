"""What a run would read, counted before it begins: documents, encounters and tokens of every source and role."""

import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.mixture import general_sources
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.pipeline import steps_of


def counts(config: Config, corpus: Corpus) -> dict:
    """The plan of a run in numbers, for JSON.

    Returns:
      {"steps", "rows_per_epoch", "tokens_per_epoch", "filled": share of the rows' positions that has a target,
      "duplicates": exact copies left out, "mixture": [{"source", "role", "documents", "encounters" an epoch, "tokens" an
      epoch, end of text included, "canaries"}]}. Tokens that a row cuts off are not counted.
    """
    rows = Rows(config, corpus.mixture, corpus.tokens, corpus.lengths, corpus.identities, corpus.tokenizer.end_of_text)
    plan, sizes = corpus.mixture, corpus.lengths + 1
    if config.data.rows == "one_document":
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
        "rows_per_epoch": rows.rows_per_epoch,
        "tokens_per_epoch": tokens,
        "filled": tokens / (rows.rows_per_epoch * config.data.row_length),
        "duplicates": corpus.duplicates,
        "mixture": mixture,
    }


def as_text(counted: dict) -> list[str]:
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
        f"an epoch: {counted['rows_per_epoch']:,} rows, {counted['tokens_per_epoch']:,} tokens, {counted['filled']:.1%} of "
        f"the positions filled; the run: {counted['steps']:,} steps; {counted['duplicates']} exact copies left out"
    )
    return [line.rstrip() for line in lines]
