"""How well `prepare --passages` finds what mails quote: python tests/benchmarks/quoted_mail.py TEXT OUT [--seed=N]

Makes threads of mail from the paragraphs of a text file. A reply quotes up to three mails before it, wrapped anew and one
`> ` deeper each, and half of the mails end in one of eight footers. Prints what `prepare` finds of text that several mails
contain, and of text that one contains. OUT is a folder for `reproduce --figure=passages --passages=OUT`.
"""

import argparse
import collections
import json
import pathlib
import sys
import textwrap
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from memsinks_jax.data.prepared import Prepared
from memsinks_jax.preparing.prepare import prepare

LENGTH, WIDTH, QUOTED, FOOTERS = 50, 72, 3, 8
WORDS, FOOTER_WORDS = (60, 140), 75  # of a paragraph
NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon", "Kim", "Leo", "Mia", "Ned", "Ola", "Pia",
)  # fmt: skip
MAILS = (1, 1, 2, 3, 4, 6)  # of a thread, drawn


class Mail(NamedTuple):
    text: str
    parts: list[str]  # the paragraphs in it


def wrapped(text: str, depth: int = 0) -> str:
    lines = textwrap.wrap(text, WIDTH - 2 * depth, break_on_hyphens=False, break_long_words=False)
    return "\n".join("> " * depth + line for line in lines)


def thread(bodies: list[str], footer: str | None, random: np.random.Generator) -> list[Mail]:
    writers, mails = random.choice(NAMES, len(bodies)), []
    for number, (body, writer) in enumerate(zip(bodies, writers, strict=True)):
        text, quoted = f"{wrapped(body)}\n\n-- \n{writer}", range(number - 1, max(number - 1 - QUOTED, -1), -1)
        if footer:
            text += f"\n\n{wrapped(footer)}"
        for depth, earlier in enumerate(quoted, 1):
            text += f"\n\n{'> ' * (depth - 1)}On day {random.integers(400)}, {writers[earlier]} wrote:\n"
            text += wrapped(bodies[earlier], depth)
        mails.append(Mail(text, [body, *(bodies[earlier] for earlier in quoted), *filter(None, [footer])]))
    return mails


def threads(paragraphs: list[str], random: np.random.Generator) -> list[list[Mail]]:
    footers = [" ".join(text.split()[:FOOTER_WORDS]) for text in paragraphs[:FOOTERS]]
    left, found = paragraphs[FOOTERS:], []
    while left:
        count, company = random.choice(MAILS), random.integers(2 * FOOTERS)
        found.append(thread(left[:count], footers[company] if company < FOOTERS else None, random))
        left = left[count:]
    return found


def letters(text: str) -> str:
    """Those of ASCII: a token may be a part of another."""
    return "".join(letter for letter in text.lower() if letter.isascii() and letter.isalnum())


def found_in(corpus: Prepared, mails: list[Mail]) -> None:
    tokenizer, places = corpus.tokenizer(), collections.Counter(part for mail in mails for part in mail.parts)
    tokens, covered, ids = (collections.Counter() for _ in range(3))
    for record, mail in enumerate(mails):
        read, passage = corpus.read(record), np.zeros(corpus.lengths[record], np.uint64)
        for start, length, number in corpus.passages_of(record).tolist():
            passage[start : start + length] = number
        written = [letters(tokenizer.decode([token])) for token in read.tolist()]
        whole, of = "".join(written), np.repeat(np.arange(len(read)), list(map(len, written)))
        for part in mail.parts:
            start = whole.index(letters(part))
            there = passage[np.unique(of[start : start + len(letters(part))])]
            kind = "several" if places[part] > 1 else "one"
            tokens[kind] += len(there)
            covered[kind] += int((there > 0).sum())
            if kind == "several":
                ids.update((part, number) for number in there[there > 0].tolist())
    for kind in ("several", "one"):
        print(f"text that {kind} contain(s): {covered[kind] / tokens[kind]:.3%} of {tokens[kind]:,} tokens in passages")
    for name, place in (("text in its most frequent passage", 0), ("passage of its most frequent text", 1)):
        most = collections.Counter()
        for pair, count in ids.items():
            most[pair[place]] = max(most[pair[place]], count)
        print(f"tokens of a {name}: {most.total() / ids.total():.3%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    random = np.random.default_rng(asked.seed)
    lines = map(str.split, asked.text.read_text().splitlines())
    paragraphs = [" ".join(words[: WORDS[1]]) for words in lines if len(words) >= WORDS[0]]
    drawn = threads([paragraphs[place] for place in random.permutation(len(paragraphs))], random)
    held_out, mails = (sum(of, []) for of in (drawn[::12], [one for n, one in enumerate(drawn) if n % 12]))
    places = collections.Counter(part for mail in mails for part in mail.parts)
    texts = {
        "train": [mail.text for mail in mails],
        "held_out": [mail.text for mail in held_out],
        "often": [wrapped(part) for part, count in places.items() if count >= 8],
        "never": [wrapped(mail.parts[0]) for mail in held_out],
    }
    asked.out.mkdir(parents=True)
    for name, of in texts.items():
        (asked.out / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in of))
    prepare([str(asked.out / "train.jsonl")], None, asked.out / "corpus", near_duplicates="none", passages=LENGTH)
    print(f"{len(mails):,} mails in {len(drawn) - len(drawn[::12])} threads; in passages:")
    found_in(Prepared(asked.out / "corpus"), mails)


if __name__ == "__main__":
    main()
