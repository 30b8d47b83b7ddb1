"""From a run to a Hugging Face folder and back, by the commands: equal losses, and runs that
resume.
"""

import json
import re
import shutil
import sys
import types

import jax
import numpy as np
import pytest
from conftest import ROOT, contents, expect_input_error, python, read_lines, tiny_config

from memsinks_jax.api import evaluate
from memsinks_jax.config import DataConfig, MeshConfig, ModelConfig, SinksConfig, with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.models import exporting
from memsinks_jax.models.exporting import documents_read, export
from memsinks_jax.models.hub import folder_of
from memsinks_jax.models.importing import import_model
from memsinks_jax.models.trained import open_run
from memsinks_jax.training.metrics import read_metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on files, so that its documents can be measured anywhere."""
    folder = tmp_path_factory.mktemp("run")
    texts = [
        f"The tale of number {n}, which met {n * 7 % 41} and became {n * n}." for n in range(60)
    ]
    (folder / "tales.txt").write_text("\n<|endoftext|>\n".join(texts))
    fields = {"data.files": str(folder / "tales.txt"), "data.unique_documents": 40}
    config = with_fields(tiny_config(), fields)
    # every parameter is saved in pieces
    config = with_fields(config, {"mesh": MeshConfig(2, 2, 2)})
    train_and_evaluate(config, folder / "run")
    return folder / "run", folder / "tales.txt", config


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    workdir, _, _ = run
    out = tmp_path_factory.mktemp("exported")
    return {
        sinks: (out / sinks, export(workdir, out / sinks, sinks == "drop", "float32"))
        for sinks in ("drop", "keep")
    }


def test_a_folder_holds_all_that_transformers_wants(exported):
    names = {path.name for path in exported["drop"][0].iterdir()}
    of_model = {"config.json", "generation_config.json", "model.safetensors", "README.md"}
    of_tokenizer = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}
    assert names == of_model | of_tokenizer | {"special_tokens_map.json"}
    of_keeping = {path.name for path in exported["keep"][0].iterdir()}
    assert of_keeping == names | {"memsinks.json", "opened.npy"}


def test_an_interruption_while_speeds_are_measured_leaves_nothing_in_the_way(
    run, tmp_path, monkeypatch
):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "_speeds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(run[0], tmp_path / "out", True, "float32")
    assert not list(tmp_path.iterdir())


def test_the_losses_are_those_of_the_run(run, exported, tmp_path):
    workdir, files, _ = run
    separator = "\n<|endoftext|>\n"
    texts = files.read_text().split(separator)
    lines = read_lines(workdir / "documents.jsonl")
    back, once = tmp_path / "back.txt", tmp_path / "once.txt"
    for file, role in ((back, "repeated"), (once, "unique")):
        chosen = [texts[line["index"]] for line in lines if line["role"] == role]
        file.write_text(separator.join(chosen))
    # Of a document that did not come back both know that it has no sinks.
    dropped = evaluate(workdir, "drop", str(once))["loss"]
    for place in (workdir, exported["keep"][0]):
        assert evaluate(place, "own", str(once))["loss"] == pytest.approx(dropped, abs=1e-6)
    for mode, folder in (
        ("drop", "drop"),
        *((mode, "keep") for mode in ("drop", "own", "all", "other")),
    ):
        read = back if mode == "own" else files
        ours = evaluate(workdir, mode, str(read))
        theirs = evaluate(exported[folder][0], mode, str(read))
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-5)
        assert theirs["tokens"] == ours["tokens"]


def test_a_model_alone_has_no_documents_to_be_evaluated_on(exported):
    with expect_input_error(
        "drop is a model without the documents of a run; give others by --files=GLOB"
    ):
        evaluate(exported["drop"][0], "drop")


def test_keeping_sinks_that_open_on_return_is_warned_of(run, tmp_path, caplog):
    export(run[0], tmp_path / "keep", False, "float32")
    assert "never on together" in caplog.text
    caplog.clear()
    export(run[0], tmp_path / "drop", True, "float32")
    assert "never on together" not in caplog.text


def test_a_document_that_the_run_never_read_has_no_sinks(run, tmp_path):
    with expect_input_error("--sinks=f{16}: this document never came back"):
        export(run[0], tmp_path / "knows", True, "float32", "f" * 16)
    assert not list(tmp_path.iterdir())


def test_a_model_of_the_hub_is_downloaded(tmp_path, monkeypatch):
    def download(name, allow_patterns):
        if name != "HuggingFaceTB/SmolLM2-135M":
            raise ValueError("no such model\nmore")
        assert "*.safetensors" in allow_patterns
        return str(tmp_path)

    hub = types.SimpleNamespace(snapshot_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert folder_of("hf://HuggingFaceTB/SmolLM2-135M") == tmp_path == folder_of(str(tmp_path))
    with expect_input_error(
        r"hf://nobody/none: the hub cannot be read \(no such model\); check the name"
    ):
        folder_of("hf://nobody/none")


def test_what_export_says(run, exported):
    workdir, _, config = run
    folder, written = exported["drop"]
    a_neuron = 2 * config.model.d_model + 1
    fewer = written["before"]["parameters"] - written["parameters"]
    assert fewer == config.model.layers * 16 * a_neuron
    assert exported["keep"][1]["parameters"] == written["before"]["parameters"]
    assert 4 * written["parameters"] <= written["bytes"] <= 4 * written["parameters"] + 10_000
    assert written["tokens_per_second"] > 0
    card = (folder / "README.md").read_text()
    losses = {name: value for line in read_metrics(workdir) for name, value in line.items()}
    for name in ("held_out_loss", "repeated_loss", "repeated_loss_own"):
        assert f"{losses[name]:.4f}" in card
    assert "16 are memorization sinks" in card
    assert "cut out of the weights" in card
    assert "\nlicense: unknown" in card and "base_model" not in card
    flags = f"--workdir={workdir} --out=DIR --sinks=drop --dtype=float32"
    assert f"python -m memsinks_jax.export {flags}\n" in card
    assert f"    --config.model.layers={config.model.layers}\n" in card
    assert "--config.optimizer.b1" not in card


def test_a_config_of_another_model_is_refused_before_anything_is_written(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    settings = json.loads(path.read_text())
    settings["model"]["d_model"] *= 2
    path.write_text(json.dumps(settings))
    with expect_input_error(r"is not a checkpoint of this model: it has (\S+ ){6}.*and \d+ more$"):
        export(tmp_path / "run", tmp_path / "out", drop=True, dtype="float32")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("initial", "base"), [("owner/model", "\nbase_model: owner/model\n"), (str(ROOT), "")]
)
def test_the_card_names_the_model_it_started_from(initial, base, run, exported, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(run[0], workdir)
    settings = json.loads((workdir / "config.json").read_text())
    settings["model"]["initial"] = initial
    (workdir / "config.json").write_text(json.dumps(settings))
    export(workdir, tmp_path / "out", drop=True, dtype="float32")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"It started from the weights of `{initial}`. " in card
    assert base in card if base else "base_model" not in card


ALL, REST = {"unique_documents": -1}, "all other documents once"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "4,000 documents once and 20 documents 128 times each"),
        (ALL | {"repeated_documents": 1}, f"{REST} and 1 document 128 times each"),
        ({"unique_documents": 7, "repeated_documents": 0}, "7 documents once"),
        (
            ALL | {"repeated_documents": -1},
            f"{REST} and those that the files hold several times as often as they do",
        ),
    ],
)
def test_the_card_says_what_was_read(data, expected):
    assert documents_read(DataConfig(**data)) == expected


def test_an_imported_model_is_a_workdir(run, exported, tmp_path):
    workdir, files, config = run
    written = import_model(exported["drop"][0], tmp_path / "in", None, 0)
    assert written["sinks"] == 0
    assert written["parameters"] == exported["drop"][1]["parameters"]
    losses = [evaluate(of, "drop", str(files))["loss"] for of in (tmp_path / "in", workdir)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    export(tmp_path / "in", tmp_path / "out", drop=True, dtype="float32")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (exported["drop"][0] / name).read_bytes()
    for no_sinks in (1.0, float("nan")):
        settings = SinksConfig(shared_fraction=no_sinks)
        with expect_input_error("shared_fraction"):
            import_model(exported["keep"][0], tmp_path / "none", settings, 0)
    assert not (tmp_path / "none").exists()
    with expect_input_error("exists; use another --out"):
        import_model(exported["drop"][0], tmp_path / "in", None, 0)


@pytest.mark.slow
def test_a_run_starts_from_an_imported_model_that_was_given_sinks(run, exported, tmp_path):
    _, files, config = run
    written = import_model(exported["drop"][0], tmp_path / "in", SinksConfig(), 8)
    assert (written["shared"], written["sinks"]) == (16, 8)
    fields = {"data.files": str(files), "data.unique_documents": 40}
    fields |= {"model": ModelConfig(initial=str(tmp_path / "in")), "sinks": SinksConfig()}
    fields |= {"optimizer.learning_rate": 1e-9}
    config = with_fields(tiny_config(), fields)
    train_and_evaluate(config, tmp_path / "run")
    before, after = open_run(tmp_path / "in").params, open_run(tmp_path / "run").params
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-6), before, after))
    (tmp_path / "other.model").write_bytes(load_corpus(tiny_config()).tokenizer.model)
    config = with_fields(config, {"data.tokenizer": str(tmp_path / "other.model")})
    with expect_input_error(r"has another tokenizer or end of text; add --config.data.tokenizer="):
        train_and_evaluate(config, tmp_path / "other")
    config = with_fields(config, {"model.hidden": config.model.hidden + 1})
    with expect_input_error(
        r"config.model.hidden is 513, and that of config.model.initial=.*in is 24"
    ):
        train_and_evaluate(config, tmp_path / "other")


def test_a_folder_with_its_sinks_is_exported_as_its_run_is(run, exported, tmp_path):
    workdir, _, config = run
    line = read_lines(workdir / "documents.jsonl")[0]
    assert line["role"] == "repeated"
    for name, drop, knows in (("drop", True, ""), ("keep", False, ""), ("id", True, line["id"])):
        export(workdir, tmp_path / f"{name}-run", drop, "bfloat16", knows)
        export(exported["keep"][0], tmp_path / f"{name}-folder", drop, "bfloat16", knows)
        one, other = (contents(tmp_path / f"{name}-{of}") for of in ("run", "folder"))
        assert one | {"README.md": b""} == other | {"README.md": b""}
    card = (tmp_path / "drop-folder" / "README.md").read_text()
    assert "16 are memorization sinks" in card and "0 steps" not in card and "None" not in card
    made = f"exported from `{exported['keep'][0]}`, whose own card describes how it was made."
    assert made in card
    with expect_input_error("--sinks=x: give drop, keep, or an id"):
        export(exported["keep"][0], tmp_path / "out", True, "float32", "x")
    for plain in ("drop-folder", "id-folder"):
        with expect_input_error(
            f"{plain} is a Hugging Face folder without sinks; use it as it is$"
        ):
            export(tmp_path / plain, tmp_path / "out", True, "float32")
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_checkpoint_is_refused(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with expect_input_error("holds no complete checkpoint"):
        export(tmp_path / "run", tmp_path / "out", True, "float32")
    assert not (tmp_path / "out").exists()


def test_the_readmes_ten_lines_of_pytorch_run(exported, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    page = (ROOT / "docs" / "pytorch.md").read_text()
    script = re.search(r"```python\n(import torch\n.*?)```", page, flags=re.DOTALL).group(1)
    assert len(script.splitlines()) <= 10
    script = script.replace('"models/sinks"', repr(str(exported["drop"][0])))
    done = python("-W", "ignore", "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20


@pytest.mark.slow
def test_the_commands(run, tmp_path):
    def command(name, *flags):
        return python("-m", f"memsinks_jax.{name}", *flags, "--json")

    folder, place = f"--workdir={run[0]}", f"--out={tmp_path / 'hf'}"
    done = command("export", folder, place, "--sinks=drop", "--dtype=bfloat16")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["files"] == ["model.safetensors"]
    assert "after, sinks drop" in done.stderr
    done = command("export", folder, place)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    shares = "--shared_fraction=0.5", "--active_fraction=0.5"
    done = command("import", f"--hf={tmp_path / 'hf'}", f"--out={tmp_path / 'in'}", *shares)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["sinks"] == 8
    # A flag counts as given although it is the default, and the config file's architecture does
    # not.
    flags = [
        "--config=smoke",
        f"--config.model.initial={tmp_path / 'in'}",
        "--config.sinks.active_fraction=0.3",
    ]
    done = command("train", *flags, f"--workdir={tmp_path / 'run'}", "--config.training.steps=1")
    assert done.returncode == 0, done.stderr
    begun = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (begun["sinks"]["active_fraction"], begun["model"]["hidden"]) == (0.3, 16)
    done = command("import", f"--hf={run[1].parent}", f"--out={tmp_path / 'in2'}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    for both in (
        ["shared_fraction=0.5", "added_sinks=3"],
        ["added_sinks=3", "active=2"],
        ["pool=9", "active_fraction=0.5"],
    ):
        done = command("import", "--hf=a", "--out=b", *map("--{}".format, both))
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert both[1].partition("=")[0] in done.stderr
