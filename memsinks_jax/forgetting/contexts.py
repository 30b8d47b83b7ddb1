"""Removes texts from a model with sinks by context: the rows of contexts that stand in these texts,
and in no other.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.documents import in_words
from memsinks_jax.forgetting.request import PLACEBOS, Found, as_read
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.kinds import NONE


def rows_in(run: Trained, texts: Iterable[tuple[np.ndarray, int]]) -> np.ndarray:
    """Which rows the contexts of some texts have -> bool (M,).

    Args:
      texts: int32 (tokens,) without end of text, and the token that opens it.
    """
    found = np.zeros(run.config.contexts.rows, bool)
    for tokens, opening in texts:
        rows = run.contexts.rows(tokens, 0, len(tokens) + 1, opening)
        found[rows[rows != NONE]] = True
    return found


def removed(run: Trained, found: Found, shared: bool) -> np.ndarray:
    """The rows to remove -> bool (M,).

    Args:
      shared: also those of contexts that stand in other texts. A text that is given itself goes
        wherever it stands.
    Raises:
      InputError: there are none; what other texts hold is not known.
    """
    rows, what = rows_in(run, found.texts()), in_words(len(found.identities), found.noun)
    if not rows.any():
        raise InputError(
            f"no context of {what} has a sink: nothing of it was repeated, or it is removed already"
        )
    if not shared and found.noun != "text":
        if found.others is None:
            raise InputError(
                "which of these contexts stand in other texts too is known with the corpus of "
                "the run alone; give the "
                "run, or --shared to remove what others share"
            )
        rows &= ~rows_in(run, found.others())
    if not rows.any():
        raise InputError(
            f"all contexts of {what} stand in other texts too, which keep them; --shared removes "
            "them"
        )
    if rows[: len(run.contexts)].all():
        raise InputError(
            f"to remove {what} takes all sinks; to drop them all: memsinks_jax.export --sinks=drop"
        )
    return rows


def counted(run: Trained, rows: np.ndarray) -> dict:
    """Of the receipt: {"sinks", "removed"}."""
    return {"sinks": len(run.contexts), "removed": int(rows.sum())}


def without(params: dict, rows: np.ndarray) -> dict:
    """The parameters with these rows of the table set to 0; all else is bitwise the same."""
    return params | {CONTEXTS: params[CONTEXTS] * ~rows[:, None]}


def left(run: Trained, rows: np.ndarray) -> Trained:
    """The model without these rows, and without their keys, so that it does not show that a text
    was there.
    """
    known = np.arange(len(run.contexts))
    known = known[~rows[known]]
    config = with_fields(run.config, {"contexts.rows": len(known)})
    contexts = Contexts(
        np.asarray(run.contexts.keys)[known], run.contexts.length, run.contexts.letters
    )
    params = run.params | {CONTEXTS: np.asarray(run.params[CONTEXTS])[known]}
    return dataclasses.replace(run, config=config, params=params, contexts=contexts)


def placebos(run: Trained, found: Found) -> dict[str, list[np.ndarray]]:
    """Up to PLACEBOS removals of as many other documents -> {name of receipt.PLACEBOS: [rows, as of
    `removed`]}.

    All of their rows go, also those that the removed documents share: without these no placebo
    could do anything.
    """
    others, count = found.sets.get("others"), len(found.sets["target"].tokens)
    if others is None:
        return {}
    starts = range(0, max(len(others.tokens) - count, 0) + 1, count)[:PLACEBOS]
    drawn = [others.chosen(slice(at, at + count)) for at in starts]
    return {"others": [rows_in(run, as_read(run, each)) for each in drawn]}
