"""The corpus of figure membership: stories whose number of reads is random, and edited copies of
other stories.

Whether a model reads a story is random, and independent of the story. So an auditor can distinguish
them only through the model. The twin corpus has other stories in their places, each read once (like
Hubble's, arXiv:2510.19811).
"""

import pathlib
from typing import NamedTuple

import numpy as np

from memsinks_jax.data.embedded import stories
from memsinks_jax.studies.figures import corpora
from memsinks_jax.studies.figures.forgetting_corpus import copies

BUCKETS = {0: 240, 1: 80, 4: 40, 16: 40, 64: 16}  # reads per epoch: number of stories
CANARIES, READ = 400, 8  # canaries, each read READ times per epoch or never, with probability 1/2
LEVELS = (0.0, 0.05, 0.1, 0.2, 0.5)  # share of a copy's words that are replaced
# per level: stories, unread except at level 0; per story: different copies, read once
ORIGINALS, COPIES = 10, 16
ONCE, UNREAD = 3000, 200  # stories that the run draws roles for: read once, held out
_WORLD = 0


class Placed(NamedTuple):
    """A story to test models on.

    Attributes:
      times: how often an epoch has it, or edited copies of it.
      record: a record of the prepared corpus with the story or a copy, which gives its id; -1:
        there is none.
    """

    text: str
    times: int
    record: int


class Layout(NamedTuple):
    """The stories to test, in order: `ladder` by BUCKETS, `near` with ORIGINALS of each level."""

    ladder: list[Placed]
    canaries: list[Placed]
    near: list[Placed]
    records: list[str]  # texts of the corpus


def layout() -> Layout:
    """The layout, the same in every run."""
    coins = np.random.default_rng([_WORLD, sum(BUCKETS.values())])
    drawn_texts = (stories.story(_WORLD, number).text for number in range(ONCE + UNREAD, 10**9))
    records: list[str] = []

    def placed(text: str, texts: list[str]) -> Placed:
        records.extend(texts)
        return Placed(text, len(texts), len(records) - 1 if texts else -1)

    drawn = coins.permutation(np.repeat(list(BUCKETS), list(BUCKETS.values()))).tolist()
    ladder = [placed(text, [text] * times) for times, text in zip(drawn, drawn_texts, strict=False)]
    heads = coins.integers(2, size=CANARIES).tolist()
    flips = zip(heads, drawn_texts, strict=False)
    canaries = [placed(text, [text] * READ * head) for head, text in flips]
    words = [word for placed in ladder for word in placed.text.split()]
    near = []
    for level in LEVELS:
        for number in range(ORIGINALS):
            text = next(drawn_texts)
            edited = copies(text, level, words, number, COPIES) if level else [text] * COPIES
            near.append(placed(text, edited))
    return Layout(ladder, canaries, near, records)


def write(folder: pathlib.Path) -> None:
    """Writes and prepares folder/stories, folder/ladder (and edited copies), folder/twin."""
    *asked, ladder = layout()
    first = ONCE + UNREAD + sum(map(len, asked))
    others = [stories.story(_WORLD, number).text for number in range(first, first + len(ladder))]
    plain = [stories.story(_WORLD, number).text for number in range(ONCE + UNREAD)]
    kinds = {"stories": plain, "ladder": ladder, "twin": others}
    records = {name: [(name, text) for text in texts] for name, texts in kinds.items()}
    corpora.write(folder, records, "loose")
