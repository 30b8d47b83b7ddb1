"""E8: early positions are learned first, and the head does not need the recall of all (the study's figure 3, bottom)."""

import jax
import numpy as np

from memsinks_jax.labs.induction_head.law import sampler
from memsinks_jax.labs.induction_head.presets import Preset
from memsinks_jax.labs.induction_head.study import at_end, curve, minus, reached, record, records
from memsinks_jax.labs.induction_head.training import purpose
from memsinks_jax.labs.study import BLUE, GREY, RED, VIOLET, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim, with_interval

TITLE = "Early positions are learned first"
BINS = 16
SEQUENCES = 192


def recipes(preset: Preset):
    return {"trained": preset.alone(256)}


def study(preset: Preset, runs) -> Study:
    several = runs["trained"]
    length = several[0].recipe.law.length
    recalled = np.array([_recall_by_position(run) for run in several])
    accuracy = np.array([_accuracy_by_position(preset, run) for run in several])
    edges = np.linspace(0, length, BINS + 1).astype(int)
    half = [reached(run, "wk0_64", 0.3) for run in several]
    half_all = [reached(run, "wk0", 0.3) for run in several]
    claims = [
        Claim("early-first", "steps to recall 0.3 of W_K^1: all positions minus t < 64 (the run's end if never)",
              "early positions rise far earlier", minus(half_all, half), at_least=10),
        Claim("early-better", "final recall of W_K^1: positions below 64 minus those from 128", "",
              (recalled[:, :64].mean(1) - recalled[:, 128:].mean(1)).tolist(), at_least=0.1),
        Claim("recall-not-needed", "clean accuracy minus recall of W_K^1 over all positions",
              "a construction of t < 64 alone reaches 0.96",
              [a - float(run.curves["wk0"][-1]) for a, run in zip(at_end(several, "acc_clean"), several, strict=True)],
              at_least=0.3),
    ]  # fmt: skip
    by_bin = [np.array([row[a:b].mean() for a, b in zip(edges, edges[1:], strict=False)]) for row in recalled]
    extra = [
        record("by position", run.seed, {}, {"recall": {"t": edges[1:].tolist(), "value": row.round(4).tolist()}})
        for run, row in zip(several, by_bin, strict=True)
    ]
    return Study(
        "E8", TITLE,
        f"At the end W_K^1 recalls {with_interval(recalled[:, :64].mean(1).tolist(), 2)} of the positions below 64 and "
        f"{with_interval(recalled[:, 128:].mean(1).tolist(), 2)} of those from 128, yet in-context accuracy is "
        f"{with_interval(at_end(several, 'acc_clean'), 2)}: a match early in the sequence is enough.",
        "The runs of E1. Accuracy by position: sequences without a cycle, mean of 16 ranges of positions.",
        [*records(runs), *extra], claims, lambda path: _draw(several, edges, by_bin, accuracy, path),
    )  # fmt: skip


def _recall_by_position(run) -> np.ndarray:
    """Whether W_K^1 maps t to t - 1, t = 1.. -> float (T - 1,)."""
    position, key = np.asarray(run.weights["position"]), np.asarray(run.weights["key_1"])
    return ((position[1:] @ key @ position[:-1].T).argmax(1) == np.arange(len(position) - 1)).astype(float)


def _accuracy_by_position(preset: Preset, run) -> np.ndarray:
    """Clean in-context accuracy -> (BINS,), NaN where no token can be predicted."""
    batch = sampler(preset.statistics, run.recipe.law)(purpose(run.seed, 3), SEQUENCES)
    predicted = jax.jit(lambda tokens: run.recipe.model.forward(run.weights, tokens).logits_BTV.argmax(-1))
    parts = [predicted(batch.tokens_BS[at : at + 16, :-1]) for at in range(0, SEQUENCES, 16)]
    right_BT = np.concatenate([np.asarray(part) for part in parts]) == np.asarray(batch.tokens_BS[:, 1:])
    where_BT = (np.asarray(batch.seen_BT) >= 2) & ~np.asarray(batch.cyclic_B)[:, None]
    bins_T = np.arange(right_BT.shape[1]) * BINS // right_BT.shape[1]
    return np.array([
        right_BT[:, bins_T == b][where_BT[:, bins_T == b]].mean() if where_BT[:, bins_T == b].any() else np.nan
        for b in range(BINS)
    ])  # fmt: skip


def _draw(several, edges, by_bin, accuracy, path) -> None:
    figure, axes = panels(3)
    curve(axes[0], several, "wk0_64", "t < 64", VIOLET, over=1)
    curve(axes[0], several, "wk0", "all t", BLUE, over=1)
    curve(axes[0], several, "acc_clean", "clean accuracy", GREY, "--")
    finish(axes[0], "Recall of the previous token, $W_K^1$", "step", "share", 3, ylim=(0, 1.02))
    middle = (edges[1:] + edges[:-1]) / 2
    for axis, values, colour in ((axes[1], np.array(by_bin), BLUE), (axes[2], accuracy, RED)):
        axis.plot(middle, values.mean(0), "o-", color=colour, markersize=4)
        axis.fill_between(middle, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    finish(axes[1], "The same at the end", "position t", "share", ylim=(0, 1.02))
    finish(axes[2], "In-context accuracy at the end", "position t", "clean accuracy", ylim=(0, 1.02))
    save(figure, path)
