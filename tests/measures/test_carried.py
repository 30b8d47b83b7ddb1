"""What a sink carries, against the same model with this sink zeroed in its parameters."""

import dataclasses
import types

import numpy as np
import pytest
from conftest import EVERYBODY
from planted import END, random_model

from memsinks_jax.config import SinksConfig, with_fields
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.opened import Opened
from memsinks_jax.forgetting import neurons
from memsinks_jax.measures import forced
from memsinks_jax.measures.carried import carried, own_removed, own_sinks
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.subjects import Subject, in_matrices
from memsinks_jax.model import placement, sparse_sinks
from memsinks_jax.models.trained import Trained
from memsinks_jax.sinks.kinds import partition

DOCUMENTS = Documents(
    [np.array([3, 4, 5, 8, 9, 3]), np.array([10, 11, 12])],
    np.array([[3, 1], [4, 1]], np.uint32),
    np.array([8, 1]),
)
MASKED = {"shared_fraction": 0.5, "active_fraction": 0.5}
SPARSE = {"shared_fraction": 0.5, "sampling": "floyd", "pool": 30, "active": 4, "sparse": True}


def model(opened=EVERYBODY, **settings):
    config, params = random_model("gpt2")
    fields = {"kind": "by_document", "opens_at": 1} | settings
    config = with_fields(config, {f"sinks.{name}": value for name, value in fields.items()})
    if config.sinks.sparse:
        shared = partition(config.model, config.sinks).shared  # the matrices have these alone
        for name, axis in (("up_kernel", 2), ("up_bias", 1), ("down_kernel", 1)):
            params["layers"][name] = params["layers"][name].take(range(shared), axis=axis)
        rng, width = np.random.default_rng(1), (30, config.model.layers, config.model.d_model)
        for name in sparse_sinks.tables_of(config.model):
            size = width[:2] if name.endswith("_bias") else width
            params[name] = rng.normal(size=size).astype(np.float32)
    ends = types.SimpleNamespace(end_of_text=END, begin_of_text=END)
    return Trained(config, ends, params, 1, opened)


def losses(run, params):
    """Nats per token of each document with its own sinks on, by the reader that the audit uses."""
    read = forced.read(Subject("", dataclasses.replace(run, params=params), "own"), DOCUMENTS)
    return [reading.nats.mean() for reading in read]


@pytest.mark.parametrize("settings", [MASKED, SPARSE], ids=["masked", "sparse"])
def test_what_a_sink_carries_is_what_is_lost_without_it(settings, monkeypatch):
    run, compiled = model(**settings), {}
    # `losses` reads one config with many parameters: its program is compiled once.
    jit_once = types.SimpleNamespace(
        jit=lambda function: compiled.setdefault("read", placement.jit(function)),
        mesh_of=placement.mesh_of,
    )
    monkeypatch.setattr(forced, "placement", jit_once)
    own = own_sinks(run, DOCUMENTS)
    found, before = carried(run, DOCUMENTS, own), losses(run, run.params)
    layers, cells = run.config.model.layers, 0
    parts = partition(run.config.model, run.config.sinks)
    for document, (mine, rises) in enumerate(zip(own, found, strict=True)):
        for layer in range(layers):
            for place, sink in list(enumerate(mine))[:2]:
                if run.config.sinks.sparse:
                    params = run.params | {"sink_down": run.params["sink_down"].copy()}
                    params["sink_down"][sink, layer] = 0
                else:
                    gone_LF = np.zeros((layers, sum(parts)), bool)
                    gone_LF[layer, parts.shared + sink] = True
                    params = neurons.without(run.config, run.params, gone_LF)
                expected = losses(run, params)[document] - before[document]
                assert rises[layer][place] == pytest.approx(expected, abs=2e-6)
                cells += abs(expected) > 1e-3
    assert cells > 4


def test_documents_beyond_the_budget_are_left_out():
    run = model(**MASKED)
    own = own_sinks(run, DOCUMENTS)
    first = len(own[0]) * run.config.model.layers
    assert [rises is None for rises in carried(run, DOCUMENTS, own, most=first)] == [False, True]
    assert carried(run, DOCUMENTS, own, most=first - 1)[0] is None


def test_what_did_not_come_back_has_no_sinks():
    known = Opened(SinksConfig(opens_at=2), lambda: as_numbers(DOCUMENTS.identities[:1]))
    run = model(known, **MASKED)
    assert [bool(own) for own in own_sinks(run, DOCUMENTS)] == [True, False]


@pytest.mark.parametrize("settings", [MASKED, SPARSE], ids=["masked", "sparse"])
def test_its_own_removed_is_what_forget_leaves(settings):
    run = model(**settings)
    everything = in_matrices(Subject("", run, "all"))
    found = forced.read(everything, DOCUMENTS, own_removed(everything.run.config))
    for place in range(2):
        one = DOCUMENTS.chosen(np.array([place]))
        gone = neurons.neurons_of(run.config, one.identities)
        params = neurons.without(run.config, run.params, gone)
        (expected,) = forced.read(Subject("", dataclasses.replace(run, params=params), "all"), one)
        np.testing.assert_allclose(found[place].nats, expected.nats, atol=1e-5)
        np.testing.assert_array_equal(found[place].guess, expected.guess)
        (all_on,) = forced.read(Subject("", run, "all"), one)
        assert np.abs(all_on.nats - expected.nats).max() > 1e-2


def test_rank_and_guess_agree_with_the_likeliest():
    run = model(**MASKED)
    readings = forced.read(Subject("", run, "own"), DOCUMENTS)
    for reading, tokens in zip(readings, DOCUMENTS.tokens, strict=True):
        np.testing.assert_array_equal(reading.likeliest, reading.guess == tokens)
        np.testing.assert_array_equal(reading.likeliest, reading.rank == 0)
        assert reading.rank.max() > 0
