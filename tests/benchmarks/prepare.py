"""Speed of `prepare` against datasets.map, and whether its memory grows: python
tests/benchmarks/prepare.py

Both sides tokenize the same jsonl with the same tokenizer.json in the same number of processes.
Both are timed as a whole, from the start of Python; the map of `datasets` is also reported alone.
Memory is the peak over all processes of a run together, for a corpus and one ten times as large.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from memsinks_jax.data.embedded import stories

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSES, MEGABYTES, REPEATS = 2, 48, 2
AT_LEAST, AT_MOST = 1.0, 1.10  # times as fast; times the memory

DATASETS = """
import sys, time, datasets, tokenizers
datasets.disable_progress_bars()
path, model, cache, processes = sys.argv[1:]
tokenizer = tokenizers.Tokenizer.from_file(model)
data = datasets.load_dataset("json", data_files=path, split="train", cache_dir=cache)
start = time.perf_counter()
encode = lambda batch: {"tokens": [e.ids for e in tokenizer.encode_batch(batch["text"], add_special_tokens=False)]}
data.map(encode, batched=True, num_proc=int(processes), remove_columns=data.column_names)
print(time.perf_counter() - start)
"""


def write_corpus(path, megabytes):
    texts = [stories.story(0, index).text for index in range(3000)]
    with open(path, "w") as file:
        number = 0
        while file.tell() < megabytes * 1e6:
            file.write(json.dumps({"text": f"{number}. {texts[number % len(texts)]}"}) + "\n")
            number += 1
    return texts


def train_bpe(texts, path):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(
            vocab_size=8000, initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(path))


def memory_of(session):
    """Bytes that the processes of a session hold now."""
    total = 0
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == session:
                total += int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            pass
    return total


def run(command):
    """(seconds, most memory in bytes, stdout)"""
    start = time.perf_counter()
    # The tokenizers' threads would be more processes than the other side has.
    environment = os.environ | {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    peak, ended = [0], threading.Event()

    def watch():
        while not ended.wait(0.1):
            peak[0] = max(peak[0], memory_of(process.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    stdout = process.communicate()[0]
    seconds = time.perf_counter() - start
    ended.set()
    thread.join()
    if process.returncode:
        raise SystemExit(f"{command[:4]} ended with {process.returncode}")
    return seconds, peak[0], stdout


def main():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        texts = write_corpus(scratch / "large.jsonl", MEGABYTES)
        write_corpus(scratch / "small.jsonl", MEGABYTES / 10)
        train_bpe(texts, scratch / "tokenizer.json")

        def prepare(name, kind, number, *more):
            out = scratch / f"{name}-{kind}-{number}"
            flags = [
                f"--input={scratch / name}.jsonl",
                f"--tokenizer={scratch}",
                f"--out={out}",
                f"--workers={PROCESSES}",
            ]
            return run(
                [
                    sys.executable,
                    "-m",
                    "memsinks_jax.prepare",
                    *flags,
                    f"--near_duplicates={kind}",
                    *more,
                ]
            )

        ratios = []
        for number in range(REPEATS):
            files = [
                str(scratch / name) for name in ("large.jsonl", "tokenizer.json", f"cache{number}")
            ]
            theirs, _, map_alone = run([sys.executable, "-c", DATASETS, *files, str(PROCESSES)])
            ours = prepare("large", "none", number)[0]
            ratios.append(theirs / ours)
            print(
                f"datasets {MEGABYTES / theirs:5.2f} MB/s (its map alone "
                f"{MEGABYTES / float(map_alone):5.2f})   "
                f"prepare {MEGABYTES / ours:5.2f} MB/s   ratio {ratios[-1]:.2f} "
                f"(to the map alone {float(map_alone) / ours:.2f})"
            )
        # Shards so small that both corpora have several for each worker.
        small, large = (
            prepare(name, "none", "memory", "--shard_mib=1")[1] for name in ("small", "large")
        )
        clustered = prepare("large", "close", 0)[0]
        print(f"with near-duplicates {MEGABYTES / clustered:6.2f} MB/s")
        print(
            f"memory {small / 2**20:.0f} MiB at {MEGABYTES / 10:g} MB, {large / 2**20:.0f} MiB "
            f"at {MEGABYTES} MB"
        )
        return 0 if min(ratios) >= AT_LEAST and large <= AT_MOST * small else 1


if __name__ == "__main__":
    sys.exit(main())
