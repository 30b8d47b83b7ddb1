"""A corpus that `memsinks_jax.prepare` wrote: tokens on disk, and of every document its length, ids, group and place.

The folder holds
  manifest.json           the settings, the tokenizer's hash, every input file and every shard; written last
  tokenizer.model|json    the tokenizer itself
  index.npy               one INDEX entry a document, in the order of the shards
  groups.json             the names of the groups, by number
  shards/00000.array_record, ...    one record a document: `pack_record`
  skipped.jsonl, report.json, index.html    what was left out and why; the report
Boundaries of documents are those of the records: no token marks them.
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
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
NO_GROUP = 2**32 - 1
# `group` is the number of a name in groups.json, or NO_GROUP. `near_duplicate` is the number of the first document of
# the cluster, the document's own where it is alone.
INDEX = np.dtype([("length", "<u4"), ("identity", "<u4", 2), ("group", "<u4"), ("near_duplicate", "<u8")])

# Of a record, before its tokens: content id and group id (two lanes each, high lane first), number of the input file in
# the manifest, first and last + 1 of the place in it: bytes of text (of the decompressed text), or a record's number.
_HEADER = struct.Struct("<2I2IIQQ")


def pack_record(
    tokens: np.ndarray, identity: np.ndarray, group: np.ndarray, source: int, start: int, stop: int
) -> bytes:
    """`tokens` (n,) of the type that the file stores; ids uint32 (2,)."""
    return _HEADER.pack(*identity.tolist(), *group.tolist(), source, start, stop) + tokens.tobytes()


def group_id(name: str) -> np.ndarray:
    """Hash of a group's name -> uint32 (2,): the same in every corpus, and never (0, 0), which is no group."""
    return ids.content_id(np.frombuffer(name.encode(), np.uint8).astype(np.int32))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def token_type(vocabulary_size: int) -> np.dtype:
    """The smallest type that holds every token."""
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


def is_prepared(path: str) -> bool:
    return bool(path) and (pathlib.Path(path) / MANIFEST).is_file()


class Prepared:
    """An open folder. Everything but the tokens is in memory: 28 bytes a document.

    Attributes (n documents):
      lengths            (n,) int64, tokens without end of text
      identities         (n, 2) uint32, content ids
      groups             (n,) uint32, numbers in `group_names`; NO_GROUP where there is none
      near_duplicates    (n,) int64, the first document of the cluster; the document itself where it is alone
      tokens             `tokens[i]` int32 (lengths[i],), read when asked for
    """

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        try:
            self.manifest = json.loads((self.folder / MANIFEST).read_text())
            index = np.load(self.folder / "index.npy")
            self.group_names: list[str] = json.loads((self.folder / "groups.json").read_text())
        except (FileNotFoundError, ValueError) as error:
            raise InputError(
                f"{self.folder}: not a whole prepared corpus ({' '.join(str(error).split())}); run memsinks_jax.prepare"
            ) from None
        if self.manifest.get("format") != FORMAT:
            raise InputError(f"{self.folder}: prepared by another version; run memsinks_jax.prepare into a new folder")
        shards = self.manifest["shards"]
        if len(index) != sum(shard["documents"] for shard in shards):
            raise InputError(f"{self.folder}/index.npy does not fit the shards; run memsinks_jax.prepare anew")
        self.lengths = index["length"].astype(np.int64)
        self.identities = np.ascontiguousarray(index["identity"], np.uint32)
        self.groups = np.ascontiguousarray(index["group"])
        self.near_duplicates = index["near_duplicate"].astype(np.int64)
        self.tokens = Tokens([self], np.arange(len(index)))
        self._offsets = np.cumsum([0] + [shard["documents"] for shard in shards]).tolist()
        self._type = token_type(self.manifest["vocabulary_size"])

    def __len__(self) -> int:
        return len(self.lengths)

    def ids_of(self, kind: str) -> np.ndarray:
        """Ids of all documents -> uint32 (n, 2). `kind` is a value of config.data.ids other than index.

        content: hash of the tokens | group: hash of the group's name | near_duplicate: content id of the cluster's first.
        """
        if kind == "content":
            return self.identities
        if kind == "near_duplicate":
            if self.manifest["settings"]["near_duplicates"] == "none":
                raise InputError(f"{self.folder} was prepared without near-duplicates; choose other config.data.ids")
            return self.identities[self.near_duplicates]
        if not self.group_names:
            raise InputError(f"{self.folder} was prepared without --group_field; choose other config.data.ids")
        return np.stack([group_id(name) for name in self.group_names])[self.groups]

    def tokenizer(self) -> AnyTokenizer:
        """The one the tokens are of. Raises InputError where it is not that any more."""
        path = self.folder / self.manifest["tokenizer"]
        tokenizer = open_tokenizer(path, self.manifest["end_of_text"] if path.suffix == ".json" else None)
        self.check_tokenizer(tokenizer, str(path))
        return tokenizer

    def check_tokenizer(self, tokenizer: AnyTokenizer, where: str) -> None:
        if sha256(tokenizer.model) != self.manifest["settings"]["tokenizer_sha256"]:
            raise InputError(
                f"{where} is another tokenizer than that of {self.folder}; leave config.data.tokenizer empty to use the "
                "prepared one, or prepare the corpus with this one"
            )

    def source(self, document: int) -> str:
        """Where a document comes from: 'FILE:START-STOP', in bytes of text or numbers of records."""
        *_, source, start, stop = _HEADER.unpack_from(self._record(document))
        return f"{self.manifest['sources'][source]['path']}:{start}-{stop}"

    def read(self, document: int) -> np.ndarray:
        return np.frombuffer(self._record(document), self._type, offset=_HEADER.size).astype(np.int32)

    def _record(self, document: int) -> bytes:
        shard = bisect.bisect_right(self._offsets, document) - 1
        place = document - self._offsets[shard]
        return self._readers[shard].read(place, place + 1)[0]

    @functools.cached_property
    def _readers(self) -> "_Readers":
        return _Readers(self.folder / "shards", [shard["documents"] for shard in self.manifest["shards"]])

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_readers"}  # files are opened anew


class _Readers:
    """Open shards of one corpus, for any number of threads.

    All corpora of the process share half of the files that it may open: beyond a corpus's part of them its least recently
    used reader is dropped, and its file closed once no thread reads from it. Opening one reads where its records lie, which
    takes as long as reading some hundreds to thousands of them.
    """

    _everywhere, _lock = weakref.WeakSet(), threading.Lock()

    def __init__(self, folder: pathlib.Path, documents: list[int]):
        self._folder, self._documents, self._open = folder, documents, collections.OrderedDict()
        with self._lock:
            self._everywhere.add(self)
        if len(documents) > self._most():
            logger.warning(
                "%s: only %d of %d files stay open, since this process may open %d; reading in random order is slow: raise "
                "the hard limit (ulimit -Hn)", folder, self._most(), len(documents), 2 * _half_of_open_files(),
            )  # fmt: skip

    def _most(self) -> int:
        return max(_half_of_open_files() // len(self._everywhere), 1)

    def __getitem__(self, shard: int):
        """An ArrayRecordReader. Raises InputError for a damaged shard, and for too many open files."""
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
        from array_record.python.array_record_module import ArrayRecordReader  # seconds, for those who never read

        path = self._folder / f"{shard:05d}.array_record"
        try:
            for _ in range(2):
                reader = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:1")
                if reader.ok():
                    break
                path.open("rb").close()  # raises what the system says, which the reader keeps to itself
        except RuntimeError as error:
            raise InputError(f"{path}: cannot be read ({error}); run memsinks_jax.prepare anew") from None
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise InputError(
                f"{path}: {error.strerror}: the limit is {limit} for this process; raise it with ulimit -n"
            ) from None
        if reader.num_records() != self._documents[shard]:
            raise InputError(f"{path}: another number of documents than in {MANIFEST}; prepare the corpus anew")
        return reader


@functools.cache
def _half_of_open_files() -> int:
    """Half of the files that this process may open, after its soft limit was raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2


class Tokens(collections.abc.Sequence):
    """Tokens of chosen documents, read when asked for; `lengths` (m,) are known without reading.

    `chosen` (m,) counts through the documents of all `parts`.
    """

    def __init__(self, parts: collections.abc.Sequence[Prepared], chosen: np.ndarray):
        self._parts, self._chosen = parts, chosen
        self._firsts = np.cumsum([0] + [len(part) for part in parts]).tolist()
        self.lengths = np.concatenate([part.lengths for part in parts])[chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, place: int) -> np.ndarray:
        prepared, number = self.home(place)
        return prepared.read(number)

    def identities(self) -> np.ndarray:
        """Content ids -> uint32 (m, 2)."""
        return np.concatenate([part.identities for part in self._parts])[self._chosen]

    def home(self, place: int) -> tuple[Prepared, int]:
        """The corpus of a document, and its number there."""
        number = int(self._chosen[place])
        part = bisect.bisect_right(self._firsts, number) - 1
        return self._parts[part], number - self._firsts[part]


def as_numbers(identities: np.ndarray) -> np.ndarray:
    """Two lanes uint32 (n, 2) -> uint64 (n,)."""
    return identities[:, 0].astype(np.uint64) << np.uint64(32) | identities[:, 1]
