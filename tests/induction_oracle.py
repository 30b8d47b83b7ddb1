"""The data law in plain numpy, one sequence and one token at a time.

Draws in the order of the paper's own generator: with the same seed it gives the paper's test batch,
token for token. `law.sampler` is tested against it. Axes as in `law`.
"""

import numpy as np

from memsinks_jax.studies.labs.induction_head.bigrams import Statistics


def triggers(statistics: Statistics, k: int, offset: int) -> list[int]:
    """The fixed triggers, rarest first."""
    order = statistics.pi_u_V.argsort()
    return [int(token) for token in order[len(order) - offset - k : len(order) - offset]]


def sequence(rng: np.random.Generator, statistics: Statistics, law) -> tuple[list[int], list[int]]:
    """One sequence of a `law.Law` -> its T + 1 tokens, and for each of the T positions how often
    its trigger has come.
    """
    everything = np.arange(len(statistics.unigrams_V))
    p_u, p_b = statistics.pi_u_V, statistics.pi_b_VV
    if law.fixed:
        chosen = triggers(statistics, law.k, law.offset)
    else:
        chosen = [int(token) for token in rng.choice(everything, p=p_u, size=law.k, replace=False)]
    output_of = {}
    for trigger in chosen:
        weights = p_b[trigger] if law.bigram_outputs else None
        output_of[trigger] = int(rng.choice(everything, p=weights))
    tokens, seen, times = [int(rng.choice(everything, p=p_u))], [], dict.fromkeys(chosen, 0)
    while len(tokens) <= law.length:
        last = tokens[-1]
        if last in output_of:
            times[last] += 1
            tokens.append(output_of[last])
        else:
            tokens.append(int(rng.choice(everything, p=p_b[last])))
        seen.append(times.get(last, 0))
    return tokens, seen


def batch(
    rng: np.random.Generator, statistics: Statistics, law, sequences: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int64 (B, T + 1) and seen int64 (B, T)."""
    made = [sequence(rng, statistics, law) for _ in range(sequences)]
    return np.array([tokens for tokens, _ in made]), np.array([seen for _, seen in made])


def ends_in_a_cycle(statistics: Statistics, tokens: np.ndarray, seen: np.ndarray) -> bool:
    """Whether a sequence ends in a cycle of tokens with one successor each, decided from the
    sequence alone.

    Outputs are read off the sequence. A trigger at its very end, never seen before, counts as free.
    """
    next_of = {v: int(row.argmax()) for v, row in enumerate(statistics.pi_b_VV) if row.max() == 1}
    next_of |= {int(token): int(tokens[t + 1]) for t, token in enumerate(tokens[:-1]) if seen[t]}
    at, visited = int(tokens[-1]), set()
    while at in next_of and at not in visited:
        visited.add(at)
        at = next_of[at]
    return at in visited
