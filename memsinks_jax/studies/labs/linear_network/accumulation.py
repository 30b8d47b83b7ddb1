"""Theorem H.3: with sinks, memorization accumulates in the memorization neurons.

Setting: as in `forgetting`, W = 0 at the start, z = [z_shared, z_mem] of length 1. Of N steps, k
are on s_mem with all neurons on. On the others the memorization neurons are on for a fraction rho
of the steps (the paper also calls it p), and off for the rest. Gen-only and mem-only (also called
mem-dropped, gen-dropped): the logit e_mem from one block alone.

Stated: (1)  gen-only <= gamma k (1 - c_min) - gamma (N-k) eps_shared c_min
        (2)  mem-only >= gamma k (1 - c_max) - gamma (N-k) rho eps_mem c_max
where eps is the smallest similarity of a sequence with s_mem in the block. (1) holds if eps_shared
>= 0. (2) is false: a step on s_mem adds (1 - softmax) |z_mem|^2 instead of 1 - softmax, and a lower
bound needs the largest similarity instead of the smallest. If each block is read as having length
1, the second error alone still breaks it.

Corrected: (1)  gen-only <= gamma k (1 - c_min) a_s - gamma (N-k) eps_shared c_min,
                a_s = |z_shared(s_mem)|^2
           (2)  mem-only >= gamma k (1 - c_max) a_m - gamma (N-k) rho epsmax_mem c_max,
                a_m = |z_mem(s_mem)|^2.
"""

from typing import NamedTuple

import numpy as np

from memsinks_jax.studies.labs.linear_network import readout
from memsinks_jax.studies.labs.linear_network.trials import below, features, generator, unit
from memsinks_jax.studies.labs.study import Claims, Panel, Study, columns, record, scatter

TRIALS, TOKENS, HIDDEN, SHARED, STEPS = 200, 50, 24, 17, 400
READINGS = {"whole": "z of length 1", "blocks": "each block of length 1"}
BLOCKS = {"shared": slice(0, SHARED), "mem": slice(SHARED, HIDDEN)}
EVERY = 10  # steps between evaluations of the norm of W


class Training(NamedTuple):
    """Trials side by side, one value per trial.

    Attributes:
      rho: the actual fraction. memory: z of s_mem (B, H). gen_only, mem_only: the logits at the
        end.
      norm: bound on |W|_2 |z|. shared_least, mem_least, mem_most: similarity with s_mem in a block,
        over the steps at which the block is on.
    """

    rate: np.ndarray
    repeats: np.ndarray
    rho: np.ndarray
    memory: np.ndarray
    gen_only: np.ndarray
    mem_only: np.ndarray
    norm: np.ndarray
    shared_least: np.ndarray
    mem_least: np.ndarray
    mem_most: np.ndarray


def schedule(order_NB, repeats_B, rho_B) -> tuple[np.ndarray, np.ndarray]:
    """Which steps are on s_mem, and on which of the others the sinks are on (both (N, B)).

    order_NB: a permutation of the steps for every trial. Matches rho as closely as whole numbers
    allow.
    """
    on_B = np.round(rho_B * (len(order_NB) - repeats_B))
    return order_NB < repeats_B, (order_NB >= repeats_B) & (order_NB < repeats_B + on_B)


def train(
    rng, rate_B, repeats_B, rho_B, steps: int, reading: str = "whole", draws: int | None = None
) -> Training:
    """Trains side by side. Trial b uses draw b % draws of features, targets and order."""
    draws = draws or len(rate_B)
    again = np.arange(len(rate_B)) % draws
    z_NBH, memory_BH = features(rng, steps, draws, HIDDEN), features(rng, draws, HIDDEN)
    for cut in BLOCKS.values() if reading == "blocks" else ():
        z_NBH[..., cut], memory_BH[..., cut] = unit(z_NBH[..., cut]), unit(memory_BH[..., cut])
    token_NB = rng.integers(1, TOKENS, (steps, draws))[:, again]  # e_mem is token 0
    z_NBH, memory_BH = z_NBH[:, again], memory_BH[again]
    is_memory_NB, on_NB = schedule(
        rng.random((steps, draws)).argsort(0).argsort(0)[:, again], repeats_B, rho_B
    )
    alike_NB = {part: (z_NBH[..., cut] * memory_BH[:, cut]).sum(-1) for part, cut in BLOCKS.items()}
    shown_NBH = z_NBH.copy()
    shown_NBH[..., SHARED:] *= on_NB[..., None]
    shown_NBH = np.where(is_memory_NB[..., None], memory_BH, shown_NBH)
    start_BVH = np.zeros((len(rate_B), TOKENS, HIDDEN))
    w_BVH, norm_B = readout.train(
        start_BVH, shown_NBH, np.where(is_memory_NB, 0, token_NB), rate_B, EVERY
    )
    gen_only_B, mem_only_B = (
        (w_BVH[:, 0, cut] * memory_BH[:, cut]).sum(-1) for cut in BLOCKS.values()
    )
    return Training(
        rate_B,
        repeats_B,
        on_NB.sum(0) / (steps - repeats_B),
        memory_BH,
        gen_only_B,
        mem_only_B,
        norm_B * np.sqrt(2 if reading == "blocks" else 1),
        np.where(is_memory_NB, np.inf, alike_NB["shared"]).min(0),
        np.where(on_NB, alike_NB["mem"], np.inf).min(0),
        np.where(on_NB, alike_NB["mem"], 0).max(0),
    )


def bounds(one: Training, steps: int) -> dict[str, np.ndarray]:
    """(1) and (2) as stated and as corrected -> one value per trial each."""
    low_B, high_B = readout.probabilities(one.norm, TOKENS)
    shared_B, mem_B = ((one.memory[:, cut] ** 2).sum(1) for cut in BLOCKS.values())
    gained_B, others_B = one.rate * one.repeats, one.rate * (steps - one.repeats)
    forgotten_B = others_B * one.shared_least * low_B
    with_sinks_B = others_B * one.rho
    return {
        "(1) stated": gained_B * (1 - low_B) - forgotten_B,
        "(1) corrected": gained_B * (1 - low_B) * shared_B - forgotten_B,
        "(2) stated": gained_B * (1 - high_B) - with_sinks_B * one.mem_least * high_B,
        "(2) corrected": gained_B * (1 - high_B) * mem_B - with_sinks_B * one.mem_most * high_B,
    }


def measure(
    seed: int, reading: str, trials: int = TRIALS
) -> tuple[Training, dict[str, np.ndarray], dict[str, int]]:
    """reading: of READINGS -> the trained trials, their bounds, how often each is violated."""
    rng = generator(seed, f"accumulation {reading}")
    rate_B, repeats_B = 10 ** rng.uniform(-3, -1.5, trials), rng.integers(5, 60, trials)
    one = train(rng, rate_B, repeats_B, rng.uniform(0.05, 1, trials), STEPS, reading)
    bound = bounds(one, STEPS)
    counts = {
        name: below(values_B, one.gen_only) if "(1)" in name else below(one.mem_only, values_B)
        for name, values_B in bound.items()
    }
    return one, bound, counts


def study(seeds: tuple[int, ...]) -> Study:
    found, claims, runs, broken = {}, Claims(), [], {}
    for reading, meaning in READINGS.items():
        several = found[reading] = [measure(seed, reading) for seed in seeds]
        rows = [
            {"gen-only": one.gen_only.mean(), "mem-only": one.mem_only.mean()}
            | {f"bound {name}": values_B.mean() for name, values_B in bound.items()}
            | {f"violated {name}": count for name, count in counts.items()}
            for one, bound, counts in several
        ]
        metrics = columns(rows)
        runs += record(reading, seeds, metrics)
        broken[reading] = np.mean(metrics["violated (2) stated"]) / TRIALS
        for part, what in (("(1)", "gen-only ≤"), ("(2)", "mem-only ≥")):
            for form, paper in (("stated", f"never (H.3 {part})"), ("corrected", "corrected")):
                id = f"{reading}_{part[1]}_{form}"
                statement = f"{part} {what} its bound, {form}, {meaning}"
                values = metrics[f"violated {part} {form}"]
                claims.never(id, statement, paper, values, TRIALS)
    both = "(2) Sinks alone"
    cases = (("(1) Shared neurons alone", "whole"), (both, "whole"), (both, "blocks"))
    return Study(
        "accumulation",
        "Theorem H.3: memorization accumulates in the sinks",
        "(1) holds. (2), that the sinks keep the memory, is false as stated: "
        f"{broken['whole']:.0%} of the runs violate it, {broken['blocks']:.0%} if each block is "
        "read to have length 1. With |z_mem|² and the largest similarity in it, it holds in all "
        "of them, and is weaker.",
        f"{TRIALS} trials a seed and reading: {TOKENS} tokens, {SHARED} shared neurons and "
        f"{HIDDEN - SHARED} sinks, positive features, {STEPS} steps from zero with 5 to 59 "
        "repeats at random places, rates 0.001 to 0.03, rho 0.05 to 1. c_min and c_max from the "
        f"measured |W|_2, read every {EVERY} steps and widened by what it can grow between.",
        runs,
        claims,
        [_panel(title, reading, *found[reading][0][:2]) for title, reading in cases],
    )


def _panel(title: str, reading: str, one: Training, bound: dict[str, np.ndarray]) -> Panel:
    logits, where = (one.gen_only, "above") if title[1] == "1" else (one.mem_only, "below")
    points = {form: (bound[f"{title[:3]} {form}"], logits) for form in ("stated", "corrected")}
    every = np.array([(*bounds, *logits) for bounds, _ in points.values()])
    high = 1.05 * every.max()
    shown = max(every.min(), -high / 2) - high / 20, high  # bounds without content go far below
    title = f"{title}, {READINGS[reading]}"
    return scatter(title, "bound", "logit", points, f"{where}: violated", xlim=shown, ylim=shown)
