"""The threshold on rho after Theorem H.3: how rarely sinks must be on to hold the memory.

Stated: the bounds (1) and (2) of `accumulation` separate mem-only from gen-only (eps_shared =
eps_mem = eps) if
    rho < c_min/c_max - (k/(N-k)) (c_max - c_min).
Error: solving
    gamma k (1-c_max) - gamma (N-k) rho eps c_max > gamma k (1-c_min) - gamma (N-k) eps c_min
for rho gives
    rho < c_min/c_max - (k/(N-k)) (c_max - c_min) / (eps c_max).
A factor 1/(eps c_max) is missing. Since eps c_max < 1 wherever c_max is a bound at all, the printed
threshold is too large. It is positive only if (N-k)/k > (c_max - c_min)/(eps c_min), about
(e^{2 C_proj} - 1)/eps. With the corrected bounds
    rho < [(N-k) eps_s c_min - k ((1-c_min) a_s - (1-c_max) a_m)] / [(N-k) epsmax_m c_max],
    a_s = 1 - a_m.

The bounds may be loose: the lab also trains, and shows the logits of both blocks over rho.
"""

import numpy as np

from memsinks_jax.studies.labs.linear_network import accumulation, readout
from memsinks_jax.studies.labs.linear_network.trials import generator
from memsinks_jax.studies.labs.study import Claims, Study, columns, lines, record

TRIALS = 100_000
RHOS = (0.1, 0.3, 0.7, 1.0)
STEPS, REPEATS, RATE, DRAWS = 4000, 40, 0.01, 12
MARGIN = 1e-6  # in rho, on either side of a threshold
# mem-only over rho, and the range of gen-only, in one draw of such a run
MEM_ONLY, GEN_ONLY, REACH = (0.110, 0.074, 0.005, -0.044), (-0.120, -0.104), 0.03


def study(seeds: tuple[int, ...]) -> Study:
    trained, drawn = (
        columns([measure(seed) for seed in seeds]) for measure in (training, separations)
    )
    mem_SR, gen_SR = trained.pop("mem-only"), trained.pop("gen-only")
    curves = {"mem-only": ("rho", RHOS, mem_SR), "gen-only": ("rho", RHOS, gen_SR)}
    runs = record("training", seeds, trained, curves) + record("thresholds", seeds, drawn)
    claims = Claims()
    what = "draws in which the bounds do not separate just below the printed threshold, "
    what += "of those with a positive one"
    claims.add("printed", what, "0 (after H.3)", drawn["printed"], at_most=0)
    what = "draws in which the corrected threshold is not where the stated bounds separate"
    claims.add("exact", what, "0, algebra", drawn["exact"], at_most=0)
    what = "the same for the corrected bounds and their threshold"
    claims.add("corrected", what, "0, algebra", drawn["corrected"], at_most=0)
    for rho, mem_S, value in zip(RHOS, mem_SR.T, MEM_ONLY, strict=True):
        what = f"mem-only logit at rho = {rho:g}"
        claims.near(f"mem_{rho:g}", what, "falls with rho", mem_S, value, REACH)
    what = "gen-only logit, mean over rho"
    values = gen_SR.mean(1)
    paper = "bounded for any rho (H.3 (1))"
    least, most = GEN_ONLY[0] - REACH, GEN_ONLY[1] + REACH
    claims.add("gen", what, paper, values, at_least=least, at_most=most)
    what = "mem-only: least fall from one rho to the next"
    values = -np.diff(mem_SR).max(1)
    claims.add("falls", what, "too many active interfere (figure 5a)", values, at_least=0)
    what = "mem-only minus gen-only: least fall from one rho to the next"
    claims.add("gap", what, "falls", -np.diff(mem_SR - gen_SR).max(1), at_least=0)
    what = "corrected threshold of the run, from its own C_proj and similarities"
    values = trained["corrected threshold"]
    claims.add("promise", what, "positive: predicts when to expect separation", values, at_least=0)
    wrong, total = drawn["printed"].sum(), drawn["positive"].sum()
    ratios = np.geomspace(1e-3, 1, 200)
    constants = readout.probabilities(np.array([0.25]), 50)
    bounds = {"printed": (ratios, None, printed(ratios, *constants))}
    bounds |= {
        f"corrected, $\\epsilon={alike:g}$": (ratios, exact(ratios, *constants, alike))
        for alike in (0.9, 0.3)
    }
    shown = []
    title = "Logit of the memorized answer"
    curves = {"shared neurons alone": (RHOS, gen_SR), "sinks alone": (RHOS, mem_SR)}
    shown.append(
        lines(title, "share of other documents with the sinks on", "logit", curves, "o-", level=0)
    )
    title, x = "The largest share that separates", "repeats over other steps, $k/(N-k)$"
    shown.append(lines(title, x, "share", bounds, log="x", level=0, ylim=(-0.2, 0.5)))
    return Study(
        "threshold",
        "The threshold on rho",
        f"At the printed threshold the bounds fail to separate in {wrong:,} of {total:,} draws; "
        "the corrected one is exact in all. Trained, the logit in the sinks falls with rho, that "
        "in the shared neurons hardly changes: sinks that are on more rarely keep more of the "
        "memory, though no bound promises it at these sizes.",
        f"Thresholds: {TRIALS:,} draws a seed of V, C_proj up to 2, eps and k/(N-k) from 1e-4 to "
        f"0.1. Training: {accumulation.TOKENS} tokens, {accumulation.SHARED} shared neurons, "
        f"{accumulation.HIDDEN - accumulation.SHARED} sinks, N = {STEPS}, k = {REPEATS}, rate "
        f"{RATE:g}, positive features; {DRAWS} draws a seed, the same for every rho. Mem-only "
        "minus gen-only can be had this way before any training, for any rho, k and N.",
        runs,
        claims,
        shown,
    )


def printed(ratio, low, high):
    """ratio: k/(N-k). low, high: c_min, c_max."""
    return low / high - ratio * (high - low)


def exact(ratio, low, high, alike):
    """alike: eps of both blocks."""
    return low / high - ratio * (high - low) / (alike * high)


def corrected(ratio, low, high, shared_least, mem_most, a_m):
    """From the corrected bounds. shared_least, mem_most: eps_s, epsmax_m; a_m: |z_mem(s_mem)|^2."""
    return (shared_least * low - ratio * ((1 - low) * (1 - a_m) - (1 - high) * a_m)) / (
        mem_most * high
    )


def gap(rho, ratio, low, high, shared_least, mem_alike, a_s=1, a_m=1):
    """Lower bound (2) minus upper bound (1), over gamma (N-k); with a_s = a_m = 1 as stated."""
    return (
        ratio * ((1 - high) * a_m - (1 - low) * a_s) - rho * mem_alike * high + shared_least * low
    )


def separations(seed: int, trials: int = TRIALS) -> dict[str, float]:
    """How often a threshold is not where the bounds separate (never, if it is not positive)."""
    rng = generator(seed, "thresholds")
    tokens = rng.integers(10, 1001, trials)
    low, high = readout.probabilities(rng.uniform(0, 1, trials), tokens)
    ratio, alike = 10 ** rng.uniform(-4, -1, trials), rng.uniform(0.01, 1, trials)
    a_m, most = rng.uniform(0.1, 0.9, trials), rng.uniform(0.01, 1, trials)

    def wrong(threshold, *parts):
        below = gap(np.maximum(threshold - MARGIN, 0), *parts) > 0
        above = gap(np.maximum(threshold + MARGIN, 0), *parts) > 0
        return float(
            np.sum(np.where(threshold > MARGIN, ~below | above, (threshold < -MARGIN) & below))
        )

    stated, mended = (ratio, low, high, alike, alike), (ratio, low, high, alike, most)
    theirs = printed(ratio, low, high)
    positive = theirs > MARGIN
    unseparated = positive & (gap(theirs - MARGIN, *stated) <= 0)
    return {
        "positive": float(positive.sum()),
        "printed": float(unseparated.sum()),
        "exact": wrong(exact(ratio, low, high, alike), *stated),
        "corrected": wrong(corrected(*mended, a_m), *mended, 1 - a_m, a_m),
    }


def training(seed: int) -> dict:
    """Mean logits of both blocks for every rho, and the thresholds from the measured quantities."""
    trials = len(RHOS) * DRAWS
    rng, rho = generator(seed, "training"), np.repeat(RHOS, DRAWS)
    rate, repeats = np.full(trials, RATE), np.full(trials, REPEATS)
    one = accumulation.train(rng, rate, repeats, rho, STEPS, draws=DRAWS)
    low, high = readout.probabilities(one.norm, accumulation.TOKENS)
    ratio, a_m = REPEATS / (STEPS - REPEATS), (one.memory[:, accumulation.SHARED :] ** 2).sum(1)
    mended = corrected(ratio, low, high, one.shared_least, one.mem_most, a_m)
    return {
        "mem-only": one.mem_only.reshape(-1, DRAWS).mean(1),
        "gen-only": one.gen_only.reshape(-1, DRAWS).mean(1),
        "printed threshold": printed(ratio, low, high).mean(),
        "corrected threshold": mended.mean(),
    }
