"""The corpus of figure forgetting: stories, edited copies of some, and stories in dialects, with
exact bookkeeping.

One corpus serves ids of three kinds. 128 copies of a story, each edited anew, are no repeats for
ids by content, and one document for ids by cluster. A dialect replaces common words, the same in
all its stories: what is learned about it belongs to the group, and not to a single document.
"""

import pathlib
import re
from collections import Counter

import numpy as np

from memsinks_jax.data.embedded import stories
from memsinks_jax.data.tokenizer import Tokenizer
from memsinks_jax.studies.figures import corpora

# seed of the stories: all models read the same ones, in another order and from other initial
# weights
WORLD = 0
LEVELS = (0.05, 0.1, 0.2)  # share of a copy's words that are replaced
BASES = 5  # stories per level, and as many that are repeated unchanged
COPIES = 128  # of each story, as many as repetitions of the unchanged ones
DIALECTS = ("north", "south", "east", "west", "coast", "hills")
OF_A_DIALECT = 300  # stories per dialect
HELD_OUT = 100  # stories of every kind that no model reads
ORDINARY = 1600  # further stories read once
EXCHANGED = 60  # words that a dialect replaces

ONCE, UNREAD = 1000, 200  # stories that the run also draws roles for: read once, held out
STORIES = BASES + ONCE + UNREAD

Texts = dict[str, list[str]]


def texts() -> tuple[list[str], Texts, dict[float, list[str]]]:
    """Stories, each index in one place -> (plain, {dialect: stories}, {level: base stories})."""
    drawn = (stories.story(WORLD, index).text for index in range(100_000))

    def take(count: int) -> list[str]:
        return [next(drawn) for _ in range(count)]

    plain = take(STORIES + ORDINARY + HELD_OUT)
    common = _common_words(plain)
    dialects = {
        name: [in_dialect(text, common, number) for text in take(OF_A_DIALECT + HELD_OUT)]
        for number, name in enumerate(DIALECTS)
    }
    return plain, dialects, {level: take(BASES) for level in LEVELS}


def _common_words(plain: list[str]) -> list[str]:
    counts = Counter(word for text in plain for word in re.findall(r"\b[a-z]{3,}\b", text))
    return [word for word, _ in counts.most_common(EXCHANGED)]


def in_dialect(text: str, common: list[str], number: int) -> str:
    """Replaces each of the common words by another of them. `number` selects the permutation."""
    others = np.random.default_rng([WORLD, number]).permutation(common)
    exchanged = dict(zip(common, others.tolist(), strict=True))
    return re.sub(r"\b[a-z]{3,}\b", lambda match: exchanged.get(match[0], match[0]), text)


def edited(text: str, level: float, words: list[str], random: np.random.Generator) -> str:
    """Replaces round(level * words) words, at least one, by random ones of `words`."""
    pieces = re.split(r"(\s+)", text)  # words at even indices
    count = max(round(level * (len(pieces) + 1) / 2), 1)
    for place in random.choice((len(pieces) + 1) // 2, count, replace=False):
        pieces[2 * place] = words[random.integers(len(words))]
    return "".join(pieces)


def copies(
    text: str, level: float, words: list[str], number: int, count: int = COPIES
) -> list[str]:
    """Edited copies of one story, all different. Other numbers give other copies."""
    random = np.random.default_rng([WORLD, round(100 * level), number])
    return [edited(text, level, words, random) for _ in range(count)]


def write(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes and prepares both halves of the corpus -> folders (stories that roles are drawn for,
    all others).

    Keeps existing files. Every story that is in no dialect is its own group.
    """
    plain, dialects, bases = texts()
    words = [word for text in plain for word in text.split()]
    mixed = [(f"ordinary {n}", text) for n, text in enumerate(plain[STORIES : STORIES + ORDINARY])]
    mixed += [(name, text) for name, of in dialects.items() for text in of[:OF_A_DIALECT]]
    for level, of_level in bases.items():
        for number, base in enumerate(of_level):
            of_base = copies(base, level, words, number)
            mixed += [(f"copy {level} {number} {n}", copy) for n, copy in enumerate(of_base)]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / Tokenizer.file_name).exists():
        corpora.write_tokenizer(folder, plain[:-HELD_OUT] + [text for _, text in mixed])
    drawn = [(f"story {n}", text) for n, text in enumerate(plain[:STORIES])]
    corpora.write(folder, {"stories": drawn, "mixed": mixed}, "loose")
    return folder / "stories", folder / "mixed"
