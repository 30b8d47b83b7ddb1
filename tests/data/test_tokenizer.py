"""Nothing is lost between text and tokens."""

import json

import numpy as np
import pytest
import tokenizers
from conftest import expect_input_error

from memsinks_jax.data.embedded.stories import story
from memsinks_jax.data.tokenizer import (
    END_OF_TEXT,
    PADDING,
    UNKNOWN,
    JsonTokenizer,
    Tokenizer,
    open_tokenizer,
    train_tokenizer,
)

TEXTS = [story(0, index).text for index in range(300)]
AWKWARD = [
    TEXTS[0],
    " lead and  double space ",
    "line\n\nbreaks\tand tabs\r\n",
    "\u6f22\u5b57, \u00e9\u00e0\u00fc and \U0001f600",
    "nul\x00",
    "says <|endoftext|> and <pad> and <unk>",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 600)


def byte_level(special=("<|endoftext|>",), opens="") -> bytes:
    """The tokenizer.json of a byte-level BPE as GPT-2's and SmolLM's are; token 0 is an ordinary
    "!" as GPT-2's.

    The special tokens are 600, 601, ... `opens`: the one that text begins with, as Llama's does.
    """
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens(list(special))
    if opens:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            f"{opens} $A", special_tokens=[(opens, made.token_to_id(opens))]
        )
    return made.to_str().encode()


def test_ids_without_a_piece_are_left_out(tokenizer):
    tokens = tokenizer.encode(TEXTS[0])
    beyond = np.insert(tokens, 3, [tokenizer.vocabulary_size, 2000])
    assert tokenizer.decode(beyond) == tokenizer.decode(tokens)


@pytest.mark.parametrize("text", AWKWARD)
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
    of_one_line = train_tokenizer([" ".join(TEXTS)], 600)
    assert len(of_one_line.encode(TEXTS[0])) < 1.3 * len(tokenizer.encode(TEXTS[0]))


def test_too_small_a_vocabulary_is_refused():
    with expect_input_error("raise --config.data.vocabulary_size"):
        train_tokenizer(["".join(map(chr, range(200, 900)))], 300)


def test_another_file_is_refused(tokenizer):
    with expect_input_error("here/tokenizer.model: not a sentencepiece model"):
        Tokenizer(b"no model", "here/tokenizer.model")


@pytest.mark.parametrize("text", [*AWKWARD, "", "<|endoftext|>"])
def test_a_tokenizer_json_loses_nothing_either(text):
    tokenizer = JsonTokenizer(byte_level())
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert tokenizer.end_of_text == tokenizer.vocabulary_size - 1 == 600
    assert tokenizer.end_of_text not in tokens
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(np.concatenate([[600], tokens, [600]])) == text


def test_half_a_character_is_refused(tokenizer):
    """What Python makes of a command line that is no UTF-8."""
    for one in (tokenizer, JsonTokenizer(byte_level())):
        with expect_input_error(r"'caf\\udce9': no text, but half a character at 3; give UTF-8"):
            one.encode("caf\udce9")


def test_token_zero_of_a_tokenizer_json_is_a_token():
    tokenizer = JsonTokenizer(byte_level())
    assert tokenizer.encode("!!").tolist() == [0, 0]
    assert tokenizer.decode(np.array([0, 0])) == "!!"


def test_a_tokenizer_json_adds_cuts_and_fills_nothing():
    """Whatever its own end of text is, in texts that others give it."""
    made = tokenizers.Tokenizer.from_buffer(byte_level())
    plain = JsonTokenizer(byte_level()).encode(TEXTS[0]).tolist()
    end = ("<|endoftext|>", 600)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        f"{end[0]} $A {end[0]}", special_tokens=[end]
    )
    made.enable_truncation(5)
    made.enable_padding(length=4000)
    assert JsonTokenizer(made.to_str().encode()).encode(TEXTS[0]).tolist() == plain


def test_end_of_text_is_found_by_its_name_or_given():
    assert JsonTokenizer(byte_level(["<s>", "</s>"])).end_of_text == 601
    assert JsonTokenizer(byte_level(["<|begin_of_text|>", "<|end_of_text|>"])).end_of_text == 601
    assert JsonTokenizer(byte_level(["</s>", "<|endoftext|>"])).end_of_text == 601
    given = JsonTokenizer(byte_level(["</s>", "<|im_end|>"]), end_of_text=601)
    assert given.end_of_text == 601
    assert given.decode(np.array([601, 0, 601])) == "!"
    with expect_input_error("here.json: no token is called <|endoftext|> or </s>"):
        JsonTokenizer(byte_level(["<|im_end|>"]), "here.json")
    with expect_input_error(
        "here.json: end of text is to be token 602, which the tokenizer does not"
    ):
        JsonTokenizer(byte_level(["</s>", "<|im_end|>"]), "here.json", end_of_text=602)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", b"[]", byte_level()[:-20]])
def test_a_damaged_tokenizer_json_is_refused_in_one_line(content):
    with expect_input_error("here/tokenizer.json: not a tokenizer.json") as refused:
        JsonTokenizer(content, "here/tokenizer.json")
    assert "\n" not in str(refused.value)


def test_a_tokenizer_json_without_pieces_is_refused():
    empty = json.loads(byte_level([]))
    empty["model"] |= {"vocab": {}, "merges": []}
    with expect_input_error("the tokenizer has no pieces"):
        JsonTokenizer(json.dumps(empty).encode())


def test_either_kind_is_opened_from_a_file_or_a_folder(tokenizer, tmp_path):
    with expect_input_error(
        "holds neither tokenizer.model nor tokenizer.json; give the file or a folder"
    ):
        open_tokenizer(tmp_path)
    with expect_input_error("none.json: cannot be read: No such file"):
        open_tokenizer(tmp_path / "none.json")
    (tmp_path / "tokenizer.json").write_bytes(byte_level(["</s>", "<|im_end|>"]))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert isinstance(open_tokenizer(path), JsonTokenizer)
        assert [open_tokenizer(path, *end).end_of_text for end in ((), (601,))] == [600, 601]
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.model)
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        # of both the one that the other is a copy of
        assert open_tokenizer(path).model == tokenizer.model
    (tmp_path / "tokenizer.model").write_bytes(b"somebody else's")
    assert isinstance(open_tokenizer(tmp_path), JsonTokenizer)


# 600 to 603; no name that end of text usually has
CHAT = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|eot|>")


def folder_of(tmp_path, special=CHAT, opens="", **files):
    (tmp_path / "tokenizer.json").write_bytes(byte_level(special, opens))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


LLAMA, ENDS = {"model_type": "llama"}, {"eos_token_id": [603, 602]}
BY_NAME = {"tokenizer_config": {"eos_token": "<|im_end|>"}}


@pytest.mark.parametrize(
    ("files", "end", "stops"),
    [
        ({"config": LLAMA | {"eos_token_id": 602}}, 602, (602,)),
        ({"config": LLAMA | {"eos_token_id": [602, 603]}}, 602, (602, 603)),
        ({"config": LLAMA | {"eos_token_id": 602}, "generation_config": ENDS}, 602, (602, 603)),
        ({"config": LLAMA, "generation_config": ENDS}, 603, (603, 602)),
        ({"config": LLAMA} | BY_NAME, 602, (602,)),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}}, 602, (602,)),
        ({"special_tokens_map": {"eos_token": "<|eot|>"}}, 603, (603,)),
    ],
)
def test_a_folder_says_its_end_of_text(files, end, stops, tmp_path):
    """The folder and the file in it; the name that others use is not asked."""
    folder = folder_of(tmp_path, (*CHAT, "<|endoftext|>"), **files)
    for place in (folder, folder / "tokenizer.json"):
        opened = open_tokenizer(place)
        assert (opened.end_of_text, opened.begin_of_text, opened.stops) == (end, end, stops)


def test_end_of_text_can_be_chosen_by_name(tmp_path):
    folder = folder_of(tmp_path)
    with expect_input_error(r"no token is called <\|endoftext\|> .*--end_of_text=TOKEN"):
        open_tokenizer(folder)
    assert open_tokenizer(folder, "<|im_end|>").end_of_text == 602
    folder_of(tmp_path, tokenizer_config={"eos_token": "<|eot|>"})
    assert open_tokenizer(folder, "<|im_end|>").stops == (602,)
    with expect_input_error(
        r"end of text is to be '<\|other\|>', which the tokenizer does not have"
    ):
        open_tokenizer(folder, "<|other|>")


def test_end_of_text_stays_with_the_tokenizer(tmp_path):
    """Where a run keeps its tokenizer, it keeps what opens and closes documents, whatever other
    files are there.
    """
    config = LLAMA | {"eos_token_id": [602, 603]}
    source = folder_of(tmp_path, opens="<|im_start|>", config=config)
    before, stored = open_tokenizer(source), tmp_path / "kept"
    assert (before.begin_of_text, before.end_of_text, before.stops) == (601, 602, (602, 603))
    stored.mkdir()
    for name, content in before.files.items():
        (stored / name).write_bytes(content)
    (stored / "config.json").write_text("{}")  # a run's
    for place in (stored, stored / "tokenizer.json"):
        after = open_tokenizer(place)
        assert (after.begin_of_text, after.end_of_text, after.stops) == (601, 602, (602, 603))
    content = '{"end_of_text": 9999, "begin_of_text": 1, "stops": []}'
    (stored / "special_tokens.json").write_text(content)
    with expect_input_error(r"end of text is to be token 9999, which the tokenizer does not have"):
        open_tokenizer(stored)
    (stored / "special_tokens.json").write_text("{")
    with expect_input_error(r"special_tokens.json.* damaged"):
        open_tokenizer(stored)


def test_a_tokenizer_that_opens_text_opens_documents(tmp_path):
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    for opens, added, expected in (
        ("<|im_start|>", {}, 601),
        ("", {"add_bos_token": True}, 601),
        ("<|im_start|>", {"add_bos_token": False}, 602),
    ):
        folder = folder_of(tmp_path, opens=opens, tokenizer_config=settings | added)
        assert open_tokenizer(folder).begin_of_text == expected
