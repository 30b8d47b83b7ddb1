"""Writes real text in pieces of 180 words, for docs/contexts.md: python
tests/benchmarks/real_text.py CORPORA OUT

CORPORA has the unpacked folders movie_reviews, brown, abc, webtext and state_union of nltk_data
(packages/corpora). OUT gets measured.jsonl, the beginnings of reviews and all of the Brown corpus,
and chosen.jsonl, the other three, on which settings are chosen.
"""

import json
import pathlib
import re
import sys

WORDS, FEWEST, SHORTEST = 180, 60, 200  # words of a piece, of a last one at least; characters


def pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [" ".join(words[at : at + WORDS]) for at in range(0, len(words) - FEWEST, WORDS)]


def plain(path: pathlib.Path) -> str:
    return re.sub(r"\s+", " ", path.read_text(errors="ignore"))


def without_tags(path: pathlib.Path) -> str:
    """Brown has a tag behind each word: the/at."""
    text = " ".join(token.rsplit("/", 1)[0] for token in path.read_text().split())
    return re.sub(r" ([.,;:?!)])", r"\1", text).replace("`` ", '"').replace(" ''", '"')


def main() -> None:
    corpora, out = map(pathlib.Path, sys.argv[1:])
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
    for name, found in (("measured", reviews + brown), ("chosen", others)):
        texts = dict.fromkeys(text for of_file in found for text in of_file if len(text) > SHORTEST)
        (out / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )
        print(f"{name}.jsonl: {len(texts):,} pieces")


if __name__ == "__main__":
    main()
