"""Accuracies and losses of a batch, targets of attention, recall of each memory.

A tally is a dict {name: (sum, count)}. Tallies of several batches add up; `rates` divides. Axes as
in `model`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.studies.labs.induction_head.bigrams import Statistics
from memsinks_jax.studies.labs.induction_head.law import Batch, Law, sampler
from memsinks_jax.studies.labs.induction_head.model import Trace
from memsinks_jax.studies.labs.study import SHARE

# Probe -> the memory it tests, in the order in which they are learned, by the theory.
MEMORY_OF = {"wo1": "output_2", "wk1": "key_2", "wk0": "key_1", "wk0_64": "key_1"}
EARLY = 64  # positions of the probe wk0_64
START = 10  # positions of acc_start
SEQUENCES = 1000  # of `reference`


def losses(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """Cross-entropy of every position in nats -> (B, T)."""
    of_target_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, -1) - of_target_BT


def tally(logits_BTV: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """Accuracy and loss, named as in the study's code -> {name: (2,)}.

    acc_tot: on outputs of triggers. acc_start: on those in the first ten positions. acc_end: on
    outputs of triggers seen before, the in-context accuracy; acc_clean: the same without sequences
    that end in a cycle; acc_second: at a trigger's second time. loss_head: nats per output of a
    trigger seen before; loss_bigram: nats per token that no trigger decides, the global loss.
    """
    targets_BT = batch.tokens_BS[:, 1:]
    right_BT, loss_BT = logits_BTV.argmax(-1) == targets_BT, losses(logits_BTV, targets_BT)
    trigger_BT, known_BT = batch.seen_BT >= 1, batch.seen_BT >= 2
    over = {
        "acc_tot": (right_BT, trigger_BT),
        "acc_start": (right_BT[:, :START], trigger_BT[:, :START]),
        "acc_end": (right_BT, known_BT),
        "acc_clean": (right_BT, known_BT & ~batch.cyclic_B[:, None]),
        "acc_second": (right_BT, batch.seen_BT == 2),
        "loss_head": (loss_BT, known_BT),
        "loss_bigram": (loss_BT, batch.seen_BT == 0),
    }
    return {
        name: jnp.stack([jnp.where(where, x, 0).sum(), where.sum()])
        for name, (x, where) in over.items()
    }


def attention(attentions: tuple[jax.Array, ...], batch: Batch) -> dict[str, jax.Array]:
    """Positions attended to most, named as in the study's code -> {name: (2, H)}, a column per
    head.

    score_acc: the first layer, one position after a trigger, attends to the trigger. score2_acc:
    the second layer, at a trigger seen before, attends to a token right after this trigger;
    score2_next_acc: to the token to predict. A model of one layer has only the first.
    """
    tokens_BT, targets_BT = batch.tokens_BS[:, :-1], batch.tokens_BS[:, 1:]
    length = tokens_BT.shape[1]
    at_BHT = attentions[0].argmax(-1)
    over = {
        "score_acc": ((at_BHT == jnp.arange(length) - 1)[:, :, 1:], (batch.seen_BT >= 1)[:, :-1])
    }
    if len(attentions) > 1:
        at_BHT = attentions[1].argmax(-1)
        pick = jax.vmap(lambda tokens_T, at_HT: tokens_T[at_HT])
        before_BHT = jnp.where(at_BHT > 0, pick(tokens_BT, jnp.maximum(at_BHT - 1, 0)), -1)
        known_BT = batch.seen_BT >= 2
        over["score2_acc"] = (before_BHT == tokens_BT[:, None], known_BT)
        over["score2_next_acc"] = (pick(tokens_BT, at_BHT) == targets_BT[:, None], known_BT)
    return {
        name: jnp.stack([(x & where[:, None]).sum((0, 2)), jnp.full(x.shape[1], where.sum())])
        for name, (x, where) in over.items()
    }


def add(tallies) -> dict[str, np.ndarray]:
    """The sum of tallies, float64."""
    tallies = list(tallies)
    return {name: sum(np.asarray(one[name], np.float64) for one in tallies) for name in tallies[0]}


def rates(tallied: dict) -> dict[str, float]:
    """Sum over count. Takes the best head, and NaN if nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: float(np.max(np.divide(*np.asarray(pair, np.float64))))
            for name, pair in tallied.items()
        }


def recall(
    queries_ND: jax.Array, matrix: jax.Array, keys_MD: jax.Array, right_N: jax.Array
) -> jax.Array:
    """Share of queries u_i whose score u_i . W v, over all keys v, is largest at the right key."""
    return ((queries_ND @ matrix @ keys_MD.T).argmax(1) == right_N).mean()


def probes(weights: dict, candidates_Q: np.ndarray) -> dict[str, jax.Array]:
    """Memory recall (section 4.3) -> {name: share}.

    wo1: W_O^2 maps every remapped token to its unembedding. wk1: W_K^2 maps every possible trigger
    to its remap w_1 by the first layer. wk0: W_K^1 maps every position to the one before, among
    all, including later ones; wk0_64: within the first 64. A model without absolute positions, such
    as one with rotary ones, has no wk0. candidates_Q: what can be a trigger.
    """
    token, position = weights["token"], weights["position"]
    everything_V = jnp.arange(len(token))
    copy_DD = weights["output_2"] @ weights["value_2"]
    remap_DD = weights["output_1"] @ weights["value_1"]
    triggers_QD = token[jnp.asarray(candidates_Q)]
    remapped_QD = triggers_QD @ remap_DD.T

    def of_positions(position):
        return recall(position[1:], weights["key_1"], position[:-1], jnp.arange(len(position) - 1))

    return {
        "wo1": recall(token, copy_DD.T, weights["unembed"], everything_V),
        "wk1": recall(triggers_QD, weights["key_2"], remapped_QD, jnp.arange(len(triggers_QD))),
        "wk0": of_positions(position),
        "wk0_64": of_positions(position[:EARLY]),
    }


def bigram_divergence(
    logits_VV: jax.Array, statistics: Statistics, rows_R: np.ndarray
) -> jax.Array:
    """The probe ff1: mean over tokens z of KL(pi_b(.|z) || softmax of logits [z, next]), nats."""
    p_RV = jnp.asarray(statistics.pi_b_VV[rows_R], jnp.float32)
    log_q_RV = jax.nn.log_softmax(logits_VV[rows_R], -1)
    log_p_RV = jnp.log(jnp.where(p_RV > 0, p_RV, 1.0))
    return jnp.where(p_RV > 0, p_RV * (log_p_RV - log_q_RV), 0.0).sum(-1).mean()


def feed_forward_logits(weights: dict) -> jax.Array:
    """Logits of the feed-forward layer alone: W_U F(w_E(z)), no residual -> (V given, V next)."""
    token = weights["token"]
    if "ff" in weights:
        return token @ weights["ff"].T @ weights["unembed"].T
    return jax.nn.relu(token @ weights["ff_1"].T) @ weights["ff_2"].T @ weights["unembed"].T


def summary(trace: Trace, batch: Batch) -> dict[str, jax.Array]:
    """Tally of one batch: accuracy, loss and attention."""
    return tally(trace.logits_BTV, batch) | attention(trace.attentions, batch)


def entropies(statistics: Statistics) -> np.ndarray:
    """Entropy of the next character given each, nats -> float64 (V,)."""
    p_VV = statistics.pi_b_VV
    return -(p_VV * np.log(np.where(p_VV > 0, p_VV, 1.0))).sum(1)


def reference(statistics: Statistics, law: Law) -> dict[str, float]:
    """Of sequences of a law: `floor`, the lowest possible global loss in nats; the accuracy of
    copying the most frequent token so far (`majority`, and `majority_clean` without cycles).
    """
    sample = jax.jit(sampler(statistics, law), static_argnums=1)
    tokens_BS, seen_BT, cyclic_B = jax.device_get(sample(jax.random.key(0), SEQUENCES))
    x_BT, y_BT, known_BT = tokens_BS[:, :-1], tokens_BS[:, 1:], seen_BT >= 2
    counts_BV = np.zeros((len(x_BT), len(statistics.unigrams_V)), np.int32)
    majority_BT = np.zeros_like(x_BT)
    for t, x_B in enumerate(x_BT.T):
        counts_BV[np.arange(len(x_B)), x_B] += 1
        majority_BT[:, t] = counts_BV.argmax(1)

    def share(where_BT):
        right = (majority_BT == y_BT)[where_BT]
        return float(right.mean()) if right.size else float("nan")

    return {
        "floor": float(entropies(statistics)[x_BT[seen_BT == 0]].mean()),
        "majority": share(known_BT),
        "majority_clean": share(known_BT & ~cyclic_B[:, None]),
    }


def in_words(label: str) -> str:
    """A label for what the memories do."""
    for symbol, word in {
        "W_O^2": "copying",
        "W_K^2": "matching",
        "W_K^1": "previous token",
    }.items():
        label = label.replace(symbol, f"{word} (${symbol}$)")
    return label.replace("both W_K ", "both keys ($W_K$) ")


# How a curve of a run is drawn: label; the y axis and its limits.
MEASURES = {
    "acc_end": ("accuracy, all", "share", SHARE),
    "acc_clean": ("accuracy, clean", "share", SHARE),
    "other_acc_clean": ("accuracy, clean, the other outputs", "share", SHARE),
    "score_acc": ("layer 1 attends one back", "share", SHARE),
    "score2_acc": ("layer 2 attends after the trigger", "share", SHARE),
    "score2_next_acc": ("layer 2 attends to the output", "share", SHARE),
    "loss_head": ("outputs that can be known", "nats", (0, None)),
    "loss_bigram": ("all other tokens", "nats", (2, 3.6)),
    "wo1": (in_words("W_O^2"), "recall", SHARE),
    "wk1": (in_words("W_K^2"), "recall", SHARE),
    "wk0_64": (in_words("W_K^1") + ", t < 64", "recall", SHARE),
    "wk0": (in_words("W_K^1") + ", all t", "recall", SHARE),
    "ff1": ("feed-forward layer", "nats", (0, 4)),
}
PROBES = ("wo1", "wk1", "wk0_64", "wk0")  # of the memories
