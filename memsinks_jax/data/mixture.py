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

    repeated: np.ndarray  # seen `repetitions` times, or every so many steps, or as often as the files hold them
    unique: np.ndarray  # seen once, or as often as the files hold them
    held_out: np.ndarray  # never seen
    times: np.ndarray  # (repeated,): how often an epoch with every repeat kept would see each
    encounters: np.ndarray  # one entry for each time a document is seen in an epoch, before shuffling
    scheduled: np.ndarray  # those of `repeated` that come every `repeat_every` steps; they are not in `encounters`
    canaries: np.ndarray  # those of `repeated` that carry a canary


def plan_mixture(
    data: DataConfig, copies: np.ndarray, seed: int, clusters: np.ndarray | None = None, more_to_come: bool = False
) -> Mixture:
    """Draws the roles at random from the seed. They do not depend on `data.repeats`: variants share the split.

    Args:
      copies: int (documents,): how often `data.files` hold each.
      clusters: int (documents,): the first document of the cluster that each is in. A cluster has one role: what would
        be of another is left out. None: every document is a cluster of its own.
      more_to_come: those of a general corpus, by `fill_up`.
    Raises:
      InputError: fewer documents than the plan needs, or nothing to train on.
    """
    repeated, unique, held_out = _draw_roles(data, copies, seed, clusters)
    natural = copies if data.copies == "keep" else np.ones_like(copies)
    injected = data.repeated_documents >= 0
    times = natural[repeated] * (
        how_often(data.repetitions, len(repeated), data.repeats == "ladder") if injected else 1
    )
    is_scheduled = data.repeat_every > 0 and data.repeats == "keep"
    kept = {"remove": 0, "once": np.minimum(times, 1)}.get(data.repeats, 0 if is_scheduled else times)
    encounters = np.concatenate([np.repeat(repeated, kept), np.repeat(unique, natural[unique])])
    if not len(encounters) and not more_to_come:
        raise InputError("the plan holds no training document; raise config.data.unique_documents or repetitions")
    return Mixture(
        repeated, unique, held_out, times, encounters,
        scheduled=repeated if is_scheduled else repeated[:0],
        canaries=repeated[:0],
    )  # fmt: skip


def _draw_roles(
    data: DataConfig, copies: np.ndarray, seed: int, clusters: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(repeated, unique, held out): runs of a random order in which the documents of a cluster stand together."""
    documents = len(copies)
    order = permutation(documents, seed, "roles")
    if clusters is None:
        clusters = np.arange(documents)
    else:
        rank = np.argsort(order)
        order = np.lexsort((np.arange(documents), rank[clusters]))

    def others(of: np.ndarray, taken: np.ndarray) -> np.ndarray:
        return of[~np.isin(clusters[of], clusters[taken])]

    wanted = max(data.unique_documents, 0) + max(data.repeated_documents, 0) + data.held_out_documents
    if data.repeated_documents < 0 or data.unique_documents < 0:  # all that the held-out ones leave
        held_out = order[max(documents - data.held_out_documents, 0) :]
        rest = others(order[: documents - len(held_out)], held_out[:1])
        if data.repeated_documents < 0:
            repeated, unique = rest[copies[rest] > 1], rest[copies[rest] == 1]
        else:
            repeated = rest[: data.repeated_documents]
            unique = others(rest[len(repeated) :], repeated[-1:])
        if data.unique_documents >= 0:
            unique = unique[: data.unique_documents]
    else:
        repeated = order[: data.repeated_documents]
        rest = others(order[len(repeated) :], repeated[-1:])
        unique = rest[: data.unique_documents]
        held_out = others(rest[len(unique) :], unique[-1:])[: data.held_out_documents]
    found = len(unique) if data.unique_documents >= 0 else 0
    found += len(held_out) + (len(repeated) if data.repeated_documents >= 0 else 0)
    if found < wanted:
        count, said, way_out = len(np.unique(clusters)), "", ""
        if count < documents:
            said = f" in {count} clusters, each of one role"
            way_out = ", or config.data.held_out_by=document, which may hold out near-duplicates"
        raise InputError(
            f"{documents} distinct documents{said}, but the plan needs {wanted} ({max(data.unique_documents, 0)} unique + "
            f"{max(data.repeated_documents, 0)} repeated + {data.held_out_documents} held out); lower "
            "config.data.unique_documents (-1: all that are left), repeated_documents or held_out_documents"
            f"{way_out}"
        )
    return repeated, unique, held_out


def fill_up(plan: Mixture, config: Config, sources: np.ndarray, lengths: np.ndarray, copies: np.ndarray) -> Mixture:
    """Adds documents of the general corpus to those seen once (paper appendix I: "then filled with SlimPajama").

    The documents of `data.files` come first, with all their repeats, whatever `data.repeats` says: variants share the
    general documents too. Sources with a number of documents are next; what is then left of `general.token_budget` is filled
    by shares. Which documents of a source are taken is drawn from the seed.

    Args:
      sources: int (documents,): 0 for `data.files`, from 1 on the places in `general.files`.
      lengths: int (documents,): tokens, without end of text.
      copies: int (documents,): how often the files hold each.
    Raises:
      InputError: a source is too small for its share or number, or nothing of the budget is left for it.
    """
    data, budget, seed = config.data, config.general.token_budget, config.seed
    asked = general_sources(config.general)
    sizes = lengths + 1  # with end of text
    if data.rows == "one_document":  # what is beyond a row is not read
        sizes = np.minimum(sizes, data.row_length)
    natural = copies if data.copies == "keep" else np.ones_like(copies)
    often = 1 if data.repeat_every else plan.times  # how often a scheduled one comes, the steps decide
    spent = int((sizes[plan.repeated] * often).sum() + (sizes * natural)[plan.unique].sum())
    sizes = sizes * natural
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
        encounters=np.concatenate([plan.encounters, np.repeat(general, natural[general])]),
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


def how_often(repetitions: int, documents: int, ladder: bool) -> np.ndarray:
    """How many times an epoch repeats each of so many documents -> int64 (documents,)."""
    steps = np.arange(documents) % repetitions.bit_length() if ladder else 0
    return np.full(documents, repetitions) >> steps


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
