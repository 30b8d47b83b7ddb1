"""An attacker has a model with its sinks, but not the ids. How much of a document comes back by
switching sinks on?

The attacker has the first half of a document and wants the second; only the second half is
measured. The attacker tries masks of ids as in training, or optimises gates between 0 and 1 on the
first half. The scale of every attack goes from the sinks dropped (recovered 0) to the document's
own sinks on (1). R documents, K masks, M sinks.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.config import InputError
from memsinks_jax.measures.document_loss import reader
from memsinks_jax.measures.documents import Documents, rows_at_once
from memsinks_jax.measures.rows import bar, halves, in_batches, rows_of, token_mean
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement
from memsinks_jax.model.decoder import Interventions
from memsinks_jax.sinks.kinds import has_sinks, partition, share_on

MASKS = 64
ITERATIONS = 25
RATE = 0.3  # of Adam on the gates' logits


def reactivate(
    subject: Subject,
    documents: Documents,
    masks: int = MASKS,
    iterations: int = ITERATIONS,
    candidates_K2: np.ndarray | None = None,
) -> dict:
    """Every attack on every document.

    Args:
      subject: its mode is not read.
      masks: K of "best" and "random". iterations: of "optimised".
      candidates_K2: uint32 ids whose masks are tried; by default K random ones.
    Returns:
      {name: {"loss": nats per token of the second halves, "recovered": share of the difference
      between dropped and own, null if own sinks lower no loss}}. Names: dropped, own, all, random
      (mean over the K masks), best (of K, by the first half) and optimised.
    Raises:
      InputError: the model has no sinks.
    """
    config, params = subject.run.config, subject.run.params
    if not has_sinks(config):
        raise InputError(f"{subject.name} has no sinks to switch on")
    if candidates_K2 is None:
        candidates_K2 = np.random.default_rng(config.seed).integers(
            2**32, size=(masks, 2), dtype=np.uint32
        )
    rows = rows_of(documents, subject.run)
    first, second = halves(rows)
    at_once = rows_at_once(config, placement.mesh_of(params))
    compiled = {mode: placement.jit(reader(config, mode)) for mode in ("own", "drop", "all")}

    def losses(mode: str, identity_2: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Nats of the first and of the second halves, (R,) each, from one reading."""
        identities = rows["identities"]
        given = rows | {
            "identities": identities
            if identity_2 is None
            else np.broadcast_to(identity_2, identities.shape)
        }
        read = [compiled[mode](params, batch) for batch in in_batches(given, at_once)]
        nats_RT = np.concatenate(read)[: len(identities)].astype(np.float64)
        return tuple((nats_RT * half["weights"]).sum(axis=1) for half in (first, second))

    nats = {"dropped": losses("drop")[1], "own": losses("own")[1], "all": losses("all")[1]}
    tried = []
    with bar(len(candidates_K2) + 1, "reactivation") as progress:
        for identity_2 in candidates_K2:
            tried.append(losses("own", identity_2))
            progress.update()
        first_KR, second_KR = (np.array(part) for part in zip(*tried, strict=True))
        nats["random"] = second_KR.mean(axis=0)
        nats["best"] = np.take_along_axis(second_KR, first_KR.argmin(axis=0)[None], axis=0)[0]
        nats["optimised"] = _optimise(subject, rows, first, second, iterations)
        progress.update()
    tokens_R = second["weights"].sum(axis=1)
    return {
        name: {
            "loss": token_mean(nats_R / tokens_R, tokens_R),
            "recovered": recovered(nats_R, nats["dropped"], nats["own"]),
        }
        for name, nats_R in nats.items()
    }


def recovered(nats_R: np.ndarray, dropped_R: np.ndarray, own_R: np.ndarray) -> float | None:
    """Share of what own sinks hold, of sums: a single document may hold nothing there."""
    held = float((dropped_R - own_R).sum())
    return float((dropped_R - nats_R).sum()) / held if held > 0 else None


def _optimise(
    subject: Subject, rows: dict, first: dict, second: dict, iterations: int
) -> np.ndarray:
    """Optimises gates by Adam on each document's first half -> nats of the second (R,)."""
    config = subject.run.config
    nats, adam = reader(config, "all"), optax.adam(RATE)
    parts = partition(config.model, config.sinks)
    p = np.clip(share_on(config.sinks, parts.sinks), 0.01, 0.99)
    start = jnp.full((len(rows["inputs"]), parts.sinks), np.log(p / (1 - p)), jnp.float32)

    def opened(logits_RM: jax.Array) -> Interventions:
        shared_RS = jnp.ones((len(logits_RM), parts.shared))
        gates_RF = jnp.concatenate([shared_RS, jax.nn.sigmoid(logits_RM)], axis=-1)
        return {"mlp": lambda x, layer: (x * gates_RF[:, None]).astype(x.dtype)}

    @placement.jit
    def attack(params: dict, first: dict, second: dict) -> jax.Array:
        # Documents are independent, so the gradient of the sum is that of each.
        def objective(logits: dict) -> jax.Array:
            return (
                nats(params, first, opened(logits)).sum(axis=1) / first["weights"].sum(axis=1)
            ).sum()

        def step(state: tuple, _) -> tuple[tuple, None]:
            logits, moments = state
            update, moments = adam.update(jax.grad(objective)(logits), moments)
            return (optax.apply_updates(logits, update), moments), None

        (logits, _), _ = jax.lax.scan(step, (start, adam.init(start)), length=iterations)
        return nats(params, second, opened(logits)).sum(axis=1)

    return np.asarray(attack(subject.run.params, first, second), np.float64)
