"""Rivals of study tofu on a tiny model: what they descend on, and that adapters are each alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import EVERYBODY, tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.measures.document_loss import reader
from memsinks_jax.model.decoder import build_model
from memsinks_jax.models.trained import Trained
from memsinks_jax.studies.figures import tofu_corpus as corpus
from memsinks_jax.studies.figures import tofu_rivals as rivals

pytestmark = pytest.mark.slow

EACH = 4
ANSWERS = ["It was written in Ash.", "Nobody knows that.", "She sat by a cold river."]
ANSWERS += ["Ten years ago, at sea.", "My own house."]


def record(author, number, answer):
    question = f"Where was book {number} of writer {author} made?"
    return {"question": question, "answer": answer, "author": corpus.author(author)}


RECORDS = [record(a, number, answer) for a, answer in enumerate(ANSWERS) for number in range(EACH)]
AUTHORS = len(ANSWERS)


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "OF_AN_AUTHOR", EACH)
        patch.setattr(rivals, "TOGETHER", 2)
        patch.setattr(rivals, "EPOCHS", 20)
        yield


@pytest.fixture(scope="module")
def run() -> Trained:
    plain = {"family": "llama", "attention_bias": False, "mlp_bias": False}
    fields = {"model": dataclasses.replace(tiny_config().model, **plain), "sinks.kind": "none"}
    fields |= {"data.row_length": 64, "data.vocabulary_size": 400}
    config = with_fields(tiny_config(), fields)
    tokenizer = train_tokenizer([row["question"] + row["answer"] for row in RECORDS], 400)
    params = build_model(config)[0].init(jax.random.key(0))
    params["token_embedding"] *= 50  # no adapter could distinguish tokens of a fresh model
    return Trained(config, tokenizer, params, 0, EVERYBODY)


@pytest.fixture(scope="module")
def adapters(run):
    return rivals.adapters(run, RECORDS, 0.03)


def losses(run: Trained, records=RECORDS) -> np.ndarray:
    """Nats of every answer."""
    config, rows = rivals._rows(run, records)
    return np.asarray(reader(config, "drop")(run.params, rows).sum(axis=1))


def test_objectives():
    def gradient(rival: str, rise: float) -> np.ndarray:
        """By losses of 2 withdrawn answers, which rose, and 2 others; of 5 and 10 tokens."""
        before, tokens = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([5.0, 10.0, 5.0, 10.0])
        slope = jax.grad(lambda at: rivals.objective(rival, at, before, tokens))
        return np.asarray(slope(before + rise))

    signs = np.array([-1, -1, 1, 1])
    np.testing.assert_allclose(gradient("difference", 9.0), signs / 15, rtol=1e-6)
    # At first NPO is ascent on whole answers; where much was forgotten, it stops (Zhang et al.,
    # section 3).
    np.testing.assert_allclose(gradient("npo", 0.0), [-1 / 2, -1 / 2, 1 / 15, 1 / 15], rtol=1e-6)
    np.testing.assert_allclose(gradient("npo", 30.0)[:2], [-1 / (1 + np.exp(3))] * 2, rtol=1e-5)


@pytest.mark.parametrize("rival", ["npo", "difference"])
def test_unlearning_raises_the_loss_of_withdrawn_answers_alone(run, rival):
    lost, stay = RECORDS[-EACH:], RECORDS[:-EACH]
    left = rivals.unlearned(run, lost, stay, rival, 0.01)
    rise = losses(left) - losses(run)
    assert rise[-EACH:].min() > 10 and rise[:-EACH].mean() < 0


def test_the_rate_rises_for_an_epoch_and_falls_to_nothing():
    np.testing.assert_allclose(rivals._rates(1.0, 6, 2), [0, 0.5, 1, 0.75, 0.5, 0.25])


def test_an_adapter_knows_its_author_and_is_trained_alone(run, adapters):
    assert adapters.authors == [corpus.author(number) for number in range(AUTHORS)]
    for place, author in enumerate(adapters.authors):
        fall = losses(run) - losses(rivals.with_adapters(run, adapters, [author]))
        assert fall.reshape(AUTHORS, EACH).mean(axis=1).argmax() == place
    assert rivals.with_adapters(run, adapters, ["author 99"]) is run
    fewer = rivals.adapters(run, RECORDS[: 3 * EACH], 0.03)  # the third was trained with the fourth
    for name, leaf in fewer.of.items():
        np.testing.assert_allclose(leaf, adapters.of[name][:3], rtol=1e-4, atol=1e-6, err_msg=name)


def test_one_adapter_for_all_knows_all(run, adapters):
    of_all = rivals.adapters(run, RECORDS, 0.03, rank_for_all=6)
    assert of_all.authors == [rivals.EVERYBODY]
    assert of_all.of["up_in"].shape == (1, 2, 16, 6)
    assert of_all.of["down_out"].shape == (1, 2, 6, 16)
    both = (rivals.with_adapters(run, made, made.authors) for made in (of_all, adapters))
    known, merged = map(losses, both)
    assert (known < 0.7 * losses(run)).all() and (known < merged).all()
    questions, places = rivals._questions(run), np.arange(len(RECORDS))
    order_SQ = rivals._order(run.config.seed, 0, places, questions)
    assert order_SQ.shape == (rivals.EPOCHS * -(-len(RECORDS) // questions), questions)
    for epoch in np.split(order_SQ, rivals.EPOCHS):
        assert set(epoch.ravel()) == set(places.tolist())


def test_the_adapter_for_all_is_as_large_as_all_sinks(run):
    fields = {"sinks.kind": "by_document", "sinks.sampling": "disjoint", "sinks.sparse": True}
    config = with_fields(run.config, fields | {"sinks.pool": 320, "sinks.active": 16})
    params = build_model(config)[0].init(jax.random.key(0))
    given = dataclasses.replace(run, config=config, params=params)
    of_rank_one = 2 * (4 + 3) * (16 + 16)  # layers, maps of attention and of the MLP, their widths
    assert rivals.rank_of_sinks(given) == round(320 * 3 * 2 * 16 / of_rank_one) > rivals.RANK


def test_rows_of_a_batch_have_adapters_of_their_own(run, adapters):
    config, rows = rivals._rows(run, RECORDS)
    apart = rivals.adapted(config)(run.params, adapters.of, rows).sum(axis=1).reshape(AUTHORS, EACH)
    for place, author in enumerate(adapters.authors):
        merged = losses(rivals.with_adapters(run, adapters, [author])).reshape(AUTHORS, EACH)
        np.testing.assert_allclose(apart[place], merged[place], rtol=1e-4)

    def kernel(*on: str) -> np.ndarray:
        return rivals.with_adapters(run, adapters, on).params["layers"]["up_kernel"]

    first, second = adapters.authors[:2]
    expected = kernel(first) + kernel(second) - run.params["layers"]["up_kernel"]
    np.testing.assert_allclose(kernel(first, second), expected, atol=1e-5)
