"""What a workdir holds and how it is opened.

config.json, tokenizer.model or tokenizer.json, documents.jsonl, metrics.jsonl, checkpoints/.
"""

import datetime
import fcntl
import glob
import hashlib
import io
import os
import pathlib
import shutil
import socket
from collections.abc import Iterable
from typing import IO, NamedTuple

import numpy as np

from memsinks_jax.config import FREE_ON_RESUME, Config, InputError, first_difference, from_json, to_json, with_rows
from memsinks_jax.data.corpus import Corpus, load_corpus
from memsinks_jax.data.ids import content_id
from memsinks_jax.data.mixture import general_sources, table
from memsinks_jax.data.prepared import Tokens, is_prepared
from memsinks_jax.data.tokenizer import AnyTokenizer, JsonTokenizer, Tokenizer, open_tokenizer

# What of a field must stay when a run goes on, where the rest may change: its data may move, but not be others.
FREE_IN_PART = {
    "data.files": lambda config: bool(config.data.files),
    "data.tokenizer": lambda config: bool(config.data.tokenizer),
    "general.files": lambda config: [amount for _, amount in general_sources(config.general)],
    "model.initial": lambda config: bool(config.model.initial),
    "monitor.every": lambda config: config.monitor.every > 0,
}


class Data(NamedTuple):
    """What a run was started on, read again."""

    corpus: Corpus
    fingerprints: dict[str, str]
    moved: bool  # documents.jsonl names places where the documents no longer are


def adopt(workdir: pathlib.Path, config: Config) -> Config:
    """The config of the run that the workdir holds or will hold: what a run's documents have decided stays so.

    Raises:
      InputError: the workdir belongs to a run with another config, or is no run's and not empty.
    """
    if (workdir / "config.json").exists():
        before, tokenizer = read_config(workdir), config.data.tokenizer
        if config.data.rows == "auto":
            config = with_rows(config, before.data.rows)
        free = [name for name, fixed in FREE_IN_PART.items() if fixed(before) == fixed(config)]
        difference = first_difference(before, config, besides=(*FREE_ON_RESUME, *free))
        if difference:
            name, there, here = difference
            raise InputError(
                f"{workdir} holds a run with another config: {name} is {there!r} there and {here!r} here; "
                "take another --workdir, or the config of that run"
            )
        moved = tokenizer != before.data.tokenizer
        if moved and open_tokenizer(pathlib.Path(tokenizer)).model != read_tokenizer(workdir).model:
            raise InputError(f"{tokenizer} is another tokenizer than that of {workdir}; give that one")
    elif workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise InputError(f"{workdir} exists and is not a run's workdir; take another --workdir")
    return config


def create(workdir: pathlib.Path, config: Config, corpus: Corpus) -> IO:
    """Writes what a run starts from -> the run's lock. A folder gets the workdir's name only when it is complete."""
    scratch = workdir.with_name(workdir.name + ".new")
    scratch.mkdir(parents=True, exist_ok=True)
    held = lock(scratch)  # it stays held when the folder is renamed
    try:
        (scratch / "documents.jsonl").write_text(_table(corpus))
        (scratch / corpus.tokenizer.file_name).write_bytes(corpus.tokenizer.model)
        (scratch / "config.json").write_text(to_json(config))
        if workdir.exists():
            workdir.rmdir()  # an empty folder of the user's
        os.replace(scratch, workdir)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise OSError(error.errno, error.strerror, str(workdir)) from None  # a full disk does not say which file
    return held


def rewrite(workdir: pathlib.Path, config: Config, data: Data) -> None:
    """Writes down what has changed since the run was last taken up: places of its documents, fields of its config."""
    if data.moved:
        _replace(workdir / "documents.jsonl", _table(data.corpus))
    if first_difference(read_config(workdir), config):
        _replace(workdir / "config.json", to_json(config))


def _replace(path: pathlib.Path, text: str) -> None:
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(text)
    os.replace(scratch, path)


def lock(folder: pathlib.Path) -> IO:
    """Holds a folder for this process until the returned file is closed or the process ends, however it ends.

    Raises:
      InputError: another run holds it.
    """
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise InputError(
            f"another run is training in {folder} ({holder}); wait for it, stop it, or take another --workdir"
        ) from None
    except OSError:
        return file  # a file system without locks
    file.truncate(0)
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
    file.flush()
    return file


def read_config(workdir: pathlib.Path) -> Config:
    return from_json(_require(workdir / "config.json").read_text(), str(workdir / "config.json"))


def read_tokenizer(workdir: pathlib.Path) -> AnyTokenizer:
    return open_tokenizer(_tokenizer_path(workdir))


def read_corpus(workdir: pathlib.Path, trained_on: dict | None = None) -> Corpus:
    """The run's own documents, read or generated again, with the run's tokenizer and split. See `read_data`."""
    return read_data(workdir, read_config(workdir), trained_on).corpus


def read_data(workdir: pathlib.Path, config: Config, trained_on: dict | None = None) -> Data:
    """The documents that the run was started on, from where `config` says that they are, with the run's tokenizer.

    Args:
      trained_on: the `fingerprints` that a checkpoint remembers, where there is one.
    Raises:
      InputError: files are missing; tokenizer or documents are no longer those that the run was started on.
    """
    _refuse_missing(workdir, config)
    if trained_on and _hash(_tokenizer_path(workdir)) != trained_on["tokenizer"]:
        raise InputError(
            f"{_tokenizer_path(workdir)} is not the tokenizer that the checkpoints of {workdir} were trained with; "
            "put that one back or take another --workdir"
        )
    corpus = load_corpus(config, read_tokenizer(workdir))
    with _require(workdir / "documents.jsonl").open("rb") as lines:
        there, whole_there = _hashes(lines)
    # Checkpoints of earlier versions remember the whole file, which then has to stay as it is.
    if trained_on and trained_on["documents"] not in (there, whole_there):
        raise InputError(
            f"{workdir / 'documents.jsonl'} is not the one that the checkpoints of {workdir} were trained with; "
            "put that one back or take another --workdir"
        )
    here, whole_here = _hashes(io.BytesIO(_table(corpus).encode()))
    found = _fingerprints(corpus, here)
    if here != there or (trained_on and trained_on.get("tokens", found["tokens"]) != found["tokens"]):
        raise InputError(
            f"the documents are not those that {workdir} was started on (see its documents.jsonl); "
            "restore the files or take another --workdir"
        )
    replaceable = not trained_on or trained_on["documents"] == there
    return Data(corpus, found, moved=whole_here != whole_there and replaceable)


def fingerprints(corpus: Corpus) -> dict[str, str]:
    """Hashes of what a run learns from, wherever it lies.

    "tokenizer"; "documents", their ids, lengths and roles; "tokens", which ids that are not by content do not tell apart.
    """
    return _fingerprints(corpus, _hashes(io.BytesIO(_table(corpus).encode()))[0])


def _fingerprints(corpus: Corpus, documents: str) -> dict[str, str]:
    tokens = corpus.tokens
    contents = tokens.identities() if isinstance(tokens, Tokens) else np.stack([content_id(t) for t in tokens])
    return {
        "tokenizer": hashlib.sha256(corpus.tokenizer.model).hexdigest(),
        "documents": documents,
        "tokens": hashlib.sha256(contents).hexdigest(),
    }


def _hashes(lines: Iterable[bytes]) -> tuple[str, str]:
    """Of the lines of a documents.jsonl: without the places, which stand last in each, and whole."""
    without, whole = hashlib.sha256(), hashlib.sha256()
    for line in lines:
        without.update(line.partition(b', "source": ')[0])
        whole.update(line)
    return without.hexdigest(), whole.hexdigest()


def _refuse_missing(workdir: pathlib.Path, config: Config) -> None:
    named = {"data.files": [config.data.files], "general.files": [name for name, _ in general_sources(config.general)]}
    for field, patterns in named.items():
        for pattern in filter(None, patterns):
            if not is_prepared(pattern) and next(glob.iglob(pattern, recursive=True), None) is None:
                raise InputError(
                    f"{pattern} is not there; put it back, or say where the documents of {workdir} are now: run the command "
                    f"that trained it with --config.{field}=NEW (a finished run is not trained again)"
                )


def _tokenizer_path(workdir: pathlib.Path) -> pathlib.Path:
    ours, other = workdir / Tokenizer.file_name, workdir / JsonTokenizer.file_name
    if ours.is_file() and other.is_file():
        raise InputError(
            f"{workdir} holds {ours.name} and {other.name}; remove the one that the run was not started on"
        )
    return other if other.is_file() else _require(ours)


def _hash(path: pathlib.Path) -> str:
    return hashlib.sha256(_require(path).read_bytes()).hexdigest()


def _table(corpus: Corpus) -> str:
    return table(corpus.mixture, corpus.identities, corpus.lengths, corpus.places)


def _require(path: pathlib.Path) -> pathlib.Path:
    if not path.is_file():
        raise InputError(f"{path} is missing; --workdir must be the folder of a training run")
    return path
