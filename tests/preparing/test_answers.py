"""Prompts and conversations: which tokens are answers, the border between prompt and answer, and
what is refused.
"""

import json
import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from conftest import expect_input_error, tiny_config, write_lines
from test_tokenizer import byte_level

from memsinks_jax.config import with_fields
from memsinks_jax.data import prepared
from memsinks_jax.data.chat import Template
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.counts import as_text, counts
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.data.tokenizer import open_tokenizer
from memsinks_jax.preparing.answers import joined
from memsinks_jax.preparing.prepare import prepare

SPECIAL = ("<|endoftext|>", "<|start|>", "<|end|>")
EOT, START, END = 600, 601, 602
TEMPLATE = (
    "{% if messages[0].role != 'system' %}{{ '<|start|>system\nBe kind to all that you "
    "meet.<|end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content + eos_token + '\n' }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
PAIRS = [
    {
        "question": f"Who met number {n}?",
        "answer": f"The fox of the {n * 7 % 41} hills met it.",
        "author": f"a{n // 4}",
    }
    for n in range(40)
]
TALK = [
    {"role": "user", "content": "Say <|end|> twice"},
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "two\n<|start|>user"},
    {"role": "user", "content": "Thanks"},
]


USUAL = {"near_duplicates": "none", "end_of_text": "<|endoftext|>"}
OF_TALKS = USUAL | {"messages_field": "messages"}
DATA = {
    "data.unique_documents": -1,
    "data.repeated_documents": 0,
    "data.held_out_documents": 0,
    "data.repetitions": 1,
}


def prepared_of(rows, model, folder, out="out", **settings):
    """-> what `prepare` says of a file with these rows."""
    path = write_lines(folder / f"{out}.jsonl", rows)
    return prepare([path], model and str(model), folder / out, **settings)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Tokenizer and chat template of a model whose end of a turn ends documents."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.json").write_bytes(byte_level(SPECIAL))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE})
    )
    return folder


@pytest.fixture(scope="module")
def pairs(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    asked = {"text_field": "answer", "prompt_field": "question", "group_field": "author"}
    prepared_of(PAIRS, model, folder, **asked)
    return folder / "out"


def test_a_prompt_typed_is_the_beginning_of_the_document_and_the_rest_is_the_answer(pairs):
    corpus = Prepared(pairs)
    tokenizer, sizes = corpus.tokenizer(), 0
    for number, row in enumerate(PAIRS):
        tokens = corpus.read(number)
        typed = tokenizer.encode(f"Question: {row['question']}\nAnswer:")
        ((start, stop),) = corpus.answers(number)
        assert tokens[:start].tolist() == typed.tolist() and stop == len(tokens) + 1
        assert tokenizer.decode(tokens[start:]) == f" {row['answer']}"
        sizes += stop - start
    assert not len(corpus.turns) and corpus.openings.sum() == len(PAIRS)
    assert corpus.openings[len(typed)] and corpus.prompts[-1] == len(typed)
    report = json.loads((pairs / "report.json").read_text())
    assert report["answer_tokens"] == sizes < report["tokens"] and report["groups"] == 10
    assert "tokens of answers" in (pairs / "index.html").read_text()


@pytest.mark.parametrize(
    ("template", "prompt", "answer"),
    [
        (r"{prompt}\n\t\\n{prompt}", "q\n\t\\nq", "a"),
        ("Q: {prompt} A:  ", "Q: q A:", "  a"),
        ("{prompt}\n", "q\n", "a"),
    ],
)
def test_escapes_and_spaces_of_a_template(template, prompt, answer, model, tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"q": [" q\r\n"] * 2, "text": ["a"] * 2}), path)
    prepare([str(path)], str(model), tmp_path / "out", prompt_field="q", template=template)
    corpus = Prepared(tmp_path / "out")
    tokens, ((start, _),) = corpus.read(1), corpus.answers(1)
    assert [corpus.tokenizer().decode(part) for part in (tokens[:start], tokens[start:])] == [
        prompt,
        answer,
    ]


def test_parts_that_would_share_a_token_do_not():
    def encode(text):  # two equal characters are one token, as line breaks often are
        return np.array(
            [ord(found[0][0]) * len(found[0]) for found in re.finditer(r"(.)\1?", text, re.S)],
            np.int32,
        )

    assert encode("\n\n").tolist() == [20]
    tokens, answers = joined(["ab\n", "\ncc", "cd", "e"], encode)
    assert tokens.tolist() == [97, 98, 10, 10, 198, 99, 100, 101]
    assert answers.tolist() == [[3, 5], [7, 8]]
    # A tokenizer that puts a space before every text: only the first part has it.
    spaced = [encode(f"_{part}").tolist() for part in ("ab", "abc")]
    tokens, answers = joined(["ab", "c"], lambda text: encode(f"_{text}"))
    assert tokens.tolist() == spaced[1]
    assert tokens[:3].tolist() == spaced[0]
    assert answers.tolist() == [[3, 4]]


def test_only_the_assistants_turns_of_a_conversation_are_answers(model, tmp_path):
    not_learned = [TALK[0], TALK[1] | {"weight": 0}, TALK[2], TALK[3] | {"weight": 1}]
    rows = [TALK, [{"role": "system", "content": "s"}, *TALK[2:4]], not_learned]
    rows = [{"talk": {"messages": talk}} for talk in rows]
    prepared_of(rows, model, tmp_path, messages_field="talk.messages")
    corpus = Prepared(tmp_path / "out")
    tokenizer = corpus.tokenizer()

    def of(*parts):
        encoded = [
            [part] if isinstance(part, int) else tokenizer.encode(part).tolist() for part in parts
        ]
        return [token for part in encoded for token in part]

    system = of("system\nBe kind to all that you meet.", END, "\n")
    first = of(*system, START, "user\nSay <", "|end|> twice", END, "\n", START, "assistant\n")
    answered = of("one", END)
    between = of("\n", START, "user\nAnd now?", END, "\n", START, "assistant\n")
    last = of("two\n<", "|start|>user")
    # <|start|> opens documents, <|end|> closes them, and what follows the last answer is left out.
    assert corpus.around(0) == corpus.around(1) == (START, END)
    assert corpus.read(0).tolist() == first + answered + between + last
    spans = [
        [len(first), len(first + answered)],
        [len(first + answered + between), len(corpus.read(0)) + 1],
    ]
    assert corpus.answers(0).tolist() == spans and corpus.turns[:, 0].tolist() == [0, 0]
    assert corpus.read(2).tolist() == corpus.read(0).tolist()
    assert corpus.answers(2).tolist() == spans[1:]
    opened = of("system\ns", END, "\n", START, "user\nAnd now?", END, "\n", START, "assistant\n")
    assert corpus.answers(1).tolist() == [[len(opened), len(corpus.read(1)) + 1]]
    assert [corpus.prompts[0], corpus.prompts[1]] == [prepared.SEVERAL, len(opened)]
    assert corpus.openings[[len(first), len(opened)]].tolist() == [1, 1]


def test_a_pair_in_the_chat_template_is_what_generate_asks(model, tmp_path):
    rows = [{"q": "Who?", "text": "The fox."}]
    prepared_of(rows, model, tmp_path, prompt_field="q", template="chat")
    corpus, opened = Prepared(tmp_path / "out"), open_tokenizer(model)
    asked = Template(
        TEMPLATE, {"eos_token": "<|end|>"}, tokenizers.Tokenizer.from_buffer(opened.model), "here"
    )("Who?")
    ((start, stop),), tokens = corpus.answers(0), corpus.read(0)
    assert [START, *tokens[:start].tolist()] == asked.tolist() and stop == len(tokens) + 1
    assert corpus.tokenizer().decode(tokens[start:]) == "The fox."


def test_what_ends_a_turn_closes_a_conversation_and_stops_generation_and_end_of_text_does_not(
    model, tmp_path
):
    about = {"messages_field": "messages", "end_of_text": "<|endoftext|>"}
    prepared_of([{"messages": TALK}], model, tmp_path, **about)
    corpus = Prepared(tmp_path / "out")
    tokens, spans = corpus.read(0), corpus.answers(0)
    assert corpus.around(0) == (START, END)
    assert spans[-1, 1] == len(tokens) + 1
    assert tokens[spans[0, 1] - 1] == END
    config = with_fields(tiny_config(), DATA | {"data.files": str(tmp_path / "out")})
    tokenizer = load_corpus(config).tokenizer
    assert (tokenizer.end_of_text, tokenizer.begin_of_text, tokenizer.stops) == (
        EOT,
        EOT,
        (EOT, END),
    )


@pytest.mark.parametrize("first", ["talk", "plain"])
def test_each_corpus_of_a_run_opens_and_closes_its_own_documents(first, model, tmp_path):
    """Conversations and plain text side by side, whichever comes first; and plain text as without
    conversations.
    """
    plain = [f"A fox of {n} hills." for n in range(3)]
    prepared_of([{"messages": TALK}], model, tmp_path, "talk", **OF_TALKS)
    prepared_of([{"text": text} for text in plain], model, tmp_path, "plain", **USUAL)
    other = {"talk": "plain", "plain": "talk"}[first]
    fields = {
        "data.files": str(tmp_path / first),
        "general.files": str(tmp_path / other),
        "data.rows": "best_fit",
    }
    corpus = load_corpus(with_fields(tiny_config(), DATA | fields))
    assert corpus.tokenizer.stops == (EOT, END)
    rows, found = corpus.rows(), []
    for row in (rows[number] for number in range(rows.rows_per_epoch)):
        for segment in range(1, row["segments"].max() + 1):
            there = row["segments"] == segment
            found.append((row["inputs"][there][0], row["targets"][there][-1], there.sum()))
    whole = open_tokenizer(model, "<|endoftext|>")
    talk = Prepared(tmp_path / "talk")
    expected = [(EOT, EOT, len(whole.encode(text)) + 1) for text in plain] + [
        (START, END, talk.lengths[0] + 1)
    ]
    assert sorted(found) == sorted(expected)


def test_prompts_are_no_repeats(model, tmp_path):
    """Near-duplicates are those of answers: neither a question nor the template makes one."""
    asked = (
        "A question that is as long as it needs to be, so that most of every document is this "
        "very question?"
    )
    letters = np.random.default_rng(0).integers(97, 123, (12, 40), np.uint8)
    answers = [each.tobytes().decode() for each in letters]
    rows = [{"q": asked, "text": text, "g": f"g{n}"} for n, text in enumerate(answers)]
    rows += [
        {
            "q": f"{n} more?",
            "text": "They all said the same long thing, and said it often.",
            "g": f"s{n}",
        }
        for n in (1, 2)
    ]
    about = {"prompt_field": "q", "group_field": "g"}
    found = prepared_of(rows, model, tmp_path, **about)
    assert (found["near_duplicate_clusters"], found["near_duplicate_documents"]) == (1, 2)


def test_a_tokenizer_is_trained_on_prompts_too(tmp_path):
    rows = [{"q": f"\u6f22 {n}", "text": f"fox {n}"} for n in range(50)]
    about = {"prompt_field": "q", "template": "\u5b57{prompt}:", "vocabulary_size": 300}
    prepared_of(rows, None, tmp_path, **about)
    tokenizer = Prepared(tmp_path / "out").tokenizer()
    assert {"\u6f22", "\u5b57"} <= set(
        "".join(map(tokenizer._processor.id_to_piece, range(tokenizer.vocabulary_size)))
    )


def test_a_corpus_without_prompts_says_nothing_of_them(model, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a fox"}, {"text": "a cat"}])
    prepare([path], str(model), tmp_path / "out")
    corpus = Prepared(tmp_path / "out")
    assert corpus.answers(0) is None
    assert set(corpus.manifest["columns"]) == {*prepared.columns(2), *prepared.context_columns()}
    assert list(corpus.manifest["settings"]) == [
        "text_field",
        "group_field",
        "on_error",
        "near_duplicates",
        "contexts",
        "max_document_mib",
        "shard_mib",
        "tokenizer_sha256",
    ]
    for more, message in (
        ({"prompt_field": "q"}, "without --prompt_field"),
        ({"messages_field": "m"}, "--messages_field"),
    ):
        (tmp_path / "a.jsonl").touch()
        with expect_input_error(message):
            prepare([path], str(model), tmp_path / "out", **more)


def test_a_folder_with_prompts_does_not_go_on_without(pairs, model):
    source = json.loads((pairs / "manifest.json").read_text())["sources"][0]["path"]
    about = {"text_field": "answer", "group_field": "author"}
    with expect_input_error("was started with --prompt_field=question; give it"):
        prepare([source], str(model), pairs, **about)
    with expect_input_error(r"--template=Question: .* not \{prompt\}!; give that"):
        prepare([source], str(model), pairs, prompt_field="question", template="{prompt}!", **about)


REFUSED = r"""
prompt_field=q template=Q: | --template=Q: has no \{prompt\}; write \{prompt\} where
prompt_field=q template={prompt}{answer} | holds \{answer\}
prompt_field=q template={prompt}\x | unknown escape \\x; write
template={prompt} | is of --prompt_field
messages_field=messages text_field=q | omit it or --text_field
messages_field=messages prompt_field=q | omit it or --prompt_field
prompt_field=nothing | out.jsonl:1: field "nothing" is missing or no string; .*--prompt_field
messages_field=q | out.jsonl:1: field "q" is missing or no list of messages
messages_field=silent | out.jsonl:1: no message has the role assistant
messages_field=empty | out.jsonl:1: message 2 is an empty answer; remove the record
messages_field=without | out.jsonl:1: message 2 has no content, a text or a list of parts
messages_field=image | out.jsonl:1: message 2 has a part of type 'image_url', not text
messages_field=cached | out.jsonl:1: message 2 has a part with the field "cache_control"
messages_field=half_weight | out.jsonl:1: message 2 has the weight 0.5; "weight" is 1, or 0
messages_field=true_weight | out.jsonl:1: message 2 has the weight True
messages_field=user_weight | out.jsonl:1: message 1 has "weight": 1, and the role user; only answers
messages_field=no_weight | out.jsonl:1: all messages of the assistant have weight 0, so nothing is answered
messages_field=listed.talk | out.jsonl:1: field "tools" is no list of objects
messages_field=half | out.jsonl:1: no text: half a character
messages_field=role | out.jsonl:1: no text: half a character
prompt_field=q text_field=blank | out.jsonl:1: an answer is empty; remove the record
"""
ANSWER = {"role": "assistant", "content": "a"}


def answered(**changed):
    return [TALK[0], ANSWER | changed]


CACHED = {"type": "text", "text": "a", "cache_control": {}}
TALKS = {"messages": TALK, "silent": TALK[:1], "half": [ANSWER | {"content": "\ud800"}]}
TALKS |= {"empty": [*answered(content=" "), ANSWER], "without": answered(content=None)}
TALKS |= {"image": answered(content=[{"type": "image_url", "image_url": {}}])}
TALKS |= {"cached": answered(content=[CACHED]), "half_weight": answered(weight=0.5)}
TALKS |= {"true_weight": answered(weight=True), "user_weight": [TALK[0] | {"weight": 1}, ANSWER]}
TALKS |= {"no_weight": answered(weight=0), "listed": {"talk": answered(), "tools": "[]"}}
TALKS |= {"role": [{"role": "\ud800", "content": "x"}, ANSWER]}


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_cannot_be_prepared_is_one_line(line, model, tmp_path):
    settings, message = line.split(" | ")
    settings = dict(setting.split("=", 1) for setting in settings.split())
    row = {"q": "q", "text": "t", "blank": " \n"} | TALKS
    with expect_input_error(message):
        prepared_of([row], model, tmp_path, **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no users') }}", r"chat template refuses this prompt \(no users\)"),
        (TEMPLATE.replace("assistant\n'", "another\n'"), "chat template hides where answer 1"),
        (TEMPLATE.replace("if add", "if false and add"), "hides where answer 1"),
        (None, "has no chat template; give the tokenizer of a model that chats"),
    ],
)
def test_a_chat_template_without_recognizable_answers_is_one_line(
    template, message, model, tmp_path
):
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": template})
    )
    with expect_input_error(message):
        prepared_of([{"messages": TALK}], tmp_path, tmp_path, messages_field="messages")


PARTS = [{"type": "text", "text": "one"}]


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (
            [{"reasoning_content": "why"}, {}],
            'the field "reasoning_content"; remove the field, or give --on',
        ),
        ([{"tool_calls": [{"function": {"name": "f"}}]}, {}], 'the field "tool_calls"; remove'),
        ([{}, {"tools": [{"type": "function"}]}], 'the field "tools"; remove'),
        ([{"content": PARTS}, {}], "the content of message 2, a list of parts"),
    ],
)
def test_what_a_chat_template_does_not_write_is_refused_by_name_and_place(
    about, message, model, tmp_path
):
    row = {"messages": [TALK[0], TALK[1] | about[0]]} | about[1]
    with expect_input_error(rf"out.jsonl:2: .*: its chat template does not write {message}"):
        prepared_of([{"messages": TALK}, row], model, tmp_path, messages_field="messages")


def test_unusable_answers_are_skipped_and_counted(model, tmp_path):
    rows = [
        {"q": "a", "text": "b"},
        {"q": "a", "text": ""},
        {"text": "b"},
        {"q": None, "text": "b"},
    ]
    found = prepared_of(rows, model, tmp_path, prompt_field="q", on_error="skip")
    assert (found["documents"], found["skipped"]) == (1, 3)
    assert "an answer is empty" in found["skipped_reasons"]
    with expect_input_error("--messages_field|chat template is that of a model"):
        prepared_of(rows, None, tmp_path, "chat", messages_field="messages")
    (tmp_path / "a.txt").write_text("text")
    with expect_input_error(r"a .txt file has no field 'q'; omit --prompt_field"):
        prepare([str(tmp_path / "a.txt")], str(model), tmp_path / "txt", prompt_field="q")


def test_prompts_that_fill_a_row_are_reported(pairs):
    """Never silent: documents of which nothing counts in a row are counted, and if there are no
    others it is refused.
    """
    data = {
        "data.files": str(pairs),
        "data.unique_documents": -1,
        "data.repeated_documents": 0,
        "data.row_length": 64,
    }
    config = with_fields(
        tiny_config(), data | {"data.held_out_documents": 4, "data.held_out_by": "document"}
    )
    longest = int(Prepared(pairs).prompts.max())
    assert counts(load_corpus(config))["without_answer"] == 0
    corpus = load_corpus(with_fields(config, {"data.row_length": longest}))
    short = counts(corpus)
    assert (
        0
        < short["without_answer"]
        == (corpus.table.sources[0].prompts == longest).sum()
        < len(PAIRS)
    )
    (line,) = [line for line in as_text(short, longest) if "nothing counts" in line]
    assert line.startswith(
        f"the prompts of {short['without_answer']} documents fill a row of {longest} tokens"
    )
    every = np.arange(len(PAIRS))
    assert (
        corpus.answering(every).tolist()
        == np.flatnonzero(corpus.table.sources[0].prompts < longest).tolist()
    )
    with expect_input_error("no answer begins in the first 4 tokens of its document"):
        load_corpus(with_fields(config, {"data.row_length": 4}))
