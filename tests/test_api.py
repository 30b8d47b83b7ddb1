"""A model opened in Python gives the same results as the commands."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, expect_input_error, python, read_lines, tiny_config, write_lines

import memsinks_jax
from memsinks_jax.api import evaluate, generate
from memsinks_jax.config import InputError, with_fields
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import train_tokenizer
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.documents import Documents
from memsinks_jax.model.generation import Settings
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs import workdir as workdirs


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("run") / "run"
    config = with_fields(tiny_config(), {"training.steps": 4, "optimizer.learning_rate": 0.05})
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
    # it was never read
    assert model.loss(["Once upon a time."], sinks="own") == model.loss(["Once upon a time."])


def test_text_is_that_of_generate(model, workdir):
    asked = {"max_tokens": 12, "temperature": 0.5, "seed": 3}
    assert model.generate("Once", **asked) == generate(workdir, ["Once"], Settings(**asked))["text"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.loss([]), r"texts is \[\]; give a list of at least one text"),
        (lambda model: model.loss("Once"), "texts is 'Once'; give a list"),
        (lambda model: model.loss([3]), r"texts is \[3\]; give a list"),
        (lambda model: model.loss(["One.", ""]), r"texts\[1\] has no token; leave empty ones out"),
        (
            lambda model: model.loss(["One."], sinks="typo"),
            "sinks is 'typo'; choose one of: own, drop, all, other",
        ),
        (lambda model: model.generate(["a", "b"]), r"prompt is \['a', 'b'\]; give one text"),
        (lambda model: model.generate("Once", sinks="typo"), "sinks is 'typo'; choose one of"),
        (
            lambda model: model.generate("Once", max_token=3),
            "max_token is no setting; choose from max_tokens, temp",
        ),
        (
            lambda model: model.generate("Once", max_tokens=4.0),
            "max_tokens is 4.0; it must be a whole number from 1",
        ),
        (lambda model: model.generate("Once", document=5), "document is 5; give a text"),
        (lambda model: model.generate("Once", group=5), "group is 5; give a text"),
        (lambda model: model.loss(["One."], group=["a"]), r"group is \['a'\]; give a text"),
        (lambda model: memsinks_jax.open_model(3), "3 is no place of a model; give the path"),
        (
            lambda model: model.generate("Once", sinks="own"),
            "sinks=own needs the id of the document",
        ),
        (
            lambda model: model.generate("Once", sinks="own", document="12"),
            "'12' is no id of a document; it has 16 hex",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(model, call, message):
    """By one type of error, which names the argument."""
    with pytest.raises(memsinks_jax.InputError, match=f"^{message}"):
        call(model)


def test_ids_that_are_not_of_the_text_are_refused(model, monkeypatch):
    edited = dataclasses.replace(
        model.run, config=with_fields(model.run.config, {"data.ids": "near_duplicate"})
    )
    monkeypatch.setattr(model, "run", edited)
    with expect_input_error(
        "was trained with ids by near_duplicate: sinks=own is not defined for other"
    ):
        model.loss(["Once"], sinks="own")


def test_the_package_shows_what_it_offers(tmp_path):
    assert {"Model", "open_model", "InputError", "__version__"} <= set(dir(memsinks_jax))
    with pytest.raises(InputError):
        memsinks_jax.open_model(tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'open_modle'"):
        memsinks_jax.open_modle  # noqa: B018


HOST = """
import signal, sys
from absl import flags
flags.DEFINE_bool("json", False, "The program's own.")
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
import memsinks_jax
try:
    memsinks_jax.open_model("nothing/here")
except memsinks_jax.InputError as error:
    print("refused")
print(before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_a_program_that_imports_the_package_keeps_its_signals_and_flags(tmp_path, how):
    (tmp_path / "program.py").write_text(HOST)
    called = ["program.py"] if how == "file" else ["-m", "program"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    asked = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
    assert subprocess.run([sys.executable, *called], **asked, check=True).stdout.split() == [
        "refused",
        "True",
    ]


def test_a_package_that_is_started_keeps_its_signals(tmp_path):
    """`python -m package` imports the package while sys.argv still is what ours is for a
    command.
    """
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import memsinks_jax")
    (tmp_path / "package" / "__main__.py").write_text(
        "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    started = [sys.executable, "-m", "package", "memsinks_jax.train"]
    done = subprocess.run(
        started, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert done.stdout.strip() == "default_int_handler"


def test_importing_the_package_does_not_import_jax():
    code = "import sys, memsinks_jax; print(memsinks_jax.__version__, 'jax' in sys.modules)"
    done = python("-c", code, check=True)
    assert done.stdout.split() == [memsinks_jax.__version__, "False"]


@pytest.mark.parametrize("page", ["README.md", "memsinks_jax/api.py"])
def test_the_lines_that_are_shown_run(page, workdir, capsys):
    text = (ROOT / page).read_text()
    lines = re.findall(r"^    (import memsinks_jax|model = .*|print\(model.*)$", text, re.MULTILINE)
    assert len(lines) >= 4
    exec("\n".join(lines).replace("runs/sinks", str(workdir)), {})
    assert len(capsys.readouterr().out.splitlines()) >= 3


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A run on questions with answers, and other questions; both prepared."""
    place = tmp_path_factory.mktemp("asked")
    drawn = [stories.story(7, number).text for number in range(40)]
    tokenizer = place / "tokenizer.model"
    tokenizer.write_bytes(train_tokenizer(drawn, 400).model)
    for name, texts in (("read", drawn[:30]), ("other", drawn[30:])):
        rows = [{"q": f"{'Who? ' * (n * 7 % 23)}{n}", "text": text} for n, text in enumerate(texts)]
        asked = {"prompt_field": "q", "near_duplicates": "none"}
        prepare([write_lines(place / f"{name}.jsonl", rows)], str(tokenizer), place / name, **asked)
    fields = {"data.files": str(place / "read"), "data.unique_documents": -1}
    config = with_fields(tiny_config(), fields | {"training.steps": 2, "data.row_length": 80})
    train_and_evaluate(config, place / "run")
    return place


def test_all_losses_are_those_of_answers(asked):
    """Held-out and repeated loss of the run, `evaluate` on its documents and on a prepared folder,
    and what they count.
    """
    corpus, row = workdirs.read_corpus(asked / "run"), 80
    *_, last = read_lines(asked / "run" / "metrics.jsonl")
    for role, measured in (
        ("held_out", last["held_out_loss"]),
        ("repeated", last["repeated_loss"]),
    ):
        documents = corpus.mixture.documents(role)
        found = evaluate(asked / "run", "drop", role=role)
        counts = [
            max(min(corpus.lengths[i] + 1, row) - corpus.answers([i])[0][0, 0], 0)
            for i in documents
        ]
        assert [each["tokens"] for each in found["per_document"]] == [
            count for count in counts if count
        ]
        assert found["loss"] == pytest.approx(measured, rel=1e-5)
    source = Prepared(asked / "other")
    counts = np.maximum(np.minimum(source.lengths.astype(int) + 1, row) - source.prompts, 0)
    found = evaluate(asked / "run", "drop", str(asked / "other"))
    assert found["tokens"] == counts.sum()
    assert found["documents"] == (counts > 0).sum() < len(counts)
    model = memsinks_jax.open_model(asked / "run")
    first = Documents([source.read(0)], source.identities[:1], answers=[source.answers(0)])
    batches = model.document_losses(first, "drop")
    assert found["per_document"][0]["loss"] == pytest.approx(
        float(batches[0][0] / batches[1][0]), rel=1e-6
    )
    assert model.loss([source.document(0, source.tokenizer()).text])[0] != pytest.approx(
        batches[0] / batches[1], rel=1e-3
    )
