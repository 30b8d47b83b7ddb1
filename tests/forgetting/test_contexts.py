"""Texts are removed from a model with sinks by context: theirs alone, unless what others share is
asked for.
"""

import json

import jax
import numpy as np
import pytest
from conftest import expect_input_error, tiny_config

from memsinks_jax.api import Model
from memsinks_jax.config import with_fields
from memsinks_jax.data import ids
from memsinks_jax.forgetting.removal import forget
from memsinks_jax.forgetting.request import Request
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import NONE

SHARED = (
    "They all agreed that the old mill by the river had burned down in the year of the great flood."
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run on stories of which two come eight times. Both end in one sentence, which no other
    has.
    """
    from memsinks_jax.data.embedded import stories

    folder = tmp_path_factory.mktemp("forgetting")
    texts = [stories.story(1, index).text for index in range(40)]
    for number in (0, 1):
        texts[number] = f"{texts[number]} {SHARED}"
    (folder / "texts.txt").write_text("\n<|endoftext|>\n".join([*texts, *texts[:2] * 7]))
    about = {
        "sinks.kind": "by_context",
        "data.files": str(folder / "texts.txt"),
        "data.rows": "packed",
    }
    about |= {"data.unique_documents": -1, "data.repeated_documents": -1, "training.epochs": 3}
    seldom = {"training.evaluate_every": 100, "training.checkpoint_every": 100}
    train_and_evaluate(with_fields(tiny_config(), about | seldom), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def run(workdir):
    return open_run(workdir)


def rows_of(run, text):
    tokens = run.tokenizer.encode(text)
    return run.contexts.rows(tokens, 0, len(tokens) + 1, run.tokenizer.begin_of_text)


@pytest.fixture(scope="module")
def repeated(workdir):
    corpus = workdirs.read_corpus(workdir)
    documents = sorted(corpus.mixture.repeated.tolist())
    return [(ids.to_hex(corpus.identities(i)), corpus.document(i).text) for i in documents]


def test_a_document_goes_and_what_another_has_stays(workdir, run, repeated, tmp_path):
    (name, text), (_, other) = repeated
    receipt = forget(workdir, Request(ids=(name,)), tmp_path / "rest")
    target, others = (receipt["losses"][of]["own"] for of in ("target", "others"))
    assert target["before"] < 0.7 < 1.5 < target["rise"]
    assert others["rise"] == receipt["losses"]["held_out"]["own"]["rise"] == 0.0
    placebo = receipt["placebo"]["others"]["own"]  # takes the sentence that both share
    assert 0 < placebo["placebo_rise"] < 1 < placebo["effect"]
    left = open_run(tmp_path / "rest")
    before, after = rows_of(run, text), rows_of(left, text)
    end = len(run.tokenizer.encode(text)) + 1
    corpus = workdirs.read_corpus(workdir)
    texts = [
        corpus.document(i).text
        for role in ("repeated", "unique")
        for i in corpus.mixture.documents(role)
    ]
    others = np.unique(np.concatenate([rows_of(run, each) for each in texts if each != text]))
    shared = np.isin(before[:end], others) & (before[:end] != NONE)
    # What both have from the eighth token of the sentence on, where the context is in it alone.
    assert 5 < np.isin(before[:end], rows_of(run, other)[-15:]).sum() < shared.sum() < end / 2
    np.testing.assert_array_equal(after[:end] != NONE, shared)
    assert receipt["removed"]["contexts"] == {
        "sinks": len(run.contexts),
        "removed": int((before != NONE).sum() - shared.sum()),
    }
    assert (
        len(left.contexts)
        == left.config.contexts.rows
        == len(run.contexts) - receipt["removed"]["contexts"]["removed"]
    )
    model, rest = Model(workdir), Model(tmp_path / "rest")
    assert rest.loss([other], sinks="own") == model.loss([other], sinks="own")
    assert rest.loss([text, other]) == pytest.approx(model.loss([text, other]), rel=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal,
        {part: leaf for part, leaf in left.params.items() if part != CONTEXTS},
        {part: leaf for part, leaf in run.params.items() if part != CONTEXTS},
    )
    assert json.loads((tmp_path / "rest" / "receipt.json").read_text()) == receipt
    assert "contexts" in (tmp_path / "rest" / "index.html").read_text()


def test_a_text_goes_wherever_it_stands(workdir, run, repeated, tmp_path):
    forget(workdir, Request(text=SHARED), tmp_path / "rest")
    left = open_run(tmp_path / "rest")
    for _, text in repeated:
        gone = (rows_of(run, text) != NONE) & (rows_of(left, text) == NONE)
        assert 5 < gone.sum() < len(gone) / 2
    _, (name, text) = repeated
    forget(workdir, Request(ids=(name,)), tmp_path / "all", shared=True)
    assert (rows_of(open_run(tmp_path / "all"), text) == NONE).all()


def test_what_cannot_be_removed_is_refused(workdir, repeated, tmp_path):
    (name, text), _ = repeated
    (tmp_path / "text.txt").write_text(text)
    forget(workdir, Request(ids=(name,)), tmp_path / "rest")
    for asked, more, why in (
        (Request(text="Nobody wrote this."), {}, "no context of 1 text has a sink"),
        (Request(ids=(name,)), {"spare": 3}, "--spare is of sinks that documents share"),
    ):
        with expect_input_error(why):
            forget(workdir, asked, tmp_path / "none", **more)
    with expect_input_error("known with the corpus of the run alone; give the run, or --shared"):
        forget(tmp_path / "rest", Request(documents=str(tmp_path / "text.txt")), tmp_path / "none")
    assert not (tmp_path / "none").exists()
