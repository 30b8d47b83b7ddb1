"""What answers about few or many sources cost, by configs/finetune.py and by retrieval.
python tests/benchmarks/sources.py --tofu=DIR --hf=MODEL --out=DIR --sources=3,6

Trains on some of TOFU's invented authors, for as long as `models/sizes.by_sources` says, and
measures nats per token of their answers with the sinks of the nearest author on: asked as trained,
and reworded. Beside it the base answers after texts that BM25 finds among all authors' questions
and answers. The rule was chosen with `--authors=0:20`; `--authors=180:200` judges it. Only these
forty have reworded questions. What follows `--` goes to `train`.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import random
import subprocess
import sys
import time

import numpy as np

from memsinks_jax.api import evaluate
from memsinks_jax.config import with_fields
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.models.trained import open_run
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.reporting.report import plain_table
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures import tofu_measures as measures
from memsinks_jax.studies.figures import tofu_retrieval as retrieval
from memsinks_jax.training.metrics import read_metrics

REWORDED = {0: "retain_perturbed", 180: "forget10_perturbed"}  # files, by their first author


def reworded(tofu, every, authors):
    """The questions about some authors in other words, where there are any."""
    found = []
    for first, name in REWORDED.items():
        lines = (tofu / f"{name}.jsonl").read_text().splitlines()
        for number in authors:
            place = (number - first) * corpus.OF_AN_AUTHOR
            if 0 <= place < len(lines):
                rows = map(json.loads, lines[place : place + corpus.OF_AN_AUTHOR])
                for row, plain in zip(rows, every[corpus.author(number)], strict=True):
                    found.append(plain | {"question": row["paraphrased_question"]})
    return found


def retrieved(base, texts, rows, ways):
    """{way: nats per token} of answers after the texts that are found for a question."""
    found, subject = {}, Subject("base", base, "drop")
    for name in ("none", *filter(None, ways.split(","))):
        way = retrieval.WAYS.get(name, retrieval.Way(0))
        about = way, base.tokenizer, measures.longest(base)
        with_texts = retrieval.asked_with(texts, rows, *about)
        asked = [measures.Asked(row["question"], row["answer"]) for row in with_texts]
        nats = np.concatenate([one.nats for one in measures.read(subject, asked)])
        found[name] = float(nats.mean())
    return found


def written(options, count, seed):
    """Writes and prepares the questions about some authors -> folder, {name: records}."""
    first, last = map(int, options.authors.split(":"))
    draw = random.Random(f"sources: {count}, {seed}")
    authors, every = sorted(draw.sample(range(first, last), count)), corpus.authors(options.tofu)
    sets = {
        "trained": [row for number in authors for row in every[corpus.author(number)]],
        "reworded": reworded(options.tofu, every, authors),
    }
    folder = options.out / f"{count}-sources-seed{seed}"
    for name, rows in sets.items():
        if rows:
            corpus.write_prepared(folder / name, rows, options.hf)
    return folder, {name: rows for name, rows in sets.items() if rows}


def trained(options, folder, seed):
    """-> the run's folder; {column: value} of its length."""
    run = folder / "run"
    train = ["-m", "memsinks_jax.train", f"--config={options.config}", f"--workdir={run}"]
    train += [f"--config.model.initial={options.hf}", f"--config.data.files={folder / 'trained'}"]
    command = [sys.executable, *train, f"--config.seed={seed}", *options.rest]
    began = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    minutes, of = (time.perf_counter() - began) / 60, workdirs.read_config(run).training
    about = {"rows a step": of.batch_size, "epochs": of.epochs}
    return run, about | {"steps": read_metrics(run)[-1]["step"], "minutes": minutes}


def measure(options, base, texts, folder, sets, seed):
    """-> {column: value} of a training."""
    run, found = trained(options, folder, seed)
    for name, rows in sets.items():
        found[f"{name}: sinks"] = evaluate(run, "own", str(folder / name))["loss"]
        of = retrieved(base(workdirs.read_config(run).model.dtype), texts, rows, options.ways)
        found |= {f"{name}: {way}": nats for way, nats in of.items()}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tofu", type=pathlib.Path, required=True)
    parser.add_argument("--hf", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--sources", default="3,6")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--authors", default="180:200")
    parser.add_argument("--config", default="configs/finetune.py")
    parser.add_argument("--ways", default=",".join(retrieval.WAYS), help="of retrieval")
    parser.add_argument("rest", nargs="*")
    options = parser.parse_args()

    @functools.cache
    def base(dtype):
        run = open_run(pathlib.Path(options.hf))
        return dataclasses.replace(run, config=with_fields(run.config, {"model.dtype": dtype}))

    texts = [row for rows in corpus.authors(options.tofu).values() for row in rows]
    seeds = list(map(int, options.seeds.split(",")))
    # before jax has threads, beside which `prepare` cannot fork
    sets = {
        count: [written(options, int(count), seed) for seed in seeds]
        for count in options.sources.split(",")
    }
    texts, columns = retrieval.Texts(texts), {}
    for count, of_seeds in sets.items():
        runs = [
            measure(options, base, texts, *of, seed)
            for of, seed in zip(of_seeds, seeds, strict=True)
        ]
        columns[count] = {name: with_interval([run[name] for run in runs]) for name in runs[0]}
        rows = [[name, *(of.get(name, "") for of in columns.values())] for name in runs[0]]
        print(plain_table(["sources", *columns], rows), flush=True)


if __name__ == "__main__":
    main()
