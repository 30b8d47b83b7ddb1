"""Loss of documents, each alone in its context, with the sinks set in one of the four modes."""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from memsinks_jax import sinks
from memsinks_jax.config import Config
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.data.packing import Piece, reads_whole, row_of, windows
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.model import host_memory, placement
from memsinks_jax.model.decoder import Change, build_model, compose, no_change
from memsinks_jax.model.losses import token_losses

BATCH_SIZE = 32
_AHEAD = 4  # batches
_SHORTEST = 128  # targets of a row: splash takes multiples of it
Answers = Sequence[np.ndarray | None] | None
Around = Sequence[tuple[int, int] | None] | None  # what opens and closes each
_MOST_LOGITS = 2**28  # logits on a device at once, float32: 1 GiB


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
    tokens: Sequence[np.ndarray],
    identities: np.ndarray,
    row_length: int,
    end_of_text: int,
    batch_size: int = BATCH_SIZE,
    whole: bool = False,
    opened: np.ndarray | None = None,
    begin_of_text: int | None = None,
    answers: Answers = None,
    around: Around = None,
    contexts: Contexts | None = None,
) -> list[dict]:
    """Documents -> batches of one-document rows; rows of weight 0 fill up the last batch.

    Args:
      tokens: int32 (tokens,) of each document.
      identities: uint32 (documents, 2).
      end_of_text, begin_of_text: the tokenizer's, as in packing.row_of.
      whole: a document longer than a row takes several rows, and each of its tokens is scored once;
        else it is truncated.
      answers: of each document, see `Table.answers`; None: all tokens of all documents count.
      opened: bool (documents,), which documents' own sinks are on in the mode own, see
      `data.opened`; None: nobody's.
      around: what opens and closes each document, see `Table.around`; None: the tokenizer's tokens.
      contexts: of the model, if its sinks are by context.
    Returns:
      Rows of packing.row_of, with `document` (batch,) int32, the index in `tokens` of each row's
      document, 0 for filling rows, and `opened` (batch, 1).
    """
    special = (end_of_text, begin_of_text)
    about = (tokens, identities, row_length, whole, opened, special, answers, around, contexts)
    made = _rows(*about, lambda size: row_length)
    return _batches(list(itertools.chain.from_iterable(made.values())), batch_size)


def batches_by_length(
    config: Config,
    mesh: Mesh | None,
    tokens: Sequence[np.ndarray],
    identities: np.ndarray,
    tokenizer: AnyTokenizer,
    opened: np.ndarray | None = None,
    answers: Answers = None,
    around: Around = None,
    contexts: Contexts | None = None,
) -> list[dict]:
    """The same, in rows that are no longer than their documents need: each batch has one length of
    `padded`.

    Batches are as large as `rows_at_once`, or smaller if there are few documents of a length.
    """
    length, parts, found = config.data.row_length, _parts(mesh), []
    special = (tokenizer.end_of_text, tokenizer.begin_of_text)
    about = (
        tokens,
        identities,
        length,
        reads_whole(config.data),
        opened,
        special,
        answers,
        around,
        contexts,
    )
    made = _rows(*about, lambda size: padded(size, length))
    for length, rows in sorted(made.items()):
        needed = parts << (math.ceil(len(rows) / parts) - 1).bit_length()
        found += _batches(rows, min(rows_at_once(config, mesh, length=length), needed))
    return found


def _rows(
    tokens: Sequence[np.ndarray],
    identities: np.ndarray,
    row_length: int,
    whole: bool,
    opened: np.ndarray | None,
    special: tuple[int, int | None],
    answers: Answers,
    around: Around,
    contexts: Contexts | None,
    length_for: Callable[[int], int],
) -> dict[int, list[dict]]:
    """{length: rows of it}, each length in the order of the documents."""
    opened, found = np.zeros(len(tokens), bool) if opened is None else opened, {}
    answers, around = answers or [None] * len(tokens), around or [None] * len(tokens)
    for place, (document, identity) in enumerate(zip(tokens, identities, strict=True)):
        for start, stop in windows(len(document) + 1, row_length, whole):
            length = length_for(stop - start)
            piece, own = (
                Piece(document, start, stop, answers[place], around[place]),
                opened[place : place + 1],
            )
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


class DocumentLoss:
    """Computes the loss of documents; compiled once for each mode.

    Args:
      put: moves a batch of numpy arrays to the devices; by default jit does.
      fetch: moves a result back.
      poll: called between batches; an exception ends the measure.
      change: an intervention besides the sinks.
      platform: as in `build_model`.
    """

    def __init__(
        self,
        config: Config,
        put: Callable[[dict], dict] = lambda batch: batch,
        fetch: Callable[[jax.Array], np.ndarray] = np.asarray,
        poll: Callable[[], None] = lambda: None,
        change: Change = no_change,
        platform: str | None = None,
    ):
        self._seed, self._put, self._fetch, self._poll = np.uint32(config.seed), put, fetch, poll
        # the seed is an argument
        self._compiled = _compiled(dataclasses.replace(config, seed=0), change, platform)

    def lower(self, params: dict, batch: dict, mode: str) -> jax.stages.Lowered:
        """The lowered program for a batch, which may be shapes with shardings."""
        with placement.on_mesh_of(params):
            return self._compiled.lower(params, batch, self._seed, mode=mode)

    def __call__(
        self, params: dict, batches: list[dict], mode: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Batches of `document_batches` -> (nats, tokens), float64 (documents,) each.

        `[i]` belongs to document i; both are 0 for one of which nothing counts. The mean loss of a
        set is nats.sum() / tokens.sum(): a token counts the same in a long and in a short document.
        """
        dispatched, fetched = collections.deque(), []
        for batch in batches:
            self._poll()
            host_memory.bound_freed_memory()
            with placement.on_mesh_of(params):
                dispatched.append(self._compiled(params, self._put(batch), self._seed, mode=mode))
            # Dispatch some batches ahead, so that the device never waits; not all, so that a stop
            # request is answered soon.
            if len(dispatched) > _AHEAD:
                fetched.append(jax.tree.map(self._fetch, dispatched.popleft()))
        fetched += [jax.tree.map(self._fetch, result) for result in dispatched]
        documents = np.concatenate([batch["document"] for batch in batches])
        nats, tokens = (
            np.bincount(documents, np.concatenate([f[i] for f in fetched])) for i in range(2)
        )
        return nats, tokens


@placement.shared
def _compiled(config: Config, change: Change, platform: str | None) -> jax.stages.Wrapped:
    """(params, batch, seed, mode) -> (nats, tokens) of the rows."""
    model, _ = build_model(config, platform)

    def sums(params: dict, batch: dict, seed: jax.Array, mode: str) -> tuple[jax.Array, jax.Array]:
        segments_BT = batch["segments"]
        interventions = compose(
            sinks.of_batch(config, mode, batch, seed), change(segments_BT > 0, None)
        )
        read_out = functools.partial(
            token_losses,
            targets_BT=batch["targets"],
            weights_BT=batch["weights"],
            chunks=config.compute.loss_chunks,
        )
        losses_BT = model(
            params,
            batch["inputs"],
            segments_BT,
            batch["positions"],
            interventions,
            read_out=read_out,
        )
        return losses_BT.sum(axis=1), batch["weights"].sum(axis=1)

    return jax.jit(sums, static_argnames="mode")


def per_token(nats: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Nats per token of each document -> float64 (documents,); nan for one of which nothing counts."""
    return np.divide(nats, tokens, out=np.full(len(tokens), np.nan), where=tokens > 0)


def mean_loss(loss: DocumentLoss, params: dict, batches: list[dict], mode: str = "all") -> float:
    """Nats per token over all documents."""
    nats, tokens = loss(params, batches, mode)
    return float(nats.sum() / tokens.sum())
