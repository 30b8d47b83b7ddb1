"""Startup of a run on very many documents: python tests/benchmarks/document_table.py --out=DIR
[--documents=N]

Writes a prepared corpus of N documents with lengths of web text (log-normal, 660 tokens on average;
every fiftieth is an exact copy of the one before). Random tokens stand in for its text. Measures
processes that start on it: time to the first row, memory, and tokens per second on one core, for
each kind of row. Evicts the files from the page cache before each. DIR/results.json has the
results, with the slowest kind of row at its top. The corpus stays in DIR/corpus for later runs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

from memsinks_jax.config import Config, DataConfig, TrainingConfig
from memsinks_jax.data import prepared
from memsinks_jax.data.mixture import plan_mixture
from memsinks_jax.data.order import mix
from memsinks_jax.data.packing import Rows
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.table import Table

T, SECONDS = 2048, 10
KINDS = ("one_document", "packed", "best_fit")
EVERY = 50  # a record of so many is a copy of the one before
CHUNK = EVERY * 5 * prepared.RUN  # records written together; lengths begin anew after so many


def write(folder: pathlib.Path, count: int) -> None:
    """The columns of a prepared corpus; those that a start does not read (groups, what finds
    documents by id) are holes.
    """
    (folder / "columns").mkdir(parents=True)
    copies, files = len(range(EVERY - 1, count, EVERY)), {}
    shapes = {
        "sorted_identities": (count - copies,),
        "sorted_numbers": (count - copies,),
        "members": (2 * copies, 2),
    }
    for name, (kind, shape) in prepared.columns(count).items():
        shape = shapes.get(name, shape)
        files[name] = prepared.column_file(folder, name).open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(kind),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(files[name], header)
        os.truncate(files[name].fileno(), files[name].tell() + int(np.prod(shape)) * kind.itemsize)
    lengths = np.maximum(np.random.default_rng(0).lognormal(6, 1, CHUNK), 1).astype(np.uint32)
    place = np.arange(CHUNK) % EVERY
    is_copy = place == EVERY - 1
    lengths[is_copy] = lengths[place == EVERY - 2]
    histogram = np.zeros((2, prepared.LONGEST + 1), np.int64)
    for start in range(0, count, CHUNK):
        here = slice(0, min(CHUNK, count - start))
        first_copies = np.arange(start, start + here.stop) - is_copy[here]
        draws = mix(first_copies.astype(np.uint64) + np.uint64(1))
        values = {
            "lengths": lengths[here],
            "firsts": first_copies,
            "clusters": first_copies,
            "copies": 1 + (place[here] >= EVERY - 2),
            "identities": draws,
            "runs": prepared.run_sums(lengths[here], ~is_copy[here]),
        }
        for name, value in values.items():
            value.astype(
                "<u8" if name == "identities" else prepared.columns(count)[name][0]
            ).tofile(files[name])
        histogram += prepared.histogram(lengths[here], ~is_copy[here])
        of_pairs = first_copies[is_copy[here]]
        np.stack([np.repeat(of_pairs, 2), (of_pairs[:, None] + [0, 1]).reshape(-1)], axis=1).astype(
            "<u4"
        ).tofile(files["members"])
    histogram.tofile(files["histogram"])
    for file in files.values():
        file.close()
    manifest = {
        "format": prepared.FORMAT,
        "settings": {"near_duplicates": "none"},
        "documents": count,
        "vocabulary_size": 49_152,
        "shards": [{"documents": count}],
    }
    (folder / "groups.json").write_text("[]")
    (folder / prepared.MANIFEST).write_text(json.dumps(manifest))


class WithoutTokens(Prepared):
    """Random tokens stand in."""

    pool = np.random.default_rng(0).integers(3, 49_000, 2**20).astype(np.int32)

    def read(self, record: int) -> np.ndarray:
        start = record % 2**19
        return self.pool[start : start + int(self.lengths[record])]


def start(folder: str, kind: str, step: int) -> dict:
    """A process that starts on the corpus at some step -> what it took."""
    began = time.perf_counter()
    data = DataConfig(
        files=folder,
        unique_documents=-1,
        repeated_documents=100,
        repetitions=100,
        held_out_documents=1000,
        row_length=T,
        rows=kind,
    )
    config = Config(data=data, training=TrainingConfig(batch_size=1024))
    rows = Rows(config, plan_mixture(config, Table([WithoutTokens(folder)])), 1)
    number = step * 1024
    row = rows[number]
    first = time.perf_counter() - began
    assert row["seen"].shape == (rows.documents_per_row,)
    began, tokens = time.process_time(), 0  # of the one core that does it, whatever else runs
    while time.process_time() - began < SECONDS:
        number += 1
        tokens += int((rows[number]["segments"] > 0).sum())
    speed = tokens / (time.process_time() - began)
    status = dict(
        line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines()
    )
    return {
        "first_row_s": first,
        "resident_gib": int(status["VmHWM"].split()[0]) / 2**20,
        "tokens_per_second": speed,
        "rows_per_epoch": rows.rows_per_epoch,
        "documents_per_row": rows.documents_per_row,
    }


def put_out(folder: pathlib.Path) -> None:
    """Of memory: what the next process reads comes from the disk."""
    for path in sorted((folder / "columns").iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--documents", type=int, default=10**8)
    parser.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        folder, kind, step = arguments.start
        print(json.dumps(start(folder, kind, int(step))))
        return
    corpus = arguments.out / f"corpus_{arguments.documents}"
    if not (corpus / prepared.MANIFEST).exists():
        write(corpus, arguments.documents)
    on_disk = sum(path.stat().st_size for path in (corpus / "columns").iterdir())
    results = {"documents": arguments.documents, "bytes_a_document": on_disk / arguments.documents}
    found = {}
    for step in (0, 10**6):
        for kind in KINDS:
            put_out(corpus)
            command = [
                sys.executable,
                __file__,
                "--out",
                str(arguments.out),
                "--start",
                str(corpus),
                kind,
                str(step),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found[f"{kind}, step {step}"] = json.loads(done.stdout)
            print(kind, step, found[f"{kind}, step {step}"])
    worst = {
        name: max(each[name] for each in found.values()) for name in ("first_row_s", "resident_gib")
    }
    speed = min(
        each["tokens_per_second"]
        for name, each in found.items()
        if not name.startswith("one_document")
    )
    results |= worst | {"tokens_per_second": speed, "kinds": found}
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
