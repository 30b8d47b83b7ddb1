"""The corpora of study passages: documents that share passages, and the same documents without most or all of these.

folder/all has all of them, folder/once every passage in one place alone (as exact substring deduplication leaves it, Lee et
al. 2022), folder/without in none. All have the tokenizer of the first.
"""

import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.ids import as_lanes
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.preparing.near_duplicates import ngram_hashes
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import corpora

LENGTH = 50  # tokens of a passage, at least; measured are its first ones
CONTEXT = 13  # but for these: no model has read a passage without what stands before it
SHOWN = 2 * LENGTH  # tokens of a passage that are kept to ask for
KNOWN = 13  # text that has an n-gram of so many tokens in common with training is no new text
PLACES = (2, 4, 16, 128)  # a passage belongs to the highest that is at most its number of documents
EACH, UNREAD = 64, 256  # at most so many passages of each, and pieces that no model reads
PLANTED = {2: 24, 8: 16, 32: 8, 128: 4}  # documents: passages planted in so many
STORIES, HELD_OUT, NEVER = 3000, 200, 60
_PLANTED_WORDS = 50  # some 60 tokens
_WORLD = 0


class Texts(NamedTuple):
    """What is read, and passages and documents to ask for: `often` is in many documents of `train`, `never` in none."""

    train: list[str]
    held_out: list[str]
    often: list[str]
    never: list[str]


class Passage(NamedTuple):
    """The first tokens of a passage, where it is longest; in how many documents it stands."""

    identity: np.ndarray  # uint32 (2,)
    places: int
    tokens: np.ndarray  # int32 (LENGTH to SHOWN,)

    @property
    def rung(self) -> int:
        """The one of PLACES to which it belongs."""
        return max(least for least in PLACES if least <= self.places)


def texts_of(folder: pathlib.Path) -> Texts:
    """The user's files. Raises InputError for a file that is missing, empty or of something else."""
    return Texts(*(_read(folder / f"{name}.jsonl") for name in Texts._fields))


def _read(path: pathlib.Path) -> list[str]:
    try:
        found = [json.loads(line)["text"] for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error!r}); give a folder of {', '.join(Texts._fields)}.jsonl as --passages"
        ) from None
    if not found or not all(isinstance(text, str) and text.strip() for text in found):
        raise InputError(f'{path} needs a {{"text": ...}} in every line, and one line at least')
    return found


def planted() -> Texts:
    """Stories; into some, at the end of a sentence, the beginning of another story was put, the same in several."""
    texts = (stories.story(_WORLD, number).text for number in range(10**9))
    train, held_out = ([next(texts) for _ in range(count)] for count in (STORIES, HELD_OUT))
    beginnings = (" ".join(words[:_PLANTED_WORDS]) for words in map(str.split, texts) if len(words) >= _PLANTED_WORDS)
    hosts, used, often = np.random.default_rng([_WORLD, STORIES]).permutation(STORIES), 0, []
    for places, count in PLANTED.items():
        for _ in range(count):
            passage = next(beginnings)
            often += [passage] * (places >= 8)
            for host in hosts[np.arange(used, used + places)].tolist():
                sentences = train[host].split(". ")
                middle = len(sentences) // 2
                train[host] = ". ".join([*sentences[:middle], passage, *sentences[middle:]])
            used += places
    return Texts(train, held_out, often, [next(beginnings) for _ in range(NEVER)])


def write(folder: pathlib.Path, texts: Texts) -> None:
    """Writes and prepares the corpora, then folder/asked.json, which a folder with all of them has. Keeps what is there."""
    read = hashlib.sha256(json.dumps([LENGTH, texts.train]).encode()).hexdigest()
    asked = json.dumps(texts._replace(train=[read])._asdict())
    if (folder / "asked.json").exists() and (folder / "asked.json").read_text() == asked:
        return
    _write_lines(folder / "all.jsonl", texts.train)
    _prepare(folder / "all", None, passages=LENGTH)
    corpus = Prepared(folder / "all")
    tokenizer, best = corpus.tokenizer(), set(_longest(corpus).tolist())
    for name, places in (("once", best), ("without", set())):
        left = (_without(corpus, record, places) for record in range(len(corpus)))
        _write_lines(folder / f"{name}.jsonl", [text for text in map(tokenizer.decode, left) if text.strip()])
        _prepare(folder / name, str(folder / "all" / tokenizer.file_name))
    corpora.write_text(folder / "asked.json", asked)


def _prepare(out: pathlib.Path, tokenizer: str | None, **settings) -> None:
    prepare([str(out.with_suffix(".jsonl"))], tokenizer, out, near_duplicates="none", **settings)


def _longest(corpus: Prepared) -> np.ndarray:
    """For every passage, where in `corpus.passages` it is longest, in the order of `passage_ids` -> int64 (p,)."""
    found = np.asarray(corpus.passages)
    order = np.lexsort((-found["length"].astype(np.int64), found["id"]))
    return order[np.searchsorted(found["id"][order], corpus.passage_ids)]


def _without(corpus: Prepared, record: int, places: set[int]) -> np.ndarray:
    """The tokens of a record without its passages, but for those at some places in `corpus.passages`."""
    tokens, passages = corpus.read(record), corpus.passages_of(record)
    first = int(corpus.passage_ends[record]) - len(passages)
    stays = np.ones(len(tokens), bool)
    for number, passage in enumerate(passages, first):
        start = int(passage["start"])
        stays[start : start + int(passage["length"])] = number in places
    return tokens[stays]


def passages_of(corpus: Prepared) -> list[Passage]:
    """Up to EACH passages of every rung, drawn by their ids, which are hashes. The most frequent come first."""
    ends, of_rung = np.asarray(corpus.passage_ends), {}
    for at, places in zip(_longest(corpus).tolist(), corpus.passage_places.tolist(), strict=True):
        start, size, number = corpus.passages[at].item()
        if size >= LENGTH:
            tokens = corpus.read(int(np.searchsorted(ends, at, side="right")))[start : start + min(size, SHOWN)]
            passage = Passage(as_lanes(np.array([number], np.uint64))[0], places, tokens)
            of_rung.setdefault(passage.rung, []).append(passage)
    return sorted((one for each in of_rung.values() for one in each[:EACH]), key=lambda one: -one.places)


def known(corpus: Prepared, tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Which tokens of some texts are in an n-gram that the corpus has -> bool (tokens,) of each."""
    read = np.unique(np.concatenate([ngram_hashes(corpus.read(record), KNOWN) for record in range(len(corpus))]))
    found = []
    for of in tokens:
        begins = np.pad(np.isin(ngram_hashes(of, KNOWN), read), KNOWN - 1).astype(np.int64)
        found.append(np.convolve(begins, np.ones(KNOWN, np.int64), "valid")[: len(of)] > 0)
    return found


def texts_asked(folder: pathlib.Path) -> Texts:
    """What the models of these corpora are asked; `train` is a hash."""
    return Texts(**json.loads((folder / "asked.json").read_text()))


def folder_of(workdir: pathlib.Path) -> pathlib.Path:
    """The corpora of a run."""
    return pathlib.Path(workdirs.read_config(workdir).data.files).parent


def digest(folder: pathlib.Path) -> str:
    """Of all that is asked: texts, and passages."""
    return hashlib.sha256((folder / "asked.json").read_bytes() + Prepared(folder / "all").digest.encode()).hexdigest()


def _write_lines(path: pathlib.Path, texts: list[str]) -> None:
    corpora.write_text(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
