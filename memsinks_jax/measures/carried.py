"""The sinks of a document, and the effect of each in each layer; of contexts, what each says.

L layers, k sinks of a document, F neurons of an MLP, B rows of a batch.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config, with_fields
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.measures.document_loss import reader
from memsinks_jax.measures.documents import Documents, rows_at_once
from memsinks_jax.measures.rows import asking, bar, in_batches, rows_of
from memsinks_jax.model import placement, sparse_sinks
from memsinks_jax.model.decoder import CONTEXTS, Interventions
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.draws import document_masks, document_sinks
from memsinks_jax.sinks.gates import apply_gates, gates_for_mode
from memsinks_jax.sinks.kinds import NONE, has_sinks, is_sparse, number_on, partition

MOST_CELLS = 4096  # sinks switched off one at a time; each takes one row

Own = list[int]  # the sinks of a document by number


def has_own(config: Config) -> bool:
    """Whether documents have sinks of their own."""
    return has_sinks(config) and config.sinks.traits.owned


def own_sinks(run: Trained, documents: Documents) -> list[Own]:
    """The sinks of each document; none if it has none of its own, or they never opened in
    training.
    """
    if not has_own(run.config):
        return [[] for _ in documents.tokens]
    config, parts = run.config, partition(run.config.model, run.config.sinks)
    of = documents.identities, config.seed, parts.sinks, config.sinks
    if is_sparse(config.sinks):
        chosen = document_sinks(*of)
        numbers = np.sort(np.asarray(chosen), axis=1).tolist()
    else:
        masks = np.asarray(document_masks(*of))
        numbers = [np.flatnonzero(mask_M).tolist() for mask_M in masks]
    opened = documents.opened_in(run)
    return [own if is_open else [] for own, is_open in zip(numbers, opened, strict=True)]


def own_removed(config: Config) -> Callable[[dict], Interventions]:
    """For each document, the gates that `forget` leaves if it removes this document: all sinks on
    but its own.
    """

    def change(batch: dict) -> Interventions:
        parts, seed = partition(config.model, config.sinks), np.uint32(config.seed)
        of = batch["identities"], seed, parts, config.sinks, batch["opened"]
        own = gates_for_mode("own", *of)
        shared = jnp.arange(sum(parts)) < parts.shared
        return apply_gates(~own | shared, batch["segments"])

    return change


def said(run: Trained, documents: Documents) -> list[np.ndarray]:
    """The token that the sink of a context makes likelier than any other -> int64 (tokens,) of each
    document: at each of its tokens that of the context before it, -1 without a sink.
    """
    table, found = np.asarray(run.params[CONTEXTS]), []
    tied = run.config.model.tied_head
    head_DV = np.asarray(run.params["token_embedding"].T if tied else run.params["head_kernel"])
    for place, tokens in enumerate(documents.tokens):
        opening = documents.opening(place, run.tokenizer)
        rows = run.contexts.rows(tokens, 0, len(tokens), opening)
        has_sink = rows != NONE
        has_sink[has_sink] = table[rows[has_sink]].any(axis=1)  # it has learned something
        says = np.full(len(tokens), -1)
        says[has_sink] = (table[rows[has_sink]] @ head_DV).argmax(axis=1)
        found.append(says)
    return found


def without_own_contexts(run: Trained, corpus: Corpus) -> Trained:
    """A model that reads each document as the one does that `forget` leaves if it removes that
    document: contexts that stand in one document alone have no sink. Reads all that the run has
    read.
    """
    documents_M = np.zeros(run.config.contexts.rows, np.int32)
    for tokens, opening in corpus.texts(corpus.read_besides(np.zeros(0, np.int64))):
        rows = run.contexts.rows(tokens, 0, len(tokens) + 1, opening)
        documents_M[np.unique(rows[rows != NONE])] += 1
    table = run.params[CONTEXTS] * (documents_M != 1)[:, None]
    return dataclasses.replace(run, params=run.params | {CONTEXTS: table})


def carried(
    run: Trained, documents: Documents, own: list[Own], most: int = MOST_CELLS
) -> list[list[list[float]] | None]:
    """The effect of each own sink: the rise of the document's loss if only this sink is off, in one
    layer.

    Args:
      own: from `own_sinks`.
      most: maximum number of sinks over all documents and layers; later documents are skipped.
    Returns:
      For each document the rise of the loss, nats per token, (L, k) as lists, or None.
    """
    layers, found, left = run.config.model.layers, [None] * len(own), most
    read = _programs(run)
    with bar(min(most, layers * sum(map(len, own))), "sinks, one by one") as progress:
        for place, mine in enumerate(own):
            count = layers * len(mine)
            if 0 < count <= left:
                found[place] = read(documents.chosen(np.array([place])), mine)
                left -= count
                progress.update(count)
    return found


def _programs(run: Trained) -> Callable[[Documents, Own], list[list[float]]]:
    """(one document, its sinks) -> the entry of `carried`. Compiled once."""
    config, sparse = run.config, is_sparse(run.config.sinks)
    shared = partition(config.model, config.sinks).shared
    if sparse:  # a small model with only the document's sinks
        count = number_on(config.sinks, partition(config.model, config.sinks).sinks)
        config = with_fields(
            config, {"sinks.sparse": False, "sinks.pool": count, "sinks.active": count}
        )
    nats = reader(config, "own")

    def total(params: dict, rows: dict, off: tuple[np.ndarray, np.ndarray]) -> jax.Array:
        return nats(params, rows, {"mlp": _switched_off(*off)}).sum(axis=1)

    compiled, size = placement.jit(total), rows_at_once(config, placement.mesh_of(run.params))

    def read(document: Documents, own: Own) -> list[list[float]]:
        params, neurons = run.params, shared + np.array(own)
        if sparse:
            tables = {n: params[n][np.array(own)] for n in sparse_sinks.tables_of(config.model)}
            params = sparse_sinks.without_tables(config.model, params | tables)
            neurons = shared + np.arange(len(own))
        cells = [(layer, n) for layer in range(config.model.layers) for n in neurons]
        # not end of text
        row = asking(rows_of(document, run), np.zeros(1), np.array([len(document.tokens[0])]))
        rows = {name: np.repeat(values, 1 + len(cells), axis=0) for name, values in row.items()}
        rows["off"] = np.array([(-1, -1), *cells])  # the first row has all of them on
        sums = []
        for batch in in_batches(rows, size):
            off = tuple(batch.pop("off").T)
            sums.append(np.asarray(compiled(params, batch, off), np.float64))
        before, *after = np.concatenate(sums)[: len(rows["inputs"])]
        rises = (np.array(after) - before) / (row["weights"] > 0).sum()
        return rises.reshape(config.model.layers, -1).tolist()

    return read


def _switched_off(
    layer_B: jax.Array, neuron_B: jax.Array
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """An intervention that zeroes, in each row, one neuron of one layer; none for layer -1."""

    def change(x_BTF: jax.Array, layer: jax.Array) -> jax.Array:
        is_off_BF = (layer_B == layer)[:, None] & (neuron_B[:, None] == jnp.arange(x_BTF.shape[-1]))
        return jnp.where(is_off_BF[:, None], 0, x_BTF)

    return change
