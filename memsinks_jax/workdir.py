"""What a workdir holds and how it is opened.

config.json, tokenizer.model or tokenizer.json, documents.jsonl, metrics.jsonl, checkpoints/.
"""

import datetime
import fcntl
import hashlib
import os
import pathlib
import shutil
import socket
from typing import IO

from memsinks_jax.config import FREE_ON_RESUME, Config, InputError, first_difference, from_json, to_json, with_rows
from memsinks_jax.data.corpus import Corpus, load_corpus
from memsinks_jax.data.mixture import table
from memsinks_jax.data.tokenizer import AnyTokenizer, JsonTokenizer, Tokenizer, open_tokenizer


def adopt(workdir: pathlib.Path, config: Config) -> Config:
    """The config of the run that the workdir holds or will hold: what a run's documents have decided stays so.

    Raises:
      InputError: the workdir belongs to a run with another config, or is no run's and not empty.
    """
    if (workdir / "config.json").exists():
        started = read_config(workdir)
        if config.data.rows == "auto":
            config = with_rows(config, started.data.rows)
        difference = first_difference(started, config, besides=FREE_ON_RESUME)
        if difference:
            name, there, here = difference
            raise InputError(
                f"{workdir} holds a run with another config: {name} is {there!r} there and {here!r} here; "
                "take another --workdir, or the config of that run"
            )
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


def reopen(workdir: pathlib.Path, config: Config) -> IO:
    """Takes a workdir up again -> the run's lock. Fields that may change when a run goes on are written down anew."""
    held = lock(workdir)
    if first_difference(read_config(workdir), config):
        scratch = workdir / "config.json.new"
        scratch.write_text(to_json(config))
        os.replace(scratch, workdir / "config.json")
    return held


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
    """The run's own documents, read or generated again, with the run's tokenizer and split.

    Args:
      trained_on: the `fingerprints` that a checkpoint remembers, where there is one.
    Raises:
      InputError: tokenizer or documents are no longer those that the run was started on.
    """
    if trained_on and _hash(_tokenizer_path(workdir)) != trained_on["tokenizer"]:
        raise InputError(
            f"{_tokenizer_path(workdir)} is not the tokenizer that the checkpoints of {workdir} were trained with; "
            "put that one back or take another --workdir"
        )
    corpus = load_corpus(read_config(workdir), read_tokenizer(workdir))
    documents = _require(workdir / "documents.jsonl").read_bytes()
    if trained_on and hashlib.sha256(documents).hexdigest() != trained_on["documents"]:
        raise InputError(
            f"{workdir / 'documents.jsonl'} is not the one that the checkpoints of {workdir} were trained with; "
            "put that one back or take another --workdir"
        )
    if _table(corpus).encode() != documents:
        raise InputError(
            f"the documents are not those that {workdir} was started on (see its documents.jsonl); "
            "restore the files or take another --workdir"
        )
    return corpus


def fingerprints(corpus: Corpus) -> dict[str, str]:
    """Hashes of what a run learns from: its tokenizer; its documents with their ids, lengths and roles."""
    return {
        "tokenizer": hashlib.sha256(corpus.tokenizer.model).hexdigest(),
        "documents": hashlib.sha256(_table(corpus).encode()).hexdigest(),
    }


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
