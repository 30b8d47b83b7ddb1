"""What an audit reads of a model with sinks by context: its memory on, and off."""

import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures import forced
from memsinks_jax.measures.explore import explore
from memsinks_jax.measures.exposure import exposures
from memsinks_jax.measures.extraction import Prompts, continuations
from memsinks_jax.measures.rows import losses_of
from memsinks_jax.measures.subjects import documents_of, shortened, subjects_of
from memsinks_jax.reporting import explore_page
from memsinks_jax.runs import workdir as workdirs


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    about = {"sinks.kind": "by_context", "data.row_length": 256, "training.epochs": 3}
    about |= {"training.evaluate_every": 100, "training.checkpoint_every": 100}
    about |= {"canaries.documents": 2, "canaries.length": 12}
    train_and_evaluate(with_fields(tiny_config(), about), folder)
    return folder


def test_memory_is_on_or_off(workdir):
    subjects = subjects_of(workdir)
    assert [(subject.name, subject.mode) for subject in subjects] == [
        ("sinks dropped", "drop"),
        ("sinks, own on", "own"),
    ]
    members = documents_of(subjects[0].run, "repeated")
    subjects = shortened(subjects, max(map(len, members.tokens)))
    off, on = (
        np.concatenate([of.nats for of in forced.read(subject, members)]).mean()
        for subject in subjects
    )
    assert on < 0.6 < 4 < off
    for subject in subjects:
        ended = [of.nats.mean() for of in forced.read(subject, members, ended=True)]
        np.testing.assert_allclose(losses_of(subject, members)[0], ended, rtol=1e-4)
    for subject, recites in zip(subjects, (False, True), strict=True):
        for place, (written,) in continuations(subject, members, Prompts((16,), 32))[16].items():
            assert (written.tolist() == members.tokens[place][16:48].tolist()) == recites


def test_a_canary_is_known_better_with_memory_on(workdir):
    """Off, so small a model still knows which rare tokens there are: all other canaries have
    others.
    """
    corpus = workdirs.read_corpus(workdir)
    off, on = (exposures(subject, corpus) for subject in subjects_of(workdir))
    assert (on > off + 10).all(), (on, off)


def test_the_page_to_explore_says_what_each_context_says(workdir):
    """A sink says the next token of its document, which is as if unread without its own sinks."""
    found = explore(workdir, prefixes=(4,), suffix=6)
    assert "its own removed" in found["views"]
    for document in found["documents"]:
        tokens, says = np.array(document["tokens"]), np.array(document["says"])
        loss, has_sink = document["loss"], says >= 0
        if document["group"] == "repeated":
            assert has_sink.mean() > 0.95 and (says == tokens)[has_sink].mean() > 0.95
            assert loss["sinks, own on"] < 0.6 < 4 < loss["its own removed"]
            assert loss["its own removed"] == pytest.approx(loss["sinks dropped"], rel=0.1)
        else:
            assert has_sink.mean() < 0.2
            assert loss["its own removed"] == pytest.approx(loss["sinks dropped"], rel=0.1)
    assert explore_page.page(found, "memory").count("its context has a sink") == 1
