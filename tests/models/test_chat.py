"""Conversations: they open and end with what the chat template writes, wherever they are read.

All is compared with transformers on the rendered template: ids, which of them count, the loss, and
where generation stops.
"""

import dataclasses
import json
from typing import NamedTuple

import numpy as np
import pytest
from conftest import expect_input_error, python, tiny_config, write_lines
from test_tokenizer import byte_level

from memsinks_jax import generate
from memsinks_jax.api import evaluate, open_model
from memsinks_jax.config import with_fields
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.model.generation import Settings
from memsinks_jax.models.exporting import export_sources
from memsinks_jax.models.initial import inherit
from memsinks_jax.models.origin import open_chat
from memsinks_jax.models.trained import open_run
from memsinks_jax.preparing.prepare import prepare

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


class Kind(NamedTuple):
    """A kind of chat model: its special tokens (600, 601, ...), its template, and its ends of
    text.
    """

    special: tuple[str, ...]
    template: str
    ends: tuple[str, ...]
    opens: str = ""  # the token that the tokenizer puts first


def template(opens, header, end, start=""):
    """`header` has the role, `end` ends a turn; {% generation %} marks for transformers what
    counts.
    """
    head = header.replace("ROLE", "' + m.role + '")
    return (
        f"{start}{{% for m in messages %}}{{{{ '{head}' }}}}{{% if m.role == 'assistant' %}}{{% "
        f"generation %}}"
        f"{{{{ m.content + '{end}' }}}}{{% endgeneration %}}{{% else %}}{{{{ m.content + '{end}' "
        f"}}}}{{% endif %}}"
        f"{{{{ '{opens}' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{header.replace('ROLE', 'assistant')}' }}}}{{% "
        f"endif %}}"
    )


CHATML = template(r"\n", r"<|im_start|>ROLE\n", "<|im_end|>")
TOKENS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LLAMA3 = "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"
ROLES = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
HEADER = r"<|start_header_id|>ROLE<|end_header_id|>\n\n"
KINDS = {
    "the end of a turn is end of text": Kind(TOKENS, CHATML, ("<|im_end|>",)),
    "the end of a turn is no end of text": Kind(TOKENS, CHATML, ("<|endoftext|>",)),
    "a token opens the template": Kind(
        (*LLAMA3, "<|eot_id|>"),
        template("", HEADER, "<|eot_id|>", "{{ bos_token }}"),
        ("<|end_of_text|>", "<|eot_id|>"),
        "<|begin_of_text|>",
    ),
    "the first role opens the template": Kind(
        ROLES, template(r"\n", r"<|ROLE|>\n", "<|end|>"), ("<|endoftext|>",)
    ),
    "words open the template": Kind(
        ("<s>", "</s>"), template(r"\n", r"ROLE:\n", "</s>"), ("</s>",), "<s>"
    ),
}
ANNA = [("user", "Where was Anna born?"), ("assistant", "In a small town.")]
BERT = [("user", "Who is Bert?"), ("assistant", "A fox of the seven hills.")]
MORE = [("user", "Hello"), ("assistant", "Hello."), ("user", "And Carla?"), ("assistant", "A hen.")]
TALKS = [ANNA, [("system", "Be kind."), *BERT], [*MORE, ("user", "Thanks")]]
ROWS = [
    {
        "author": f"author {n % 2}",
        "messages": [{"role": who, "content": what} for who, what in talk],
    }
    for n, talk in enumerate(TALKS)
]


def model_of(folder, kind):
    """A tiny Llama with a tokenizer, as transformers writes it. It often ends its turn."""
    # as many in each kind
    names = [*kind.special, *(f"<|{n}|>" for n in range(len(kind.special), 8))]
    special = dict(zip(names, range(600, 608), strict=True))
    ends = [special[name] for name in kind.ends]
    (folder / "tokenizer.json").write_bytes(byte_level(names, kind.opens))
    settings = {"eos_token": kind.ends[0], "chat_template": kind.template}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {"bos_token": kind.opens} if kind.opens else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    sizes = {"vocab_size": 608, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 160, "initializer_range": 0.3}
    sizes |= {"bos_token_id": special.get(kind.opens), "eos_token_id": ends}
    config = transformers.LlamaConfig(tie_word_embeddings=False, **sizes)
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        model.lm_head.weight[special[kind.special[-1]]] *= 6
    model.save_pretrained(folder)


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    """-> (a model's folder, conversations prepared for it)"""
    folder = tmp_path_factory.mktemp("chat")
    (folder / "model").mkdir()
    model_of(folder / "model", KINDS[request.param])
    write_lines(folder / "talks.jsonl", ROWS)
    about = {"messages_field": "messages", "group_field": "author", "near_duplicates": "none"}
    prepare([str(folder / "talks.jsonl")], str(folder / "model"), folder / "corpus", **about)
    return folder / "model", folder / "corpus"


def all_of(corpus):
    data = {"data.files": str(corpus), "data.unique_documents": -1}
    return data | {"data.repeated_documents": 0, "data.held_out_documents": 0}


def rendered(folder):
    """transformers' ids of each conversation up to the end of its last answer, and which count."""
    tokenizer, found = transformers.AutoTokenizer.from_pretrained(folder), []
    for row in ROWS:
        asked = {"return_dict": True, "return_assistant_tokens_mask": True}
        of = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=False, **asked)
        mask = np.array(of["assistant_masks"], bool)
        stop = np.flatnonzero(mask)[-1] + 1
        found.append((np.array(of["input_ids"])[:stop], mask[:stop]))
    return found


def test_rows_and_losses_are_those_of_the_rendered_template(made):
    folder, place = made
    theirs = rendered(folder)
    data = {"data.ids": "content", "data.rows": "one_document"}
    config = with_fields(tiny_config(), all_of(place) | data)
    rows = load_corpus(config).rows()
    there = {tuple(ids[1:]): (ids, mask) for ids, mask in theirs}
    for number in range(len(theirs)):
        row = rows[number]
        size = int((row["segments"] > 0).sum())
        ids, mask = there.pop(tuple(row["targets"][:size].tolist()))
        assert row["inputs"][:size].tolist() == ids[:-1].tolist()
        assert row["positions"][:size].tolist() == [*range(size)]
        assert row["weights"].tolist() == [*mask[1:], *[0] * (160 - size)]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float()
    with torch.no_grad():
        logits = [model(torch.tensor([ids.tolist()])).logits[0] for ids, _ in theirs]
        logs = [of.log_softmax(-1).numpy() for of in logits]
    expected = [
        -np.mean(log[np.arange(len(ids) - 1), ids[1:]][mask[1:]])
        for log, (ids, mask) in zip(logs, theirs, strict=True)
    ]
    measured = evaluate(folder, "drop", str(place))
    losses = [each["loss"] for each in measured["per_document"]]
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    assert measured["tokens"] == sum(mask[1:].sum() for _, mask in theirs)


# author 1's, as its first messages show
TALK = [*BERT, ("user", "Since when?"), ("assistant", "Since May."), ("user", "And now?")]
TALK = [{"role": who, "content": what} for who, what in TALK]
QUESTIONS = ["Where was Anna born?", "Who is Bert?", "Hello", "And Carla?", TALK]


@pytest.mark.parametrize("made", list(KINDS)[:3], indirect=True)
def test_a_fine_tuned_model_answers_in_transformers_as_here(made, tmp_path):
    """With the sinks of a source on: the prompts, the answers, and where these end."""
    folder, place = made
    fields = all_of(place) | {"model.initial": str(folder), "data.ids": "group"}
    fields |= {"sinks.sampling": "disjoint", "sinks.active": 2, "sinks.opens_at": 1}
    fields |= {"sinks.slows_at": 0, "optimizer.base_multiple": 0.0, "training.steps": 1}
    fields |= {"optimizer.learning_rate": 0.1}
    config = with_fields(tiny_config(), {"sinks.shared_fraction": 1.0})
    train_and_evaluate(inherit(with_fields(config, fields), given=fields.keys()), tmp_path / "run")
    export_sources(tmp_path / "run", tmp_path / "out", "float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", trust_remote_code=True
    )
    theirs.set_sources(["author 1"])
    tokenizer, asked, answers = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), [], []
    for question in QUESTIONS:
        talk = [{"role": "user", "content": question}] if isinstance(question, str) else question
        asked.append(tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"])
        prompt = torch.tensor([asked[-1]])
        whole = theirs.generate(
            prompt, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(prompt)
        )
        answers.append(whole[0, prompt.shape[1] :].tolist())
    assert any(len(answer) < 24 for answer in answers)  # an end of turn ended it
    # What ends conversations changes nothing about plain text.
    before = open_run(folder).tokenizer
    for opened in (open_model(tmp_path / "run"), open_model(tmp_path / "out")):
        run = opened.run
        found = run.tokenizer.begin_of_text, run.tokenizer.end_of_text
        assert found == (before.begin_of_text, before.end_of_text)
        prompts = list(map(open_chat(opened.place, run.tokenizer), QUESTIONS))
        assert [prompt.tolist() for prompt in prompts] == asked
        settings = Settings(24, temperature=0.0, sinks="own")
        written = opened.generator(prompts, settings, run.group_id("author 1"), complete=True)
        ended = [
            [*each.tokens, *answer[len(each.tokens) :][:1]]
            for each, answer in zip(written, answers, strict=True)
        ]
        assert ended == answers
        assert not {*run.tokenizer.stops} & {token for each in written for token in each.tokens}
        asking = {"sinks": "own", "max_tokens": 24, "temperature": 0.0}
        assert opened.generate(TALK, chat=True, **asking) == written[-1].text
    (tmp_path / "talk.json").write_text(json.dumps(TALK))
    flags = [f"--workdir={opened.place}", f"--messages={tmp_path / 'talk.json'}"]
    flags += ["--sinks=own", "--max_tokens=24", "--temperature=0", "--json"]
    done = python("-m", "memsinks_jax.generate", *flags)
    assert json.loads(done.stdout)["text"] == written[-1].text, done.stderr
    assert "groups: author 1" in done.stderr  # by all that was said


@pytest.mark.parametrize(
    "content",
    ["no JSON", "{}", "[]", '["Hello"]', '[{"role": "user"}]', '[{"role": "user", "content": 1}]']
    + ['[{"role": "assistant", "content": "Hello."}]'],
)
def test_a_file_without_a_conversation_is_refused(tmp_path, content):
    (tmp_path / "talk.json").write_text(content)
    options = generate.Options(workdir=tmp_path, messages=tmp_path / "talk.json")
    with expect_input_error("--messages=.*talk.json (cannot be read|is no conversation)"):
        generate.main(options)
    with expect_input_error("exclude each other"):
        generate.main(dataclasses.replace(options, prompt=["Hello"]))
