"""A corpus that `memsinks_jax.prepare` wrote: tokens and columns on disk, one entry per record.

A record is a document as it was written; exact copies are separate records. The folder holds
  manifest.json           the settings, the tokenizer's hash, every input file, shard and column;
                          written last
  tokenizer.model|json    the tokenizer itself
  columns/NAME.npy        the attribute of `Prepared` with that name; in all at most 48 bytes per
                          record, 56 with prompts
  groups.json             the names of the groups, by number
  shards/00000.array_record, ...    one entry per record: `pack_record`
  skipped.jsonl, report.json, index.html    what was left out and why; the report
No token marks the boundaries of documents: they are those of the records. The manifest has the
SHA-256 of every column, so its own hash covers all of them.
"""

import bisect
import collections
import collections.abc
import contextlib
import errno
import functools
import hashlib
import json
import logging
import pathlib
import resource
import struct
import sys
import threading
import weakref

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data import ids
from memsinks_jax.data.documents import Document
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer, whole

logger = logging.getLogger(__name__)

FORMAT = 2
MANIFEST = "manifest.json"
NO_GROUP = 2**32 - 1
RUN = 2**14  # records per entry of `runs`
LONGEST = 2**17  # tokens with end of text; `histogram` counts longer records together
SEVERAL = 2**32 - 1  # in `prompts`: the answers of this record are in `turns`

# Header of a record, before its tokens: content id and group id (two lanes each, high lane first),
# number of the input file in the manifest, start and end of the place in it: bytes of the
# (decompressed) text, or a record's number.
_HEADER = struct.Struct("<2I2IIQQ")


def pack_record(
    tokens: np.ndarray, identity: np.ndarray, group: np.ndarray, source: int, start: int, stop: int
) -> bytes:
    """`tokens` (n,) in the type that the file stores; ids uint32 (2,)."""
    return _HEADER.pack(*identity.tolist(), *group.tolist(), source, start, stop) + tokens.tobytes()


def tokens_of(record: bytes, kind: np.dtype) -> np.ndarray:
    """The tokens of `pack_record` in the type that the file stores."""
    return np.frombuffer(record, kind, offset=_HEADER.size)


def group_id(name: str) -> np.ndarray:
    """Hash of a group's name -> uint32 (2,): the same in every corpus, and never (0, 0), which
    means no group.

    Raises:
      InputError: half of a character is in it, which no group has.
    """
    whole(name)
    return ids.content_id(np.frombuffer(name.encode(), np.uint8).astype(np.int32))


def numbered_ids(names: collections.abc.Sequence[str]) -> np.ndarray:
    """The ids of groups that have sinks by their numbers, in this order -> uint32 (n, 2)."""
    found = [ids.numbered_id(group_id(name), number) for number, name in enumerate(names)]
    return np.array(found, np.uint32).reshape(-1, 2)


# Of documents without a group, where groups have sinks by their numbers.
NO_NUMBER = ids.numbered_id(group_id(""), -1)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def token_type(vocabulary_size: int) -> np.dtype:
    """The smallest type that holds every token."""
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


def is_prepared(path: str) -> bool:
    return bool(path) and (pathlib.Path(path) / MANIFEST).is_file()


def number_type(records: int) -> np.dtype:
    """The smaller type that holds the number of every record."""
    return np.dtype("<u4" if records < 2**32 else "<u8")


def has_answers(settings: dict) -> bool:
    """Whether documents have prompts, so that only answers count in the loss, by the settings of
    `prepare`.
    """
    return "prompt_field" in settings or "messages_field" in settings


def columns(
    records: int, answers: bool = False
) -> dict[str, tuple[np.dtype, tuple[int | None, ...]]]:
    """Types and shapes of the columns of a number of records, by name; None for a length that the
    manifest does not give.

    Args:
      answers: as `has_answers`.
    """
    number = number_type(records)
    more = {
        "prompts": (np.dtype("<u4"), (records,)),
        "opens": (np.dtype("<u4"), (records,)),
        "turns": (number, (None, 3)),
        "openings": (np.dtype("<i8"), (LONGEST + 1,)),
    }
    return {
        "lengths": (np.dtype("<u4"), (records,)),
        "identities": (np.dtype("<u4"), (records, 2)),
        "groups": (np.dtype("<u4"), (records,)),
        "firsts": (number, (records,)),
        "clusters": (number, (records,)),
        "copies": (np.dtype("<u4"), (records,)),
        "sorted_identities": (np.dtype("<u8"), (None,)),
        "sorted_numbers": (number, (None,)),
        "members": (number, (None, 2)),
        "runs": (np.dtype("<i8"), (-(-records // RUN), 2, 2)),
        "histogram": (np.dtype("<i8"), (2, LONGEST + 1)),
    } | (more if answers else {})


def context_columns() -> dict[str, tuple[np.dtype, tuple[int | None, ...]]]:
    """Further columns of a corpus whose contexts were sought, as in `columns`."""
    return {
        "context_keys": (np.dtype("<u8"), (None,)),
        "context_counts": (np.dtype("<u4"), (None,)),
    }


def column_file(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / "columns" / f"{name}.npy"


def run_sums(lengths: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    """Sums over each RUN consecutive records -> int64 (ceil(n / RUN), 2, 2).

    [all records, first copies only] x [number of records, their tokens with end of text]. `lengths`
    (n,) exclude end of text; `is_first` (n,) bool marks the first of exact copies.
    """
    tokens = lengths.astype(np.int64) + 1
    values = np.stack([np.ones_like(tokens), tokens, is_first, tokens * is_first], axis=1)
    return np.add.reduceat(values, np.arange(0, len(tokens), RUN)).reshape(-1, 2, 2)


def histogram(lengths: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    """Histogram of the records' lengths in tokens, end of text included -> int64 (2, LONGEST + 1):
    all, first copies only.

    The last entry counts all with LONGEST or more. Arguments as in `run_sums`.
    """
    tokens = np.minimum(lengths.astype(np.int64) + 1, LONGEST)
    return np.stack(
        [
            np.bincount(of_records, minlength=LONGEST + 1)
            for of_records in (tokens, tokens[is_first])
        ]
    )


def read_manifest(folder: pathlib.Path) -> dict:
    """Raises InputError for another version's."""
    manifest = json.loads((folder / MANIFEST).read_text())
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{folder}: prepared by another version; run memsinks_jax.prepare into a new folder"
        )
    return manifest


class Prepared:
    """An open folder. Columns are memory-mapped, so opening reads none of them.

    Attributes (n records, of d distinct documents):
      lengths              (n,) uint32, tokens without end of text
      identities           (n, 2) uint32, content ids
      groups               (n,) uint32, numbers in `group_names`; NO_GROUP for none
      firsts               (n,) number of the first exact copy; a first copy has its own number
      clusters             (n,) number of the first record of the near-duplicates; a record without
                           any has its own. Exact copies are in the cluster of their first copy
      copies               (n,) uint32, how often the corpus holds the document
      sorted_identities    (d,) uint64, content ids (`ids.as_numbers`), ascending
      sorted_numbers       (d,) the first record of each of them
      members              (m, 2) (cluster, record) of all records in clusters of more than one,
                           sorted
      runs                 int64, `run_sums` of the records
      histogram            int64, `histogram` of the records
    and, if `has_answers`:
      prompts              (n,) uint32, tokens before the answer, if it is the only one and the rest
                           of the record; else SEVERAL
      opens                (n,) uint32, the token that opens the record
      turns                (t, 3) (record, start, stop) of the answers of all others, sorted; tokens
                           of the record, of which end of text is the last
      openings             (LONGEST + 1,) int64, by number of tokens the records with so many before
                           their first answer; the last entry counts all with LONGEST or more
    and, if `contexts` says how they were sought, for k of them:
      context_keys         (k,) uint64, ascending, see data/contexts.py
      context_counts       (k,) uint32, how often each comes in repeated text
    Numbers of records are uint32, or uint64 from 2^32 records on.
    """

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        try:
            self.manifest = read_manifest(self.folder)
            self.group_names: list[str] = json.loads((self.folder / "groups.json").read_text())
            if not isinstance(self.group_names, list):
                raise ValueError("groups.json is no list of names")
            self.has_answers = has_answers(self.manifest["settings"])
            records = self.manifest["documents"]
            more = context_columns() if self.contexts else {}
            for name, (kind, shape) in (columns(records, self.has_answers) | more).items():
                setattr(self, name, _mapped(column_file(self.folder, name), kind, shape))
        except (
            FileNotFoundError,
            ValueError,
            RecursionError,
            LookupError,
            AttributeError,
            TypeError,
        ) as error:
            raise InputError(
                f"{self.folder}: not a whole prepared corpus ({' '.join(str(error).split())}); "
                "run memsinks_jax.prepare"
            ) from None
        self._offsets = np.cumsum(
            [0] + [shard["documents"] for shard in self.manifest["shards"]]
        ).tolist()
        self._type = token_type(self.manifest["vocabulary_size"])

    def __len__(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the content: of the manifest, with the hashes of all columns, without the
        input's location.
        """
        about = {name: value for name, value in self.manifest.items() if name != "sources"}
        return sha256(json.dumps(about).encode())

    def tokenizer(self) -> AnyTokenizer:
        """The tokenizer of the tokens. Raises InputError if it has changed."""
        path = self.folder / self.manifest["tokenizer"]
        tokenizer = open_tokenizer(path)
        self.check_tokenizer(tokenizer, str(path))
        return tokenizer

    def check_tokenizer(self, tokenizer: AnyTokenizer, where: str) -> None:
        if sha256(tokenizer.model) != self.manifest["settings"]["tokenizer_sha256"]:
            raise InputError(
                f"{where} is another tokenizer than that of {self.folder}; leave "
                "config.data.tokenizer empty to use the "
                "prepared one, or prepare the corpus with this one"
            )

    def source(self, record: int) -> str:
        """The origin of a record: 'FILE:START-STOP', in bytes of text or numbers of records."""
        *_, source, start, stop = _HEADER.unpack_from(self._record(record))
        return f"{self.manifest['sources'][source]['path']}:{start}-{stop}"

    def place(self, record: int) -> str:
        return f"{self.folder}:{record}"

    def origin(self, record: int, read: bool) -> dict[str, str]:
        """For display: {"origin": as `source`, if its shard may be read; "group": its name, if it
        has one}.
        """
        number = int(self.groups[record])
        named = {"group": self.group_names[number]} if number < len(self.group_names) else {}
        return ({"origin": self.source(record)} if read else {}) | named

    def document(self, record: int, tokenizer: AnyTokenizer) -> Document:
        return Document(tokenizer.decode(self.read(record)), self.source(record))

    def read(self, record: int) -> np.ndarray:
        """Tokens -> int32 (lengths[record],)."""
        return tokens_of(self._record(record), self._type).astype(np.int32)

    def answers(self, record: int) -> np.ndarray | None:
        """Start and stop of every answer of a record, int64 (answers, 2). Only these of its tokens,
        and end of text, the token behind them, count in the loss; None: all do.
        """
        if not self.has_answers:
            return None
        start = int(self.prompts[record])
        if start != SEVERAL:
            return np.array([[start, int(self.lengths[record]) + 1]])
        # else numpy would convert the whole column
        ends = np.array([record, record + 1], self.turns.dtype)
        return self.turns[slice(*np.searchsorted(self.turns[:, 0], ends)), 1:].astype(np.int64)

    def around(self, record: int) -> tuple[int, int] | None:
        """The tokens that open and close a record with prompts; None: those of the tokenizer do."""
        closes = self.manifest["settings"].get("closes", self.manifest["end_of_text"])
        return (int(self.opens[record]), closes) if self.has_answers else None

    @property
    def contexts(self) -> dict | None:
        """The fields of config.ContextsConfig by which contexts with sinks were sought; None if
        they were not.
        """
        return self.manifest["settings"].get("contexts")

    def _record(self, record: int) -> bytes:
        shard = bisect.bisect_right(self._offsets, record) - 1
        place = record - self._offsets[shard]
        return self._readers[shard].read(place, place + 1)[0]

    @functools.cached_property
    def _readers(self) -> "_Readers":
        return _Readers(
            self.folder / "shards", [shard["documents"] for shard in self.manifest["shards"]]
        )

    def __reduce__(self):
        return Prepared, (self.folder,)  # files are opened anew


def _mapped(path: pathlib.Path, kind: np.dtype, shape: tuple[int | None, ...]) -> np.ndarray:
    """A memory-mapped column. Raises InputError if its type or shape is wrong."""
    try:
        column = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except ValueError as error:  # truncated, or not an array
        raise InputError(
            f"{path}: damaged ({' '.join(str(error).split())}); run memsinks_jax.prepare anew"
        ) from None
    free = shape[0] is None
    if column.dtype != kind or column.ndim != len(shape) or column.shape[free:] != shape[free:]:
        raise InputError(f"{path} does not fit {MANIFEST}; run memsinks_jax.prepare anew")
    return column


_MOST_READERS = 256  # per process; at a time, data is read through half as many shards


class _Readers:
    """Open shards of one corpus, for any number of threads.

    All corpora of the process share _MOST_READERS, or half of the files that it may open if that is
    less. Beyond its share, a corpus drops its least recently used reader, and closes the file once
    no thread reads from it. Opening a reader loads the index of its records. This takes as long as
    reading hundreds to thousands of records, and an open reader keeps the index in memory.
    """

    _opened, _lock = weakref.WeakSet(), threading.Lock()

    def __init__(self, folder: pathlib.Path, documents: list[int]):
        self._folder, self._documents, self._open = folder, documents, collections.OrderedDict()
        with self._lock:
            self._opened.add(self)
        if self._most() < min(len(documents), _MOST_READERS // len(self._opened)):
            logger.warning(
                "%s: only %d of %d files stay open, since this process may open %d; reading in "
                "random order is slow: raise "
                "the hard limit (ulimit -Hn)",
                folder,
                self._most(),
                len(documents),
                2 * _half_of_open_files(),
            )

    def _most(self) -> int:
        return max(min(_half_of_open_files(), _MOST_READERS) // len(self._opened), 1)

    def __getitem__(self, shard: int):
        """An ArrayRecordReader. Raises InputError for a damaged shard, and for too many open
        files.
        """
        with self._lock:
            if shard in self._open:
                self._open.move_to_end(shard)
                return self._open[shard]
        reader = self._reader(shard)  # without the lock: other threads read on
        with self._lock:
            self._open[shard] = reader
            while len(self._open) > self._most():
                self._open.popitem(last=False)
        return reader

    def _reader(self, shard: int):
        # takes seconds; many commands never read
        from array_record.python.array_record_module import ArrayRecordReader

        path = self._folder / f"{shard:05d}.array_record"
        try:
            for _ in range(2):
                reader = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:1")
                if reader.ok():
                    break
                path.open("rb").close()  # raises the system's error, which the reader hides
        except RuntimeError as error:
            raise InputError(
                f"{path}: cannot be read ({error}); run memsinks_jax.prepare anew"
            ) from None
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise InputError(
                f"{path}: {error.strerror}: the limit is {limit} for this process; raise it with "
                "ulimit -n"
            ) from None
        if reader.num_records() != self._documents[shard]:
            raise InputError(
                f"{path}: another number of documents than in {MANIFEST}; prepare the corpus anew"
            )
        return reader


@functools.cache
def _half_of_open_files() -> int:
    """Half of the files that this process may open, after raising its soft limit as far as
    allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2
