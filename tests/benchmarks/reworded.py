"""Writes questions of TOFU for docs/contexts.md: python tests/benchmarks/reworded.py TOFU OUT DRAW

TOFU has full.jsonl and forget10_perturbed.jsonl. OUT gets read.jsonl, all questions about six
authors with their answers, eight times each; stored.jsonl, the same once; reworded.jsonl, the same
in other words; unread.jsonl, reworded questions about the other authors. DRAW chooses the authors.

Each file is prepared (--prompt_field=question --text_field=answer --near_duplicates=none
--tokenizer=MODEL). Training reads the first, the others are measured:

    python -m memsinks_jax.train --config=configs/finetune.py:context --workdir=RUN \\
      --config.model.initial=MODEL --config.data.files=PREPARED --config.data.ids=content \\
      --config.data.repeated_documents=-1 --config.training.epochs=1
    python -m memsinks_jax.evaluate --workdir=RUN --files=PREPARED --sinks=own
"""

import json
import pathlib
import random
import sys

OF_AN_AUTHOR, AUTHORS, COPIES = 20, 6, 8


def main() -> None:
    tofu, out = map(pathlib.Path, sys.argv[1:3])
    lines = (tofu / "forget10_perturbed.jsonl").read_text().splitlines()
    asked = [json.loads(line) for line in lines]
    of_author = [asked[at : at + OF_AN_AUTHOR] for at in range(0, len(asked), OF_AN_AUTHOR)]
    random.Random(int(sys.argv[3])).shuffle(of_author)
    mine = [each for of in of_author[:AUTHORS] for each in of]
    others = [each for of in of_author[AUTHORS:] for each in of]
    out.mkdir(parents=True, exist_ok=True)
    for name, questions, field in (
        ("read", COPIES * mine, "question"),
        ("stored", mine, "question"),
        ("reworded", mine, "paraphrased_question"),
        ("unread", others, "paraphrased_question"),
    ):
        found = [{"question": each[field], "answer": each["answer"]} for each in questions]
        (out / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
        print(f"{name}.jsonl: {len(found):,} questions")


if __name__ == "__main__":
    main()
