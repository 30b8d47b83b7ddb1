"""Share of edited copies found in their original's cluster: python
tests/benchmarks/near_duplicates.py [--text=FILE]

Plants a copy of every document with a share of its tokens drawn anew from those of the corpus, and
lets `prepare` find near-duplicates among all. Recall: copies in the cluster of their original.
Precision: pairs within clusters that were planted. The text is the embedded stories or a .txt or
.jsonl file.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from memsinks_jax.data.documents import read_documents
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.preparing.prepare import prepare

SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


def measure(texts, tokenizer, share, closeness, scratch):
    """(precision, recall)"""
    random = np.random.default_rng(0)
    tokens = [tokenizer.encode(text) for text in texts]
    everything = np.concatenate(tokens)
    copies = []
    for document in tokens:
        edited = document.copy()
        places = random.choice(len(document), max(round(share * len(document)), 1), replace=False)
        edited[places] = random.choice(everything, len(places))
        copies.append(tokenizer.decode(edited))
    (scratch / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts + copies)
    )
    (scratch / "tokenizer.model").write_bytes(tokenizer.model)
    prepare(
        [str(scratch / "a.jsonl")],
        str(scratch),
        scratch / "out",
        near_duplicates=closeness,
        on_error="skip",
    )
    clusters = Prepared(scratch / "out").clusters
    true = int((clusters[: len(texts)] == clusters[len(texts) :]).sum())
    sizes = np.unique(clusters, return_counts=True)[1]
    pairs = int((sizes * (sizes - 1) // 2).sum())
    return true / pairs if pairs else 1.0, true / len(texts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", help="a .txt or .jsonl file")
    text = parser.parse_args().text
    texts = (
        [d.text for d in read_documents(text)]
        if text
        else [stories.story(0, index).text for index in range(500)]
    )
    texts = list(dict.fromkeys(texts))
    tokenizer = train_tokenizer(texts, 8000)
    print("tokens edited  " + "  ".join(f"{share:>4.0%}" for share in SHARES))
    for closeness in ("close", "loose"):
        found = []
        for share in SHARES:
            with tempfile.TemporaryDirectory() as scratch:
                found.append(measure(texts, tokenizer, share, closeness, pathlib.Path(scratch)))
        for name, values in zip(("precision", "recall"), zip(*found, strict=True), strict=True):
            print(f"{closeness} {name:10s}" + "  ".join(f"{value:4.2f}" for value in values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
