"""What methods that look for memorization in a finished model achieve on a run: their trade-off curves."""

import math
from collections.abc import Iterable

from memsinks_jax import workdir as workdirs
from memsinks_jax.figures.runs import Run

METHODS = ("hard_concrete", "integrated_gradients")  # those of the paper


def removals(run: Run, methods: Iterable[str] = METHODS) -> dict[str, list]:
    """{method: its curve}, a `removal.Point` for each of removal.RATIOS, on the run's own documents."""
    # Imported here: they start jax, which must wait until the runs have left the accelerator.
    from memsinks_jax.baselines import removal, scores
    from memsinks_jax.evals.document_loss import DocumentLoss, document_batches
    from memsinks_jax.trained import open_run

    model, corpus = open_run(run.workdir), workdirs.read_corpus(run.workdir)
    repeated, held_out = (
        document_batches(
            [corpus.tokens[i] for i in chosen], corpus.identities[chosen], model.config.data.row_length,
            corpus.tokenizer.end_of_text,
        )
        for chosen in (corpus.mixture.repeated, corpus.mixture.held_out)
    )  # fmt: skip
    loss = DocumentLoss(model.config)
    return {
        method: removal.tradeoff(
            loss, model.params, scores.over_documents(scores.METHODS[method](model.config, model.params, repeated)),
            repeated, held_out,
        )
        for method in methods
    }  # fmt: skip


def cost_at(curves: dict[str, list[dict]], forgetting: float) -> float:
    """The least rise of the held-out loss (nats) at which a method reaches `forgetting`; curves as a run's details.

    Where none does: the rise where the most is forgotten, which is too little to ask of it.
    """
    from memsinks_jax.baselines.removal import Point, delta_val_at

    points = {method: [Point(**point) for point in curve] for method, curve in curves.items()}
    reached = min(delta_val_at(curve, forgetting) for curve in points.values())
    if math.isfinite(reached):
        return reached
    return max((point for curve in points.values() for point in curve), key=lambda p: p.forgetting).delta_val
