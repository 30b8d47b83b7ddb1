"""The text of figure forgetting: stories, edited copies of some, and stories in dialects, all with exact bookkeeping.

One corpus answers for ids of three kinds. Ten dozen copies of a story, every one edited anew, are no repeats for ids by
content and one document for ids by cluster. A dialect exchanges common words for others, the same in all its stories: what
is learned of it is of the group, and of no document alone.
"""

import pathlib
import re
from collections import Counter

import numpy as np

from memsinks_jax.data.embedded import stories
from memsinks_jax.data.tokenizer import Tokenizer
from memsinks_jax.figures import corpora

WORLD = 0  # seed of the stories: all models read the same, in another order and from other initial weights
LEVELS = (0.05, 0.1, 0.2)  # share of a copy's words that are others
BASES = 5  # stories a level, and as many that are repeated as they are
COPIES = 128  # of each, as many as the repetitions of those
DIALECTS = ("north", "south", "east", "west", "coast", "hills")
OF_A_DIALECT = 300  # stories
HELD_OUT = 100  # stories of every kind that no model reads
ORDINARY = 1600  # further stories seen once
EXCHANGED = 60  # words of a dialect

ONCE, UNREAD = 1000, 200  # stories that the run draws roles for besides: seen once, held out
STORIES = BASES + ONCE + UNREAD

Texts = dict[str, list[str]]


def texts() -> tuple[list[str], Texts, dict[float, list[str]]]:
    """All stories, each index of the stream in one place -> (plain ones, {dialect: stories}, {level: base stories})."""
    told = (stories.story(WORLD, index).text for index in range(100_000))

    def take(count: int) -> list[str]:
        return [next(told) for _ in range(count)]

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
    """The text with each of the common words as another of them; `number` says which."""
    others = np.random.default_rng([WORLD, number]).permutation(common)
    exchanged = dict(zip(common, others.tolist(), strict=True))
    return re.sub(r"\b[a-z]{3,}\b", lambda match: exchanged.get(match[0], match[0]), text)


def edited(text: str, level: float, words: list[str], random: np.random.Generator) -> str:
    """The text with round(level * words) of its words drawn anew from `words`, at least one; places are drawn too."""
    pieces = re.split(r"(\s+)", text)  # words at even places
    count = max(round(level * (len(pieces) + 1) / 2), 1)
    for place in random.choice((len(pieces) + 1) // 2, count, replace=False):
        pieces[2 * place] = words[random.integers(len(words))]
    return "".join(pieces)


def copies(text: str, level: float, words: list[str], number: int, count: int = COPIES) -> list[str]:
    """Edited copies of one story, all different; other numbers give others."""
    random = np.random.default_rng([WORLD, round(100 * level), number])
    return [edited(text, level, words, random) for _ in range(count)]


def write(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes and prepares the two halves of the corpus -> folders (of the stories that roles are drawn for, of the rest).

    What is there already stays. Every story that is in no dialect is a group of its own.
    """
    plain, dialects, bases = texts()
    words = [word for text in plain for word in text.split()]
    mixed = [(f"ordinary {n}", text) for n, text in enumerate(plain[STORIES : STORIES + ORDINARY])]
    mixed += [(name, text) for name, of in dialects.items() for text in of[:OF_A_DIALECT]]
    for level, of_level in bases.items():
        for number, base in enumerate(of_level):
            mixed += [(f"copy {level} {number} {n}", c) for n, c in enumerate(copies(base, level, words, number))]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / Tokenizer.file_name).exists():
        corpora.write_tokenizer(folder, plain[:-HELD_OUT] + [text for _, text in mixed])
    told = [(f"story {n}", text) for n, text in enumerate(plain[:STORIES])]
    corpora.write(folder, {"stories": told, "mixed": mixed}, "loose")
    return folder / "stories", folder / "mixed"
