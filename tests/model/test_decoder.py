"""The decoder and its intervention sites: what may depend on what."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memsinks_jax.config import Config, ModelConfig, SinksConfig, with_fields
from memsinks_jax.model.decoder import Decoder, build_model
from memsinks_jax.model.losses import cross_entropy
from memsinks_jax.sinks.gates import apply_gates, gates_for_mode
from memsinks_jax.sinks.kinds import partition

B, T, V = 2, 12, 50


FAMILIES = {
    "gpt2": ModelConfig(layers=3, d_model=16, heads=2, hidden=24),
    "llama": ModelConfig(
        family="llama",
        layers=3,
        d_model=16,
        heads=2,
        kv_heads=1,
        hidden=24,
        attention_bias=False,
        mlp_bias=False,
        tied_head=False,
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def config(request) -> Config:
    config = Config(model=FAMILIES[request.param])
    config = with_fields(config, {"data.row_length": T, "data.vocabulary_size": V})
    return with_fields(config, {"sinks": SinksConfig(shared_fraction=0.5, active_fraction=0.5)})


@pytest.fixture(scope="module")
def model_and_params(config):
    model, _ = build_model(config)
    params, draw = jax.jit(model.init)(jax.random.key(0)), np.random.default_rng(0)
    # Away from the initial values, where biases are 0 and scales 1 and mistakes with them would not
    # show.
    return model, jax.tree.map(
        lambda a: a + 0.3 * draw.standard_normal(a.shape, np.float32), params
    )


def inputs(segments=None):
    tokens = np.random.default_rng(1).integers(3, V, (B, T), np.int32)
    segments = np.ones((B, T), np.int32) if segments is None else np.asarray(segments, np.int32)
    return tokens, segments, np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))


def gates_of(config, mode, identities=((1, 2), (3, 4))):
    identities = np.asarray(identities, np.uint32)[:, None]
    parts = partition(config.model, config.sinks)
    return gates_for_mode(mode, identities, 0, parts, config.sinks)


def test_causality_by_gradient(config, model_and_params):
    """The logits at a place have exactly no gradient in the embeddings of what comes after it."""
    model, params = model_and_params
    _, segments, positions = inputs()
    place = 5
    # another at every place; the head has a table of its own where the tokens' is under test
    tokens = 3 + positions
    name, rows = (
        ("position_embedding", np.arange(T))
        if config.model.family == "gpt2"
        else ("token_embedding", tokens[0])
    )

    def logits_sum(table):
        return model(params | {name: table}, tokens, segments, positions)[:, place].sum()

    gradient = np.asarray(jax.jit(jax.grad(logits_sum))(params[name]))[rows]
    assert (gradient[place + 1 :] == 0).all()
    assert (np.abs(gradient[: place + 1]).max(axis=1) > 1e-4).all()


def test_documents_of_a_row_do_not_see_each_other(config, model_and_params):
    """Changing the first document, and so its sinks, leaves the second's logits equal to the
    bit.
    """
    model, params = model_and_params
    segments = [[1] * 5 + [2] * 7] * B
    tokens, segments, positions = inputs(segments)
    parts = partition(config.model, config.sinks)

    @jax.jit
    def logits(tokens, identities):
        gates = gates_for_mode("own", identities, 0, parts, config.sinks)
        return model(params, tokens, segments, positions, apply_gates(gates, segments))

    before = np.asarray(logits(tokens, np.array([[(1, 1), (9, 9)]] * B, np.uint32)))
    tokens[:, :5] = 7
    after = np.asarray(logits(tokens, np.array([[(2, 2), (9, 9)]] * B, np.uint32)))
    assert (before[:, 5:] == after[:, 5:]).all()
    assert (before[:, :5] != after[:, :5]).any()


def test_rotary_attention_depends_on_distances_alone(config, model_and_params):
    """Every position moved by the same changes nothing in the llama family, and everything where
    positions are learned. Other distances change both.
    """
    model, params = model_and_params
    tokens, segments, positions = inputs()
    logits = jax.jit(lambda positions: model(params, tokens[:, :6], segments[:, :6], positions))
    here, there, stretched = (
        np.asarray(logits(p[:, :6])) for p in (positions, positions + 5, positions * 2)
    )
    assert np.abs(here - stretched).max() > 0.1
    if config.model.family == "llama":
        np.testing.assert_allclose(here, there, atol=1e-4)
    else:
        assert np.abs(here - there).max() > 0.1


def test_dropped_sinks_equal_the_narrower_model(config, model_and_params):
    """Specs' U4: switching the sinks off and cutting them out of the weights is the same."""
    model, params = model_and_params
    shared = partition(config.model, config.sinks).shared
    layers = dict(params["layers"])
    for name in {"up_kernel", "up_bias", "gate_kernel"} & layers.keys():
        layers[name] = layers[name][..., :shared]
    layers["down_kernel"] = layers["down_kernel"][:, :shared]
    narrow = Decoder(config.model, shared, V, T)
    tokens, segments, positions = inputs()
    cut = narrow(params | {"layers": layers}, tokens, segments, positions)
    dropped = model(
        params, tokens, segments, positions, apply_gates(gates_of(config, "drop"), segments)
    )
    np.testing.assert_allclose(dropped, cut, atol=1e-4)
    own = model(params, tokens, segments, positions, apply_gates(gates_of(config, "own"), segments))
    assert np.abs(np.asarray(own) - np.asarray(cut)).max() > 0.1


@pytest.mark.parametrize("remat", ["none", "products", "attention", "full"])
def test_no_gradient_outside_the_documents_own_sinks(config, model_and_params, remat):
    """Specs' U6: exactly zero on the sinks of others, in the weights into and out of them."""
    _, params = model_and_params
    model = Decoder(config.model, 24, V, T, remat=remat)
    settings = SinksConfig(shared_fraction=0.5, active_fraction=0.5)
    parts = partition(config.model, settings)
    identities = np.array([[(8, 8)]] * B, np.uint32)
    gates = jax.jit(lambda identities: gates_for_mode("own", identities, 0, parts, settings))(
        identities
    )
    tokens, segments, positions = inputs()

    def loss(params):
        logits = model(params, tokens, segments, positions, apply_gates(gates, segments))
        return cross_entropy(logits, tokens).mean()

    gradient = jax.jit(jax.grad(loss))(params)["layers"]
    on = np.broadcast_to(np.asarray(gates)[0, 0], (3, 24))
    assert 0 < on[:, parts.shared :].mean() < 1
    for name in {"up_kernel", "gate_kernel"} & gradient.keys():
        assert (np.asarray(gradient[name]).swapaxes(1, 2)[~on] == 0).all()
    if "up_bias" in gradient:
        assert (np.asarray(gradient["up_bias"])[~on] == 0).all()
    assert (np.asarray(gradient["down_kernel"])[~on] == 0).all()
    assert (np.abs(np.asarray(gradient["up_kernel"])).max(axis=1)[on] > 0).all()
    assert (np.abs(np.asarray(gradient["down_kernel"])).max(axis=2)[on] > 0).all()


def test_interventions_see_every_layer_at_both_sites(model_and_params):
    model, params = model_and_params
    tokens, segments, positions = inputs()

    def logits(**interventions):
        return np.asarray(model(params, tokens, segments, positions, interventions))

    plain = logits()
    for site, width in (("attention", 16), ("mlp", 24)):
        shapes = []
        untouched = logits(**{site: lambda x, layer, s=shapes: (s.append(x.shape), x)[1]})
        assert (untouched == plain).all()
        assert set(shapes) == {(B, T, width)}

        @jax.jit
        def without(only, site=site):
            change = {site: lambda x, layer: jnp.where(layer == only, 0.0, x)}
            return model(params, tokens, segments, positions, change)

        none, *by_layer = (np.asarray(without(n)) for n in (-1, 0, 1, 2))
        for n in range(3):
            assert (by_layer[n] != none).any()
            assert (by_layer[n] != by_layer[n - 1]).any()
    with pytest.raises(ValueError, match="sites are attention and mlp"):
        logits(embedding=lambda x, layer: x)


def test_bfloat16_computes_in_bfloat16_and_returns_float32(config, model_and_params):
    _, params = model_and_params
    model = Decoder(dataclasses.replace(config.model, dtype="bfloat16"), 24, V, T)
    seen = []
    logits = model(params, *inputs(), {"mlp": lambda x, layer: (seen.append(x.dtype), x)[1]})
    assert logits.dtype == jnp.float32
    assert set(seen) == {jnp.dtype("bfloat16")}
