"""The documented lines for other people's models do what the text says."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT

from memsinks_jax.config import Config
from memsinks_jax.sinks.gates import gates_for_mode
from memsinks_jax.sinks.kinds import partition


@pytest.fixture(scope="module")
def shown() -> dict:
    lines = (ROOT / "docs" / "your_own_model.md").read_text().splitlines()
    code = [line for line in lines if line.startswith("    ") or not line]
    names = {}
    exec(textwrap.dedent("\n".join(code)), names)
    return names


@pytest.fixture(scope="module")
def params() -> dict:
    keys = jax.random.split(jax.random.key(0))
    return {
        "up": jax.random.normal(keys[0], (16, 512)),
        "down": jax.random.normal(keys[1], (512, 16)),
    }


DOCUMENTS, SEEN = [np.arange(9), np.arange(5), np.arange(9)], np.array([3, 0, 1])
X = np.random.default_rng(0).normal(size=(3, 7, 16)).astype(np.float32)


def test_masks_are_those_of_training(shown):
    masks = shown["masks_of"](DOCUMENTS, SEEN)
    config = Config()
    identities = np.stack([shown["content_id"](tokens) for tokens in DOCUMENTS])
    parts = partition(config.model, config.sinks)
    gates = gates_for_mode("own", identities[:, None], 0, parts, config.sinks)
    assert parts == (shown["SHARED"], shown["SINKS"])
    np.testing.assert_array_equal(masks[::2], gates[::2, 0, parts.shared :])
    assert (masks[0] == masks[2]).all() and 20 < masks[0].sum() < 80 and not masks[1].any()


def test_nothing_of_a_document_reaches_other_sinks(shown, params):
    masks = shown["masks_of"](DOCUMENTS, SEEN)
    gradients = jax.grad(lambda params: jnp.square(shown["mlp"](params, X, masks)).sum())(params)
    updated = np.abs(gradients["down"]).sum(axis=1) > 0
    assert updated[: shown["SHARED"]].all()
    np.testing.assert_array_equal(updated[shown["SHARED"] :], masks.any(axis=0))


def test_what_is_left_is_an_ordinary_mlp(shown, params):
    left = shown["without_sinks"](params)
    plain = jax.nn.gelu(X @ left["up"]) @ left["down"]
    dropped = shown["mlp"](params, X, jnp.zeros((3, shown["SINKS"]), bool))
    np.testing.assert_allclose(plain, dropped, rtol=1e-5, atol=1e-4)
