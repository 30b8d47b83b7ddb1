"""lm-evaluation-harness, on a small task of our own; no network."""

import dataclasses
import importlib
import importlib.metadata
import json

import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import InputError
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.documents import Documents, document_batches
from memsinks_jax.models.trained import open_run

pytestmark = pytest.mark.slow

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("datasets")
HarnessModel = importlib.import_module("memsinks_jax.measures.lm_evaluation").HarnessModel


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "run"
    train_and_evaluate(tiny_config(), workdir)
    return workdir


@pytest.fixture(scope="module")
def run(workdir):
    return open_run(workdir)


def request(*arguments):
    return type("Request", (), {"args": arguments})()


def test_scores_are_those_of_the_document_loss(run):
    """A text's log-probability in one piece, cut in two, and as our own measure has it."""
    model = HarnessModel(run)
    text = "Once upon a time there was a hen. The hen had a red ball."
    (whole,) = model.loglikelihood_rolling([request(text)])
    cut = 33
    (second, _), (first, _) = model.loglikelihood(
        [request(text[:cut], text[cut:]), request("", text[:cut])]
    )
    assert first + second == pytest.approx(whole, abs=1e-4)
    # The measure counts end of text too: its share is the difference.
    tokens = run.tokenizer.encode(text)
    document = Documents([tokens], np.ones((1, 2), np.uint32))
    batches = document_batches(document, run.config.data.row_length, run.tokenizer)
    batches[0]["weights"][0, len(tokens)] = 0
    nats, _ = DocumentLoss(run.config)(run.params, batches, "drop")
    assert whole == pytest.approx(-nats[0], abs=1e-4)


def test_a_text_opens_with_the_token_that_opens_documents(run):
    class Opens(type(run.tokenizer)):
        begin_of_text = 7

    opens = HarnessModel(dataclasses.replace(run, tokenizer=Opens(run.tokenizer.model)))
    text = "Once upon a time"
    tokens = run.tokenizer.encode(text).tolist()
    ((score, _),) = HarnessModel(run)._score([([7, *tokens], len(tokens))])
    assert opens.loglikelihood_rolling([request(text)]) == [pytest.approx(score, abs=1e-5)]
    assert opens.loglikelihood([request("", text)])[0][0] == pytest.approx(score, abs=1e-5)
    assert HarnessModel(run).loglikelihood_rolling([request(text)]) != [
        pytest.approx(score, abs=1e-3)
    ]


def test_the_harness_opens_a_run_by_name(run, workdir):
    (entry,) = importlib.metadata.entry_points(group="lm_eval.models", name="memsinks")
    asked = [request("Once upon a time", " there was a hen.")]
    given = {"batch_size": 1, "max_batch_size": None, "device": "cpu"}  # what the harness adds
    for sinks in ("drop", "all"):
        opened = entry.load().create_from_arg_string(f"workdir={workdir},sinks={sinks}", given)
        assert opened.loglikelihood(asked) == entry.load()(run, sinks).loglikelihood(asked)
    with pytest.raises(InputError, match="give workdir=RUN"):
        entry.load().create_from_arg_obj({"pretrained": "runs/sinks"}, given)


def test_long_texts_go_in_windows(run):
    text = " ".join(f"The hen met the fox number {n}." for n in range(80))
    count = len(run.tokenizer.encode(text))
    assert count > 2 * run.config.data.row_length
    (total,) = HarnessModel(run).loglikelihood_rolling([request(text)])
    assert 3 < -total / count < np.log(run.config.data.vocabulary_size) + 1


def test_a_task_runs(run, tmp_path):
    """Multiple choice and generation from a JSON file, through the harness itself."""
    rows = [
        {"text": f"The {animal} had a", "choices": ["red ball", "zxqj"], "label": 0}
        for animal in ("hen", "fox", "cat")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{text}}",
    }
    choice = shared | {
        "task": "choice",
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}],
    }
    writing = shared | {
        "task": "writing",
        "output_type": "generate_until",
        "doc_to_target": "red ball",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    }
    found = lm_eval.simple_evaluate(HarnessModel(run), tasks=[choice, writing], bootstrap_iters=0)
    samples = {name: found["samples"][name] for name in ("choice", "writing")}
    assert all(len(rows) == 3 for rows in samples.values())
    assert 0 <= found["results"]["choice"]["acc,none"] <= 1
    assert all("." not in sample["resps"][0][0] for sample in samples["writing"])
