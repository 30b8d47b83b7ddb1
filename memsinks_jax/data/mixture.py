"""Which document is seen how often: the index table of an experiment, fixed before the first token is read."""

import dataclasses
import json
import re
from collections.abc import Sequence

import numpy as np

from memsinks_jax.config import Config, DataConfig, GeneralConfig, InputError
from memsinks_jax.data import ids


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Roles of the documents of a corpus, and every encounter of one epoch (paper section 3.1).

    All arrays hold indices of documents. `repeated`, `unique` and `held_out` share none.
    """

    repeated: np.ndarray  # seen `repetitions` times, or every so many steps
    unique: np.ndarray  # seen once
    held_out: np.ndarray  # never seen
    encounters: np.ndarray  # one entry for each time a document is seen in an epoch, before shuffling
    scheduled: np.ndarray  # those of `repeated` that come every `repeat_every` steps; they are not in `encounters`
    canaries: np.ndarray  # those of `repeated` that carry a canary


def plan_mixture(data: DataConfig, documents: int, seed: int, more_to_come: bool = False) -> Mixture:
    """Draws the roles at random from the seed. They do not depend on `data.repeats`: variants share the split.

    Args:
      documents: how many `data.files` hold.
      more_to_come: those of a general corpus, by `fill_up`.
    Raises:
      InputError: fewer documents than the plan needs, or nothing to train on.
    """
    unique = data.unique_documents
    if unique < 0:
        unique = max(documents - data.repeated_documents - data.held_out_documents, 0)
    needed = unique + data.repeated_documents + data.held_out_documents
    if documents < needed:
        raise InputError(
            f"{documents} distinct documents, but the plan needs {needed} ({unique} unique + {data.repeated_documents} "
            f"repeated + {data.held_out_documents} held out); lower config.data.unique_documents (-1: all that are "
            "left), repeated_documents or held_out_documents"
        )
    order = permutation(documents, seed, "roles")
    repeated, unique_documents, held_out = np.split(
        order[:needed], [data.repeated_documents, data.repeated_documents + unique]
    )
    is_scheduled = data.repeat_every > 0 and data.repeats == "keep"
    encounters = encounters_of(repeated, 0 if is_scheduled else how_often(data), unique_documents)
    if not len(encounters) and not more_to_come:
        raise InputError("the plan holds no training document; raise config.data.unique_documents or repetitions")
    return Mixture(
        repeated, unique_documents, held_out, encounters,
        scheduled=repeated if is_scheduled else repeated[:0],
        canaries=repeated[:0],
    )  # fmt: skip


def fill_up(plan: Mixture, config: Config, sources: np.ndarray, lengths: np.ndarray) -> Mixture:
    """Adds documents of the general corpus to those seen once (paper appendix I: "then filled with SlimPajama").

    The documents of `data.files` come first, with all their repeats, whatever `data.repeats` says: variants share the
    general documents too. Sources with a number of documents are next; what is then left of `general.token_budget` is filled
    by shares. Which documents of a source are taken is drawn from the seed.

    Args:
      sources: int (documents,): 0 for `data.files`, from 1 on the places in `general.files`.
      lengths: int (documents,): tokens, without end of text.
    Raises:
      InputError: a source is too small for its share or number, or nothing of the budget is left for it.
    """
    data, budget, seed = config.data, config.general.token_budget, config.seed
    asked = general_sources(config.general)
    sizes = lengths + 1  # with end of text
    if data.rows == "one_document":
        sizes = np.minimum(sizes, data.row_length)
    often = 1 if data.repeat_every else data.repetitions  # how often a scheduled one comes, the steps decide
    spent = int(sizes[encounters_of(plan.repeated, often, plan.unique)].sum())
    chosen, order = [], permutation(len(sources), seed, "general corpus")
    for number, (files, amount) in enumerate(asked, 1):
        there = order[sources[order] == number]
        if isinstance(amount, int):
            if len(there) < amount:
                raise InputError(f"{files} holds {len(there)} distinct documents, not {amount}; lower its number")
            there = there[:amount]
            spent += int(sizes[there].sum())
        chosen.append(there)
    left = budget - spent
    if budget and left < 0:
        raise InputError(
            f"config.general.token_budget is {budget}, but what comes before the shares of general.files already "
            f"has {spent} tokens; raise it, or lower config.data.repetitions or repeated_documents"
        )
    for number, (files, amount) in enumerate(asked):
        if budget and not isinstance(amount, int):
            through = np.cumsum(sizes[chosen[number]])
            if not len(through) or through[-1] < int(amount * left):
                raise InputError(
                    f"{files} holds {through[-1] if len(through) else 0} tokens, but its share of "
                    f"config.general.token_budget is {int(amount * left)}; give more files, or lower the share or the budget"
                )
            chosen[number] = chosen[number][: np.searchsorted(through, int(amount * left), side="right")]
    general = np.concatenate(chosen)
    if not len(plan.encounters) + len(general):
        raise InputError("the plan holds no training document; raise config.general.token_budget or repetitions")
    return dataclasses.replace(
        plan,
        unique=np.concatenate([plan.unique, general]),
        encounters=np.concatenate([plan.encounters, general]),
    )


def general_sources(general: GeneralConfig) -> list[tuple[str, int | float]]:
    """`general.files` as [(glob, number of documents or share of what is left of the budget, from 0 to 1)].

    Raises:
      InputError: several globs and not an amount for each, shares without a budget or of more than 100%.
    """
    found = []
    for entry in filter(None, (part.strip() for part in general.files.split(","))):
        amount = re.search(r"=(\d+)$|=(\d+(?:\.\d+)?)%$", entry)
        if amount is None:
            found.append((entry, None))
        else:
            files = entry[: amount.start()]
            found.append((files, int(amount[1]) if amount[1] else float(amount[2]) / 100))
    if len(found) > 1 and any(amount is None for _, amount in found):
        raise InputError(
            f"config.general.files={general.files}: several globs need an amount each; write GLOB=30% for a "
            "share of the token budget, or GLOB=500 for so many documents"
        )
    shares = [amount for _, amount in found if isinstance(amount, float)]
    if sum(shares) > 1 + 1e-9 or (shares and not general.token_budget):
        raise InputError(
            f"config.general.files={general.files}: shares are of what is left of config.general.token_budget "
            f"({general.token_budget}), and 100% in all at most; set the budget or lower the shares"
        )
    return [(files, 1.0 if amount is None else amount) for files, amount in found]


def how_often(data: DataConfig) -> np.ndarray:
    """How many times an epoch has each repeated document -> int64 (repeated documents,)."""
    times = {"keep": data.repetitions, "ladder": data.repetitions, "once": 1, "remove": 0}[data.repeats]
    steps = np.arange(data.repeated_documents) % data.repetitions.bit_length() if data.repeats == "ladder" else 0
    return np.full(data.repeated_documents, times) >> steps


def encounters_of(repeated: np.ndarray, times: int | np.ndarray, unique: np.ndarray) -> np.ndarray:
    """Every repeated document `times` times, then every unique one -> indices of documents."""
    return np.concatenate([np.repeat(repeated, times), unique])


PURPOSES = ("roles", "order", "id noise", "noisy documents", "general corpus", "row order", "canaries", "alternatives")


def bits(seed: int, purpose: str, index: int = 0) -> np.random.Philox:
    """Independent random bits for (seed, purpose, index): no purpose disturbs another, any index is reached at once."""
    return np.random.Philox(key=[seed, PURPOSES.index(purpose)], counter=[0, 0, index, 0])


def permutation(count: int, seed: int, purpose: str, epoch: int = 0) -> np.ndarray:
    """A random order of range(count), the same on every machine and numpy version -> int64 (count,)."""
    # Raw counter bits, not Generator.permutation: only the former are promised to stay the same.
    return np.argsort(bits(seed, purpose, epoch).random_raw(count), kind="stable")


def table(mixture: Mixture, identities: np.ndarray, lengths: Sequence[int], sources: list[str]) -> str:
    """The index table for people and tests, as JSON lines: one a document, with its role and how often it is seen.

    Documents that come every so many steps have null encounters: the steps decide.
    """
    seen = dict(enumerate(np.bincount(mixture.encounters, minlength=len(identities)).tolist()))
    seen |= dict.fromkeys(mixture.scheduled.tolist())
    roles = {int(i): role for role in ("repeated", "unique", "held_out") for i in getattr(mixture, role)}
    lines = [
        json.dumps(
            {
                "index": index,
                "id": ids.to_hex(identities[index]),
                "role": role,
                "encounters": seen[index],
                "tokens": int(lengths[index]),
                "source": sources[index],
            }
        )
        for index, role in sorted(roles.items())
    ]
    return "\n".join(lines) + "\n"
