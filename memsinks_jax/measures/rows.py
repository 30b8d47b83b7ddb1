"""Documents as rows: what of them counts, and a model's loss on them.

R rows, one document each; T positions, each of which predicts the next token. A target counts if
its weight is over 0.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tqdm

from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.models.trained import Trained


def rows_of(documents: Documents, run: Trained) -> dict[str, np.ndarray]:
    """Arrays of packing.row_of with a leading axis R, in the order of the documents; `identities`
    is (R, 1, 2).
    """
    batches = documents.batches(run)
    count = len(documents.tokens)
    return {name: np.concatenate([batch[name] for batch in batches])[:count] for name in batches[0]}


def asking(rows: dict, first_R: np.ndarray, end_R: np.ndarray) -> dict:
    """The same rows; only targets `first` to `end` (excluded) of each document count, as in Python
    slices.
    """
    places_T = np.arange(rows["weights"].shape[1])
    asked_RT = (places_T >= np.reshape(first_R, (-1, 1))) & (places_T < np.reshape(end_R, (-1, 1)))
    return rows | {"weights": np.where(asked_RT, rows["weights"], 0).astype(np.float32)}


def halves(rows: dict) -> tuple[dict, dict]:
    """(first, second) half of what counts of every document: what an attacker has, and what should
    come back.
    """
    counts_RT = rows["weights"] > 0
    number_RT, half_R1 = counts_RT.cumsum(axis=1), counts_RT.sum(axis=1, keepdims=True) // 2
    weights = (
        np.where(part_RT, rows["weights"], 0)
        for part_RT in (number_RT <= half_R1, number_RT > half_R1)
    )
    first, second = (rows | {"weights": each.astype(np.float32)} for each in weights)
    return first, second


def in_batches(rows: dict, size: int) -> Iterable[dict]:
    """Rows in batches; rows whose targets do not count fill up the last."""
    for at in range(0, len(rows["inputs"]), size):
        batch = {name: values[at : at + size] for name, values in rows.items()}
        missing = size - len(batch["inputs"])
        yield {
            name: np.pad(v, [(0, missing)] + [(0, 0)] * (v.ndim - 1)) for name, v in batch.items()
        }


def losses_of(subject: Subject, documents: Documents) -> tuple[np.ndarray, np.ndarray]:
    """(nats per token of each document, its tokens), float64 (R,) each; nan and 0 if nothing of it
    counts.
    """
    nats_R, tokens_R = DocumentLoss(subject.run.config)(
        subject.run.params, documents.batches(subject.run), subject.mode
    )
    nowhere = np.full(len(tokens_R), np.nan)
    return np.divide(nats_R, tokens_R, out=nowhere, where=tokens_R > 0), tokens_R


def token_mean(losses_R: Sequence[float], tokens_R: np.ndarray) -> float:
    """Nats per token over all documents, from those of each, with equal weight for every token.
    What stands for a document of which nothing counts does not matter.
    """
    nats_R = np.where(np.asarray(tokens_R) > 0, np.asarray(losses_R, np.float64) * tokens_R, 0)
    return float(nats_R.sum() / np.sum(tokens_R))


def bar(total: int, what: str) -> tqdm.tqdm:
    """A progress bar on a terminal, nothing elsewhere."""
    return tqdm.tqdm(total=total, desc=what, disable=None, dynamic_ncols=True)
