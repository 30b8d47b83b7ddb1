"""Which document is seen how often: the index table of an experiment, fixed before the first token is read."""

import dataclasses
import json

import numpy as np

from memsinks_jax.config import DataConfig, InputError
from memsinks_jax.data import ids


@dataclasses.dataclass(frozen=True)
class Mixture:
    """TS-Repetition (paper section 3.1): roles of the documents of a corpus, and every encounter of one epoch.

    All arrays hold indices of documents. `repeated`, `unique` and `held_out` share none.
    """

    repeated: np.ndarray  # seen `repetitions` times
    unique: np.ndarray  # seen once
    held_out: np.ndarray  # never seen
    encounters: np.ndarray  # one entry for each time a document is seen in an epoch, before shuffling


def plan_mixture(data: DataConfig, documents: int, seed: int) -> Mixture:
    """Draws the roles at random from the seed. They do not depend on `data.repeats`: variants share the split.

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
    times = {"keep": data.repetitions, "once": 1, "remove": 0}[data.repeats]
    encounters = encounters_of(repeated, times, unique_documents)
    if not len(encounters):
        raise InputError("the plan holds no training document; raise config.data.unique_documents or repetitions")
    return Mixture(repeated, unique_documents, held_out, encounters)


def encounters_of(repeated: np.ndarray, times: int, unique: np.ndarray) -> np.ndarray:
    """Every repeated document `times` times, then every unique one -> indices of documents."""
    return np.concatenate([np.repeat(repeated, times), unique])


PURPOSES = ("roles", "order", "id noise", "noisy documents")


def bits(seed: int, purpose: str, index: int = 0) -> np.random.Philox:
    """Independent random bits for (seed, purpose, index): no purpose disturbs another, any index is reached at once."""
    return np.random.Philox(key=[seed, PURPOSES.index(purpose)], counter=[0, 0, index, 0])


def permutation(count: int, seed: int, purpose: str, epoch: int = 0) -> np.ndarray:
    """A random order of range(count), the same on every machine and numpy version -> int64 (count,)."""
    # Raw counter bits, not Generator.permutation: only the former are promised to stay the same.
    return np.argsort(bits(seed, purpose, epoch).random_raw(count), kind="stable")


def table(mixture: Mixture, identities: np.ndarray, lengths: list[int], sources: list[str]) -> str:
    """The index table for people and tests, as JSON lines: one a document, with its role and how often it is seen."""
    seen = np.bincount(mixture.encounters, minlength=len(identities))
    roles = {int(i): role for role in ("repeated", "unique", "held_out") for i in getattr(mixture, role)}
    lines = [
        json.dumps(
            {
                "index": index,
                "id": ids.to_hex(identities[index]),
                "role": role,
                "encounters": int(seen[index]),
                "tokens": lengths[index],
                "source": sources[index],
            }
        )
        for index, role in sorted(roles.items())
    ]
    return "\n".join(lines) + "\n"
