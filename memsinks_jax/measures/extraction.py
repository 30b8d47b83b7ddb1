"""Does a model recite? Given the beginning of a document, how much of the rest does it write word
for word?

Discoverable extraction (Carlini et al. 2023) at several prefix lengths, by one greedy continuation
and by several samples; (n, p)-extraction (Hayes et al. 2025); extraction strength (Carlini et al.
2021) and exact memorization (Tirumala et al. 2022), which read the document instead.
"""

import math
from typing import NamedTuple

import numpy as np
import tqdm

from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.forced import Reading
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model.generation import Generator, Settings

PREFIXES, SUFFIX = (8, 16, 32, 50), 32  # tokens of the prompts, and of the continuation

_MOST_ROWS = 64  # generated at a time


def extraction_strength(reading: Reading) -> float:
    """1 - k / n for a document of n tokens: k is the least place from which on each token is the
    most likely one after the true ones before it. 0 if the last token is not: then k is n, not n -
    1 as in other code.
    """
    wrong = np.flatnonzero(~reading.likeliest)
    return 1 - (wrong[-1] + 1 if len(wrong) else 0) / len(reading.likeliest)


def exact_memorization(reading: Reading) -> float:
    """Share of the tokens that are the most likely ones after the true ones before them."""
    return float(reading.likeliest.mean())


def chance_in_samples(reading: Reading, prefix: int, suffix: int, samples: int) -> float:
    """The probability that one of `samples` samples at temperature 1 is exactly the document's
    continuation: 1 - (1 - p)^n.

    Computed from the probability p of those tokens; drawing samples could not detect one in a
    million.
    """
    chance = math.exp(-reading.nats[prefix : prefix + suffix].sum())
    return 1.0 if chance >= 1 else -math.expm1(samples * math.log1p(-chance))


def edit_distance(written: np.ndarray, truth: np.ndarray) -> float:
    """Insertions, deletions and replacements of tokens from one to the other (Levenshtein), over
    the longer's length.
    """
    if not len(written) or not len(truth):
        return float(len(written) != len(truth))
    places = np.arange(len(truth) + 1)
    row = places
    for token in written:
        changed = np.minimum(row[1:] + 1, row[:-1] + (truth != token))
        row = np.minimum.accumulate(np.concatenate([[row[0] + 1], changed]) - places) + places
    return float(row[-1] / max(len(written), len(truth)))


def equal_share(written: np.ndarray, truth: np.ndarray) -> float:
    """Share of the positions of `truth` where `written` has the same token."""
    few = min(len(written), len(truth))
    return float((written[:few] == truth[:few]).sum() / len(truth))


class Prompts(NamedTuple):
    """What is asked of a model: given so many of a document's first tokens, to write `suffix` more,
    greedily and in samples at temperature 1.
    """

    prefixes: tuple[int, ...] = PREFIXES
    suffix: int = SUFFIX
    samples: int = 0

    @property
    def longest(self) -> int:
        return max(self.prefixes) + self.suffix

    def fitting(self, documents: Documents) -> dict[int, list[int]]:
        """{prefix: the documents that are long enough}, without prefixes that fit no document.

        Prefixes begin with the answer, if documents have prompts: a model is asked with the whole
        prompt.
        """
        lengths = np.array([len(tokens) for tokens in documents.tokens]) - documents.openings
        fitting = {p: np.flatnonzero(lengths >= p + self.suffix).tolist() for p in self.prefixes}
        return {prefix: places for prefix, places in fitting.items() if places}


def continuations(
    subject: Subject, documents: Documents, prompts: Prompts
) -> dict[int, dict[int, list[np.ndarray]]]:
    """Generates continuations of the beginnings of documents, at most `prompts.suffix` tokens, of
    those that fit -> {prefix: {document: [the greedy one, the samples ...], int32 (tokens,) each}}.
    """
    run, openings, fitting = subject.run, documents.openings, prompts.fitting(documents)
    if not fitting:
        return {}
    generator = Generator.of(run)
    # A batch mixes all lengths, so that all have one shape and few programs are compiled.
    rows = sorted(
        (place / len(indices), prefix, i)
        for prefix, indices in fitting.items()
        for place, i in enumerate(indices)
    )
    size, plan = math.ceil(len(rows) / math.ceil(len(rows) / _MOST_ROWS)), []
    for temperature, each in ((0.0, rows), (1.0, rows * prompts.samples)):
        plan += [(temperature, each[at : at + size]) for at in range(0, len(each), size)]
    written = {prefix: {i: [] for i in indices} for prefix, indices in fitting.items()}
    bar = tqdm.tqdm(plan, desc=f"{subject.name}: writes", leave=False, disable=None)
    for number, (temperature, batch) in enumerate(bar):
        filled = (batch * size)[:size]
        settings = Settings(
            max_tokens=prompts.suffix, temperature=temperature, seed=number, sinks=subject.mode
        )
        asked = [
            np.append(documents.opening(i, run.tokenizer), documents.tokens[i][:stop])
            for stop, i in ((openings[i] + prefix, i) for _, prefix, i in filled)
        ]
        identities = documents.identities[[i for _, _, i in filled]]
        texts = generator(asked, settings, identities, complete=True)
        for (_, prefix, i), text in zip(batch, texts, strict=False):
            written[prefix][i].append(text.tokens)
    return written
