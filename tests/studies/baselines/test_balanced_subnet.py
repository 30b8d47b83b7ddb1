"""BalancedSubnet against its steps written out in numpy; settings chosen on half of the
documents.
"""

import jax
import numpy as np
import pytest
from planted import MEMORIZED, OTHERS, batches_of, random_model

from memsinks_jax.studies.baselines import fronts
from memsinks_jax.studies.baselines.balanced_subnet import (
    BalancedSubnetSettings,
    balanced_subnet,
    initial,
)
from memsinks_jax.studies.baselines.reading import Reader, documents_of
from memsinks_jax.studies.baselines.removal import Point

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_two_steps_are_those_of_the_paper(family):
    config, params = random_model(family)
    settings = BalancedSubnetSettings(
        ratio=0.1, weight=0.3, learning_rate=3.0, epochs=2, batch_size=8
    )
    sets = [batches_of(MEMORIZED), batches_of(OTHERS)]
    found = balanced_subnet(config, params, *sets, settings)["layers"]
    reader, (lost, stays) = Reader(config), [documents_of(batches) for batches in sets]

    @jax.jit
    def gradient(layers):
        def objective(layers):
            of = params | {"layers": layers}
            losses = (reader.nats(of, rows, {}).sum() for rows in (lost, stays))
            of_lost, of_others = losses
            return -0.7 * of_lost / lost["weights"].sum() + 0.3 * of_others / stays["weights"].sum()

        return jax.grad(objective)(layers)

    scores = {name: np.asarray(of, np.float64) for name, of in initial(params, settings).items()}
    every = ("up_kernel", "gate_kernel", "down_kernel")
    names = [name for name in every if name in params["layers"]]
    assert list(scores) == names
    assert all(np.abs(scores[n]).max() <= scores[n].shape[1] ** -0.5 for n in names)
    first, moving = None, {name: np.zeros_like(of) for name, of in scores.items()}
    for step in range(3):
        masks = {}
        for name, of in scores.items():
            masks[name] = np.ones_like(of)
            for layer in range(2):
                smallest = np.argsort(np.abs(of[layer]), axis=None)[: int(0.1 * of[layer].size)]
                masks[name][layer].reshape(-1)[smallest] = 0
        weights = params["layers"] | {
            name: (params["layers"][name] * masks[name]).astype(np.float32) for name in names
        }
        if step == 2:
            break
        of_weights = gradient(weights)
        for name in names:
            passed = np.asarray(of_weights[name]) * params["layers"][name] * np.sign(scores[name])
            moving[name] = 0.9 * moving[name] + passed + 5e-4 * scores[name]
            scores[name] = scores[name] - 3.0 * moving[name]
        first = first if step else masks
    for name in names:
        np.testing.assert_array_equal(found[name], weights[name])
    assert any((first[name] != masks[name]).any() for name in names)


def test_halves_are_every_other_document():
    batches = batches_of([[number] * 3 for number in range(3, 10)], batch_size=4)
    first, second = (fronts.half(batches, number) for number in range(2))
    for of, numbers in ((first, [3, 5, 7, 9]), (second, [4, 6, 8])):
        rows, weights = (np.concatenate([b[name] for b in of]) for name in ("inputs", "weights"))
        assert rows[weights.any(axis=1), 1].tolist() == numbers
    assert all(len(batch["weights"]) == 4 for batch in first + second)


def test_the_front_is_what_no_other_beats_where_it_was_tuned():
    pairs = [(0.1, 0.02), (0.3, 0.01), (0.5, 0.2), (0.5, 0.3), (-0.1, -0.1), (0.4, 0.25)]
    trials = [fronts.Trial({"n": n}, Point(0, *pair, 0, 0), None) for n, pair in enumerate(pairs)]
    assert [trial.settings["n"] for trial in fronts.front(trials)] == [1, 2]
