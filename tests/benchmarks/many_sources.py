"""What commands cost with 20, 200, 2,000 sources:
python tests/benchmarks/many_sources.py FOLDER OUT QUESTION

FOLDER is one that `export --sources` wrote; the question is about its first source. OUT gets
folders with so many copies of this source under other names, each with words of its own, as many as
the sources of FOLDER have on average. Times and memory are of whole commands, so most of a small
one is to start Python and to compile.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np

from memsinks_jax.models import sources
from memsinks_jax.reporting.report import plain_table

COUNTS = (20, 200, 2000)


def write(folder, place, count):
    """A folder with the same base and `count` sources."""
    found = sources.open_sources(folder)
    place.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file():
            os.link(path, place / path.name)
    (place / sources.FOLDER).mkdir()
    first = next(iter(found.files.values()))
    rows = sources.read_rows(first, found.config)
    sizes = [len(sources.read_words(one)) for one in found.files.values()]
    draw = np.random.default_rng(0)
    for number in range(count):
        words = draw.integers(2**63, size=int(np.mean(sizes)), dtype=np.uint64)
        if not number:
            words = sources.read_words(first)
        arrays = rows | {sources.WORDS: np.unique(words)}
        sources.write_source(place / sources.FOLDER, f"source {number:04}", arrays, first.base)


def measured(*command):
    """(seconds, peak of memory in GiB) of a command."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - began, usage.ru_maxrss / 2**20


def main():
    folder, out = map(pathlib.Path, sys.argv[1:3])
    prompt = f"--prompt=Question: {sys.argv[3]}\nAnswer: "
    columns = {}
    for count in COUNTS:
        place = out / str(count)
        write(folder, place, count)
        ask = ("memsinks_jax.generate", f"--workdir={place}", "--sinks=own", "--max_tokens=8")
        commands = {
            "list": ("memsinks_jax.sources", f"--folder={place}"),
            "ask the source that is named": (*ask, prompt, "--group=source 0001"),
            "ask the nearest source": (*ask, prompt),
            "withdraw": ("memsinks_jax.sources", f"--folder={place}", "--remove=source 0002"),
        }
        if not columns:
            measured(*commands["ask the source that is named"])  # a first one reads more from disk
        for name, command in commands.items():
            seconds, memory = measured(*command)
            columns.setdefault(name, []).append(f"{seconds:.1f} s, {memory:.2f} GiB")
        size = sum(path.stat().st_size for path in (place / sources.FOLDER).iterdir())
        columns.setdefault("files", []).append(f"{size / 1e6:,.0f} MB")
        shutil.rmtree(place)
        rows = [[name, *cells] for name, cells in columns.items()]
        print(plain_table(["", *map(str, COUNTS[: len(rows[0]) - 1])], rows), flush=True)


if __name__ == "__main__":
    main()
