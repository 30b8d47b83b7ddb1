"""Writes real text for docs/contexts.md: python tests/benchmarks/real_text.py CORPORA OUT

CORPORA has the unpacked folders movie_reviews, brown, abc, webtext and state_union of nltk_data
(packages/corpora). OUT gets, as lines of JSON:

  measured.jsonl                  pieces of 180 words: the beginnings of reviews, all of Brown
  chosen.jsonl                    those of the other three, on which settings are chosen
  edited_5.jsonl, edited_20.jsonl 1,500 pieces, and of ten others 32 copies each, in which 5% or 20%
                                  of the words are exchanged for others of the text
  unedited.jsonl                  the 1,500 alone
  originals.jsonl, unread.jsonl   the ten as they were, and 200 others
  licences.jsonl                  copyright files of this Debian system: what most repeat is in
                                  parts of them
  others.jsonl                    those that have none of the passages in often.jsonl
  often.jsonl, never.jsonl        passages of 40 words that 16 of them have or more; that none has
  new.jsonl                       files that are in neither
"""

import collections
import json
import pathlib
import random
import re
import sys

WORDS, FEWEST, SHORTEST = 180, 60, 200  # words of a piece, of a last one at least; characters
ONCE, ORIGINALS, COPIES, UNREAD = 1500, 10, 32, 200
PASSAGE, OFTEN, MOST, NEW = 40, 16, 60, 60  # words; files; passages; files that are not read


def pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [" ".join(words[at : at + WORDS]) for at in range(0, len(words) - FEWEST, WORDS)]


def plain(path: pathlib.Path) -> str:
    return re.sub(r"\s+", " ", path.read_text(errors="ignore"))


def without_tags(path: pathlib.Path) -> str:
    """Brown has a tag behind each word: the/at."""
    text = " ".join(token.rsplit("/", 1)[0] for token in path.read_text().split())
    return re.sub(r" ([.,;:?!)])", r"\1", text).replace("`` ", '"').replace(" ''", '"')


def edited(text: str, share: float, words: list[str], draw: random.Random) -> str:
    found = text.split(" ")
    for place in draw.sample(range(len(found)), round(share * len(found))):
        found[place] = draw.choice(words)
    return " ".join(found)


def with_edited_copies(texts: list[str]) -> dict[str, list[str]]:
    draw = random.Random(0)
    once, originals, unread = (
        draw.sample(texts, ONCE + ORIGINALS + UNREAD)[of]
        for of in (slice(ONCE), slice(ONCE, ONCE + ORIGINALS), slice(ONCE + ORIGINALS, None))
    )
    words = " ".join(once).split(" ")
    found = {"unedited": once, "originals": originals, "unread": unread}
    for percent in (5, 20):
        copies = [
            edited(text, percent / 100, words, draw) for text in originals for _ in range(COPIES)
        ]
        found[f"edited_{percent}"] = once + copies
    return found


def passages(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[at : at + PASSAGE]) for at in range(len(words) - PASSAGE + 1)}


def licences(root: pathlib.Path) -> dict[str, list[str]]:
    texts = {path.read_text(errors="ignore") for path in root.glob("*/copyright")}
    texts = sorted(re.sub(r"[ \t]+", " ", text)[:30_000] for text in texts)
    random.Random(0).shuffle(texts)
    new, read = texts[:NEW], texts[NEW:]
    in_files = collections.Counter(passage for text in read for passage in passages(text))
    often, parts = [], set()
    for passage, count in sorted(in_files.items(), key=lambda of: (-of[1], of[0])):
        words = passage.split()
        own = set(zip(words, words[1:], words[2:], strict=False))
        if count >= OFTEN and len(often) < MOST and len(own & parts) <= 3:  # overlaps no other
            often, parts = [*often, passage], parts | own
    unread = [
        " ".join(words[at : at + PASSAGE])
        for words in map(str.split, new)
        for at in range(0, len(words) - PASSAGE, PASSAGE)
    ]
    known = {
        words[at : at + 8] for words in map(tuple, map(str.split, read)) for at in range(len(words))
    }
    never = [
        passage
        for passage, words in ((each, tuple(each.split())) for each in dict.fromkeys(unread))
        if not any(words[at : at + 8] in known for at in range(PASSAGE - 7))
    ]
    others = [text for text in read if not passages(text) & set(often)]
    return {"licences": read, "others": others, "often": often, "never": never[:MOST], "new": new}


def main() -> None:
    corpora, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    reviews = [pieces(plain(path))[:1] for path in sorted(corpora.glob("movie_reviews/*/*.txt"))]
    brown = [
        pieces(re.sub(r"\s+", " ", without_tags(path)))
        for path in sorted(corpora.glob("brown/c???"))
    ]
    others = [
        pieces(plain(path))
        for name in ("abc", "webtext", "state_union")
        for path in sorted((corpora / name).rglob("*.txt"))
    ]
    found = {}
    for name, of_files in (("measured", reviews + brown), ("chosen", others)):
        texts = [text for of_file in of_files for text in of_file if len(text) > SHORTEST]
        found[name] = list(dict.fromkeys(texts))
    found |= with_edited_copies(found["measured"]) | licences(pathlib.Path("/usr/share/doc"))
    for name, texts in found.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (out / f"{name}.jsonl").write_text(lines)
        print(f"{name}.jsonl: {len(texts):,} texts, {len(' '.join(texts).split()):,} words")


if __name__ == "__main__":
    main()
