"""The sinks of a document, and the effect of each in each layer.

L layers, k sinks of a document, F neurons of a site, B rows of a batch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax import sinks
from memsinks_jax.auditing.rows import asking, bar, in_batches, reader, rows_of
from memsinks_jax.config import Config, with_fields
from memsinks_jax.evals.document_loss import rows_at_once
from memsinks_jax.evals.documents import Documents
from memsinks_jax.model import placement, sparse_sinks
from memsinks_jax.model.decoder import Interventions
from memsinks_jax.models.trained import Trained

MOST_CELLS = 4096  # sinks switched off one at a time; each takes one row

# {site: the sinks of a document by number, for each layer that draws its own}
Own = dict[str, list[list[int]]]


def has_own(config: Config) -> bool:
    """Whether documents have sinks of their own."""
    return sinks.has_sinks(config) and config.sinks.traits.owned


def own_sinks(run: Trained, documents: Documents) -> list[Own]:
    """The sinks of each document; none if they never opened in training."""
    config, opened = run.config, documents.opened_in(run)
    found = [{} for _ in documents.tokens]
    for site, parts in sinks.partitions(config).items():
        if not parts.sinks:
            continue
        if site == "mlp" and sinks.is_sparse(config.sinks):
            chosen = sinks.document_sinks(
                documents.identities, config.seed, parts.sinks, config.sinks
            )
            numbers = np.sort(np.asarray(chosen), axis=1)[:, None].tolist()
        else:
            of = (documents.identities, config.seed, parts.sinks, config.sinks, config.model.layers)
            masks = np.asarray(sinks.document_masks(*of, site=site))
            numbers = [
                [np.flatnonzero(mask_M).tolist() for mask_M in mask_LM]
                for mask_LM in masks.swapaxes(0, 1)
            ]
        for document, is_open, own in zip(found, opened, numbers, strict=True):
            if is_open:
                document[site] = own
    return found


def own_removed(config: Config) -> Callable[[dict], Interventions]:
    """For each document, the gates that `forget` leaves if it removes this document: all sinks on
    but its own.
    """

    def change(batch: dict) -> Interventions:
        found = {}
        for site, parts in sinks.partitions(config).items():
            if parts.sinks:
                own = sinks.gates_for_mode(
                    "own",
                    batch["identities"],
                    np.uint32(config.seed),
                    parts,
                    config.sinks,
                    config.model.layers,
                    site,
                    batch["opened"],
                )
                found |= sinks.apply_gates(
                    ~own | (jnp.arange(sum(parts)) < parts.shared), batch["segments"], site
                )
        return found

    return change


def carried(
    run: Trained, documents: Documents, own: list[Own], most: int = MOST_CELLS
) -> list[dict | None]:
    """The effect of each own sink: the rise of the document's loss if only this sink is off, in one
    layer.

    Args:
      own: from `own_sinks`.
      most: maximum number of sinks over all documents and layers; later documents are skipped.
    Returns:
      For each document {site: rise of the loss, nats per token, (L, k) as lists}, or None.
    """
    layers, found, left = run.config.model.layers, [None] * len(own), most
    read = _programs(run)
    with bar(min(most, sum(_cells(each, layers) for each in own)), "sinks, one by one") as progress:
        for place, mine in enumerate(own):
            count = _cells(mine, layers)
            if 0 < count <= left:
                found[place] = read(documents.chosen(np.array([place])), mine)
                left -= count
                progress.update(count)
    return found


def _cells(own: Own, layers: int) -> int:
    return sum(
        len(of_layer) * layers // len(numbers) for numbers in own.values() for of_layer in numbers
    )


def _programs(run: Trained) -> Callable[[Documents, Own], dict]:
    """(one document, its sinks) -> the entry of `carried`. Compiled once."""
    config, sparse = run.config, sinks.is_sparse(run.config.sinks)
    shared = {site: parts.shared for site, parts in sinks.partitions(config).items()}
    if sparse:  # a small model with only the document's sinks
        count = sinks.number_on(config.sinks, sinks.partition(config.model, config.sinks).sinks)
        config = with_fields(
            config, {"sinks.sparse": False, "sinks.pool": count, "sinks.active": count}
        )
    nats = reader(config, "own")

    def total(params: dict, rows: dict, off: dict) -> jax.Array:
        return nats(params, rows, {site: _switched_off(*cells) for site, cells in off.items()}).sum(
            axis=1
        )

    compiled, size = placement.jit(total), rows_at_once(config, placement.mesh_of(run.params))

    def read(document: Documents, own: Own) -> dict:
        params, neurons = run.params, {}
        for site, numbers in own.items():
            per_layer = numbers * (config.model.layers // len(numbers))
            neurons[site] = [np.array(of_layer, int) + shared[site] for of_layer in per_layer]
        if sparse:
            (mine,) = own["mlp"]
            params = sparse_sinks.without_tables(
                config.model,
                params
                | {
                    name: params[name][np.array(mine)]
                    for name in sparse_sinks.tables_of(config.model)
                },
            )
            neurons["mlp"] = [shared["mlp"] + np.arange(len(mine))] * config.model.layers
        cells = [
            (site, layer, n)
            for site, of in neurons.items()
            for layer, row in enumerate(of)
            for n in row
        ]
        # not end of text
        row = asking(rows_of(document, run), np.zeros(1), np.array([len(document.tokens[0])]))
        rows = {name: np.repeat(values, 1 + len(cells), axis=0) for name, values in row.items()}
        for site in neurons:  # the first row has all of them on
            rows[site] = np.array(
                [(-1, -1)] + [(layer, n) if at == site else (-1, -1) for at, layer, n in cells]
            )
        sums = []
        for batch in in_batches(rows, size):
            off = {site: tuple(batch.pop(site).T) for site in neurons}
            sums.append(np.asarray(compiled(params, batch, off), np.float64))
        before, *after = np.concatenate(sums)[: len(rows["inputs"])]
        rises, found = iter((np.array(after) - before) / (row["weights"] > 0).sum()), {}
        for site, of in neurons.items():
            found[site] = [[float(next(rises)) for _ in of_layer] for of_layer in of]
        return found

    return read


def _switched_off(
    layer_B: jax.Array, neuron_B: jax.Array
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """An intervention that zeroes, in each row, one neuron of one layer; none for layer -1."""

    def change(x_BTF: jax.Array, layer: jax.Array) -> jax.Array:
        is_off_BF = (layer_B == layer)[:, None] & (neuron_B[:, None] == jnp.arange(x_BTF.shape[-1]))
        return jnp.where(is_off_BF[:, None], 0, x_BTF)

    return change
