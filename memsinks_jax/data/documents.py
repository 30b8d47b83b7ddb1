"""Reads documents from the user's files into memory; every document records its source."""

import dataclasses
import logging
import pathlib

from memsinks_jax.config import InputError
from memsinks_jax.data.files import END, Segment, matching, open_source, shortest_paths

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Document:
    """One text and its origin: `source` is 'FILE:LINE', 'FILE, row ROW' or
    'stories:seed=S,index=I'.

    `log_probability` (nats) is exact under the grammar for embedded stories, None for the user's
    text.
    """

    text: str
    source: str
    log_probability: float | None = None


def in_words(number: int, noun: str) -> str:
    """'1 document', '4,000 documents'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(name: str, most: int = 60) -> str:
    """A name as a part of a line: a character that is no sign, such as a line break, an escape of
    the terminal or a mark of direction, as `repr` writes it; cut to `most` characters.
    """
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def some(names: list[str]) -> str:
    """The first four of some names: 'a, b, c, d and 3 more'."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")


def read_documents(pattern: str) -> list[Document]:
    """Documents of all files that match a glob, in the order of the sorted file names.

    .txt: documents between lines that read `<|endoftext|>`; without such a line the file is one
    document. All others (`files.KINDS`): field `text` of each record. White space at both ends and
    a byte order mark are removed, and line ends are made "\\n". Empty documents are skipped, and a
    file that several paths lead to is read once, with warnings.

    Raises:
      InputError: nothing matches, unknown kind of file, unreadable file, a record without text, or
      all documents are empty.
    """
    if pathlib.Path(pattern).is_dir():
        raise InputError(
            f"{pattern} is a directory; give a glob of files, such as '{pattern.rstrip('/')}/*.txt'"
        )
    # loads pyarrow, which takes half a second
    from memsinks_jax.data.reading import EMPTY, Fields, read_segment

    found = matching(pattern)
    shortest = shortest_paths(found)
    if further := [path for path in found if shortest[path] != path]:
        logger.warning(
            "%s further paths to the same files are left out: %s",
            f"{len(further):,}",
            some(further),
        )
    # all is in memory, so there is no limit
    documents, empty, fields = [], [], Fields("text", group="", longest=END)
    for path in found:
        if shortest[path] != path:
            continue
        before = len(documents) + len(empty)
        for record in read_segment(open_source(path), Segment(0, 0, END), fields):
            if record.problem in EMPTY:
                empty.append(record.place)
            elif record.problem:
                raise InputError(f"{record.place}: {record.problem}")
            else:
                documents.append(Document(record.text, record.place))
        if len(documents) + len(empty) == before:
            empty.append(path)
    skip_empty(empty, documents, pattern)
    return documents


def skip_empty(empty: list[str], others: list[Document], where: str) -> None:
    """Warns of documents that are left out because they are empty. Raises InputError if there are
    no others.
    """
    if empty and not others:
        raise InputError(
            f"{where}: all documents are empty: {some(empty)}; fill them, or give others"
        )
    if empty:
        logger.warning("%s skipped: %s", in_words(len(empty), "empty document"), some(empty))
