"""Conversations as transformers renders them: their tokens, their answers, and what is lost neither
there nor here.
"""

import json

import numpy as np
import pytest
import tokenizers
from conftest import expect_input_error
from test_tokenizer import byte_level

from memsinks_jax.data.chat import Template
from memsinks_jax.preparing.answers import joined

SPECIAL = ("<s>", "<|start|>", "<|end|>", "<|say|>", "<|done|>")
NAMES = {"bos_token": "<s>", "eos_token": "<|end|>"}
ASKS = "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"


def turns(body, asks=ASKS, before=""):
    """A template: `before`, then each message between its role and its end, then what asks for an
    answer.
    """
    each = "{% for m in messages %}<|start|>{{ m.role }}\n" + body + "<|end|>\n{% endfor %}"
    return before + each + asks


USUAL, ENDED = turns("{{ m.content }}"), "ab<|end|>"
OF_ANSWERS = "{% if m.role == 'assistant' %}"
OF_THE_LAST = "{% if m.role == 'assistant' and loop.last %}"
# Structures of templates that are in use: (template, an answer before others, the last answer, of
# "ab").
TEMPLATES = {
    "plain": (USUAL, ENDED, ENDED),
    "dated": (
        turns("{{ m.content | trim }}", before="<s>{{ strftime_now('%Y') }}\n"),
        ENDED,
        ENDED,
    ),
    "special token inside": (
        turns(OF_ANSWERS + "to user<|say|>{% endif %}{{ m.content }}"),
        *["to user<|say|>ab<|end|>"] * 2,
    ),
    "special token first": (
        USUAL.replace("role }}\n", "role }}<|say|>").replace("assistant\n", "assistant"),
        *["<|say|>ab<|end|>"] * 2,
    ),
    "thinks last": (
        turns(OF_THE_LAST + "<think>\n\n</think>\n{% endif %}{{ m.content }}"),
        *(ENDED, "<think>\n\n</think>\nab<|end|>"),
    ),
    "asks after thinking": (
        turns(
            OF_ANSWERS + "<think>\n</think>\n{% endif %}{{ m.content }}",
            ASKS.replace("{% endif", "<think>\n</think>\n{% endif"),
        ),
        *(ENDED, ENDED),
    ),
    "two ends": (turns("{{ m.content }}<|done|>"), *["ab<|done|><|end|>"] * 2),
    "another end at last": (
        USUAL.replace("<|end|>\n", OF_THE_LAST + "<|done|>{% else %}<|end|>{% endif %}"),
        *(ENDED, "ab<|done|>"),
    ),
    "conversation with an end": (
        turns("{{ m.content }}", ASKS.replace("{% endif", "{% else %}<|done|>{% endif")),
        *(ENDED, ENDED),
    ),
    "end with the next": (
        USUAL.replace("<|end|>\n", "{% if not loop.last %}<|end|>\n{% endif %}").replace(
            ASKS, "{% if messages[-1].role == 'user' %}<|end|>\n{% endif %}" + ASKS
        ),
        *(ENDED, "ab"),
    ),
    "no prompt for an answer": (
        "<s>{% for m in messages %}"
        + OF_ANSWERS
        + " {{ m.content }}<|end|>{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
        *[" ab<|end|>"] * 2,
    ),
    "no end": (
        "{% for m in messages %}{{ '' if m.role == 'assistant' else 'Q: ' }}{{ m.content }}\n"
        "{{ '' if m.role == 'assistant' else 'A:' }}{% endfor %}",
        *("ab", "ab"),
    ),
}
CALLS = [{"type": "function", "function": {"name": "find", "arguments": {"word": "<|end|>"}}}]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
# It reads all that there is, the reasoning of the last answer alone, and a content that is a text.
READS = turns(
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.name %}{{ m.name }}: {% endif %}{{ m.content if m.content is string }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}",
    before="{% if tools %}{{ tools | tojson }}{% endif %}{% for d in documents or [] %}{{ d.text "
    "}}{% endfor %}",
)
LISTS = turns(
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% "
    "endfor %}{% endif %}"
)


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def asked_and_answered(*pairs):
    return [said(*each) for pair in pairs for each in zip(("user", "assistant"), pair, strict=True)]


LONGER = asked_and_answered(("q", "The fox."))
ONE = [ASKED, ANSWERED] = asked_and_answered(("q", "a"))
REASONED = said("assistant", "a", reasoning_content="so")
CALLING = {"role": "assistant", "tool_calls": CALLS}


@pytest.fixture(scope="module")
def opened():
    return tokenizers.Tokenizer.from_buffer(byte_level(SPECIAL))


@pytest.fixture(scope="module")
def theirs(opened):
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=opened, **NAMES)


def answers(template, opened, talk, beside=None):
    """-> (the tokens of a conversation, the text of each answer with its special tokens)."""
    tokens, spans = joined(template.parts(talk, beside), template.encode)
    return tokens, [
        opened.decode(tokens[start:stop], skip_special_tokens=False) for start, stop in spans
    ]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_tokens_are_those_of_transformers_and_answers_are_found(kind, opened, theirs):
    source, first, last = TEMPLATES[kind]
    template = Template(source, NAMES, opened, "here")
    asked = theirs.apply_chat_template(
        [said("user", "why?")], chat_template=source, add_generation_prompt=True
    )
    assert template("why?").tolist() == asked["input_ids"]
    for count in (1, 3, 5):
        for system in ([], [said("system", "be kind")]):
            pairs = [(f"who {n}?", f"fox {n}\n\nand {n}.") for n in range(count)]
            talk = [*system, *asked_and_answered(*pairs)]
            tokens, found = answers(template, opened, talk)
            rendered = theirs.apply_chat_template(talk, chat_template=source)["input_ids"]
            assert tokens.tolist() == rendered[: len(tokens)]
            assert found == [
                (last if n == count - 1 else first).replace("ab", answer)
                for n, (_, answer) in enumerate(pairs)
            ]
            assert found[-1].endswith(template.ends())
            # Nothing of an answer is left, and nothing but the end of the last turn.
            assert len(opened.decode(rendered[len(tokens) :])) < 2


@pytest.mark.parametrize(
    ("talk", "beside", "expected"),
    [
        ([ASKED | {"name": "ann"}, ANSWERED], {}, ["a<|end|>"]),
        ([ASKED, REASONED], {}, ["<think>so</think>a<|end|>"]),
        ([ASKED, said("assistant", "a", reasoning="so")], {}, ["<think>so</think>a<|end|>"]),
        (ONE, {"tools": TOOLS, "documents": [{"text": "d"}]}, ["a<|end|>"]),
        (
            [ASKED, CALLING, said("tool", "5", tool_call_id="1"), said("assistant", "five")],
            {},
            [f"<call>{json.dumps(CALLS[0]['function'])}</call><|end|>", "five<|end|>"],
        ),
        ([said("user", " q\r\n"), said("assistant", " a \n")], {}, [" a \n<|end|>"]),
        (2 * ONE + [ASKED, ANSWERED | {"weight": 0}], {}, ["a<|end|>", "a<|end|>"]),
        ([said("assistant", "hello"), *ONE], {}, ["hello<|end|>", "a<|end|>"]),
        (
            # lost, as transformers does
            [ASKED, REASONED | {"weight": 0}, ASKED, REASONED | {"weight": 1.0}],
            {},
            ["<think>so</think>a<|end|>"],
        ),
    ],
)
def test_what_a_template_reads_is_there_as_in_transformers(talk, beside, expected, opened, theirs):
    tokens, found = answers(Template(READS, NAMES, opened, "here"), opened, talk, beside)
    plain = [
        {name: value for name, value in message.items() if name != "weight"} for message in talk
    ]
    # Special tokens that a message spells are text.
    rendered = theirs.apply_chat_template(
        plain, chat_template=READS, sanitize_control_tokens=True, **beside
    )["input_ids"]
    assert found == expected and tokens.tolist() == rendered[: len(tokens)]


def test_texts_in_parts_are_one_text(opened, theirs):
    talk = [
        said("user", [{"type": "text", "text": "q "}, {"type": "text", "text": "r"}]),
        *asked_and_answered(("s", "a")),
    ]
    talk[1:2] = [said("assistant", [{"type": "text", "text": "b"}]), talk[1]]
    tokens, found = answers(Template(LISTS, NAMES, opened, "here"), opened, talk)
    assert found == ["b<|end|>", "a<|end|>"]
    assert (
        tokens.tolist()
        == theirs.apply_chat_template(talk, chat_template=LISTS)["input_ids"][: len(tokens)]
    )


@pytest.mark.parametrize(
    ("source", "talk", "message"),
    [
        (USUAL, [ASKED, REASONED], 'the field "reasoning_content"; remove'),
        (USUAL, [ASKED | {"name": "ann"}, ANSWERED], 'the field "name"; remove'),
        (
            READS,
            2 * [ASKED, REASONED],
            r'all of the field "reasoning_content" of answer 1; .* "weight": 0',
        ),
        (
            READS,
            [said("user", [{"type": "text", "text": "q"}]), ANSWERED],
            "message 1, a list of parts, as",
        ),
        (
            turns("{{ (m.content or [])[:5] }}"),
            LONGER,
            'not write all of the field "content" of answer 1',
        ),
        (turns("{{ m.content }}{{ m.content }}"), ONE, "hides where answer 1 ends"),
        (turns("{{ m.role }}"), ONE, "hides where answer 1 ends"),
        (turns("{{ m.content }}", ""), ONE, "it has no add_generation_prompt; change the"),
        (
            turns("{{ m.content }}", ASKS.replace("{% endif", "<think>{% endif")),
            ONE,
            r"answer 1 begins: it asks for one with '<think>', and writes 'a<\|end\|>",
        ),
        (
            turns("{{ m.content }}", before="{{ messages[0].role[:0] }}"),
            ONE[1:],
            "begins: it refuses what comes",
        ),
        (
            turns("{{ m.content + '' }}"),
            [ASKED, CALLING],
            r"prompt \(.*\), with the fields tool_calls",
        ),
        (turns("{{ m.content / 0 }}"), ONE, "refuses this prompt"),
        (turns("{{ m.content.split('') }}"), ONE, r"refuses this prompt \(empty separator\)"),
        (USUAL, asked_and_answered(("q", "a\ufdd0")), "U[+]FDD0"),
    ],
)
def test_what_would_be_lost_is_refused(source, talk, message, opened):
    with expect_input_error(message):
        Template(source, NAMES, opened, "here").parts(talk, {})


@pytest.mark.parametrize("beside", [{"tools": TOOLS}, {"documents": [{}]}])
def test_what_stands_beside_and_would_be_lost_is_refused(beside, opened):
    with expect_input_error(f'the field "{next(iter(beside))}"; remove'):
        Template(USUAL, NAMES, opened, "here").parts(ONE, beside)


def test_thinking_that_is_asked_for_belongs_to_the_prompt(opened):
    source = turns("{{ m.content }}", ASKS.replace("{% endif", "<think>\n{% endif"))
    template = Template(source, NAMES, opened, "here")
    talk = asked_and_answered(("q", "<think>\nso</think>a"))
    assert answers(template, opened, talk)[1] == ["so</think>a<|end|>"]
    # What ends an answer is known of a template that would refuse one without thinking.
    assert template.ends() == "<|end|>"
    assert np.array_equal(template.encode(template.parts(talk)[0]), template("q"))
