"""The files of a workdir, and how to open them.

config.json, data.json (hashes of the training data), tokenizer.model, or tokenizer.json with
special_tokens.json, contexts.npz (keys of the contexts that have sinks), documents.jsonl,
groups.json and words.npy (names and words of groups that have sinks by number), metrics.jsonl,
checkpoints/, and source/, small files of the Hugging Face folder that it started from.
"""

import glob
import hashlib
import json
import os
import pathlib
from collections.abc import Callable

from memsinks_jax.atomic import atomic_file
from memsinks_jax.config import (
    FREE_ON_RESUME,
    Config,
    InputError,
    first_difference,
    from_json,
    to_json,
    with_fields,
)
from memsinks_jax.data import contexts
from memsinks_jax.data.corpus import Corpus, load_corpus
from memsinks_jax.data.mixture import LISTED, general_sources, listing
from memsinks_jax.data.nearest import Nearest
from memsinks_jax.data.prepared import is_prepared
from memsinks_jax.data.tokenizer import AnyTokenizer, JsonTokenizer, Tokenizer, open_tokenizer
from memsinks_jax.runs.interruption import atomic_folder

_GROUPS = "groups.json"

# Fields of which a part must stay on resume while the rest may change: the data may move, but must
# be the same.
FREE_IN_PART = {
    "data.files": lambda config: bool(config.data.files),
    "data.tokenizer": lambda config: bool(config.data.tokenizer),
    "general.files": lambda config: [amount for _, amount in general_sources(config.general)],
    "model.initial": lambda config: bool(config.model.initial),
}


def adopt(workdir: pathlib.Path, config: Config) -> Config:
    """The config of the workdir's present or future run. Settings that a run's documents have
    decided stay.

    Raises:
      InputError: the workdir belongs to a run with another config, or to no run and is not empty.
    """
    if (workdir / "config.json").exists():
        before, tokenizer = read_config(workdir), config.data.tokenizer
        if config.data.rows == "auto":
            config = with_fields(config, {"data.rows": before.data.rows})
        most = contexts.table_rows(config.contexts.rows)  # the run has as many as it found
        if not most or most >= before.contexts.rows:
            config = with_fields(config, {"contexts.rows": before.contexts.rows})
        free = [name for name, fixed in FREE_IN_PART.items() if fixed(before) == fixed(config)]
        difference = first_difference(before, config, besides=(*FREE_ON_RESUME, *free))
        if difference:
            name, there, here = difference
            advice = "use another --workdir, or the config of that run"
            if name in ("training.epochs", "training.steps") and here > there:
                advice = (
                    "its learning rate falls to the end that was planned, so it gets no longer; "
                    "to go on from its weights, "
                    f"train with another --workdir and --config.model.initial={workdir}"
                )
            raise InputError(
                f"{workdir} holds a run with another config: {name} is {there!r} there and "
                f"{here!r} here; {advice}"
            )
        moved = tokenizer != before.data.tokenizer
        if moved and open_tokenizer(pathlib.Path(tokenizer)).model != read_tokenizer(workdir).model:
            raise InputError(
                f"{tokenizer} is another tokenizer than that of {workdir}; give that one"
            )
    elif workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise InputError(f"{workdir} exists and is not a run's workdir; use another --workdir")
    return config


def create(
    workdir: pathlib.Path,
    config: Config,
    corpus: Corpus,
    known: Nearest | None = None,
    initial: dict | None = None,
    finish: Callable[[pathlib.Path], None] = lambda folder: None,
) -> None:
    """Writes the initial files of a run. A folder gets the workdir's name only once it is complete.

    Args:
      known: what finds the groups of the model that the run starts from.
      initial: what `read_initial` returns of that model.
      finish: writes what else the run takes from that model.
    """
    try:
        with atomic_folder(workdir) as scratch:
            _list_documents(scratch, corpus)
            (scratch / "data.json").write_text(_about(corpus, initial))
            if corpus.contexts:
                contexts.write(scratch, corpus.contexts)
            if corpus.groups:
                write_groups(scratch, corpus.groups, corpus.nearest(known))
            finish(scratch)
            for name, content in corpus.tokenizer.files.items():
                (scratch / name).write_bytes(content)
            (scratch / "config.json").write_text(to_json(config))
            if workdir.exists():
                workdir.rmdir()  # an empty folder of the user's
            os.replace(scratch, workdir)
    except OSError as error:
        # the error of a full disk names no file
        raise OSError(error.errno, error.strerror, str(workdir)) from None


def rewrite(workdir: pathlib.Path, config: Config, corpus: Corpus) -> None:
    """Writes what has changed since the last resume: places of the documents, fields of the
    config.
    """
    _list_documents(workdir, corpus)
    if first_difference(read_config(workdir), config):
        with atomic_file(workdir / "config.json") as scratch:
            scratch.write_text(to_json(config))


def _list_documents(folder: pathlib.Path, corpus: Corpus) -> None:
    """Writes documents.jsonl: all documents if they are few, else those that a run measures."""
    path, plan = folder / "documents.jsonl", corpus.mixture
    everything = _lists_all(corpus)  # few enough to read their origins at every start
    roles = ("repeated", "held_out", "unique") if everything else ("repeated", "held_out")
    with atomic_file(path) as scratch, scratch.open("w") as file:
        for role in roles:
            documents = plan.documents(role)[:LISTED]
            encounters = corpus.encounters(documents)
            file.writelines(listing(corpus.table, documents, encounters, role, everything))


def _lists_all(corpus: Corpus) -> bool:
    return (
        sum(corpus.table.documents(source) for source in range(len(corpus.table.sources))) <= LISTED
    )


def lists_all(workdir: pathlib.Path) -> bool:
    """Whether documents.jsonl has all documents of the run."""
    return _read_about(workdir)["lists_all"]


def read_initial(workdir: pathlib.Path) -> dict:
    """{"name", "touched"} of `Stored`, of the weights that the run started from."""
    return _read_about(workdir)["initial"]


def _about(corpus: Corpus, initial: dict | None) -> str:
    about = {
        "fingerprints": corpus.fingerprints,
        "records": len(corpus.table),
        "lists_all": _lists_all(corpus),
        "initial": initial,
    }
    return json.dumps(about, indent=2) + "\n"


def _read_about(workdir: pathlib.Path) -> dict:
    _require(workdir / "config.json")
    try:
        about = json.loads((workdir / "data.json").read_text())
        if not (
            isinstance(about, dict) and about.keys() >= {"fingerprints", "lists_all", "initial"}
        ):
            raise ValueError("it is not what a run writes there")
        return about
    except (OSError, ValueError) as error:
        raise InputError(
            f"{workdir / 'data.json'} cannot be read ({error}); put a copy in its place"
        ) from None


def read_groups(place: pathlib.Path) -> list[str]:
    """The names of groups by number that `write_groups` wrote; [] if it did not."""
    file = place / _GROUPS
    try:
        names = json.loads(file.read_text()) if file.is_file() else []
        if not isinstance(names, list):
            raise ValueError("it is no list of names")
        return names
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}); put a copy in its place") from None


def write_groups(folder: pathlib.Path, names: list[str], found: Nearest) -> None:
    """Writes the names of groups by number, and their words."""
    (folder / _GROUPS).write_text(json.dumps(names, indent=0) + "\n")
    found.written(folder)


def read_config(workdir: pathlib.Path) -> Config:
    place = _require(workdir / "config.json")
    return from_json(place.read_text(errors="replace"), str(place))


def read_tokenizer(workdir: pathlib.Path) -> AnyTokenizer:
    return open_tokenizer(_tokenizer_path(workdir))


def newest_weights(workdir: pathlib.Path) -> str:
    """A hash that names the newest checkpoint's parameters, the ids whose sinks are on, and the
    data.

    From the checksums in its seal: no array is read. Two trainings have different names, even if
    their parameters are equal, since Orbax names files at random.

    Raises:
      InputError: there is no checkpoint, or it is damaged.
    """
    checkpoints = workdir / "checkpoints"
    steps = [path for path in checkpoints.glob("*") if path.name.isdigit()]
    if not steps:
        raise InputError(f"{workdir} holds no complete checkpoint; remove it to train it anew")
    newest = max(steps, key=lambda path: int(path.name))
    try:
        progress = json.loads((newest / "progress" / "data.json").read_text())
        files = json.loads((newest / "seal.json").read_text())["files"]
        parameters = {name: files[name] for name in files if name.startswith("params/")}
        about = [parameters, files.get("opened.npy"), progress.get("data")]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"({error}); restore it from a copy"
        raise InputError(f"checkpoint {newest} is damaged {reason}") from None
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def read_corpus(
    workdir: pathlib.Path, config: Config | None = None, trained_on: dict | None = None
) -> Corpus:
    """The run's documents, read or generated again, with the run's tokenizer and split.

    Args:
      config: where they are now; by default the run's own config.
      trained_on: the `Corpus.fingerprints` in a checkpoint, if there is one.
    Raises:
      InputError: files are missing; the tokenizer or the documents have changed since the start of
      the run.
    """
    config = config or read_config(workdir)
    _check_files(workdir, config)
    wanted = trained_on or _read_about(workdir)["fingerprints"]
    if _hash(_tokenizer_path(workdir)) != wanted["tokenizer"]:
        raise InputError(
            f"{_tokenizer_path(workdir)} is not the tokenizer that {workdir} was trained with; put "
            "that one back or take another --workdir"
        )
    known = (
        contexts.read(workdir, config.contexts.length) if config.sinks.traits.by_context else None
    )
    corpus = load_corpus(config, read_tokenizer(workdir), read_groups(workdir), known)
    if corpus.fingerprints != wanted:
        raise InputError(
            f"the documents are not those that {workdir} was started on, or are read in another "
            "order; restore the files, or use another --workdir"
        )
    return corpus


def _check_files(workdir: pathlib.Path, config: Config) -> None:
    named = {
        "data.files": [config.data.files],
        "general.files": [name for name, _ in general_sources(config.general)],
    }
    for field, patterns in named.items():
        for pattern in filter(None, patterns):
            if not is_prepared(pattern) and next(glob.iglob(pattern, recursive=True), None) is None:
                raise InputError(
                    f"{pattern} is not there; put it back, or give the new place of the documents "
                    f"of {workdir}: run the command that trained it with --config.{field}=NEW (a "
                    "finished run is not trained again)"
                )


def _tokenizer_path(workdir: pathlib.Path) -> pathlib.Path:
    ours, other = workdir / Tokenizer.file_name, workdir / JsonTokenizer.file_name
    if ours.is_file() and other.is_file():
        raise InputError(
            f"{workdir} holds {ours.name} and {other.name}; remove the one that the run was not "
            "started on"
        )
    return other if other.is_file() else _require(ours)


def _hash(path: pathlib.Path) -> str:
    return hashlib.sha256(_require(path).read_bytes()).hexdigest()


def _require(path: pathlib.Path) -> pathlib.Path:
    if not path.is_file():
        raise InputError(f"{path} is missing; give the folder of a training run")
    return path
