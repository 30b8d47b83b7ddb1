"""What answers about two sources at once cost, of a run of configs/finetune.py on TOFU.
python tests/benchmarks/two_sources.py --tofu=DIR --authors=180:200 runs/few/seed0 ...

Each run trained on some of TOFU's authors. Every question about one of `--authors` is asked with
its own sinks on, and together with a drawn other author: both sinks on at once, and as a mixture
(model/mixture.py). Then both authors' questions are asked as one, and answered with both answers. Nats
per token of the answers, a value for each run. Beside it, how often the two authors are found.
`--switch` tries other values of `mixture.SWITCH`; the first 20 authors chose it.
"""

import argparse
import collections
import pathlib
import random

import numpy as np

from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import mixture
from memsinks_jax.models.trained import nearest_groups, open_run
from memsinks_jax.reporting.claims import with_interval
from memsinks_jax.reporting.report import plain_table
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures import tofu_measures as measures


def questions_of(tofu, authors, groups):
    """{author: [(question, reworded, answer)]} of those that a run has read."""
    plain, changed = corpus.authors(tofu), corpus.reworded(tofu)
    return {
        name: [
            (row["question"], other["question"], row["answer"])
            for row, other in zip(plain[name], changed[name], strict=True)
        ]
        for name in map(corpus.author, authors)
        if name in groups and name in changed
    }


def joined(one, other):
    return f"{one.rstrip('?')}, and {other[0].lower()}{other[1:]}"


def readings(run, asked, author, mode="own"):
    of = [measures.Asked(question, answer, author) for question, answer in asked]
    return [one.nats for one in measures.read(Subject("run", run, mode), of)]


def of_pair(run, one, other, asked):
    """{way: nats of each token of the answers}, with the sinks of two authors."""
    ways = {"one's": readings(run, asked, one), "the other's": readings(run, asked, other)}
    left = measures.without(run, [name for name in run.groups if name not in (one, other)])
    ways["both on at once"] = readings(left, asked, one, "all")
    both = zip(ways["one's"], ways["the other's"], strict=True)
    ways["mixture"] = [np.asarray(mixture.nats(np.stack(of))) for of in both]
    return {way: np.concatenate(of) for way, of in ways.items()}


def of_run(run, questions, seed):
    """{(kind of question, way): nats per token}"""
    draw, names = random.Random(seed), sorted(questions)
    found, times = collections.defaultdict(list), collections.Counter()
    for one in names:
        other = draw.choice([name for name in names if name != one])
        second = draw.sample(questions[other], len(questions[one]))
        pairs = list(zip(questions[one], second, strict=True))
        for kind, place in (("as trained", 0), ("reworded", 1)):
            about_one = [(of[place], of[2]) for of in questions[one]]
            about_both = [(joined(a[place], b[place]), f"{a[2]} {b[2]}") for a, b in pairs]
            of_other = np.concatenate(readings(run, [(of[place], of[2]) for of in second], other))
            for way, nats in of_pair(run, one, other, about_one).items():
                found[f"about one, {kind}", way].append(nats)
            for way, nats in of_pair(run, one, other, about_both).items():
                found[f"about both, {kind}", way].append(nats)
            alone = [found[f"about one, {kind}", "one's"][-1], of_other]
            found[f"about both, {kind}", "each asked alone"].append(np.concatenate(alone))
            for what, asked in (("one", about_one), ("both", about_both)):
                tokens = [run.tokenizer.encode(question) for question, _ in asked]
                wanted = {one, other} if what == "both" else {one}
                near = nearest_groups(run, tokens)
                times[f"about {what}, {kind}", "found"] += sum(set(of) == wanted for of in near)
                times[f"about {what}, {kind}", "asked"] += len(near)
    means = {key: float(np.concatenate(parts).mean()) for key, parts in found.items()}
    for kind in {kind for kind, _ in means}:
        means[kind, "found"] = times[kind, "found"] / times[kind, "asked"]
    return means


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tofu", type=pathlib.Path, required=True)
    parser.add_argument("--authors", default="180:200")
    parser.add_argument("--switch", type=float, default=mixture.SWITCH)
    parser.add_argument("runs", type=pathlib.Path, nargs="+")
    asked = parser.parse_args()
    mixture.SWITCH = asked.switch
    authors = range(*map(int, asked.authors.split(":")))
    found = []
    for seed, place in enumerate(asked.runs):
        run = open_run(place)
        found.append(of_run(run, questions_of(asked.tofu, authors, run.groups), seed))
    kinds = sorted({kind for kind, _ in found[0]})
    ways = ["one's", "the other's", "both on at once", "mixture", "each asked alone", "found"]
    rows = [
        [
            way,
            *(
                with_interval([of[kind, way] for of in found if (kind, way) in of])
                for kind in kinds
            ),
        ]
        for way in ways
    ]
    print(plain_table(["sinks of", *kinds], rows))


if __name__ == "__main__":
    main()
