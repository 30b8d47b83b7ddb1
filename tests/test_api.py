"""A model opened in Python gives the same results as the commands."""

import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from conftest import ROOT, tiny_config

import memsinks_jax
from memsinks_jax.config import InputError, with_fields
from memsinks_jax.evaluate import evaluate, identities_of_texts
from memsinks_jax.generate import generate
from memsinks_jax.model.generation import Settings
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.training.loop import train_and_evaluate


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("run") / "run"
    config = tiny_config()
    config.training.steps = 4
    config.optimizer.learning_rate = 0.05
    train_and_evaluate(config, place)
    return place


@pytest.fixture(scope="module")
def model(workdir) -> memsinks_jax.Model:
    return memsinks_jax.open_model(str(workdir))


@pytest.mark.parametrize("mode", ["drop", "own"])
def test_losses_are_those_of_evaluate(model, workdir, mode):
    corpus = workdirs.read_corpus(workdir)
    texts = [corpus.document(index).text for index in corpus.mixture.documents("repeated")]
    known = [row["loss"] for row in evaluate(workdir, mode, role="repeated")["per_document"]]
    np.testing.assert_allclose(model.loss(texts, sinks=mode), known, rtol=1e-6)
    np.testing.assert_allclose(model.loss(texts[1:], sinks=mode), known[1:], rtol=1e-6)


def test_sinks_are_set_as_asked(model, workdir):
    corpus = workdirs.read_corpus(workdir)
    repeated = [corpus.document(corpus.mixture.documents("repeated")[0]).text]
    assert model.loss(repeated, sinks="own") != model.loss(repeated, sinks="drop")
    assert model.loss(["Once upon a time."], sinks="own") == model.loss(["Once upon a time."])  # it was never read


def test_text_is_that_of_generate(model, workdir):
    asked = {"max_tokens": 12, "temperature": 0.5, "seed": 3}
    assert model.generate("Once", **asked) == generate(workdir, ["Once"], Settings(**asked))["text"]


def test_what_cannot_be_used_is_refused(model, tmp_path):
    for texts in ([], ["One.", ""]):
        with pytest.raises(InputError, match="every text must have a token"):
            model.loss(texts)
    for call in (lambda: model.loss("Once"), lambda: model.loss([3]), lambda: model.generate(["a", "b"])):
        with pytest.raises(TypeError, match="needs (a list of texts|one prompt)"):
            call()
    with pytest.raises(InputError, match="needs the id of the document"):
        model.generate("Once", sinks="own")
    by_index = types.SimpleNamespace(config=with_fields(model.run.config, {"data.ids": "index"}))
    with pytest.raises(InputError, match="was trained with ids by index: sinks=own is not defined for other"):
        identities_of_texts(tmp_path, by_index, [np.arange(3)], "own")
    with pytest.raises(InputError):
        memsinks_jax.open_model(tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'open_modle'"):
        memsinks_jax.open_modle  # noqa: B018


def test_importing_the_package_does_not_import_jax():
    code = "import sys, memsinks_jax; print(memsinks_jax.__version__, 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [memsinks_jax.__version__, "False"]


@pytest.mark.parametrize("page", ["README.md", "memsinks_jax/api.py"])
def test_the_lines_that_are_shown_run(page, workdir, capsys):
    text = (ROOT / page).read_text()
    lines = re.findall(r"^    (import memsinks_jax|model = .*|print\(model.*)$", text, re.MULTILINE)
    assert len(lines) >= 4
    exec("\n".join(lines).replace("runs/sinks", str(workdir)), {})
    assert len(capsys.readouterr().out.splitlines()) >= 3
