"""Reads documents from the user's files into memory; every document records its source."""

import dataclasses
import pathlib

from memsinks_jax.config import InputError
from memsinks_jax.data.files import END, Segment, matching, open_source


@dataclasses.dataclass(frozen=True)
class Document:
    """One text and its origin: `source` is 'FILE:LINE', 'FILE, row ROW' or 'stories:seed=S,index=I'.

    `log_probability` (nats) is exact under the grammar for embedded stories, None for the user's text.
    """

    text: str
    source: str
    log_probability: float | None = None


def in_words(number: int, noun: str) -> str:
    """'1 document', '4,000 documents'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def read_documents(pattern: str) -> list[Document]:
    """Documents of all files that match a glob, in the order of the sorted file names.

    .txt: documents between lines that read `<|endoftext|>`; without such a line the file is one document. All others
    (`files.KINDS`): field `text` of each record. White space at both ends and a byte order mark are removed.

    Raises:
      InputError: nothing matches, unknown kind of file, unreadable or empty file, a record without text.
    """
    if pathlib.Path(pattern).is_dir():
        raise InputError(f"{pattern} is a directory; give a glob of files, such as '{pattern.rstrip('/')}/*.txt'")
    return [document for path in matching(pattern) for document in _of_file(path)]


def _of_file(path: str) -> list[Document]:
    from memsinks_jax.data.reading import Fields, read_segment  # loads pyarrow, which takes half a second

    documents, fields = [], Fields("text", group="", longest=END)  # all is read into memory, so documents need no limit
    for record in read_segment(open_source(path), Segment(0, 0, END), fields):
        if record.problem:
            raise InputError(f"{record.place}: {record.problem}")
        documents.append(Document(record.text, record.place))
    if not documents:
        raise InputError(f"{path}: the file holds no document; remove it or fill it")
    return documents
