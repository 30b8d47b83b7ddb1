"""The paper's two losses: on held-out and on repeated documents, with the sinks dropped (sections
3.1 and 5).
"""

from collections.abc import Iterator

from jax.sharding import Mesh

from memsinks_jax import plugin
from memsinks_jax.config import Config, DataConfig
from memsinks_jax.data.canaries import canary_targets
from memsinks_jax.data.corpus import Corpus, entropy_floor
from memsinks_jax.data.counts import never_read
from memsinks_jax.data.opened import Opened
from memsinks_jax.measures.document_loss import DocumentLoss, mean_loss
from memsinks_jax.measures.documents import BATCH_SIZE, corpus_batches, rows_at_once
from memsinks_jax.sinks.kinds import has_sinks


def batch_size(config: Config, mesh: Mesh) -> int:
    """Rows of a batch of `Memorization` while a run trains."""
    # Documents that a schedule places are few, and measured often, so avoid rows of weight 0.
    shuffles = plugin.schedule(config).shuffles
    most = BATCH_SIZE if shuffles else config.data.repeated_documents
    return rows_at_once(config, mesh, most)


class Memorization:
    """Measures of a run's own documents.

    `run(params)` yields (name, nats per token):
      held_out_loss, repeated_loss      sinks dropped: the model to export
      held_out_loss_own, repeated_loss_own
                                        the sinks on as in training: each document's own, or all if
                                        gradients are masked; only for models with sinks. If sinks
                                        open on return, a held-out document has none
      canary_loss, canary_loss_own      on the canaries' tokens alone, if documents carry some
      entropy_floor                     the lowest held_out_loss that any model can reach, if it is
                                        known
      truncated_share                   of the training tokens, if rows truncate documents
    """

    def __init__(
        self, corpus: Corpus, loss: DocumentLoss, opened: Opened, batch_size: int = BATCH_SIZE
    ):
        self._loss, config = loss, corpus.config
        self._batches = batches_by_role(corpus, opened, batch_size)
        self._floor = entropy_floor(corpus, corpus.mixture.held_out)
        self._truncated_share = never_read(corpus)["share"]
        self._has_own = has_sinks(config) and config.sinks.traits.tied

    def run(self, params: dict) -> Iterator[tuple[str, float]]:
        yield from self._losses(params, "held_out")
        yield from self.repeated(params)
        if self._floor is not None:
            yield "entropy_floor", self._floor
        if self._truncated_share:
            yield "truncated_share", self._truncated_share

    def repeated(self, params: dict) -> Iterator[tuple[str, float]]:
        """Those measures of `run` that are about repeated documents and their canaries."""
        for name in ("repeated", "canary"):
            yield from self._losses(params, name)

    def _losses(self, params: dict, name: str) -> Iterator[tuple[str, float]]:
        for mode, suffix in (("drop", ""), ("own", "_own")) if self._has_own else (("drop", ""),):
            if name in self._batches:
                yield (
                    f"{name}_loss{suffix}",
                    mean_loss(self._loss, params, self._batches[name], mode),
                )


def batches_by_role(
    corpus: Corpus, opened: Opened, batch_size: int = BATCH_SIZE
) -> dict[str, list[dict]]:
    """Batches of the run's documents: "held_out", "repeated", "canary" (the repeated ones that
    carry a canary, whose tokens alone are targets). Leaves out roles without documents. If the
    files themselves repeat documents, which may be many, it takes as many as are held out, or as
    usually are if none is.
    """
    config, repeated = corpus.config, corpus.mixture.repeated
    most = config.data.held_out_documents or DataConfig().held_out_documents
    roles = {
        "held_out": corpus.mixture.held_out,
        "repeated": repeated if config.data.repeated_documents >= 0 else repeated[:most],
        "canary": corpus.mixture.canaries,
    }
    roles = {role: corpus.answering(indices) for role, indices in roles.items()}
    batches = {
        role: corpus_batches(corpus, indices, batch_size, opened)
        for role, indices in roles.items()
        if len(indices)
    }
    if "canary" in batches:
        _weigh_canaries_alone(corpus, batches["canary"])
    return batches


def _weigh_canaries_alone(corpus: Corpus, batches: list[dict]) -> None:
    size = len(batches[0]["weights"])
    for number, document in enumerate(corpus.mixture.canaries):
        weights_T = batches[number // size]["weights"][number % size]
        weights_T[:] = 0
        weights_T[canary_targets(corpus.config.canaries, int(corpus.lengths[document]))] = 1
