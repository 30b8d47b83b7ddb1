"""Sinks that open when a document comes back: accumulation, retention, interference.

Setting: f(x) = W x with S shared neurons and M sinks, squared loss, SGD with batch 1 at rate gamma,
W = 0 at the start. A document has a mask with p M sinks on and features of length 1. Each neuron
that is on has the variance v = 1 / (S + p M), so the shares are a_s = S v and a_m = p M v. At a
document's first n - 1 encounters its sinks are closed: their features are 0. n = 1 are the paper's
sinks, always open. s_mem comes N times. Between two encounters G other documents are read, with
features and targets in random directions. Each comes back with probability rho, so a share q =
rho^(n-1) has its sinks open. Of s_mem's target, the shared neurons give s and the sinks m. In
expectation, exactly:

    encounter       r = 1 - s - m if its sinks are open, else 1 - s;
                    s += gamma a_s r,  and if open m += gamma a_m r
    retention       between two encounters s is multiplied by k_s = (1 - gamma v)^G,
                    m by k_m = (1 - gamma v p q)^G
    interference    between two encounters p q G others write to each sink of s_mem, and G to each
                    shared neuron
    accumulation    s -> g_s / (1 + g_s + g_m) before an encounter,
                    g_s = gamma a_s k_s / (1 - k_s), g_m likewise

In short: only documents that come back write to sinks that open on return, so these decay with q =
rho instead of 1. They keep the document, and leave little to learn at its encounters. The shared
neurons forget it as before but do not learn it
again: as q -> 0, s -> 0. The price is n - 1 encounters that train the shared neurons alone. In the
bounds of `accumulation`, the same q multiplies the fraction of other documents that have the sinks
on.
"""

import numpy as np

from memsinks_jax.studies.labs.linear_network.coadaptation import sgd
from memsinks_jax.studies.labs.linear_network.trials import features, generator
from memsinks_jax.studies.labs.study import Claims, Study, lines, record

SHARED, SINKS, ACTIVE, OUTPUTS, RATE = 16, 32, 8, 50, 0.5
ENCOUNTERS, OTHERS, RETURNING = 16, 40, 0.1  # N, G, rho
TRIALS = 200
OPENS_AT = (1, 2, 4)  # n
VARIANCE = 1 / (SHARED + ACTIVE)
SHARES = VARIANCE * np.array([SHARED, ACTIVE])  # a_s, a_m
REACH = 0.03  # tolerance between means over the trials and the derived values


def documents(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Features of documents with open sinks -> (*shape, SHARED + SINKS), of length 1."""
    ranks = rng.random((*shape, SINKS)).argsort(-1).argsort(-1)
    sinks = np.where(ranks < ACTIVE, rng.standard_normal((*shape, SINKS)), 0)
    sinks *= np.sqrt(ACTIVE * VARIANCE) / np.linalg.norm(sinks, axis=-1, keepdims=True)
    return np.concatenate(
        [np.sqrt(SHARED * VARIANCE) * features(rng, *shape, SHARED, signed=True), sinks], -1
    )


def features_at(x_D: np.ndarray, encounter, opens_at: int) -> np.ndarray:
    """Features (..., D) at an encounter (...), counted from 1. Those of closed sinks are 0."""
    is_open = np.asarray(encounter)[..., None] >= opens_at
    return np.where(is_open | (np.arange(SHARED + SINKS) < SHARED), x_D, 0)


def train(seed: int, opens_at: int, trials: int = TRIALS) -> tuple[np.ndarray, float]:
    """Trains side by side, on the same documents for every `opens_at` -> s and m, means over trials
    (N, 2, 2), as in `expected`; how many others write to a sink of s_mem in between.
    """
    rng = generator(seed, "opening")
    memory_BD = documents(rng, trials)
    # Rows of W are independent. Trains one, along s_mem's target: O = 1.
    w_BOD, found, writes = np.zeros((trials, 1, SHARED + SINKS)), [], 0.0

    def parts() -> list[float]:
        of_neurons_D = (w_BOD[:, 0] * memory_BD).mean(0)
        return [of_neurons_D[:SHARED].sum(), of_neurons_D[SHARED:].sum()]

    for encounter in range(1, ENCOUNTERS + 1):
        w_BOD = sgd(
            w_BOD, features_at(memory_BD, encounter, opens_at)[None], np.ones((1, trials, 1)), RATE
        )
        after = parts()
        seen_GB = rng.geometric(1 - RETURNING, (OTHERS, trials))
        x_GBD = features_at(documents(rng, OTHERS, trials), seen_GB, opens_at)
        w_BOD = sgd(w_BOD, x_GBD, rng.standard_normal((OTHERS, trials, 1)) / np.sqrt(OUTPUTS), RATE)
        found.append([after, parts()])
        writes += ((x_GBD != 0) & (memory_BD != 0))[..., SHARED:].sum() / (
            trials * ACTIVE * ENCOUNTERS
        )
    return np.array(found), float(writes)


def written(opens_at: int, returning: float = RETURNING) -> float:
    """p q G."""
    return ACTIVE / SINKS * returning ** (opens_at - 1) * OTHERS


def retained(opens_at: int, returning: float = RETURNING) -> np.ndarray:
    """k_s and k_m -> (2,)."""
    share = written(opens_at, returning) / OTHERS
    return (1 - RATE * VARIANCE * np.array([1, share])) ** OTHERS


def expected(opens_at: int, encounters: int = ENCOUNTERS) -> np.ndarray:
    """s and m as derived above -> (encounters, 2: after it, before the next; 2: shared, sinks)."""
    parts, found = np.zeros(2), []
    for encounter in range(1, encounters + 1):
        is_open = np.array([True, encounter >= opens_at])
        after = parts + np.where(is_open, RATE * SHARES * (1 - parts[is_open].sum()), 0)
        parts = after * retained(opens_at)
        found.append([after, parts])
    return np.array(found)


def limit(opens_at: int, returning: float = RETURNING) -> float:
    """The limit of s before an encounter."""
    retention = retained(opens_at, returning)
    gain = RATE * SHARES * retention / (1 - retention)
    return float(gain[0] / (1 + gain.sum()))


def study(seeds: tuple[int, ...]) -> Study:
    parts_SNLP, claims, runs, places = {}, Claims(), [], range(1, ENCOUNTERS + 1)
    for opens_at in OPENS_AT:
        where, several = f"sinks open at {opens_at}", [train(seed, opens_at) for seed in seeds]
        parts = parts_SNLP[opens_at] = np.array([one[0] for one in several])
        written_S = [one[1] for one in several]
        retained_SP = parts[:, :, 1].sum(1) / parts[:, :, 0].sum(1)
        of_s = expected(opens_at)[-1, 1, 0]
        (k_s, k_m), gap = retained(opens_at), written(opens_at)
        what = f"s before encounter {ENCOUNTERS + 1}, {where}"
        values = parts[:, -1, 1, 0]
        paper = f"{of_s:.3f} derived"
        claims.near(f"accumulated_{opens_at}", what, paper, values, round(of_s, 3), REACH)
        what = f"share of m that is left at the next encounter, {where}"
        paper = f"{k_m:.3f} derived"
        claims.near(f"retained_{opens_at}", what, paper, retained_SP[:, 1], round(k_m, 3), 0.005)
        what = f"share of s that is left, {where}"
        values = retained_SP[:, 0]
        paper = f"{k_s:.3f} derived"
        claims.near(f"retained_shared_{opens_at}", what, paper, values, round(k_s, 3), REACH)
        what = f"others that write into a sink between two encounters, {where}"
        claims.near(f"written_{opens_at}", what, f"{gap:g} derived", written_S, gap, 0.1)
        curves = {
            name: ("encounter", places, parts[:, :, 1, part])
            for part, name in enumerate(("shared", "sinks"))
        }
        metrics = {"written": written_S, "s in the limit": [limit(opens_at)] * len(seeds)}
        runs += record(where, seeds, metrics, curves)
    for name, statement, place, price, most in (
        ("accumulated_less", f"s before encounter {ENCOUNTERS + 1}", (-1, 1, 0), "", 0.6),
        ("price", "m after encounter 2", (1, 0, 1), ", below 1: the price", 1),
    ):
        ratio_S = parts_SNLP[2][:, *place] / parts_SNLP[1][:, *place]
        derived = f"{expected(2)[place] / expected(1)[place]:.2f} derived{price}"
        claims.add(name, f"{statement}, open at 2 over always", derived, ratio_S, at_most=most)
    first, second = (parts_SNLP[opens_at][:, -1, 1].mean(0) for opens_at in (1, 2))
    labels = {
        opens_at: "always open" if opens_at == 1 else f"open at {opens_at}" for opens_at in OPENS_AT
    }
    returning = np.linspace(0.01, 0.99, 99)
    limits = {
        label: (returning, None, [limit(n, one) for one in returning])
        for n, label in labels.items()
    }
    shown, y = [], "share of the target"
    for part, where, top in ((0, "shared neurons", None), (1, "document's sinks", 1)):
        curves = {
            label: (places, parts_SNLP[n][:, :, 1, part], expected(n)[:, 1, part])
            for n, label in labels.items()
        }
        title = f"In the {where}, before the next"
        shown.append(lines(title, "encounter", y, curves, "o", ylim=(0, top)))
    title = "Its limit in the shared neurons"
    shown.append(lines(title, "share that comes back", y, limits, ylim=(0, None)))
    return Study(
        "opening",
        "Sinks that open when a document comes back",
        "Sinks that open at the second encounter are written by what comes back alone, so between "
        f"two encounters they lose {1 - retained(2)[1]:.0%} of the document and not "
        f"{1 - retained(1)[1]:.0%}. After {ENCOUNTERS} they hold {second[1]:.2f} of it instead of "
        f"{first[1]:.2f}, and the shared neurons, which forget it as before and are trained less "
        f"on it, {second[0]:.2f} instead of {first[0]:.2f}. The price is the first encounter.",
        f"{SHARED} shared neurons, {SINKS} sinks of which a document has {ACTIVE} on, rate "
        f"{RATE:g}, {OTHERS} other documents between two encounters, each come back with chance "
        f"{RETURNING:g}; means over {TRIALS} trials a seed, targets of the others random in "
        f"{OUTPUTS} dimensions. No theorem of the paper; dashed: derived, nothing fitted. Last: "
        "the limit of s before an encounter, by the chance to come back. s, m: the share of a "
        "document's target that the shared neurons and its sinks give.",
        runs,
        claims,
        shown,
    )
