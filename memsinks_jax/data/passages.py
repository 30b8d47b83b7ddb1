"""Passages by name: what text is one, which of them a run knows, where each is longest. preparing/passages.py finds them.

All of this reads columns a part at a time, so memory does not grow with the corpus.
"""

from collections.abc import Callable, Iterator

import numpy as np

from memsinks_jax.data.ids import ngram_hashes
from memsinks_jax.data.mixture import Mixture
from memsinks_jax.data.order import mix
from memsinks_jax.data.table import Table, is_in
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.data.words import Words

_SCANNED = 2**20  # entries of a column that are read at a time


def passage_ids(names: np.ndarray) -> np.ndarray:
    """Least hashes of n-grams -> ids, uint64 (n,), never 0, which is kept for padding."""
    return np.maximum(mix(names), np.uint64(1))


def passages_in(table: Table, tokenizer: AnyTokenizer, text: str) -> np.ndarray:
    """The ids of passages that a text holds, however its lines are broken -> uint64 (n,), ascending.

    A passage is named by one of its n-grams, so no text of the corpus is read. Of a passage that the text holds only in
    part it may lack this n-gram: then it is not found.
    """
    tokens, found = tokenizer.encode(text), []
    words = Words(tokenizer)(tokens).tokens
    for source in table.sources:
        for of in (words, tokens):  # corpora that were prepared earlier name passages by tokens as they stand
            named = passage_ids(ngram_hashes(of, source.passage_ngram))
            found.append(named[is_in(named, source.passage_ids)])
    return np.unique(np.concatenate(found))


def documents_with(table: Table, keys: np.ndarray) -> np.ndarray:
    """In how many documents passages stand, uint64 (n,) -> int64 (n,); 0 for an id that is none. Of several sources that
    have it, the most."""
    found = np.zeros(len(keys), np.int64)
    for source in table.sources:
        there = np.flatnonzero(is_in(keys, source.passage_ids))
        places = source.passage_places[np.searchsorted(source.passage_ids, keys[there])]
        found[there] = np.maximum(found[there], places.astype(np.int64))
    return found


def sample(
    table: Table, known: Callable[[np.ndarray], np.ndarray], classes: list[tuple[int, int]], most: int
) -> list[np.ndarray]:
    """Up to `most` known passages of each class -> [uint64 (n,), ascending]. Ids are hashes: the least are drawn at random.

    Args:
      known: which ids, uint64 (n,), are -> bool (n,).
      classes: from how many documents to how many, the last left out.
    """
    found = [np.zeros(0, np.uint64) for _ in classes]
    for source in table.sources:
        of_source = [np.zeros(0, np.uint64) for _ in classes]
        for start, ids in _parts(source.passage_ids):
            places, is_known = source.passage_places[start : start + len(ids)], known(ids)
            for number, (low, high) in enumerate(classes):
                there = ids[(places >= low) & (places < high) & is_known]
                of_source[number] = np.concatenate([of_source[number], there])[:most]
            if all(len(each) == most for each in of_source):
                break
        found = [np.union1d(*pair)[:most] for pair in zip(found, of_source, strict=True)]
    return found


def longest_places(mixture: Mixture, keys: np.ndarray) -> np.ndarray:
    """Where some passages are longest, of all documents that a run reads -> int64 (n, 3): record, start, stop of each.

    A pass over the passages of all documents. `stop` is 0 if no such document has it.

    Args:
      keys: uint64 (n,), ascending.
    """
    table, found = mixture.table, np.zeros((len(keys), 3), np.int64)
    for number, source in enumerate(table.sources):
        for start, passages in _parts(source.passages):
            at = np.flatnonzero(is_in(passages["id"], keys))
            which = np.searchsorted(keys, passages["id"][at])
            longer = passages["length"][at] > found[which, 2] - found[which, 1]
            at, which = at[longer], which[longer]
            ends = source.passage_ends  # numpy would convert the whole column if the types differed
            records = np.searchsorted(ends, (at + start).astype(ends.dtype), side="right") + table.bounds[number]
            first_copies, of = np.unique(table.first_copies(records), return_inverse=True)
            is_read = np.array([often != 0 for often in mixture.encounters(first_copies)], bool)[of]
            here = passages[at]
            places = np.stack([records, here["start"], here["start"].astype(np.int64) + here["length"]], axis=1)
            places, which, length = places[is_read], which[is_read], here["length"][is_read]
            order = np.lexsort((np.arange(len(which)), -length.astype(np.int64), which))
            first = order[np.flatnonzero(np.diff(which[order], prepend=-1))]
            found[which[first]] = places[first]
    return found


def _parts(column: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(column), _SCANNED):
        yield start, np.asarray(column[start : start + _SCANNED])
