"""Reads documents from the user's files; every document records its source."""

import dataclasses
import glob
import json
import pathlib

from memsinks_jax.config import InputError

SEPARATOR = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class Document:
    """One text and its place: `source` is 'FILE:LINE' or 'stories:seed=S,index=I'.

    `log_probability` (nats) is the exact one under the grammar for embedded stories, None for the user's text.
    """

    text: str
    source: str
    log_probability: float | None = None


def read_documents(pattern: str) -> list[Document]:
    """Documents of all .txt and .jsonl files that match a glob, in the order of the sorted file names.

    .txt: documents between lines that read `<|endoftext|>`; without such a line the file is one document.
    .jsonl: field `text` of each line. Text is stripped of white space at both ends. A byte order mark is no text.

    Raises:
      InputError: nothing matches, unknown kind of file, unreadable or empty file, bad JSON, empty document.
    """
    paths = sorted(path for path in glob.glob(pattern, recursive=True) if pathlib.Path(path).is_file())
    if not paths:
        if pathlib.Path(pattern).is_dir():
            raise InputError(f"{pattern} is a directory; give a glob of files, such as '{pattern.rstrip('/')}/*.txt'")
        kind = "matches no file" if glob.has_magic(pattern) else "does not exist"
        raise InputError(f"{pattern} {kind}; give the path or a quoted glob of .txt or .jsonl files")
    documents = []
    for path in paths:
        documents += _read_file(path)
    return documents


def _read_file(path: str) -> list[Document]:
    readers = {".txt": _read_txt, ".jsonl": _read_jsonl}
    suffix = pathlib.Path(path).suffix
    if suffix not in readers:
        raise InputError(f"{path}: files of kind '{suffix}' cannot be read; use .txt or .jsonl")
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert the file to UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"{path}: the file is empty; remove it or fill it")
    return readers[suffix](path, text)


def _read_txt(path: str, text: str) -> list[Document]:
    pieces = [(1, [])]  # (number of the piece's first line, its lines)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() == SEPARATOR:
            pieces.append((number + 1, []))
        else:
            pieces[-1][1].append(line)
    documents = [Document("\n".join(lines).strip(), f"{path}:{number}") for number, lines in pieces]
    if not documents[-1].text:
        documents.pop()  # a separator after the last document opens no new one
    for document in documents:
        _refuse_empty(document)
    return documents


def _read_jsonl(path: str, text: str) -> list[Document]:
    documents = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno}); fix or remove it") from None
        except RecursionError:
            raise InputError(f"{where}: not JSON (nested too deep); fix or remove it") from None
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise InputError(f'{where}: no string field "text"; write one object a line, {{"text": "..."}}')
        try:
            record["text"].encode()
        except UnicodeEncodeError as error:  # JSON may spell half of a character
            raise InputError(f"{where}: no text: half a character at {error.start}; fix or remove it") from None
        documents.append(Document(record["text"].strip(), where))
        _refuse_empty(documents[-1])
    return documents


def _refuse_empty(document: Document) -> None:
    if not document.text:
        raise InputError(f"{document.source}: the document is empty; remove it")
