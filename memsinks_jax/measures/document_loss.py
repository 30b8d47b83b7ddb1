"""Loss of documents, each alone in its context, with the sinks set in one of the four modes."""

import collections
import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.model import host_memory, placement
from memsinks_jax.model.decoder import Change, Interventions, build_model, compose, no_change
from memsinks_jax.model.losses import token_losses
from memsinks_jax.sinks.interventions import interventions_of_batch

_AHEAD = 4  # batches


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

    def sums(params: dict, batch: dict, seed: jax.Array, mode: str) -> tuple[jax.Array, jax.Array]:
        read = reader(config, mode, platform)
        losses_BT = read(params, batch, change(batch["segments"] > 0, None), seed=seed)
        return losses_BT.sum(axis=1), batch["weights"].sum(axis=1)

    return jax.jit(sums, static_argnames="mode")


def applied(config: Config, mode: str, platform: str | None = None) -> Callable:
    """(params, rows, read_out, *interventions besides the sinks, seed: by default the config's) ->
    what `read_out` returns for the last hidden states (R, T, D) and the head's matrix (D, V). To be
    traced.
    """
    model, _ = build_model(config, platform)

    def apply(params: dict, rows: dict, read_out: Callable, *more: Interventions, seed=None):
        own = interventions_of_batch(
            config, mode, rows, np.uint32(config.seed) if seed is None else seed
        )
        place = rows["inputs"], rows["segments"], rows["positions"]
        return model(params, *place, compose(own, *more), read_out=read_out)

    return apply


def reader(config: Config, mode: str, platform: str | None = None) -> Callable[..., jax.Array]:
    """(params, rows, *interventions besides the sinks, seed) -> nats of every target, float32 (R,
    T). To be traced.
    """
    apply = applied(config, mode, platform)

    def nats(params: dict, rows: dict, *more: Interventions, seed=None) -> jax.Array:
        read_out = functools.partial(nats_of, rows=rows, chunks=config.compute.loss_chunks)
        return apply(params, rows, read_out, *more, seed=seed)

    return nats


def nats_of(x_RTD: jax.Array, head_DV: jax.Array, rows: dict, chunks: int) -> jax.Array:
    """Nats of every target from the last hidden states, float32 (R, T)."""
    return token_losses(x_RTD, head_DV, rows["targets"], rows["weights"], chunks)


def mean_loss(loss: DocumentLoss, params: dict, batches: list[dict], mode: str = "all") -> float:
    """Nats per token over all documents."""
    nats, tokens = loss(params, batches, mode)
    return float(nats.sum() / tokens.sum())
