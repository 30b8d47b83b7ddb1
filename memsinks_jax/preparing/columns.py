"""Writes the columns of a corpus shard by shard, in constant memory, by sorting on disk."""

import dataclasses
import hashlib
import os
import pathlib
import shutil

import numpy as np

from memsinks_jax.data import ids, prepared

_BITS = 20
_ROWS = 1 << _BITS  # records in memory at a time, a whole number of runs


@dataclasses.dataclass(frozen=True)
class Written:
    """A summary of the columns. Lengths are without end of text."""

    hashes: dict[str, str]  # SHA-256 of every column's file
    distinct: int  # documents
    near_duplicate_clusters: int  # with at least two different documents
    near_duplicate_documents: int  # records of these clusters
    digits: np.ndarray  # int64 (33,): histogram of the lengths' binary digits
    longest: int
    median: int
    # uint64 (at most `shown`, 2): (first copy, copies) of documents, most copies first
    most_repeated: np.ndarray


class Columns:
    """Writes the columns of a corpus of `records` records into `out`: `add` every shard in order,
    then `close`.

    Exact copies are found by sorting content ids in parts, each for a range of ids. Values of
    records are gathered in ranges of records. Both are in files below `work` until they are read,
    at most 40 bytes per record. The memory is about 200 MiB for any number of records; plus, one
    document or cluster at a time, 100 bytes per copy or member; plus 4 bytes per document that is
    too long for `prepared.histogram`.
    """

    def __init__(
        self, out: pathlib.Path, work: pathlib.Path, records: int, shown: int, answers: bool = False
    ):
        shutil.rmtree(work, ignore_errors=True)  # of a command that was killed
        (out / "columns").mkdir(exist_ok=True)
        self._columns = {
            name: Column(prepared.column_file(out, name), kind, shape[1:])
            for name, (kind, shape) in prepared.columns(records, answers).items()
        }
        self._openings = np.zeros(prepared.LONGEST + 1, np.int64)
        self._records, self._added, self._shown = records, 0, shown
        self._id_bits = 64 - max((records >> _BITS).bit_length(), 1)
        self._by_identity = _Buckets(work / "identities", self._id_bits, 2)  # (id, record)
        self._copies = _Buckets(work / "copies", _BITS, 3)  # (record, first, how many)
        self._near = _Buckets(work / "near", _BITS, 2)  # (record, first of the cluster)
        # (cluster, record, whether it is the first of its copies)
        self._members = _Buckets(work / "members", _BITS, 3)

    def add(
        self, lengths: np.ndarray, identities: np.ndarray, groups: np.ndarray, clusters: np.ndarray
    ) -> None:
        """Appends records: (k,), (k, 2), (k,) as in `Prepared`; `clusters` (c, 2) has (record,
        first) of those in one.
        """
        for name, values in (("lengths", lengths), ("identities", identities), ("groups", groups)):
            self._columns[name].append(values)
        records = np.arange(self._added, self._added + len(lengths), dtype=np.uint64)
        self._by_identity.add(ids.as_numbers(identities), records)
        self._near.add(*clusters.T)
        self._added += len(lengths)

    def add_answers(self, lengths: np.ndarray, opens: np.ndarray, answers: np.ndarray) -> int:
        """Appends the answers of the records that were just added -> how many tokens are in them,
        those that close documents counted.

        Args:
          opens: (k,) as in `Prepared`.
          answers: (a, 3) as `steps.answers_file` has them, at least one of every record.
        """
        which, starts, stops = answers.astype(np.int64).T
        first = np.flatnonzero(np.diff(which, prepend=-1))
        is_rest = (np.diff(first, append=len(which)) == 1) & (stops[first] > lengths)
        prompts = np.where(is_rest, starts[first], prepared.SEVERAL)
        self._columns["prompts"].append(prompts)
        self._columns["opens"].append(opens)
        others = np.flatnonzero(prompts[which] == prepared.SEVERAL)
        rows = np.stack([which + self._added - len(lengths), starts, stops], axis=1)
        self._columns["turns"].append(rows[others])
        self._openings += np.bincount(
            np.minimum(starts[first], prepared.LONGEST), minlength=prepared.LONGEST + 1
        )
        return int((stops - starts).sum())

    def close(self) -> Written:
        """Computes all other columns. Only now do files with these names appear in the folder."""
        distinct = self._find_copies()
        lengths = self._write_records()
        clusters = self._write_members()
        if "openings" in self._columns:
            self._columns["openings"].append(self._openings)
        return Written(
            {name: column.close() for name, column in self._columns.items()},
            distinct,
            *clusters,
            *lengths,
        )

    def _find_copies(self) -> int:
        distinct = 0
        for bucket in range(1 << (64 - self._id_bits)):
            identities, records = self._by_identity.take(bucket).T
            # Records come in order, so the first one with an id is the first copy.
            found, first, inverse, copies = np.unique(
                identities, return_index=True, return_inverse=True, return_counts=True
            )
            self._columns["sorted_identities"].append(found)
            self._columns["sorted_numbers"].append(records[first])
            several = copies[inverse] > 1
            self._copies.add(
                records[several], records[first][inverse[several]], copies[inverse[several]]
            )
            distinct += len(found)
        return distinct

    def _write_records(self) -> tuple[np.ndarray, int, int, np.ndarray]:
        """Writes columns with one entry per record -> (digits, longest, median, most_repeated) as
        in `Written`.
        """
        counted, digits, longest, too_long = 0, np.zeros(33, np.int64), 0, []
        most_repeated = np.zeros((0, 2), np.uint64)
        for bucket in range(-(-self._records // _ROWS)):
            lengths = self._columns["lengths"].read(bucket * _ROWS, _ROWS)
            records = np.arange(len(lengths), dtype=np.uint64) + np.uint64(bucket * _ROWS)
            first_copies, clusters = records.copy(), records.copy()
            copies, shared = np.ones_like(records), np.zeros(len(records), bool)
            record, first, times = self._copies.take(bucket).T
            at = record - records[0]
            first_copies[at], clusters[at], copies[at], shared[at] = first, first, times, True
            record, first = self._near.take(bucket).T  # if one copy of a document is here, all are
            at = record - records[0]
            clusters[at], shared[at] = first, True
            is_first = first_copies == records
            for name, values in (
                ("firsts", first_copies),
                ("clusters", clusters),
                ("copies", copies),
            ):
                self._columns[name].append(values)
            self._columns["runs"].append(prepared.run_sums(lengths, is_first))
            self._members.add(clusters[shared], records[shared], is_first[shared])

            counted = counted + prepared.histogram(lengths, is_first)
            digits += np.bincount(np.frexp(lengths)[1], minlength=33)
            longest = max(longest, int(lengths.max()))
            too_long.append(lengths[lengths >= prepared.LONGEST - 1])
            here = is_first & (copies > 1)
            most_repeated = np.concatenate(
                [most_repeated, np.stack([records[here], copies[here]], axis=1)]
            )
            most_repeated = most_repeated[
                np.argsort(-most_repeated[:, 1].astype(np.int64), kind="stable")[: self._shown]
            ]
        self._columns["histogram"].append(counted)
        return (
            digits,
            longest,
            _median(counted[0], np.sort(np.concatenate(too_long))),
            most_repeated,
        )

    def _write_members(self) -> tuple[int, int]:
        """-> (clusters that hold two different documents, their records)"""
        clusters = documents = 0
        for bucket in range(-(-self._records // _ROWS)):
            rows = self._members.take(bucket)
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            self._columns["members"].append(rows[:, :2])
            _, starts, sizes = np.unique(rows[:, 0], return_index=True, return_counts=True)
            # Copies alone are no near-duplicates: a cluster counts if it has two different
            # documents.
            different = np.add.reduceat(rows[:, 2], starts) > 1
            clusters, documents = (
                clusters + int(different.sum()),
                documents + int(sizes[different].sum()),
            )
        return clusters, documents


def _median(counted: np.ndarray, too_long: np.ndarray) -> int:
    """Median length without end of text. `counted[n]` documents have n tokens with it; the last
    entry's are `too_long`.
    """
    at_most = np.cumsum(counted)
    middle = np.array([(at_most[-1] - 1) // 2, at_most[-1] // 2])
    lengths = np.searchsorted(at_most, middle, side="right") - 1
    beyond = lengths == prepared.LONGEST - 1
    lengths[beyond] = too_long[middle[beyond] - at_most[-2]]
    return int(lengths.sum()) // 2


class Column:
    """A .npy file to append to. It gets its name when it is closed."""

    def __init__(self, path: pathlib.Path, kind: np.dtype, row: tuple[int, ...]):
        self._path, self._scratch = path, path.with_name(path.name + ".new")
        self._kind, self._row, self._length = kind, row, 0
        self._scratch.write_bytes(b"")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        with open(self._scratch, "ab") as file:
            file.write(np.ascontiguousarray(values, self._kind).data)
        self._length += len(values)

    def read(self, start: int, count: int) -> np.ndarray:
        """At most `count` rows of a column of numbers, from what has been appended."""
        offset = self._scratch.stat().st_size - (self._length - start) * self._kind.itemsize
        return np.fromfile(self._scratch, self._kind, count, offset=offset)

    def close(self) -> str:
        """-> SHA-256 of the file."""
        self._write_header()
        with open(self._scratch, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(self._scratch, self._path)
        return digest

    def _write_header(self) -> None:
        shape = (self._length, *self._row)  # numpy reserves space for the length to grow
        header = {
            "descr": np.lib.format.dtype_to_descr(self._kind),
            "fortran_order": False,
            "shape": shape,
        }
        with open(self._scratch, "r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)


class _Buckets:
    """Rows of numbers in files by their first number. One file holds a range of 2^bits, small
    enough for memory.
    """

    def __init__(self, folder: pathlib.Path, bits: int, columns: int):
        folder.mkdir(parents=True)
        self._folder, self._bits, self._columns = folder, np.uint64(bits), columns
        self._waiting, self._count = [], 0

    def add(self, *columns: np.ndarray) -> None:
        self._waiting.append(np.stack([column.astype(np.uint64) for column in columns], axis=1))
        self._count += len(columns[0])
        if self._count >= _ROWS:
            self._write()

    def take(self, bucket: int) -> np.ndarray:
        """uint64 (rows, columns), in the order of addition. Removes the file."""
        self._write()
        path = self._folder / str(bucket)
        if not path.exists():
            return np.zeros((0, self._columns), np.uint64)
        rows = np.fromfile(path, np.uint64).reshape(-1, self._columns)
        path.unlink()
        return rows

    def _write(self) -> None:
        if not self._count:
            return
        rows = np.concatenate(self._waiting)
        self._waiting, self._count = [], 0
        buckets = rows[:, 0] >> self._bits
        order = np.argsort(buckets, kind="stable")
        numbers, starts = np.unique(buckets[order], return_index=True)
        for number, part in zip(numbers, np.split(order, starts[1:]), strict=True):
            with open(self._folder / str(number), "ab") as file:
                file.write(rows[part].data)
