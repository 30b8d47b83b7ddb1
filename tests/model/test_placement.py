"""Programs that models share: what they read of a config, and that they are traced once."""

import functools
import types

import jax
import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.data.contexts import Contexts
from memsinks_jax.measures import document_loss, forced
from memsinks_jax.measures.documents import Documents, document_batches
from memsinks_jax.model import generation, placement
from memsinks_jax.model.context_rows import Lookup
from memsinks_jax.model.decoder import no_change
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.training.step import init_state


class _Model:
    """A section of a model, but for what it started from; with its properties."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        if name == "initial":
            raise AttributeError(name)
        return getattr(self._model, name)


def narrow(config):
    """The config with nothing but what `placement.shared` distinguishes configs by: reading more is
    an AttributeError.
    """
    data = types.SimpleNamespace(
        row_length=config.data.row_length, vocabulary_size=config.data.vocabulary_size
    )
    compute = types.SimpleNamespace(**vars(config.compute))
    del compute.accumulate
    model = _Model(config.model)
    return types.SimpleNamespace(
        seed=config.seed,
        data=data,
        sinks=config.sinks,
        contexts=config.contexts,
        model=model,
        compute=compute,
    )


def traced(config, of_narrow):
    """All that is shared, as text."""
    params = jax.eval_shape(lambda: init_state(config, 10).params)
    given = narrow(config) if of_narrow else config
    tokens, length = [np.arange(9, dtype=np.int32)], config.data.row_length
    by_context = config.sinks.traits.by_context
    letters = np.zeros((config.data.vocabulary_size, 7), np.uint32)
    contexts = (
        Contexts(np.arange(5, dtype=np.uint64), config.contexts.length, letters)
        if by_context
        else None
    )
    found = Documents(tokens, np.ones((1, 2), np.uint32), opened=np.ones(1, bool))
    ends = types.SimpleNamespace(end_of_text=1, begin_of_text=1)
    (batch,) = document_batches(found, length, ends, 4, contexts=contexts)
    loss = document_loss._compiled.__wrapped__(given, no_change, None)
    yield loss.lower(params, batch, np.uint32(0), mode="own").as_text()
    yield jax.make_jaxpr(forced._compiled.__wrapped__(given, "own", lambda batch: {}))(
        params, batch, np.uint32(0)
    )
    order = np.zeros((3, 1), np.int32)
    yield jax.make_jaxpr(relearning.practice.__wrapped__(given, "own"))(
        params, batch, order, None, 0.1
    )
    programs = generation._Programs(given, no_change, (), (1,))
    request = {"known_B": np.ones(2, np.int32), "identities_B12": np.ones((2, 1, 2), np.uint32)}
    request |= {"opened_B1": np.ones((2, 1), bool), "temperature": np.float32(1)}
    request |= {"top_k": np.int32(0), "top_p": np.float32(1), "seed": np.uint32(0)}
    request |= {"sinks_seed": np.uint32(0), "tokens_BP": np.zeros((2, 16), np.int32)}
    request |= {"lookup": contexts and Lookup.of(contexts)}
    read = functools.partial(programs.read, mode="own", room=32, sources=1)
    yield jax.make_jaxpr(read)(params, request)
    yield jax.make_jaxpr(functools.partial(programs.write, mode="own"))(
        params, jax.eval_shape(read, params, request), request, np.int32(9)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"sinks.sampling": "exact"},
        {"model.family": "llama", "compute.loss_chunks": 2},
        {"sinks.sparse": True, "sinks.sampling": "floyd", "sinks.pool": 40},
        {"sinks.kind": "by_context", "contexts.rows": 256},
    ],
)
def test_programs_read_nothing_of_a_config_by_which_it_is_not_distinguished(fields):
    config = with_fields(tiny_config(), {"model.layers": 1} | fields)
    for one, other in zip(traced(config, True), traced(config, False), strict=True):
        assert str(one) == str(other)


def test_what_differs_elsewhere_is_shared_and_nothing_else():
    made = []
    make = placement.shared(lambda config, *others: made.append((config, *others)) or object())
    config = tiny_config()
    elsewhere = {"compute.accumulate": 3, "training.batch_size": 9, "model.initial": "run"}
    elsewhere |= {"data.rows": "packed", "mesh.data": 2}
    assert make(config) is make(with_fields(config, elsewhere)) is make(tiny_config())
    assert (
        len(
            {
                make(with_fields(config, {"seed": seed}), *others)
                for seed in (0, 1)
                for others in ((), (1,))
            }
        )
        == 4
    )
    assert len(made) == 4 and made[0][0].sinks == config.sinks
