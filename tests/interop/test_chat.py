"""Conversations: what opens and ends them is what the chat template writes, in training, measures, generation and exports.

All is compared with transformers on the rendered template: ids, which of them count, the loss, and where generation stops.
"""

import json
from typing import NamedTuple

import multiprocess
import numpy as np
import pytest
from conftest import tiny_config
from test_tokenizer import byte_level

from memsinks_jax.api import evaluate, open_model
from memsinks_jax.config import with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.interop.chat import open_chat
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs.exporting import export, export_sources
from memsinks_jax.runs.initial import inherit
from memsinks_jax.runs.trained import open_run
from memsinks_jax.training.loop import train_and_evaluate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


class Kind(NamedTuple):
    """A kind of chat model: its special tokens (600, 601, ...), its template, and its ends of text."""

    special: tuple[str, ...]
    template: str
    ends: tuple[str, ...]
    opens: str = ""  # the token that the tokenizer puts first


def template(opens, header, end, start=""):
    """`header` has the role, `end` ends a turn; {% generation %} marks what counts, for transformers."""
    head = header.replace("ROLE", "' + m.role + '")
    return (
        f"{start}{{% for m in messages %}}{{{{ '{head}' }}}}{{% if m.role == 'assistant' %}}{{% generation %}}"
        f"{{{{ m.content + '{end}' }}}}{{% endgeneration %}}{{% else %}}{{{{ m.content + '{end}' }}}}{{% endif %}}"
        f"{{{{ '{opens}' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{header.replace('ROLE', 'assistant')}' }}}}{{% endif %}}"
    )


CHATML = template(r"\n", r"<|im_start|>ROLE\n", "<|im_end|>")
TOKENS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LLAMA3 = "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
KINDS = {
    "the end of a turn is end of text": Kind(TOKENS, CHATML, ("<|im_end|>",)),
    "the end of a turn is no end of text": Kind(TOKENS, CHATML, ("<|endoftext|>",)),
    "a token opens the template": Kind(
        LLAMA3,
        template("", r"<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", "{{ bos_token }}"),
        ("<|end_of_text|>", "<|eot_id|>"), "<|begin_of_text|>",
    ),
    "the first role opens the template": Kind(
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        template(r"\n", r"<|ROLE|>\n", "<|end|>"), ("<|endoftext|>",),
    ),
    "words open the template, and nothing ends an answer": Kind(
        ("<|endoftext|>",), template(r"\n", "ROLE: ", ""), ("<|endoftext|>",), "<|endoftext|>"
    ),
}  # fmt: skip
TALKS = [
    [("user", "Where was Anna born?"), ("assistant", "In a small town.")],
    [("system", "Be kind."), ("user", "Who is Bert?"), ("assistant", "A fox of the seven hills.")],
    [("user", "Hello"), ("assistant", "Hello."), ("user", "And Carla?"), ("assistant", "A hen."), ("user", "Thanks")],
]
ROWS = [
    {"author": f"author {n % 2}", "messages": [{"role": role, "content": text} for role, text in talk]}
    for n, talk in enumerate(TALKS)
]


def model_of(folder, kind):
    """A tiny Llama with a tokenizer, as transformers writes it; the end of a turn is often the likeliest token."""
    special = dict(zip(kind.special, range(600, 700), strict=False))
    ends = [special[name] for name in kind.ends]
    (folder / "tokenizer.json").write_bytes(byte_level(kind.special, kind.opens))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": kind.ends[0], "chat_template": kind.template}
    settings |= {"bos_token": kind.opens} if kind.opens else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=640, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=160, initializer_range=0.3, bos_token_id=special.get(kind.opens), eos_token_id=ends,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        model.lm_head.weight[600 + len(special) - 1] *= 6
    model.save_pretrained(folder)


@pytest.fixture(scope="module", autouse=True)
def managers_are_spawned():
    """datatrove forks one, which a process that uses jax may not do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocess, "Manager", multiprocess.get_context("spawn").Manager)
        yield


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def made(request, tmp_path_factory):
    """-> (the kind, the model's folder, conversations prepared for it)"""
    folder = tmp_path_factory.mktemp("chat")
    (folder / "model").mkdir()
    model_of(folder / "model", request.param)
    (folder / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    about = {"messages_field": "messages", "group_field": "author", "near_duplicates": "none"}
    prepare([str(folder / "talks.jsonl")], str(folder / "model"), folder / "corpus", **about)
    return request.param, folder / "model", folder / "corpus"


def rendered(folder):
    """transformers' ids of each conversation, up to the end of the last answer, and which of them are answers."""
    tokenizer, found = transformers.AutoTokenizer.from_pretrained(folder), []
    for row in ROWS:
        of = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=True, add_generation_prompt=False
        )
        mask = np.array(of["assistant_masks"], bool)
        stop = np.flatnonzero(mask)[-1] + 1
        found.append((np.array(of["input_ids"])[:stop], mask[:stop]))
    return found


def test_rows_and_losses_are_those_of_the_rendered_template(made):
    kind, folder, place = made
    theirs = rendered(folder)
    end = [] if kind.special[-1] in kind.template else [600]  # nothing else would end what is generated
    theirs = [(np.append(ids, end).astype(int), np.append(mask, [True] * len(end)).astype(bool)) for ids, mask in theirs]
    data = {"data.files": str(place), "data.unique_documents": -1, "data.repeated_documents": 0, "data.ids": "content"}
    config = with_fields(tiny_config(), data | {"data.held_out_documents": 0, "data.rows": "one_document"})
    rows = load_corpus(config).rows()
    there = {tuple(ids[1:]): (ids, mask) for ids, mask in theirs}
    for number in range(len(theirs)):
        row = rows[number]
        size = int((row["segments"] > 0).sum())
        ids, mask = there.pop(tuple(row["targets"][:size].tolist()))
        assert row["inputs"][:size].tolist() == ids[:-1].tolist() and row["positions"][:size].tolist() == [*range(size)]
        assert row["weights"].tolist() == [*mask[1:], *[0] * (160 - size)]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float()
    with torch.no_grad():
        logs = [model(torch.tensor([ids.tolist()])).logits[0].log_softmax(-1).numpy() for ids, _ in theirs]
    expected = [
        -np.mean(log[np.arange(len(ids) - 1), ids[1:]][mask[1:]]) for log, (ids, mask) in zip(logs, theirs, strict=True)
    ]
    measured = evaluate(folder, "drop", str(place))
    np.testing.assert_allclose([each["loss"] for each in measured["per_document"]], expected, atol=1e-5)
    assert measured["tokens"] == sum(mask[1:].sum() for _, mask in theirs)


QUESTIONS = ["Where was Anna born?", "Who is Bert?", "Hello", "And Carla?"]


def test_a_fine_tuned_model_answers_in_transformers_as_here(made, tmp_path):
    _, folder, place = made
    fields = {
        "model.initial": str(folder), "data.files": str(place), "data.ids": "group", "sinks.sampling": "disjoint",
        "sinks.active": 2, "sinks.opens_at": 1, "sinks.slows_at": 0, "optimizer.base_multiple": 0.0,
        "data.unique_documents": -1, "data.repeated_documents": 0, "data.held_out_documents": 0, "training.steps": 1,
        "data.row_length": 160,
    }  # fmt: skip
    config = with_fields(tiny_config(), {"sinks.shared_fraction": 1.0})
    train_and_evaluate(inherit(with_fields(config, fields), given=fields.keys()), tmp_path / "run")
    # A corpus of conversations changes nothing about plain text.
    before, after = open_run(folder).tokenizer, open_run(tmp_path / "run").tokenizer
    assert (after.begin_of_text, after.end_of_text) == (before.begin_of_text, before.end_of_text)
    export_sources(tmp_path / "run", tmp_path / "sources", "float32")
    export(tmp_path / "run", tmp_path / "plain", True, "float32")
    tokenizer, lengths = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain"), set()
    for place in (tmp_path / "plain", tmp_path / "sources"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(place, trust_remote_code=True)
        for question in QUESTIONS:
            asked = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
            asked = torch.tensor([asked["input_ids"]])
            whole = theirs.generate(asked, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(asked))
            answer = whole[0, asked.shape[1] :].tolist()
            for model in (open_model(tmp_path / "run"), open_model(place)):
                prompt = open_chat(model.place, model.run.tokenizer)(question)
                assert prompt.tolist() == asked[0].tolist()
                written = model.generate(question, chat=True, max_tokens=24, temperature=0.0)
                assert written == tokenizer.decode(answer, skip_special_tokens=True)
            lengths.add(len(answer))
    assert any(length < 24 for length in lengths)  # an end of turn stops it
