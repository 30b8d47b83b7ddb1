"""Several sources as one prediction: the sum over all ways in which they can take turns."""

import itertools

import numpy as np

from memsinks_jax.model import mixture


def test_a_text_has_the_probability_of_all_turns_together():
    draw, sources, tokens = np.random.default_rng(0), 3, 5
    nats_KT = draw.exponential(2, (sources, tokens))
    stay = 1 - mixture.SWITCH + mixture.SWITCH / sources
    for until in range(1, tokens + 1):
        whole = 0.0
        for turns in itertools.product(range(sources), repeat=until):
            changes = sum(one != other for one, other in itertools.pairwise(turns))
            likely = stay ** (until - 1 - changes) * (mixture.SWITCH / sources) ** changes
            whole += likely / sources * np.exp(-nats_KT[turns, range(until)].sum())
        found = float(mixture.nats(nats_KT)[:until].sum())
        assert np.isclose(found, -np.log(whole), rtol=1e-5)


def test_it_costs_little_more_than_the_right_source():
    right, wrong = np.full(40, 0.1), np.full(40, 3.0)
    mean = float(mixture.nats(np.stack([wrong, right])).mean())
    assert 0.1 < mean < 0.1 + np.log(2) / 40 - np.log(1 - mixture.SWITCH)
    turns = np.stack([np.append(right, wrong), np.append(wrong, right)])
    assert float(mixture.nats(turns).mean()) < 0.1 + 0.1
