"""Words that this project once used in a sense of its own stay out of the code's names and of the pages.

Each has a word of the field in its place. Names on disk are not ours to change: columns, keys of JSON files, measures,
variants and ids of claims may still have such a word.
"""

import ast
import re

import pytest
from conftest import ROOT

PACKAGE = ROOT / "memsinks_jax"
# Words of names in the package, and what the field has instead.
WORDS = {
    "taught": "update mask", "teaching": "gradient scale", "touched": "active rows", "company": "cluster members",
    "strays": "records of several sources", "firsts": "first copies", "judge": "evaluate", "judged": "evaluated",
    "look": "check", "looks": "checks", "looked": "checked", "saw": "observe", "refuse": "check", "beside": "compared",
    "afterwards": "post hoc", "handed": "exported", "told": "text", "tell": "report", "said": "label", "says": "attribute",
    "letters": "repeated stories", "met": "encountered", "meeting": "encounters", "kept": "cached", "agree": "broadcast",
}  # fmt: skip
# Whole names.
NAMES = {"About": "LayerInputs", "in_turn": "compose", "half_written": "atomic_folder"}
# In the sense that anyone would read.
PLAIN = {
    ("data/table.py", "firsts"),  # the name of a column
    ("data/embedded/facts.py", "letters"),  # of the alphabet
    ("studies/published/comparison.py", "agree"),  # two numbers
}
# Phrases of pages, and of texts that the studies write on theirs.
PHRASES = (
    "of the way", "looks? afterwards", "hand(s|ed)? over", "told apart", "(is|are) told", "(beside|kept beside) the run",
    "goes 0.950", "cost 0.82 of", "nobody knows them", "they close 0.945", "what the published sinks leave",
    "tells? the repeated documents from others", "They go with the last source", "exact copies to the dropped model",
    "what many say alike",
)  # fmt: skip
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("*.ipynb"))]


def defined(tree):
    """The names that a module defines: of functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def words_of(name):
    """`_SplitNames` -> {"split", "names"}."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@pytest.mark.parametrize("word", WORDS)
def test_names_are_made_of_words_of_the_field(word):
    found = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path, names in _NAMES.items()
        for name in names
        if word in words_of(name) and (str(path.relative_to(PACKAGE)), word) not in PLAIN
    ]
    assert not found, f"the field has another word, such as {WORDS[word]!r}: {found}"


def test_names_that_are_gone_stay_gone():
    found = {f"{path.relative_to(PACKAGE)}: {name}" for path, names in _NAMES.items() for name in names & NAMES.keys()}
    assert not found


@pytest.mark.parametrize("path", [*PAGES, *sorted((PACKAGE / "studies").rglob("*.py"))], ids=lambda path: path.name)
def test_pages_are_read_without_a_key(path):
    text = " ".join(path.read_text().split())
    found = [text[max(at.start() - 60, 0) : at.end() + 30] for phrase in PHRASES for at in re.finditer(phrase, text)]
    assert not found


_NAMES = {path: {path.stem, *defined(ast.parse(path.read_text()))} for path in sorted(PACKAGE.rglob("*.py"))}
