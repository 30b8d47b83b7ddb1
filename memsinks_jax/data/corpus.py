"""The tokenised documents of a run: from the config to tokens, ids and roles. The first half of the data's way."""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from memsinks_jax.config import Config, InputError, with_rows
from memsinks_jax.data import ids
from memsinks_jax.data.canaries import with_canary
from memsinks_jax.data.documents import Document, read_documents
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.mixture import Mixture, fill_up, general_sources, plan_mixture
from memsinks_jax.data.packing import Rows, reads_whole
from memsinks_jax.data.prepared import Prepared, Tokens, as_numbers, is_prepared
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer, train_tokenizer

# Of a user's tokens: where rows of one document would leave more of them out, rows are chosen that read all.
_TRUNCATED_AT_MOST = 0.01


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a run with their tokens, ids and roles; `[i]` of every list belongs to document i."""

    config: Config  # what it was loaded for; what the documents decide (`data.rows`) is decided
    documents: Sequence[Document]
    places: list[str]  # where each is from, known without reading any: FILE:LINE, FOLDER:NUMBER of a prepared one
    tokens: Sequence[np.ndarray]  # int32 (tokens,), without end of text
    lengths: np.ndarray  # int64 (documents,), of the tokens
    sources: np.ndarray  # int64 (documents,): 0 for data.files or the embedded stories, then those of general.files
    identities: np.ndarray  # uint32 (documents, 2)
    copies: np.ndarray  # int64 (documents,): how often the files hold each
    clusters: np.ndarray | None  # int64 (documents of data.files,): first of each one's cluster; None: all are alone
    mixture: Mixture
    tokenizer: AnyTokenizer

    def rows(self) -> Rows:
        """The rows of a run on these documents."""
        return Rows(self.config, self.mixture, self.tokens, self.lengths, self.identities, self.tokenizer.end_of_text)


def load_corpus(config: Config, tokenizer: AnyTokenizer | None = None) -> Corpus:
    """Reads or generates the documents, splits them by the seed, tokenises and hashes them.

    Args:
      tokenizer: of an earlier run; by default the one that the config names, or else a new one, trained on the training
        documents, each taken once, so that variants of one experiment share it.
    Raises:
      InputError: files that cannot be read, too few documents or tokens for the plan, a document without tokens, a
        tokenizer with more pieces than the model has embeddings.
    """
    if is_prepared(config.data.files):
        return _open_prepared(config, tokenizer)
    gathered = [_gather(config), *(read_documents(files) for files, _ in general_sources(config.general))]
    source_of = {id(document): number for number, there in enumerate(gathered) for document in there}
    documents, copies = without_copies([document for there in gathered for document in there])
    sources = np.array([source_of[id(document)] for document in documents])
    mixture = _plan(config, sources, copies)
    if tokenizer is None and config.data.tokenizer:
        tokenizer = open_tokenizer(pathlib.Path(config.data.tokenizer))
    elif tokenizer is None:
        training = np.concatenate([mixture.repeated, mixture.unique, np.flatnonzero(sources)])
        tokenizer = train_tokenizer([documents[i].text for i in np.sort(training)], config.data.vocabulary_size)
    _check_vocabulary(config, tokenizer, config.data.tokenizer or "of the run")
    tokens = tokenise(documents, tokenizer)
    for index in mixture.canaries.tolist():
        tokens[index] = with_canary(config, index, tokens[index], tokenizer)
        source = f"{documents[index].source} with a canary"
        documents[index] = Document(tokenizer.decode(tokens[index]), source)
    lengths = np.array([len(document) for document in tokens])
    config = _decide_rows(config, lengths)
    if config.general.files:
        mixture = fill_up(mixture, config, sources, lengths, copies)
    if config.data.ids == "content":
        identities = np.stack([ids.content_id(document) for document in tokens])
    elif config.data.ids == "index":
        identities = _index_ids(len(documents))
    else:
        raise InputError(
            f"config.data.ids is {config.data.ids}, which only a prepared corpus has: run memsinks_jax.prepare on the text "
            "and give its folder as config.data.files, or choose content or index"
        )
    places = [document.source for document in documents]
    return Corpus(config, documents, places, tokens, lengths, sources, identities, copies, None, mixture, tokenizer)


def _plan(config: Config, sources: np.ndarray, copies: np.ndarray, clusters: np.ndarray | None = None) -> Mixture:
    count, has_general = int((sources == 0).sum()), bool(config.general.files)
    mixture = plan_mixture(config.data, copies[:count], config.seed, clusters, more_to_come=has_general)
    carriers = config.canaries.documents if config.canaries.documents >= 0 else len(mixture.repeated)
    return dataclasses.replace(mixture, canaries=mixture.repeated[:carriers])


def _decide_rows(config: Config, lengths: np.ndarray) -> Config:
    """The config with `data.rows` decided where it is auto."""
    if config.data.rows != "auto":
        return config
    never_read = truncated(lengths, config.data.row_length)[1]
    splits = bool(config.data.files) and never_read > _TRUNCATED_AT_MOST * (lengths + 1).sum()
    return with_rows(config, "best_fit" if splits else "one_document")


def truncated(lengths: np.ndarray, row_length: int) -> tuple[int, int]:
    """(documents that are longer than a row, their tokens that a row has no room for), end of text included."""
    beyond = np.maximum(lengths + 1 - row_length, 0)
    return int((beyond > 0).sum()), int(beyond.sum())


def _open_prepared(config: Config, tokenizer: AnyTokenizer | None) -> Corpus:
    """Folders of `memsinks_jax.prepare`: tokens stay on disk until they are asked for."""
    folders = [config.data.files, *(files for files, _ in general_sources(config.general))]
    for folder in folders:
        if not is_prepared(folder):
            raise InputError(f"{folder} is not prepared, but {folders[0]} is; run memsinks_jax.prepare on it too")
    if config.canaries.documents:
        raise InputError(f"config.canaries.documents: {folders[0]} is prepared; canaries go into text files only")
    parts = [Prepared(folder) for folder in folders]
    if tokenizer is not None:
        parts[0].check_tokenizer(tokenizer, "the run's")
    elif config.data.tokenizer:
        given = open_tokenizer(pathlib.Path(config.data.tokenizer), parts[0].manifest["end_of_text"])
        parts[0].check_tokenizer(given, config.data.tokenizer)
    tokenizer = parts[0].tokenizer()
    for part in parts[1:]:
        part.check_tokenizer(tokenizer, f"that of {folders[0]}")
    _check_vocabulary(config, tokenizer, f"of {folders[0]}")
    content = np.concatenate([part.identities for part in parts])
    _, firsts, copies = np.unique(as_numbers(content), return_index=True, return_counts=True)
    kept, copies = np.sort(firsts), copies[np.argsort(firsts)]  # the first of exact copies
    tokens = Tokens(parts, kept)
    config = _decide_rows(config, tokens.lengths)
    sources = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[kept]
    clusters = _clusters(config, parts[0], kept[sources == 0])
    mixture = _plan(config, sources, copies, clusters)
    if config.general.files:
        mixture = fill_up(mixture, config, sources, tokens.lengths, copies)
    if config.data.ids == "index":
        identities = _index_ids(len(kept))
    else:
        identities = np.concatenate([part.ids_of(config.data.ids) for part in parts])[kept]
    documents = _PreparedDocuments(tokens, tokenizer)
    homes = (tokens.home(place) for place in range(len(tokens)))
    places = [f"{part.folder}:{number}" for part, number in homes]
    return Corpus(
        config, documents, places, tokens, tokens.lengths, sources, identities, copies, clusters, mixture, tokenizer
    )


def _clusters(config: Config, part: Prepared, kept: np.ndarray) -> np.ndarray | None:
    """The first document of the cluster of each of `kept` -> int64 (kept,); None where every document is its own.

    What must not be held out apart: near-duplicates and, with ids by group, the documents of a group; and what hangs
    together by both.
    """
    if config.data.held_out_by == "document":
        return None
    labels = part.near_duplicates[kept]
    if config.data.ids == "group" and part.group_names:
        from scipy.sparse import coo_array  # a quarter of a second, for those who have groups
        from scipy.sparse.csgraph import connected_components

        nodes = len(part) + len(part.group_names)
        edges = coo_array((np.ones(len(kept)), (labels, len(part) + part.groups[kept])), shape=(nodes, nodes))
        labels = connected_components(edges, directed=False)[1][labels]
    _, firsts, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return None if len(firsts) == len(kept) else firsts[inverse]


class _PreparedDocuments(Sequence):
    """Documents of prepared corpora, whose text is decoded when one is asked for."""

    def __init__(self, tokens: Tokens, tokenizer: AnyTokenizer):
        self._tokens, self._tokenizer = tokens, tokenizer

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, place: int) -> Document:
        prepared, number = self._tokens.home(place)
        return Document(self._tokenizer.decode(self._tokens[place]), prepared.source(number))


def _check_vocabulary(config: Config, tokenizer: AnyTokenizer, name: str) -> None:
    if tokenizer.vocabulary_size > config.data.vocabulary_size:
        raise InputError(
            f"config.data.vocabulary_size is {config.data.vocabulary_size}, but the tokenizer "
            f"{name} has {tokenizer.vocabulary_size} pieces; raise it to that at least"
        )


def _index_ids(documents: int) -> np.ndarray:
    return np.stack([ids.index_id(index) for index in range(documents)])


def generate_documents(seed: int, count: int) -> list[Document]:
    """The first `count` embedded stories of a seed, with their exact log-probabilities."""
    told = (stories.story(seed, index) for index in range(count))
    return [Document(s.text, f"stories:seed={seed},index={i}", s.log_probability) for i, s in enumerate(told)]


def without_copies(documents: list[Document]) -> tuple[list[Document], np.ndarray]:
    """Keeps the first of equal texts -> (documents, int64 (documents,): how often each was there)."""
    first = {document.text: document for document in reversed(documents)}
    times = Counter(document.text for document in documents)
    kept = [document for document in documents if first[document.text] is document]
    return kept, np.array([times[document.text] for document in kept])


def tokenise(documents: list[Document], tokenizer: AnyTokenizer) -> list[np.ndarray]:
    """-> int32 (tokens,) of each document. Raises InputError for a document that has none."""
    tokens = [tokenizer.encode(document.text) for document in documents]
    for document, encoded in zip(documents, tokens, strict=True):
        if not len(encoded):
            raise InputError(f"{document.source}: the document is empty after tokenization; remove it")
    return tokens


def entropy_floor(corpus: Corpus, indices: np.ndarray) -> float | None:
    """The lowest loss any model can reach on these documents on average, in nats per token with end of text.

    It is exact for the embedded stories: minus the grammar's log-probability over the number of tokens. The few stories
    that are measured in part are left out. None for other text, of which nobody knows the entropy.
    """
    data = corpus.config.data
    whole = [i for i in indices if reads_whole(data) or corpus.lengths[i] < data.row_length]
    known = [corpus.documents[i].log_probability for i in whole]
    if not known or None in known:
        return None
    return -sum(known) / float(corpus.lengths[whole].sum() + len(whole))


def _gather(config: Config) -> list[Document]:
    data = config.data
    if data.files:
        return read_documents(data.files)
    if data.unique_documents < 0:
        raise InputError(
            "config.data.unique_documents is -1 (all that are left), but the embedded stories never end; give a number"
        )
    if data.repeated_documents < 0:
        raise InputError(
            "config.data.repeated_documents is -1 (those that the files hold more than once), but no embedded story comes "
            "twice; give a number"
        )
    count = data.unique_documents + data.repeated_documents + data.held_out_documents
    # A few spare stories: two of them may be the same by chance, which is no repeat that anybody asked for.
    return without_copies(generate_documents(config.seed, count + count // 100 + 8))[0]
