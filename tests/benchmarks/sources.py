"""What answers about few or many sources cost, by configs/finetune.py and by retrieval.
python tests/benchmarks/sources.py --tofu=DIR --hf=MODEL --out=DIR --sources=3,6

Trains on some of TOFU's invented authors, for as long as `models/sizes.by_sources` says, and
measures nats per token of their answers with the sinks of the nearest author on: asked as trained,
and reworded. Beside it the base answers after texts that BM25 finds among all authors' questions
and answers, and with `--reader` a model does that was fine-tuned on 20 other authors to read such
prompts. The rule was chosen with `--authors=0:20`; `--authors=180:200` judges it. Only these forty
have reworded questions. What follows `--` goes to `train`.
"""

import argparse
import dataclasses
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

READER_READS = range(20)  # authors
READING = {"config.data.row_length": retrieval.READER_ROW, "config.training.epochs": 2}


def retrieved(model, texts, rows, ways):
    """{way: nats per token} of answers after the texts that are found for a question."""
    found, subject = {}, Subject("model", model, "drop")
    for name in ways:
        way = retrieval.WAYS.get(name, retrieval.Way(0))
        about = way, model.tokenizer, measures.longest(model)
        with_texts = retrieval.asked_with(texts, rows, *about)
        asked = [measures.Asked(row["question"], row["answer"]) for row in with_texts]
        nats = np.concatenate([one.nats for one in measures.read(subject, asked)])
        found[name] = float(nats.mean())
    return found


def written(options, count, seed):
    """Writes and prepares the questions about some authors -> folder, {name: records}."""
    first, last = map(int, options.authors.split(":"))
    draw = random.Random(f"sources: {count}, {seed}")
    authors = sorted(draw.sample(range(first, last), count))
    every, changed = corpus.authors(options.tofu), corpus.reworded(options.tofu)
    sets = {
        "trained": [row for number in authors for row in every[corpus.author(number)]],
        "reworded": [row for number in authors for row in changed.get(corpus.author(number), [])],
    }
    folder = options.out / f"{count}-sources-seed{seed}"
    for name, rows in sets.items():
        if rows:
            corpus.write_prepared(folder / name, rows, options.hf)
    return folder, {name: rows for name, rows in sets.items() if rows}


def train(options, config, files, run, **settings):
    """Trains, unless that was done -> minutes."""
    command = [sys.executable, "-m", "memsinks_jax.train", f"--config={config}", f"--workdir={run}"]
    command += [f"--config.model.initial={options.hf}", f"--config.data.files={files}"]
    command += [f"--{name}={value}" for name, value in settings.items()]
    began = time.perf_counter()
    subprocess.run([*command, *options.rest], check=True, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) / 60


def measure(options, texts, models, folder, sets, seed):
    """-> {column: value} of a training. `models`, that read what is retrieved: {name: model}."""
    run = folder / "run"
    minutes = train(options, options.config, folder / "trained", run, **{"config.seed": seed})
    of = workdirs.read_config(run).training
    found = {"rows a step": of.batch_size, "epochs": of.epochs}
    found |= {"steps": read_metrics(run)[-1]["step"], "minutes": minutes}
    for name, rows in sets.items():
        found[f"{name}: sinks"] = evaluate(run, "own", str(folder / name))["loss"]
        for reader, model in models.items():
            ways = ["none"] * (reader == "base") + options.ways.split(",")
            some = rows[:: max(len(rows) // options.questions, 1)]
            of = retrieved(model, texts, some, ways)
            found |= {f"{name}: {reader}, {way}": nats for way, nats in of.items()}
    if options.costs:
        of = retrieval.first_tokens(open_run(run), texts, list(sets.values())[-1])
        for what, by_way in of.items():
            found |= {f"{what}: {way}": number for way, number in by_way.items()}
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
    parser.add_argument("--questions", type=int, default=10**9, help="for retrieval, at most")
    parser.add_argument("--reader", action="store_true", help="train one")
    parser.add_argument("--costs", action="store_true", help="tokens of prompts, time to answer")
    parser.add_argument("rest", nargs="*")
    options = parser.parse_args()
    every, seeds = corpus.authors(options.tofu), list(map(int, options.seeds.split(",")))
    # before jax has threads, beside which `prepare` cannot fork
    sets = {
        count: [written(options, int(count), seed) for seed in seeds]
        for count in options.sources.split(",")
    }
    if options.reader:
        texts, reader = options.out / "reading", options.out / "reader"
        retrieval.write_reading(
            texts, options.tofu, list(map(corpus.author, READER_READS)), options.hf
        )
        minutes = train(options, f"{options.config}:standard", texts, reader, **READING)
        print(f"trained a reader: {minutes:.1f} minutes", flush=True)
    base = open_run(pathlib.Path(options.hf))
    given = [one.removeprefix("--config.model.dtype=") for one in options.rest if "dtype" in one]
    fields = {"model.dtype": given[0]} if given else {}
    models = {"base": dataclasses.replace(base, config=with_fields(base.config, fields))}
    models |= {"reader": open_run(reader)} if options.reader else {}
    texts, columns = retrieval.Texts([row for of in every.values() for row in of]), {}
    for count, of_seeds in sets.items():
        runs = []
        for (folder, of), seed in zip(of_seeds, seeds, strict=True):
            runs.append(measure(options, texts, models, folder, of, seed))
            columns[count] = {name: with_interval([run[name] for run in runs]) for name in runs[0]}
            rows = [[name, *(of.get(name, "") for of in columns.values())] for name in runs[0]]
            print(plain_table(["sources", *columns], rows), flush=True)


if __name__ == "__main__":
    main()
