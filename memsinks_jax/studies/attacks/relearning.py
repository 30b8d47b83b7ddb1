"""Is it gone, or hidden? Fine-tunes a model as it is exported, and counts the steps until half of
what it had lost of its repeated documents is back. The reference is an oracle that never saw them.

The lost part of a document is its loss with the sinks dropped minus that of a model that remembers
it: the standard one, or with own sinks on. The threshold is the midpoint, for the oracle too. A
ratio of steps to the oracle's near 1 means that the document must be learned like a new one; below
1, that something of it was left. A part of that may show in the loss before any attack. So for
`ratio_from_equal` the oracle's steps count only from the attacked model's initial loss on. Below 1,
more is left than the loss shows.

The attacker chooses the learning rate, for each model the best of RATES. AdamW without decay, which
would only forget. The control is documents that no model has seen (`never_seen`), with the same
fall of the loss: do both models learn alike?

R documents, S steps.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.config import Config, InputError
from memsinks_jax.measures.document_loss import reader
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.rows import bar, losses_of, rows_of, token_mean
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement

RATES = (1e-3, 3e-3, 1e-2)
STEPS = 16
KINDS = ("one", "few", "other")
BENIGN_BATCH = 8  # documents per step
BENIGN_RATES = (1e-4, 3e-4)
_LEAST_LOST = 0.1  # nats per token; a smaller loss gives no useful threshold


class Targets(NamedTuple):
    """Documents that a model has lost: its losses, and those of a model that remembers."""

    documents: Documents
    starts_R: np.ndarray
    memorized_R: np.ndarray

    @property
    def thresholds_R(self) -> np.ndarray:
        return (self.starts_R + self.memorized_R) / 2


def targets_of(
    attacked: Subject, remembering: Subject, documents: Documents, at_most: int = 20
) -> Targets:
    """The first `at_most` of the documents that `attacked` has lost 0.1 nats per token or more of.

    Raises:
      InputError: there are fewer than two.
    """
    starts_R, _ = losses_of(attacked, documents)
    memorized_R, _ = losses_of(remembering, documents)
    which = np.flatnonzero(starts_R - memorized_R >= _LEAST_LOST)[:at_most]
    if len(which) < 2:
        raise InputError(
            f"{attacked.name} has lost {len(which)} of {len(documents.tokens)} documents that "
            f"{remembering.name} remembers; relearning needs two"
        )
    return Targets(documents.chosen(which), starts_R[which], memorized_R[which])


def never_seen(attacked: Subject, documents: Documents, targets: Targets) -> Targets:
    """Held-out documents as targets, as many, with the same mean target loss: a control."""
    documents = documents.chosen(np.arange(len(documents.tokens)) < len(targets.starts_R))
    starts_R, _ = losses_of(attacked, documents)
    return Targets(documents, starts_R, np.full(len(starts_R), targets.memorized_R.mean()))


@placement.shared
def practice(config: Config, mode: str) -> Callable[..., tuple[jax.Array, jax.Array | None]]:
    """Compiled fine-tuning: (params, rows, order, watched, rate) -> nats per token before the first
    and after every step, float32 (S + 1, B) of the practised rows and (S + 1, W) of the watched
    ones, None without `watched`.

    `order`, int (S + 1, B), has the rows of every step; those of the last are only measured.
    """
    nats, adam = reader(config, mode), optax.scale_by_adam()

    def objective(params: dict, rows: dict) -> tuple[jax.Array, jax.Array]:
        nats_B, tokens_B = nats(params, rows).sum(axis=1), rows["weights"].sum(axis=1)
        return nats_B.sum() / tokens_B.sum(), nats_B / tokens_B

    @placement.jit
    def tune(
        params: dict, rows: dict, order_SB: jax.Array, watched: dict | None, rate: float
    ) -> tuple:
        def step(state: tuple, chosen_B: jax.Array) -> tuple[tuple, tuple]:
            params, moments = state
            some = jax.tree.map(lambda x: x[chosen_B], rows)
            gradient, losses_B = jax.grad(objective, has_aux=True)(params, some)
            losses_W = None if watched is None else objective(params, watched)[1]
            update, moments = adam.update(gradient, moments)
            params = jax.tree.map(lambda p, u: p - rate * u, params, update)
            return (params, moments), (losses_B, losses_W)

        return jax.lax.scan(step, (params, adam.init(params)), order_SB)[1]

    return tune


def relearn(
    subject: Subject, targets: Targets, rates: Sequence[float] = RATES, steps: int = STEPS
) -> dict:
    """Fine-tunes on documents of the first half of the targets, and measures those of the second
    half meanwhile.

    Returns:
      {kind of KINDS: {"rate": the chosen one, "steps" and "steps_from_equal": of each document,
      null if `steps` were not enough, "recovered": of each document, the largest share of its loss
      that is back at any step, "curve": mean loss of the documents before the first and after every
      step}}. `one`: each of the first half practised alone; `few`: together; `other`: the second
      half, meanwhile.
    """
    tune = practice(subject.run.config, subject.mode)
    rows = rows_of(targets.documents, subject.run)
    rows = {name: jnp.asarray(values) for name, values in rows.items()}
    half, rest = np.array_split(np.arange(len(targets.starts_R)), 2)
    practised = {name: values[half] for name, values in rows.items()}
    watched = {name: values[rest] for name, values in rows.items()}
    losses: dict[str, list] = {kind: [] for kind in KINDS}
    params, all_at_once = subject.run.params, np.tile(half, (steps + 1, 1))
    with bar(len(rates) * (len(half) + 1), f"relearning, {subject.name}") as progress:
        for rate in rates:
            alone = []
            for document in half:
                order_SB = np.full((steps + 1, 1), document)
                alone.append(np.asarray(tune(params, practised, order_SB, None, rate)[0])[:, 0])
                progress.update()
            few_SR, other_SR = tune(params, practised, all_at_once, watched, rate)
            progress.update()
            losses["one"].append(np.array(alone))
            losses["few"].append(np.asarray(few_SR).T)
            losses["other"].append(np.asarray(other_SR).T)
    which = {"one": half, "few": half, "other": rest}
    return {
        kind: _best(np.array(of, np.float64), targets, which[kind], rates)
        for kind, of in losses.items()
    }


def _best(
    losses_NRS: np.ndarray, targets: Targets, which: np.ndarray, rates: Sequence[float]
) -> dict:
    """The result at the attacker's rate: the fewest steps, and among equal ones the most
    recovered.
    """
    steps = losses_NRS.shape[2] - 1
    starts_R, thresholds_R = targets.starts_R[which], targets.thresholds_R[which]
    reached_NR = np.array([crossings(losses_RS, thresholds_R) for losses_RS in losses_NRS])
    mean_steps_N = np.minimum(reached_NR, steps).mean(axis=1)
    lowest_N = losses_NRS.mean(axis=1).argmin(axis=1)
    lowest_NR = losses_NRS[np.arange(len(losses_NRS)), :, lowest_N]
    recovered_NR = (starts_R - lowest_NR) / (starts_R - targets.memorized_R[which])
    chosen = np.lexsort((-recovered_NR.mean(axis=1), mean_steps_N))[0]
    reached_R = reached_NR[chosen]
    # At the start the losses differ by rounding from those of the thresholds.
    equal_R = np.minimum(crossings(losses_NRS[chosen], starts_R + 1e-4), steps)
    return {
        "rate": rates[chosen],
        "steps": _finite(reached_R),
        "steps_from_equal": _finite(reached_R - equal_R),
        "recovered": recovered_NR[chosen].tolist(),
        "curve": losses_NRS[chosen].mean(axis=0).tolist(),
    }


def crossings(losses_RS: np.ndarray, thresholds_R: np.ndarray) -> np.ndarray:
    """The step at which each curve reaches its threshold, interpolated -> (R,); inf: never."""
    found = []
    for losses_S, threshold in zip(losses_RS, thresholds_R, strict=True):
        under = np.flatnonzero(losses_S <= threshold)
        if not len(under):
            found.append(np.inf)
        elif under[0] == 0:
            found.append(0.0)
        else:
            before, after = losses_S[under[0] - 1], losses_S[under[0]]
            found.append(under[0] - 1 + (before - threshold) / (before - after))
    return np.array(found)


def ratios(attacked: dict, oracle: dict) -> dict:
    """Ratios of two results of `relearn`: {kind: {"ratio", "ratio_from_equal", "documents"}}.

    Means over the `documents` that both models reached; null if there is none.
    """
    found = {}
    for kind in KINDS:
        columns = ((attacked, "steps"), (oracle, "steps"), (oracle, "steps_from_equal"))
        each = zip(*(of[kind][name] for of, name in columns), strict=True)
        both = [counts for counts in each if None not in counts[:2]]
        ours, oracles, from_equal = (sum(counts[i] for counts in both) for i in range(3))
        found[kind] = {
            "ratio": ours / oracles if oracles > 0 else None,
            "ratio_from_equal": ours / from_equal if from_equal > 0 else None,
            "documents": len(both),
        }
    return found


def benign(
    subject: Subject,
    documents: Documents,
    practised: Documents,
    measured: Documents,
    rates: Sequence[float] = BENIGN_RATES,
    steps: int = STEPS,
) -> dict:
    """Fine-tunes on documents that no model has seen, and measures whether the repeated ones come
    back by themselves.

    Args:
      documents: the repeated ones. practised, measured: held out, no document in both.
    Returns:
      {"rate": the one at which the repeated documents' loss falls most, "repeated" and "held_out":
      {"losses": of each document before, "after": at the step with the lowest mean loss of the
      repeated ones, "curve"}}. What counts is how much more the loss of the repeated ones falls
      than the oracle's.
    """
    run, tune = subject.run, practice(subject.run.config, subject.mode)
    rows, *groups = (rows_of(of, run) for of in (practised, documents, measured))
    watched = {name: np.concatenate([group[name] for group in groups]) for name in rows}
    tokens_R, count = watched["weights"].sum(axis=1), len(documents.tokens)
    held_out = len(practised.tokens)
    order_SB = np.resize(np.arange(held_out), (steps + 1, min(BENIGN_BATCH, held_out)))
    best = None
    with bar(len(rates), f"benign fine-tuning, {subject.name}") as progress:
        for rate in rates:
            _, losses_SR = tune(run.params, rows, order_SB, watched, rate)
            losses_SR = np.asarray(losses_SR, np.float64)
            curve_S = [token_mean(losses_R[:count], tokens_R[:count]) for losses_R in losses_SR]
            if best is None or min(curve_S) < best[0]:
                best = (min(curve_S), rate, losses_SR, int(np.argmin(curve_S)))
            progress.update()
    _, rate, losses_SR, step = best
    return {"rate": rate, "step": step} | {
        name: {
            "losses": losses_SR[0, part].tolist(),
            "after": losses_SR[step, part].tolist(),
            "curve": [token_mean(losses_R[part], tokens_R[part]) for losses_R in losses_SR],
        }
        for name, part in (("repeated", slice(count)), ("held_out", slice(count, None)))
    }


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
