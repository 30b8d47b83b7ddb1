"""Writes much real text: python tests/benchmarks/documentation.py OUT

Downloads the documentation packages below of this Debian system (apt-get, 85 MB), and cuts the text
of their pages into pieces of 180 words. OUT gets documentation.jsonl, lines of JSON with the field
`text`, pages in random order, without tables of numbers; no piece is in it twice.
"""

import gzip
import html.parser
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from real_text import SHORTEST, pieces

PACKAGES = ("linux-doc", "perl-doc", "python3-doc", "postgresql-doc", "rust-doc", "octave-doc")
TEXT = (".txt", ".rst", ".pod", ".html", ".htm", ".md")


class Page(html.parser.HTMLParser):
    """The text of a page without its scripts, styles and navigation."""

    HIDDEN = ("script", "style", "nav", "head")

    def __init__(self, content: str):
        super().__init__()
        self.parts, self.hidden = [], 0
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.hidden += tag in self.HIDDEN

    def handle_endtag(self, tag):
        self.hidden -= tag in self.HIDDEN and self.hidden > 0

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)


def text_of(path: pathlib.Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    content = content.decode(errors="ignore")
    if ".htm" in path.name:
        content = " ".join(Page(content).parts)
    return re.sub(r"\s+", " ", content)


def is_prose(text: str) -> bool:
    """Whether it has enough letters, unlike tables of numbers."""
    return len(text) > SHORTEST and sum(map(str.isalpha, text)) > len(text) / 2


def packages() -> list[str]:
    """PACKAGES, and those of a version that they stand for."""
    listed = subprocess.run(["apt-cache", "depends", *PACKAGES], capture_output=True, text=True)
    found = re.findall(r"^  Depends: (\S*-doc\S*)$", listed.stdout, re.MULTILINE)
    return [*PACKAGES, *found]


def main() -> None:
    out, found = pathlib.Path(sys.argv[1]), []
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "-qq", "download", *packages()], cwd=folder, check=True)
        for package in pathlib.Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, f"{folder}/there"], check=True)
        paths = sorted(pathlib.Path(folder, "there").rglob("*"))
        for path in paths:
            name = path.name.removesuffix(".gz")
            if path.is_file() and not path.is_symlink() and name.endswith(TEXT):
                found.append(list(filter(is_prose, pieces(text_of(path)))))
    random.Random(0).shuffle(found)
    texts = list(dict.fromkeys(text for page in found for text in page))
    with open(out / "documentation.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    words = sum(text.count(" ") + 1 for text in texts)
    print(f"{len(found):,} pages, {len(texts):,} texts, {words:,} words")


if __name__ == "__main__":
    main()
