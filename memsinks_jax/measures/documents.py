"""Documents to measure a model on: with their ids, and in rows, each alone in its context."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from memsinks_jax.config import Config
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.opened import Opened
from memsinks_jax.data.packing import Piece, answering, counted, reads_whole, row_of, windows
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.model import placement

BATCH_SIZE = 32
_SHORTEST = 128  # targets of a row: splash takes multiples of it
_MOST_LOGITS = 2**28  # logits on a device at once, float32: 1 GiB


class Documents(NamedTuple):
    """Tokenized documents, truncated to the context; `[i]` of every field belongs to document i."""

    tokens: list[np.ndarray]  # int32 (tokens,), without end of text
    identities: np.ndarray  # uint32 (documents, 2)
    # int64 (documents,): how often an epoch has each; None: not known
    encounters: np.ndarray | None = None
    # bool (documents,): whose own sinks are on; None: as the model knows
    opened: np.ndarray | None = None
    # what counts of each, see `Table.answers`; None: all of all
    answers: list[np.ndarray | None] | None = None
    # what opens and closes each, see `Table.around`
    around: list[tuple[int, int] | None] | None = None

    def chosen(self, which: np.ndarray) -> "Documents":
        """The documents at some indices, or by a bool for each."""
        indices = np.arange(len(self.tokens))[which]
        rest = (None if each is None else each[indices] for each in self[2:4])
        listed = (each and [each[i] for i in indices] for each in self[4:])
        return Documents(
            [self.tokens[i] for i in indices], self.identities[indices], *rest, *listed
        )

    def each(self, field: str) -> list:
        """A list of each document's, of None where the field is None."""
        return getattr(self, field) or [None] * len(self.tokens)

    def counted(self) -> list[np.ndarray]:
        """Which tokens of each count in the loss -> bool (tokens,), without end of text."""
        return [
            np.ones(len(tokens), bool) if of is None else counted(of, 0, len(tokens))
            for tokens, of in zip(self.tokens, self.each("answers"), strict=True)
        ]

    def measurable(self, row_length: int) -> np.ndarray:
        """Of which anything counts within a row: not those whose prompts fill it -> bool
        (documents,).
        """
        return answering(self.each("answers"), row_length)

    @property
    def openings(self) -> np.ndarray:
        """Tokens before the first answer of each, int64 (documents,)."""
        return np.array([int(np.argmax(counted)) for counted in self.counted()])

    def opening(self, place: int, tokenizer: AnyTokenizer) -> int:
        """The token that opens a document."""
        around = self.around and self.around[place]
        return around[0] if around else tokenizer.begin_of_text

    def opened_in(self, run) -> np.ndarray:
        return run.opened(self.identities) if self.opened is None else self.opened

    def batches(self, run, size: int | None = None) -> list[dict]:
        """`document_batches` for a trained model, of `size` rows; by default `rows_at_once`."""
        size = size or rows_at_once(run.config, placement.mesh_of(run.params))
        opened = self._replace(opened=self.opened_in(run))
        length = run.config.data.row_length
        return document_batches(opened, length, run.tokenizer, size, contexts=run.contexts)


def together(parts: Sequence[Documents]) -> Documents:
    """All documents of the parts, in this order. What is not known of one part is known of none."""

    def listed(field: str) -> list:
        return [x for of in parts for x in of.each(field)]

    def known(field: str) -> np.ndarray | None:
        found = [getattr(of, field) for of in parts]
        return None if any(of is None for of in found) else np.concatenate(found)

    return Documents(
        listed("tokens"),
        *map(known, ("identities", "encounters", "opened")),
        *map(listed, ("answers", "around")),
    )


def of_corpus(corpus: Corpus, documents: np.ndarray) -> Documents:
    """Documents of a run's own, by their numbers."""
    return Documents(
        [np.asarray(corpus.tokens(document)) for document in documents],
        corpus.identities(documents),
        answers=corpus.answers(documents),
        around=corpus.around(documents),
    )


def rows_at_once(
    config: Config,
    mesh: Mesh | None = None,
    most: int = BATCH_SIZE,
    chunks: int | None = None,
    length: int = 0,
) -> int:
    """The number of rows per forward pass, a multiple of the parts into which the mesh splits the
    batch.

    About `most`, but at most a training microbatch, and at most as many as a device has room for
    their logits.

    Args:
      chunks: parts of the vocabulary, computed one at a time; by default
        config.compute.loss_chunks.
      length: of the rows; by default config.data.row_length.
    """
    parts, length = _parts(mesh), length or config.data.row_length
    microbatch = config.training.batch_size // config.compute.accumulate
    logits = length * math.ceil(
        config.data.vocabulary_size / (chunks or config.compute.loss_chunks)
    )
    return max(min(math.ceil(min(most, microbatch) / parts), _MOST_LOGITS // logits), 1) * parts


def _parts(mesh: Mesh | None) -> int:
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in placement.BATCH)


def padded(size: int, most: int) -> int:
    """The length of a row for so many targets: a power of two, so that few programs are compiled,
    and at most `most`.
    """
    return min(max(_SHORTEST, 1 << (size - 1).bit_length()), most)


def document_batches(
    documents: Documents,
    row_length: int,
    tokenizer: AnyTokenizer,
    size: int = BATCH_SIZE,
    whole: bool = False,
    contexts: Contexts | None = None,
) -> list[dict]:
    """Documents -> batches of one-document rows; rows of weight 0 fill up the last batch.

    Args:
      documents: of which `opened` says whose own sinks are on in the mode own; None: nobody's.
      tokenizer: has the tokens that open and close a document, if it has no others.
      size: rows of a batch.
      whole: a document longer than a row takes several rows, and each of its tokens is scored once;
        else it is truncated.
      contexts: of the model, if its sinks are by context.
    Returns:
      Rows of packing.row_of, with `document` (batch,) int32, the index of each row's document, 0
      for filling rows, and `opened` (batch, 1).
    """
    made = _rows(documents, row_length, tokenizer, whole, contexts, lambda targets: row_length)
    return _batches([row for rows in made.values() for row in rows], size)


def corpus_batches(
    corpus: Corpus, documents: np.ndarray, size: int, opened: Opened | None = None
) -> list[dict]:
    """`document_batches` of documents of a run's own, read as the run reads them.

    Args:
      opened: whose own sinks are on; None: nobody's.
    """
    found, data = of_corpus(corpus, documents), corpus.config.data
    found = found._replace(opened=opened and opened(found.identities))
    whole = reads_whole(data)
    return document_batches(found, data.row_length, corpus.tokenizer, size, whole, corpus.contexts)


def batches_by_length(
    documents: Documents,
    config: Config,
    mesh: Mesh | None,
    tokenizer: AnyTokenizer,
    contexts: Contexts | None = None,
) -> list[dict]:
    """The same, in rows that are no longer than their documents need: each batch has one length of
    `padded`.

    Batches are as large as `rows_at_once`, or smaller if there are few documents of a length.
    """
    most, parts, found = config.data.row_length, _parts(mesh), []
    whole = reads_whole(config.data)
    made = _rows(documents, most, tokenizer, whole, contexts, lambda size: padded(size, most))
    for length, rows in sorted(made.items()):
        needed = parts << (math.ceil(len(rows) / parts) - 1).bit_length()
        found += _batches(rows, min(rows_at_once(config, mesh, length=length), needed))
    return found


def _rows(
    documents: Documents,
    row_length: int,
    tokenizer: AnyTokenizer,
    whole: bool,
    contexts: Contexts | None,
    length_for: Callable[[int], int],
) -> dict[int, list[dict]]:
    """{length: rows of it}, each length in the order of the documents."""
    tokens, identities, _, opened, *_ = documents
    opened, found = np.zeros(len(tokens), bool) if opened is None else opened, {}
    answers, around = documents.each("answers"), documents.each("around")
    special = tokenizer.end_of_text, tokenizer.begin_of_text
    for place, (document, identity) in enumerate(zip(tokens, identities, strict=True)):
        for start, stop in windows(len(document) + 1, row_length, whole):
            length, own = length_for(stop - start), opened[place : place + 1]
            piece = Piece(document, start, stop, answers[place], around[place])
            row = row_of([piece], identity[None], length, *special, contexts=contexts, opened=own)
            row["document"] = np.int32(place)
            found.setdefault(length, []).append(row)
    return found


def _batches(rows: list[dict], size: int) -> list[dict]:
    rows = rows + [jax.tree.map(np.zeros_like, rows[0])] * (-len(rows) % size)
    return [
        {name: np.stack([row[name] for row in rows[at : at + size]]) for name in rows[0]}
        for at in range(0, len(rows), size)
    ]
