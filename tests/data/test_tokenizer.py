"""Nothing is lost between text and tokens."""

import numpy as np
import pytest

from memsinks_jax.config import InputError
from memsinks_jax.data.stories import story
from memsinks_jax.data.tokenizer import END_OF_TEXT, PADDING, UNKNOWN, Tokenizer, train_tokenizer

TEXTS = [story(0, index).text for index in range(300)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 600)


@pytest.mark.parametrize(
    "text",
    [
        TEXTS[0],
        " lead and  double space ",
        "line\n\nbreaks\tand tabs\r\n",
        "\u6f22\u5b57, \u00e9\u00e0\u00fc and \U0001f600",
        "nul\x00",
        "says <|endoftext|> and <pad> and <unk>",
    ],
)  # fmt: skip
def test_round_trip(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert not {PADDING, END_OF_TEXT, UNKNOWN} & set(tokens.tolist())
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(np.concatenate([[END_OF_TEXT], tokens, [END_OF_TEXT, PADDING]])) == text


def test_training_is_deterministic_and_bounded(tokenizer):
    assert train_tokenizer(TEXTS, 600).model == tokenizer.model
    assert tokenizer.vocabulary_size <= 600
    assert max(max(tokenizer.encode(text)) for text in TEXTS) < 600
    assert train_tokenizer(["tiny"], 600).vocabulary_size < 600


def test_very_long_lines_count(tokenizer):
    """The trainer skips lines over 4192 bytes without a word."""
    assert len(train_tokenizer([" ".join(TEXTS)], 600).encode(TEXTS[0])) < 1.3 * len(tokenizer.encode(TEXTS[0]))


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(InputError, match="raise --config.data.vocabulary_size"):
        train_tokenizer(["".join(map(chr, range(200, 900)))], 300)


def test_another_file_is_refused(tokenizer):
    with pytest.raises(InputError, match="here/tokenizer.model: not a sentencepiece model"):
        Tokenizer(b"no model", "here/tokenizer.model")
