"""Corpora for figures: writes records of text, prepares them with one tokenizer for all."""

import json
import pathlib

from memsinks_jax.data.tokenizer import Tokenizer, train_tokenizer
from memsinks_jax.preparing.prepare import prepare

VOCABULARY = 2048
Records = list[tuple[str, str]]  # (group, text)


def write(folder: pathlib.Path, kinds: dict[str, Records], near_duplicates: str) -> None:
    """Writes and prepares folder/KIND for every kind. Keeps existing files, including a tokenizer.

    Args:
      near_duplicates: flag of the prepare command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = folder / Tokenizer.file_name
    if not tokenizer.exists():
        write_tokenizer(folder, [text for records in kinds.values() for _, text in records])
    for kind, records in kinds.items():
        path = folder / f"{kind}.jsonl"
        _write_records(path, records)
        fields = {"group_field": "group", "near_duplicates": near_duplicates}
        prepare([str(path)], str(tokenizer), folder / kind, **fields)


def flags(folder: pathlib.Path, once: int, unread: int) -> list[str]:
    """Flags of runs that draw roles only for documents of a prepared folder: read once per epoch,
    or held out.

    These runs are measured after training, so they evaluate and save rarely.
    """
    values = {
        "data.files": folder,
        "data.rows": "one_document",
        "data.unique_documents": once,
        "data.repeated_documents": 0,
        "data.held_out_documents": unread,
        "training.evaluate_every": 1000,
        "training.checkpoint_every": 1000,
    }
    return [f"--config.{name}={value}" for name, value in values.items()]


def write_tokenizer(folder: pathlib.Path, texts: list[str]) -> None:
    (folder / Tokenizer.file_name).write_bytes(train_tokenizer(texts, VOCABULARY).model)


def _write_records(path: pathlib.Path, records: Records) -> None:
    lines = (json.dumps({"text": text, "group": group}) + "\n" for group, text in records)
    write_text(path, "".join(lines))


def write_text(path: pathlib.Path, content: str) -> None:
    """Keeps a file that already has the content, so that `prepare` knows it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != content:
        path.write_text(content)
