"""Bounded memories alone: the article's values, the four distances by hand, which memories fire
where.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import expect_input_error

from memsinks_jax.editing.memory import (
    Memory,
    bounding,
    distances,
    interventions,
    memory_of,
    stack,
    strengths,
)

B, T, W, M = 2, 5, 6, 3
RANDOM = np.random.default_rng(0)
X_BTW = RANDOM.normal(size=(B, T, W)).astype(np.float32)
KEYS_MW = RANDOM.normal(size=(M, W)).astype(np.float32)
DELTAS_MW = RANDOM.normal(size=(M, W)).astype(np.float32)
EVERYWHERE = np.ones((B, T), bool)


def memories(**settings):
    return Memory(
        KEYS_MW, DELTAS_MW, np.float32([0.5, 0.9, 1.3]), np.int32([1, 1, 1]), "mlp", **settings
    )


def changed(memory, x_BTW=X_BTW, layer=1, real=EVERYWHERE, last=None):
    return np.asarray(
        interventions([memory], real, last)[memory.site](jnp.asarray(x_BTW), jnp.int32(layer))
    )


def by_hand(kind, a, key):
    """The formulas of the specification for one activation and one key, in float64."""
    a, key = a.astype(np.float64), key.astype(np.float64)
    projection = a @ key / (key @ key)
    cosine = a @ key / np.sqrt((a @ a) * (key @ key))
    return {
        "blog": 1 - projection,
        "clamped": 1 - min(projection, 1),
        "l2": np.sqrt(((a - key) ** 2).sum()),
        "blend": 0.5 * abs(1 - projection) + 0.5 * (1 - cosine),
    }[kind]


def test_the_articles_unit_values():
    assert float(bounding(jnp.float32(0.9), 1.0, 10)) == pytest.approx(0.8855231713310284, abs=1e-6)
    assert float(bounding(jnp.float32(1), 1.0, 10)) == pytest.approx(0.36787944117144233, abs=1e-6)
    for height in (1.0, 3.0, 7.5):
        assert float(bounding(jnp.float32(0.225), 0.225, height)) == pytest.approx(
            np.exp(-1), abs=1e-6
        )
        assert float(bounding(jnp.float32(0), 0.225, height)) == 1
    # The notebook's similarities at height 1 and bound 1, and the distances they come from.
    for x, similarity in ((0.813, 0.5160), (0.692, 0.6194), (0.155, 0.9763), (0.103, 0.9894)):
        assert float(bounding(jnp.float32(x), 1.0, 1)) == pytest.approx(similarity, abs=1e-3)


def test_on_either_side_of_the_key_the_bound_is_the_same():
    assert float(bounding(jnp.float32(-0.4), 0.5, 3)) == float(bounding(jnp.float32(0.4), 0.5, 3))


@pytest.mark.parametrize("kind", ["blog", "clamped", "l2", "blend"])
def test_distances_are_those_of_the_formulas(kind):
    # one whose projection is over 1
    x_BTW = np.concatenate([X_BTW, 2.5 * KEYS_MW[None, :1].repeat(B, 0)], axis=1)
    found = np.asarray(distances(kind, jnp.asarray(x_BTW), jnp.asarray(KEYS_MW)))
    expected = [[[by_hand(kind, a, key) for key in KEYS_MW] for a in row] for row in x_BTW]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_activation_of_zero_has_no_angle():
    assert np.asarray(
        distances("blend", jnp.zeros((1, 1, W)), jnp.asarray(KEYS_MW))
    ) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", ["sum", "nearest"])
@pytest.mark.parametrize("kind", ["blog", "clamped", "l2", "blend"])
def test_several_memories_are_added(kind, rule):
    memory = memories(distance=kind, rule=rule)
    expected = X_BTW.astype(np.float64)
    for b in range(B):
        for t in range(T):
            x_M = np.array([by_hand(kind, X_BTW[b, t], key) for key in KEYS_MW])
            f_M = np.exp(-(np.abs(x_M / memory.bounds) ** 6))
            for m in range(M) if rule == "sum" else [np.abs(x_M).argmin()]:
                expected[b, t] += f_M[m] * DELTAS_MW[m]
    np.testing.assert_allclose(changed(memory), expected, atol=1e-4)
    assert not np.allclose(expected, X_BTW)


def test_a_memory_acts_in_its_layer_alone():
    memory = dataclasses.replace(
        memories(), layers=np.int32([0, 1, 2]), bounds=np.float32([9, 9, 9])
    )
    per_layer = [np.asarray(strengths(memory, jnp.asarray(X_BTW), layer)) for layer in range(4)]
    for layer, f_BTM in enumerate(per_layer):
        assert [(f_BTM[..., m] > 0).all() for m in range(M)] == [m == layer for m in range(M)]


def test_the_nearest_is_searched_in_the_layer():
    one = memory_of("mlp", 1, KEYS_MW[0], DELTAS_MW[0], 9.0, rule="nearest")
    nearer = memory_of("mlp", 0, X_BTW[0, 0], DELTAS_MW[1], 9.0, rule="nearest")
    (both,) = stack([one, nearer])
    np.testing.assert_allclose(changed(both), changed(one), atol=1e-6)


def test_padding_never_fires_and_the_last_place_can_be_asked_for():
    real = np.arange(T) < np.array([[3], [5]])
    last = np.arange(T) == np.array([[2], [4]])
    wide = dataclasses.replace(memories(), bounds=np.float32([99, 99, 99]))
    moved = np.any(changed(wide, real=real, last=last) != X_BTW, axis=-1)
    assert (moved == real).all()
    moved = np.any(
        changed(dataclasses.replace(wide, places="last"), real=real, last=last) != X_BTW, axis=-1
    )
    assert (moved == last).all()
    with expect_input_error("not defined for whole documents"):
        interventions([dataclasses.replace(wide, places="last")], real, None)


def test_stacked_memories_do_not_see_each_other():
    """Two memories of one place each compare with the activation as it came, not with what the
    first made of it.
    """
    first = memory_of("mlp", 1, X_BTW[0, 0], 50 * DELTAS_MW[0], 0.2)
    second = memory_of("mlp", 1, X_BTW[0, 0], 50 * DELTAS_MW[1], 0.2)
    both = interventions([first, second], EVERYWHERE, None)["mlp"](jnp.asarray(X_BTW), jnp.int32(1))
    np.testing.assert_allclose(
        both[0, 0], X_BTW[0, 0] + 50 * (DELTAS_MW[0] + DELTAS_MW[1]), rtol=1e-4
    )


def test_memories_of_other_settings_act_one_after_the_other():
    other = memory_of("mlp", 1, KEYS_MW[0], DELTAS_MW[0], 2.0, distance="l2")
    assert len(stack([memories(), other])) == 2
    together = interventions([memories(), other], EVERYWHERE, None)["mlp"](
        jnp.asarray(X_BTW), jnp.int32(1)
    )
    np.testing.assert_allclose(together, changed(other, changed(memories())), atol=1e-5)
    elsewhere = memory_of("attention", 0, KEYS_MW[0], DELTAS_MW[0], 1.0)
    assert {*interventions([memories(), elsewhere], EVERYWHERE, None)} == {"mlp", "attention"}


def test_what_lies_beyond_the_keys_width_stays():
    wide_BTW = np.concatenate([X_BTW, RANDOM.normal(size=(B, T, 3)).astype(np.float32)], axis=-1)
    result = changed(dataclasses.replace(memories(), bounds=np.float32([9, 9, 9])), wide_BTW)
    np.testing.assert_array_equal(result[..., W:], wide_BTW[..., W:])
    np.testing.assert_allclose(
        result[..., :W], changed(dataclasses.replace(memories(), bounds=np.float32([9, 9, 9])))
    )


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
def test_bounds_that_cannot_be_are_refused(bound):
    with expect_input_error("must be over 0"):
        memory_of("mlp", 0, KEYS_MW[0], DELTAS_MW[0], bound)
