"""How often the source of a text is found: python tests/benchmarks/nearest_source.py --tofu=DIR
--articles=FILE ...

Chooses the share from which on a text has a source (`data/nearest.AT_LEAST`) on articles of
WikiText. 30 are the sources. Sentences are asked for, of paragraphs that were kept back from them
and of other articles. The share is the one with the largest difference between the sentences that
find their article and the others that find one. It is measured on what played no part in that:
reworded questions about TOFU's invented authors, questions that are about none of the sources, and
speeches of a play. Each draw chooses other sources; nothing is trained. The share of a second source
(`data/nearest.SECOND`) is chosen in the same way, by two sentences in one text beside one alone. Exit
code 1 if AT_LEAST or SECOND is not what the articles choose.
"""

import argparse
import json
import pathlib
import random
import re
import sys
import unittest.mock

import numpy as np

from memsinks_jax.data import nearest
from memsinks_jax.data.tokenizer import open_tokenizer
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.reporting.report import plain_table

DRAWS, SOURCES, FEW, OF_AN_AUTHOR = 6, 40, (1, 3, 6), 20
ARTICLES, KEPT_BACK = 30, 3  # sources, and paragraphs of each that are asked for
LEVELS = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
SECONDS = (0.05, 0.1, 0.15, 0.2, 0.25)
PARAGRAPH, SENTENCE, SPEECH = 200, 40, 80  # characters at least
MANY = 12  # speeches of a speaker who is a source
ASKED = 400  # speeches


class Texts:
    """Finds the sources of texts; the words of each text are computed once."""

    def __init__(self, tokenizer):
        self._tokenizer, self._words = tokenizer, {}

    def words(self, text):
        if text not in self._words:
            self._words[text] = nearest.words_of(
                self._tokenizer.encode(text), self._tokenizer.special
            )
        return self._words[text]

    def known(self, sources):
        return nearest.of_groups([np.concatenate(list(map(self.words, of))) for of in sources])

    def found(self, sources, texts):
        """The best source of each text by number, and its share: int and float (texts,)."""
        known = self.known(sources)
        about = known.words, known.groups, known.count, known.known
        shares = np.stack([nearest.shares(self.words(text), *about) for text in texts])
        return shares.argmax(axis=1), shares.max(axis=1)


def articles_of(path):
    """The long paragraphs of each article that has enough of them."""
    found = [[]]
    for line in path.read_text().splitlines():
        if re.fullmatch(r" = [^=].*[^=] = ", line):
            found.append([])
        elif len(line) >= PARAGRAPH:
            found[-1].append(line.strip())
    return [article for article in found if len(article) > 2 * KEPT_BACK]


def sentences(article):
    return [one for paragraph in article for one in paragraph.split(" . ") if len(one) >= SENTENCE]


def choose(texts, path):
    """The one of LEVELS with the largest difference between right and wrong sources."""
    articles, right, wrong = articles_of(path), [], []
    for draw in map(random.Random, range(DRAWS)):
        mixed = [
            draw.sample(article, len(article)) for article in draw.sample(articles, len(articles))
        ]
        asked = [
            (n, one) for n, article in enumerate(mixed) for one in sentences(article[:KEPT_BACK])
        ]
        sources = [article[KEPT_BACK:] for article in mixed[:ARTICLES]]
        best, shares = texts.found(sources, [one for _, one in asked])
        number = np.array([n for n, _ in asked])
        found = [shares >= level for level in LEVELS]
        right.append([float(((best == number) & each)[number < ARTICLES].mean()) for each in found])
        wrong.append([float(each[number >= ARTICLES].mean()) for each in found])
    difference = np.subtract(right, wrong)
    rows = {
        "of a source: find it": right,
        "of no source: find one": wrong,
        "difference": difference,
    }
    rows = [[name, *map(with_interval, np.transpose(of).tolist())] for name, of in rows.items()]
    print(
        plain_table([f"sentences, {ARTICLES} articles, share", *map(str, LEVELS)], rows), end="\n\n"
    )
    return LEVELS[int(difference.mean(axis=0).argmax())]


def pair_of(known, words):
    """The sources that a text is about: none, one or two."""
    first = known(words)[:1]
    return [*first, *(known.second(words, *first)[:1] if first else [])]


def choose_second(texts, path):
    """The one of SECONDS with the largest difference between texts of two sentences in which both
    sources are found, and texts of one in which a second one is.
    """
    articles, right, wrong = articles_of(path), [], []
    for draw in map(random.Random, range(DRAWS)):
        chosen = [draw.sample(of, len(of)) for of in draw.sample(articles, ARTICLES)]
        known = texts.known([article[KEPT_BACK:] for article in chosen])
        asked = [sentences(article[:KEPT_BACK]) for article in chosen]
        both, alone = [], []
        for one, of_one in enumerate(asked):
            for sentence in of_one:
                other = draw.choice([n for n in range(ARTICLES) if n != one and asked[n]])
                for of, text in ((alone, sentence), (both, f"{sentence} . {asked[other][0]}")):
                    of.append((texts.words(text), {one, other}))
        of_level = []
        for level in SECONDS:
            with unittest.mock.patch.object(nearest, "SECOND", level):
                found = [[pair_of(known, words) for words, _ in of] for of in (both, alone)]
            hits = sum(set(of) == two for of, (_, two) in zip(found[0], both, strict=True))
            of_level.append((hits / len(both), sum(len(of) > 1 for of in found[1]) / len(alone)))
        right.append([of for of, _ in of_level])
        wrong.append([of for _, of in of_level])
    difference = np.subtract(right, wrong)
    rows = {"of two: find both": right, "of one: find a second": wrong, "difference": difference}
    rows = [[name, *map(with_interval, np.transpose(of).tolist())] for name, of in rows.items()]
    print(plain_table(["sentences, a second's share", *map(str, SECONDS)], rows), end="\n\n")
    return SECONDS[int(difference.mean(axis=0).argmax())]


def speeches_of(path):
    """{speaker: speeches}"""
    found = {}
    for part in path.read_text().split("\n\n"):
        speaker, _, speech = part.partition(":\n")
        if len(speech) >= SPEECH:
            found.setdefault(speaker, []).append(speech)
    return found


def measure_play(texts, speeches):
    """Prints how often a speech finds a speaker who is not its own, by how many speeches of a
    speaker were read.
    """
    often, rows = [name for name, of in speeches.items() if len(of) >= MANY], {}
    for most in (MANY, 20, 10**6):
        for draw in map(random.Random, range(DRAWS)):
            sources = draw.sample(often, SOURCES)
            others = draw.sample(
                [one for name, of in speeches.items() if name not in sources for one in of], ASKED
            )
            _, shares = texts.found([speeches[name][:most] for name in sources], others)
            rows.setdefault(most, []).append(float((shares >= nearest.AT_LEAST).mean()))
    lines = [[f"at most {most} of each read", with_interval(of)] for most, of in rows.items()]
    print(
        plain_table([f"speeches of no source, {SOURCES} speakers", "find one"], lines), end="\n\n"
    )


def measure(texts, tofu, speeches):
    """Prints how often TOFU's authors are found, and how often one is found who is not meant."""
    rows = {
        path.stem: [json.loads(line) for line in path.read_bytes().splitlines()]
        for path in tofu.glob("*.jsonl")
    }
    count = len(rows["full"]) // OF_AN_AUTHOR

    def of(name, place):
        return rows[name][place * OF_AN_AUTHOR : (place + 1) * OF_AN_AUTHOR]

    reworded = {
        n: of("retain_perturbed", n) for n in range(len(rows["retain_perturbed"]) // OF_AN_AUTHOR)
    }
    last = len(rows["forget10_perturbed"]) // OF_AN_AUTHOR
    reworded |= {count - last + n: of("forget10_perturbed", n) for n in range(last)}
    reworded = {
        author: [row["paraphrased_question"] for row in of] for author, of in reworded.items()
    }
    read = [
        [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in of("full", n)]
        for n in range(count)
    ]
    about_none = {
        "about invented authors who are no source": [row["question"] for row in rows["holdout10"]],
        "about real authors": [row["question"] for row in rows["real_authors_perturbed"]],
        "about the world": [row["question"] for row in rows["world_facts_perturbed"]],
        "speeches": random.Random(0).sample(sum(speeches.values(), []), ASKED),
    }

    def shares_of(sources, asked):
        """Of what is asked: how much finds its author, and by kind of other text how much finds
        one.
        """
        pairs = [(sources.index(n), text) for n in asked for text in reworded[n]]
        best, shares = texts.found([read[n] for n in sources], [text for _, text in pairs])
        hit = (best == [number for number, _ in pairs]) & (shares >= nearest.AT_LEAST)
        wrong = (best != [number for number, _ in pairs]) & (shares >= nearest.AT_LEAST)
        found = {"reworded: the right author": hit.mean(), "reworded: another author": wrong.mean()}
        known, draw = texts.known([read[n] for n in sources]), random.Random(0)
        of_one = [pair_of(known, texts.words(text)) for _, text in pairs]
        found["reworded: a second author"] = np.mean([len(of) > 1 for of in of_one])
        if len(asked) > 1:
            two = [draw.sample(pairs, 2) for _ in pairs]
            two = [(one, other) for one, other in two if one[0] != other[0]]
            of_two = [pair_of(known, texts.words(f"{one[1]} {other[1]}")) for one, other in two]
            right = [{a[0], b[0]} == set(of) for (a, b), of in zip(two, of_two, strict=True)]
            found["two reworded, of two authors: both"] = np.mean(right)
        for kind, others in about_none.items():
            found[kind] = (
                texts.found([read[n] for n in sources], others)[1] >= nearest.AT_LEAST
            ).mean()
        return found

    columns = {}
    for sources in (*FEW, SOURCES):
        for draw in map(random.Random, range(DRAWS)):
            asked = draw.sample(sorted(reworded), min(sources, SOURCES // 2))
            others = [n for n in range(count) if n not in reworded]
            rest = draw.sample(others, sources - len(asked))
            columns.setdefault(sources, []).append(shares_of([*asked, *rest], asked))
    columns[count] = [shares_of(range(count), sorted(reworded))]
    lines = [
        [
            kind,
            *(
                with_interval([each[kind] for each in of if kind in each])
                for of in columns.values()
            ),
        ]
        for kind in columns[count][0]
    ]
    heads = [f"share at least {nearest.AT_LEAST}", *(f"{n} authors" for n in columns)]
    print(plain_table(heads, lines), end="\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, what in (
        ("tofu", "folder of TOFU's files"),
        ("articles", "WikiText: ' = Title = ' opens an article, a paragraph is a line"),
        ("play", "speeches: NAME:, a line break, the speech, an empty line"),
        ("tokenizer", "a model, or its tokenizer"),
    ):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, help=what)
    asked = parser.parse_args()
    texts = Texts(open_tokenizer(asked.tokenizer))
    chosen = choose(texts, asked.articles), choose_second(texts, asked.articles)
    speeches = speeches_of(asked.play)
    measure(texts, asked.tofu, speeches)
    measure_play(texts, speeches)
    present = nearest.AT_LEAST, nearest.SECOND
    print(f"the articles choose {chosen}; AT_LEAST and SECOND are {present}")
    sys.exit(chosen != present)


if __name__ == "__main__":
    main()
