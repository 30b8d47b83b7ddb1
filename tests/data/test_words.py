"""Tokens of words: the same for the same words, wherever lines break."""

import json
import re

import numpy as np
import pytest
from test_tokenizer import byte_level

from memsinks_jax.data.embedded import stories
from memsinks_jax.data.tokenizer import JsonTokenizer, train_tokenizer
from memsinks_jax.data.words import Words

TEXT = " ".join(stories.story(1, index).text for index in range(4)) + ' He said: "(naïve) 漢字文 – 12,345 x".'


def word_pieces():
    """Words behind a space begin with ▁, as Llama's tokenizer writes them; unknown characters become bytes."""
    units = [chr(code) for code in range(33, 127)] + ["▁", "▁the", "he", "▁t"]
    pieces = ["<|endoftext|>", *(f"<0x{byte:02X}>" for byte in range(256)), *units]
    merges = ["▁ t", "h e", "▁t he"]
    model = {"type": "BPE", "vocab": {p: n for n, p in enumerate(pieces)}, "merges": merges, "byte_fallback": True}
    end = {"id": 0, "content": "<|endoftext|>", "special": True} | dict.fromkeys(
        ["single_word", "lstrip", "rstrip", "normalized"], False
    )
    decoder = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return JsonTokenizer(
        json.dumps(
            {
                "model": model,
                "added_tokens": [end],
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Prepend", "prepend": "▁"},
                        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                    ],
                },
                "decoder": {"type": "Sequence", "decoders": decoder},
            }
        ).encode()
    )


TOKENIZERS = {
    "ours": lambda: train_tokenizer([TEXT], 400),
    "bytes": lambda: JsonTokenizer(byte_level()),
    "pieces": word_pieces,
}


@pytest.fixture(scope="module", params=[*TOKENIZERS])
def tokenizer(request):
    return TOKENIZERS[request.param]()


def wrapped(width, margin):
    lines = re.findall(rf"(\S.{{0,{width}}})(?:\s+|$)", TEXT)
    return "\n".join(margin + line for line in lines)


@pytest.mark.parametrize("text", [wrapped(50, ""), wrapped(31, "  "), wrapped(70, "\t"), TEXT.replace(" ", "\r\n\n")])
def test_words_are_the_same_wherever_lines_break(tokenizer, text):
    assert text.split() == TEXT.split() and text != TEXT
    check_same(tokenizer, text)


@pytest.mark.parametrize("margin", ["> ", ">> ", "> > ", " * ", "# ", "\t// ", ";; "])
def test_quoted_text_and_comments_have_the_same_words(tokenizer, margin):
    check_same(tokenizer, wrapped(60, margin))


def check_same(tokenizer, text):
    words = Words(tokenizer)
    expected, found = (words(tokenizer.encode(each)) for each in (TEXT, text))
    assert found.tokens.tolist() == expected.tokens.tolist() and len(found.tokens) > 100
    assert tokenizer.encode(text).tolist() != tokenizer.encode(TEXT).tolist()


def test_every_token_with_a_letter_or_digit_stands_in_a_word(tokenizer):
    tokens = tokenizer.encode(wrapped(40, " "))
    _, starts, stops = Words(tokenizer)(tokens)
    inside = np.zeros(len(tokens), bool)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        inside[start:stop] = True
    assert (starts < stops).all() and (np.diff(starts) >= 0).all()
    assert not any(map(str.isalnum, tokenizer.decode(tokens[~inside])))
    assert tokenizer.decode(tokens[inside]).split() != [] and not inside.all()


def test_no_word_goes_across_a_bound(tokenizer):
    tokens = tokenizer.encode("one two")
    apart = np.concatenate([tokens, tokenizer.encode("three")])
    words = Words(tokenizer)
    found = words(apart, np.array([0, len(tokens), len(apart)]))
    assert found.tokens.tolist() == [*words(tokens).tokens, *words(tokenizer.encode("three")).tokens]
    assert words(tokens[:0]).tokens.shape == (0,)
