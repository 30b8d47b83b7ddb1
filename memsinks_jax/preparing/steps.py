"""Steps of a datatrove pipeline for a piece of the input: read its records, tokenize and write
them.
"""

import collections.abc
import contextlib
import errno
import fcntl
import functools
import json
import os
import pathlib
import resource
import secrets
import signal
import time
import traceback

import loguru
import multiprocess
import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from memsinks_jax.config import InputError
from memsinks_jax.data import ids, prepared
from memsinks_jax.data.tokenizer import open_tokenizer
from memsinks_jax.preparing.answers import Maker
from memsinks_jax.preparing.inputs import Plan, check_source, fields_of, records

# datatrove logs pages to stderr, and failures with their trace. The command reports what matters.
loguru.logger.disable("datatrove")

_SECONDS_BETWEEN_NOTES = 0.5
_READ = 1024  # records at a time
_NO_GROUP = np.zeros(2, np.uint32)
# Errors of the file system. array_record reports them only in the text of a RuntimeError.
_REFUSALS = {
    os.strerror(code): code
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
}


class Task(PipelineStep):
    """Combines the steps of a stage so that any failure leaves a note. Executors on clusters would
    swallow it.
    """

    type, name = "memsinks_jax", "task"

    def __init__(self, steps: list[PipelineStep], work: pathlib.Path, stage: str):
        super().__init__()
        self.steps, self.work, self.stage = steps, str(work), stage

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        parent = _parent()
        if parent is not None:
            # Ctrl-C reaches all processes; the parent ends the others
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Stage 2 opens a file of every shard.
        # some systems report a limit that they do not allow
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
            )
        running = running_file(pathlib.Path(self.work), self.stage, rank)
        running.write_text(str(os.getpid()))
        with _lock_held(pathlib.Path(self.work) / "workers.lock"):
            try:
                for step in self.steps:
                    data = step(data, rank, world_size)
                for _ in data or ():
                    pass
                _end_if_alone(parent)
            except Exception as error:
                note = {
                    "kind": "input"
                    if isinstance(error, InputError)
                    else "os"
                    if isinstance(error, OSError)
                    else "other",
                    "message": " ".join(str(error).split()) or type(error).__name__,
                    "errno": getattr(error, "errno", None),
                    "trace": traceback.format_exc(),
                }
                with contextlib.suppress(
                    OSError
                ):  # a full disk takes no note; if possible, the error itself gets through
                    failure_file(pathlib.Path(self.work), self.stage, rank).write_text(
                        json.dumps(note)
                    )
                raise
            finally:
                running.unlink(missing_ok=True)


def running_file(work: pathlib.Path, stage: str, rank: int | str) -> pathlib.Path:
    """The file that holds the id of a task's process while it runs."""
    return work / f"running-{stage}-{rank if isinstance(rank, str) else f'{rank:05d}'}"


def _parent() -> int | None:
    """The parent process of this worker, or None if this is the command itself."""
    return os.getppid() if multiprocess.parent_process() is not None else None


def _end_if_alone(parent: int | None) -> None:
    """Ends a worker whose command was killed: nobody waits for it."""
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def failure_file(work: pathlib.Path, stage: str, rank: int) -> pathlib.Path:
    return work / f"failed-{stage}-{rank:05d}.json"


@contextlib.contextmanager
def _lock_held(path: pathlib.Path) -> collections.abc.Iterator[None]:
    """Holds a shared lock while a task runs. After a kill, the next command waits until the old
    workers have ended.
    """
    with open(path, "a+") as file:
        with contextlib.suppress(OSError):  # no locks on this file system: the command has said so
            fcntl.lockf(file, fcntl.LOCK_SH)
        yield


class ReadPiece(PipelineStep):
    """Reads piece `rank` of the plan record by record. A record is the metadata of a datatrove
    document.

    datatrove's own readers skip damaged lines, null texts and truncated files without a warning.
    """

    type, name = "memsinks_jax", "read"

    def __init__(self, plan: pathlib.Path):
        super().__init__()
        self.plan = str(plan)

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        plan = Plan.from_json(pathlib.Path(self.plan).read_text())
        consumed, fields = 0, fields_of(plan.settings)
        for segment in plan.pieces[rank]:
            source = plan.sources[segment.source]
            check_source(source)
            record = None
            for record in records(source, segment, fields):
                metadata = {
                    "source": segment.source,
                    "path": source.path,
                    "record": record,
                    "consumed": consumed + record.consumed,
                }
                yield Document(record.text, id="", metadata=metadata)
            check_source(source)
            consumed += record.consumed if record is not None else 0


class WriteShard(PipelineStep):
    """Tokenizes documents and writes them as shard `rank`. Passes on what it wrote, with
    metadata["answers"]: the tokens of each answer, without end of text; those of the whole document
    if it has no prompt.

    The shard, its index and its list of skipped records get their names when they are complete.
    """

    type, name = "memsinks_jax", "write"

    def __init__(self, out: pathlib.Path, tokenizer: str, settings: dict):
        super().__init__()
        self.out, self.tokenizer, self.settings = str(out), tokenizer, settings

    def run(self, data, rank: int = 0, world_size: int = 1):
        out = pathlib.Path(self.out)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parallelism comes from the workers
        path = out / self.tokenizer
        tokenizer = _opened(path, path.stat().st_mtime_ns)
        kind = prepared.token_type(tokenizer.vocabulary_size)
        progress = Progress(out / "work", rank)
        make, has_answers = (
            Maker(self.settings, out, tokenizer),
            prepared.has_answers(self.settings),
        )
        lengths, identities, groups, opens, names, skipped, answered = [], [], [], [], {}, [], []
        with shard_writer(out / "shards" / f"{rank:05d}.array_record", lengths) as writer:
            for document in data:
                record = document.metadata["record"]
                if not record.problem:
                    try:
                        tokens, answers, first = make(record)
                    except InputError as error:
                        record.problem = str(error)
                if not record.problem and not len(tokens):
                    record.problem = "the document is empty after tokenization; remove it"
                    record.where = f"{document.metadata['path']}:{record.start}-{record.stop}"
                if record.problem:
                    if self.settings["on_error"] == "stop":
                        raise InputError(
                            f"{record.place}: {record.problem}, or give --on_error=skip"
                        )
                    skipped.append(json.dumps({"place": record.place, "reason": record.problem}))
                    continue
                identity, group = ids.content_id(tokens), _NO_GROUP
                if record.group is not None:
                    if record.group not in names:
                        names[record.group] = prepared.group_id(record.group)
                    group = names[record.group]
                writer.write(
                    prepared.pack_record(
                        tokens.astype(kind),
                        identity,
                        group,
                        document.metadata["source"],
                        record.start,
                        record.stop,
                    )
                )
                lengths.append(len(tokens))
                identities.append(identity)
                groups.append(group)
                opens.append(first)
                progress.note(document.metadata["consumed"], len(lengths))
                document.metadata["answers"] = [tokens[start:stop] for start, stop in answers]
                if has_answers:
                    answered.append(np.insert(answers, 0, len(answered), axis=1))
                yield document
        index = np.zeros(len(lengths), SHARD_INDEX)
        index["length"], index["opens"] = lengths, opens
        index["identity"], index["group"] = (
            np.reshape(lanes, (-1, 2)) for lanes in (identities, groups)
        )
        np.save(out / "work" / f"{rank:05d}.npy", index)
        if has_answers:
            spans = np.concatenate([np.zeros((0, 3), np.int64), *answered])
            np.save(answers_file(out / "work", rank), spans.astype("<u4"))
        # After a kill, all of these are written again with the same content.
        (out / "work" / f"{rank:05d}.groups.json").write_text(json.dumps(list(names)))
        (out / "work" / f"{rank:05d}.skipped.jsonl").write_text(
            "".join(line + "\n" for line in skipped)
        )
        progress.done(len(lengths))


def answers_file(work: pathlib.Path, rank: int) -> pathlib.Path:
    """uint32 (answers, 3): (number of the document in the shard, start, stop) of every answer, in
    order.
    """
    return work / f"{rank:05d}.answers.npy"


SHARD_INDEX = np.dtype(
    [("length", "<u4"), ("identity", "<u4", 2), ("group", "<u4", 2), ("opens", "<u4")]
)


def shard_tokens(
    shard: pathlib.Path, records: int, kind: np.dtype
) -> collections.abc.Iterator[np.ndarray]:
    """The tokens of every record of a shard."""
    reader = ArrayRecordReader(str(shard))
    for start in range(0, records, _READ):
        for record in reader.read(start, min(start + _READ, records)):
            yield prepared.tokens_of(record, kind)
    reader.close()


@contextlib.contextmanager
def shard_writer(
    path: pathlib.Path, written: collections.abc.Sized
) -> collections.abc.Iterator[ArrayRecordWriter]:
    """Writes to a temporary file, then renames it if as many records as `written` has entries can
    be read back.
    """
    # The name is unique: the worker of a killed command may still be writing the same shard.
    scratch = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.new")
    try:
        try:
            # Groups of one allow random access to single documents, and Grain's own reader asks for
            # it.
            writer = ArrayRecordWriter(str(scratch), "group_size:1,uncompressed")
            yield writer
            writer.close()
            reader = ArrayRecordReader(str(scratch))
            count = reader.num_records()
            reader.close()
        except RuntimeError as error:
            for text, code in _REFUSALS.items():
                if text in str(error):
                    raise OSError(code, text, str(path)) from None
            raise
        if count != len(written):
            raise OSError(
                errno.EIO, f"{count} of {len(written)} records can be read back", str(path)
            )
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@functools.lru_cache(maxsize=1)
def _opened(path: pathlib.Path, modified: int):
    """Opens the tokenizer once per worker instead of once per shard. `modified` detects a new file
    of the same name.
    """
    return open_tokenizer(path)


class Progress:
    """Notes for the waiting command: bytes of input and documents that a piece has processed."""

    def __init__(self, work: pathlib.Path, rank: int):
        self._path, self._last = work / f"{rank:05d}.progress", 0.0
        self._parent = _parent()

    def note(self, consumed: int, documents: int) -> None:
        if time.monotonic() - self._last < _SECONDS_BETWEEN_NOTES:
            return
        self._last = time.monotonic()
        self._path.write_text(f"{consumed} {documents}")
        _end_if_alone(self._parent)

    def done(self, documents: int) -> None:
        self._path.write_text(f"-1 {documents}")
