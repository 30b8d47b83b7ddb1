"""The threshold on rho after Theorem H.3: how rarely sinks must be on to hold the memory.

Stated: the bounds (1) and (2) of `accumulation` separate mem-only from gen-only (eps_shared = eps_mem = eps) if
    rho < c_min/c_max - (k/(N-k)) (c_max - c_min).
Error: solving  gamma k (1-c_max) - gamma (N-k) rho eps c_max > gamma k (1-c_min) - gamma (N-k) eps c_min  for rho gives
    rho < c_min/c_max - (k/(N-k)) (c_max - c_min) / (eps c_max).
A factor 1/(eps c_max) is missing. Since eps c_max < 1 wherever c_max is a bound at all, the printed threshold is too
large. It is positive only if (N-k)/k > (c_max - c_min)/(eps c_min), about (e^{2 C_proj} - 1)/eps. With the corrected
bounds
    rho < [(N-k) eps_s c_min - k ((1-c_min) a_s - (1-c_max) a_m)] / [(N-k) epsmax_m c_max],     a_s = 1 - a_m.

The bounds may be loose: the lab also trains, and shows the logits of both blocks over rho.
"""

import numpy as np

from memsinks_jax.labs.linear_network import accumulation, readout
from memsinks_jax.labs.linear_network.trials import generator, near, record
from memsinks_jax.labs.study import BLUE, DASHED, GREY, ORANGE, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim

TRIALS = 100_000
RHOS = (0.1, 0.3, 0.7, 1.0)
STEPS, REPEATS, RATE, DRAWS = 4000, 40, 0.01, 12
MARGIN = 1e-6  # in rho, on either side of a threshold
# mem-only over rho, and the range of gen-only, in one draw of such a run
MEM_ONLY, GEN_ONLY, REACH = (0.110, 0.074, 0.005, -0.044), (-0.120, -0.104), 0.03


def study(seeds: tuple[int, ...]) -> Study:
    counts = [separations(seed) for seed in seeds]
    logits = {seed: training(seed) for seed in seeds}
    mem_SR = np.array([one["mem"] for one in logits.values()])
    gen_SR = np.array([one["gen"] for one in logits.values()])
    claims = [
        Claim("printed", "draws in which the bounds do not separate just below the printed threshold, of those with a "
              "positive one", "0 (after H.3)", [one["printed"] for one in counts], at_most=0),
        Claim("exact", "draws in which the corrected threshold is not where the stated bounds separate", "0, algebra",
              [one["exact"] for one in counts], at_most=0),
        Claim("corrected", "the same for the corrected bounds and their threshold", "0, algebra",
              [one["corrected"] for one in counts], at_most=0),
        *(near(f"mem_{rho:g}", f"mem-only logit at rho = {rho:g}", "falls with rho", list(mem_SR[:, place]), value,
               REACH)
          for place, (rho, value) in enumerate(zip(RHOS, MEM_ONLY, strict=True))),
        Claim("gen", "gen-only logit, mean over rho", "bounded for any rho (H.3 (1))",
              [float(value) for value in gen_SR.mean(1)], at_least=GEN_ONLY[0] - REACH, at_most=GEN_ONLY[1] + REACH),
        Claim("falls", "mem-only: least fall from one rho to the next", "too many active interfere (figure 5a)",
              [float(value) for value in -np.diff(mem_SR).max(1)], at_least=0),
        Claim("gap", "mem-only minus gen-only: least fall from one rho to the next", "falls",
              [float(value) for value in -np.diff(mem_SR - gen_SR).max(1)], at_least=0),
        Claim("promise", "corrected threshold of the run, from its own C_proj and similarities",
              "positive: says when to expect separation", [one["threshold"] for one in logits.values()], at_least=0),
    ]  # fmt: skip
    runs = [
        record("training", seed, {"printed threshold": one["printed"], "corrected threshold": one["threshold"]},
               {"mem-only": ("rho", RHOS, one["mem"]), "gen-only": ("rho", RHOS, one["gen"])})
        for seed, one in logits.items()
    ] + [record("thresholds", seed, one) for seed, one in zip(seeds, counts, strict=True)]  # fmt: skip
    wrong, told = (np.sum([one[name] for one in counts]) for name in ("printed", "positive"))
    return Study(
        "threshold", "The threshold on rho",
        f"At the printed threshold the bounds fail to separate in {wrong:,} of {told:,} draws; the corrected one is "
        f"exact in all. Trained, the logit in the sinks falls with rho, that in the shared neurons hardly changes: "
        f"sinks that are on more rarely keep more of the memory, though no bound promises it at these sizes.",
        f"Thresholds: {TRIALS:,} draws a seed of V, C_proj up to 2, eps and k/(N-k) from 1e-4 to 0.1. Training: "
        f"{accumulation.TOKENS} tokens, {accumulation.SHARED} shared neurons, "
        f"{accumulation.HIDDEN - accumulation.SHARED} sinks, N = {STEPS}, k = {REPEATS}, rate {RATE:g}, positive "
        f"features; {DRAWS} draws a seed, the same for every rho. Mem-only minus gen-only can be had this way before "
        f"any training, for any rho, k and N.",
        runs, claims, lambda path: _draw(seeds[0], mem_SR, gen_SR, path),
    )  # fmt: skip


def printed(ratio, low, high):
    """ratio: k/(N-k). low, high: c_min, c_max."""
    return low / high - ratio * (high - low)


def exact(ratio, low, high, alike):
    """alike: eps of both blocks."""
    return low / high - ratio * (high - low) / (alike * high)


def corrected(ratio, low, high, shared_least, mem_most, a_m):
    """From the corrected bounds. shared_least, mem_most: eps_s, epsmax_m; a_m: |z_mem(s_mem)|^2."""
    return (shared_least * low - ratio * ((1 - low) * (1 - a_m) - (1 - high) * a_m)) / (mem_most * high)


def gap(rho, ratio, low, high, shared_least, mem_alike, a_s=1, a_m=1):
    """Lower bound (2) minus upper bound (1), over gamma (N-k); with a_s = a_m = 1 as stated."""
    return ratio * ((1 - high) * a_m - (1 - low) * a_s) - rho * mem_alike * high + shared_least * low


def separations(seed: int, trials: int = TRIALS) -> dict[str, float]:
    """How often a threshold is not where the bounds separate. If it is not positive, they must not separate at rho = 0."""
    rng = generator(seed, "thresholds")
    tokens = rng.integers(10, 1001, trials)
    low, high = readout.probabilities(rng.uniform(0, 1, trials), tokens)
    ratio, alike = 10 ** rng.uniform(-4, -1, trials), rng.uniform(0.01, 1, trials)
    a_m, most = rng.uniform(0.1, 0.9, trials), rng.uniform(0.01, 1, trials)

    def wrong(threshold, *parts):
        below = gap(np.maximum(threshold - MARGIN, 0), *parts) > 0
        above = gap(np.maximum(threshold + MARGIN, 0), *parts) > 0
        return float(np.sum(np.where(threshold > MARGIN, ~below | above, (threshold < -MARGIN) & below)))

    stated = (ratio, low, high, alike, alike)
    theirs = printed(ratio, low, high)
    positive = theirs > MARGIN
    unseparated = positive & (gap(theirs - MARGIN, *stated) <= 0)
    return {
        "positive": float(positive.sum()), "printed": float(unseparated.sum()),
        "exact": wrong(exact(ratio, low, high, alike), *stated),
        "corrected": wrong(corrected(ratio, low, high, alike, most, a_m), ratio, low, high, alike, most, 1 - a_m, a_m),
    }  # fmt: skip


def training(seed: int) -> dict:
    """Mean logits of both blocks for every rho, and the thresholds from the measured quantities."""
    trials = len(RHOS) * DRAWS
    one = accumulation.train(
        generator(seed, "training"), np.full(trials, RATE), np.full(trials, REPEATS), np.repeat(RHOS, DRAWS), STEPS,
        draws=DRAWS,
    )  # fmt: skip
    low, high = readout.probabilities(one.norm, accumulation.TOKENS)
    ratio, a_m = REPEATS / (STEPS - REPEATS), (one.memory[:, accumulation.SHARED :] ** 2).sum(1)
    return {
        "mem": one.mem_only.reshape(-1, DRAWS).mean(1).tolist(),
        "gen": one.gen_only.reshape(-1, DRAWS).mean(1).tolist(),
        "printed": float(printed(ratio, low, high).mean()),
        "threshold": float(corrected(ratio, low, high, one.shared_least, one.mem_most, a_m).mean()),
    }  # fmt: skip


def _draw(seed: int, mem_SR, gen_SR, path) -> None:
    figure, (left, right) = panels(2)
    for values_SR, colour, label in ((mem_SR, RED, "sinks alone"), (gen_SR, BLUE, "shared neurons alone")):
        left.plot(RHOS, values_SR.mean(0), "o-", color=colour, label=label, markersize=4)
        left.fill_between(RHOS, values_SR.min(0), values_SR.max(0), color=colour, alpha=0.15, linewidth=0)
    left.axhline(0, color=GREY, linewidth=0.8)
    finish(left, "Logit of the memorized answer", "share of other documents with the sinks on", "logit", legend=2)
    ratios = np.geomspace(1e-3, 1, 200)
    low, high = readout.probabilities(np.array([0.25]), 50)
    right.plot(ratios, printed(ratios, low, high), color=RED, linestyle=DASHED, label="printed")
    for alike, colour in ((0.9, BLUE), (0.3, ORANGE)):
        right.plot(ratios, exact(ratios, low, high, alike), color=colour, label=f"corrected, $\\epsilon={alike:g}$")
    right.axhline(0, color=GREY, linewidth=0.8)
    title = "The largest share that separates"
    finish(right, title, "repeats over other steps, $k/(N-k)$", "share", legend=3, log="x", ylim=(-0.2, 0.5))
    save(figure, path)
