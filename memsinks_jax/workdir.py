"""What a workdir holds and how it is opened: config.json, tokenizer.model, documents.jsonl, metrics.jsonl, checkpoints/."""

import os
import pathlib

from memsinks_jax.config import Config, InputError, first_difference, from_json, to_json
from memsinks_jax.data.corpus import Corpus, load_corpus
from memsinks_jax.data.mixture import table
from memsinks_jax.data.tokenizer import Tokenizer


def refuse_other_config(workdir: pathlib.Path, config: Config) -> None:
    """Raises InputError when the workdir belongs to a run with another config, or is no run's and not empty."""
    if (workdir / "config.json").exists():
        difference = first_difference(read_config(workdir), config)
        if difference:
            name, there, here = difference
            raise InputError(
                f"{workdir} holds a run with another config: {name} is {there!r} there and {here!r} here; "
                "take another --workdir, or the config of that run"
            )
    elif workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise InputError(f"{workdir} exists and is not a run's workdir; take another --workdir")


def create(workdir: pathlib.Path, config: Config, corpus: Corpus) -> None:
    """Writes what a run starts from. config.json comes last: a workdir without it was never finished and is made anew."""
    scratch = workdir.with_name(workdir.name + ".new")
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "documents.jsonl").write_text(_table(corpus))
    (scratch / "tokenizer.model").write_bytes(corpus.tokenizer.model)
    (scratch / "config.json").write_text(to_json(config))
    if workdir.exists():
        workdir.rmdir()  # an empty folder of the user's
    os.replace(scratch, workdir)


def read_config(workdir: pathlib.Path) -> Config:
    return from_json(_require(workdir / "config.json").read_text(), str(workdir / "config.json"))


def read_tokenizer(workdir: pathlib.Path) -> Tokenizer:
    path = _require(workdir / "tokenizer.model")
    return Tokenizer(path.read_bytes(), str(path))


def read_corpus(workdir: pathlib.Path) -> Corpus:
    """The run's own documents, read or generated again, with the run's tokenizer and split.

    Raises:
      InputError: the files are no longer those that the run was started on.
    """
    corpus = load_corpus(read_config(workdir), read_tokenizer(workdir))
    if _table(corpus) != _require(workdir / "documents.jsonl").read_text():
        raise InputError(
            f"the documents are not those that {workdir} was started on (see its documents.jsonl); "
            "restore the files or take another --workdir"
        )
    return corpus


def _table(corpus: Corpus) -> str:
    sources = [document.source for document in corpus.documents]
    return table(corpus.mixture, corpus.identities, [len(tokens) for tokens in corpus.tokens], sources)


def _require(path: pathlib.Path) -> pathlib.Path:
    if not path.is_file():
        raise InputError(f"{path} is missing; --workdir must be the folder of a training run")
    return path
