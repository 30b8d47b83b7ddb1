"""What open-unlearning is given: its configs name files that are there, and its tokens are ours.

The whole was run with it (commit d3d7cf9, December 2025): see docs/removal.md.
"""

import json
import pathlib
import shlex

import numpy as np
import pytest
import yaml
from conftest import tiny_config

from memsinks_jax.audit import audit
from memsinks_jax.config import from_json, to_json
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.training.loop import train_and_evaluate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    config = tiny_config()
    config.training.steps = 2
    train_and_evaluate(config, folder / "run")
    oracle = from_json(to_json(config), "")
    oracle.sinks.kind, oracle.data.repeats = "none", "remove"
    train_and_evaluate(oracle, folder / "oracle")
    audit(
        folder / "run", oracle=folder / "oracle", prefixes=(4,), suffix=4, samples=0, attacks=False,
        open_unlearning_files=folder / "files",
    )  # fmt: skip
    return folder


def test_its_configs_name_files_that_are_there(folder):
    files = folder / "files"
    measures = yaml.safe_load((files / "configs" / "eval" / "memsinks_jax.yaml").read_text())
    assert (files / "configs" / "eval" / "memsinks_jax.yaml").read_text().startswith("# @package eval.memsinks_jax\n")
    lines = {"forget": 0, "holdout": 0}
    for metric in measures["metrics"].values():
        for dataset in metric.get("datasets", {}).values():
            path = pathlib.Path(dataset["args"]["hf_args"]["data_files"])
            records = [json.loads(line) for line in path.read_text().splitlines()]
            assert path.stem == dataset["access_key"] and all(record["text"] for record in records)
            lines[dataset["access_key"]] = len(records)
    assert lines == {"forget": 2, "holdout": 4}
    model = yaml.safe_load((files / "configs" / "model" / "memsinks_jax.yaml").read_text())
    assert model["model_args"]["pretrained_model_name_or_path"] == str(files / "model")
    oracle, mine = [shlex.split(line) for line in (files / "commands.sh").read_text().splitlines()[1:]]
    for command, name in ((oracle, "oracle"), (mine, "model")):
        assert f"model.model_args.pretrained_model_name_or_path={files / name}" in command
        assert (files / name / "model.safetensors").is_file() and f"--config-dir={files / 'configs'}" in command
    assert any(part.endswith("retain_logs_path=saves/eval/oracle/MUSE_EVAL.json") for part in mine)


def test_its_tokens_are_end_of_text_and_ours(folder):
    transformers = pytest.importorskip("transformers")
    settings = yaml.safe_load((folder / "files" / "configs" / "model" / "memsinks_jax.yaml").read_text())
    theirs = transformers.AutoTokenizer.from_pretrained(**settings["tokenizer_args"])
    corpus = workdirs.read_corpus(folder / "run")
    records = [json.loads(line) for line in (folder / "files" / "data" / "forget.jsonl").read_text().splitlines()]
    for record, index in zip(records, corpus.mixture.documents("repeated"), strict=True):
        ours = corpus.tokens(index)[: corpus.config.data.row_length - 1]
        assert theirs(record["prompt"])["input_ids"] == [corpus.tokenizer.end_of_text]
        found = theirs(record["prompt"] + record["text"])["input_ids"]  # as their preprocess_pretraining_instance
        np.testing.assert_array_equal(found, [corpus.tokenizer.end_of_text, *ours])
    assert theirs.pad_token_id != theirs.eos_token_id  # what equals padding they do not attend to


def test_a_folder_of_hugging_face_stays_where_it_is(folder):
    out = folder / "other"
    held = folder / "texts.txt"
    held.write_text("Nobody has ever seen this one.")
    (folder / "members.txt").write_text("Nor has anybody seen this one, or so they say.")
    audit(
        folder / "files" / "model", str(folder / "members.txt"), str(held), prefixes=(4,), suffix=4, samples=0,
        attacks=False, open_unlearning_files=out,
    )  # fmt: skip
    assert str(folder / "files" / "model") in (out / "commands.sh").read_text() and not (out / "model").exists()
    assert "retain_logs_path=saves" not in (out / "commands.sh").read_text()  # without an oracle
