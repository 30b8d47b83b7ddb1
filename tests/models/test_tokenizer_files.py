"""Other libraries encode and decode with exported tokenizers as we do."""

import io
import json
import random

import numpy as np
import pytest
import sentencepiece
from conftest import expect_input_error
from test_tokenizer import AWKWARD, TEXTS, byte_level

from memsinks_jax.data.embedded.stories import story
from memsinks_jax.data.tokenizer import JsonTokenizer, Tokenizer, open_tokenizer, train_tokenizer
from memsinks_jax.models.tokenizer_files import same_tokens, write_tokenizer

# Documents whose tokenizers have pieces with the characters of reserved ones, several spaces,
# digits, marks.
CODE = [
    f'<p class="pad">{n} unk\n    if x < {n * 37}:  # end of text\n\t\treturn <0x{n:02X}>|\n'
    for n in range(256)
]
STORIES = [story(1, index).text for index in range(400)]

ALPHABETS = (
    "ab ",
    "  \n\t",
    "abcdefgh ,.!?\n",
    "\U0001f600e\u0301\u6f22\u5b57\u00df\u200d\u200b",
    "\u2581 a",
    "<0x41>|pad unk",
    "\r\n a",
    "\x00\x7f\ufeff\u2028\u3000\xa0 x",
    "0123456789 ,.",
)
SPELLED = (
    "<|endoftext|>",
    "<pad>",
    "<unk>",
    "<s>",
    "<0x41>",
    "<0xFF>",
    "\u2581\u2581",
    "\r\n",
    12 * " ",
    5 * "\n",
)


def random_texts(count):
    draw = random.Random(0)
    for _ in range(count):
        alphabet = draw.choice([*ALPHABETS, None])
        length = draw.randint(0, 60)
        if alphabet:
            text = "".join(draw.choices(alphabet, k=length))
        else:  # any character that can be written down
            text = "".join(
                chr(c) for c in draw.choices(range(0x110000), k=length) if not 0xD800 <= c < 0xE000
            )
        if draw.random() < 0.4:
            at = draw.randint(0, len(text))
            text = text[:at] + draw.choice(SPELLED) + text[at:]
        yield text


EVERY_TEXT = ["", *AWKWARD, *SPELLED, *CODE[::8], *STORIES, *random_texts(2000)]


@pytest.fixture(scope="module", params=["stories", "code"])
def written(request, tmp_path_factory):
    """-> (a tokenizer, the folder that it was written to)."""
    tokenizer = train_tokenizer(TEXTS if request.param == "stories" else CODE, 800)
    folder = tmp_path_factory.mktemp(request.param)
    write_tokenizer(tokenizer, folder, 128)
    return tokenizer, folder


def auto(folder, family=None):
    transformers = pytest.importorskip("transformers")
    if family:
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_tokenizer_json_is_the_sentencepiece_model(written):
    tokenizer, folder = written
    exported = JsonTokenizer((folder / "tokenizer.json").read_bytes())
    assert (folder / "tokenizer.model").read_bytes() == tokenizer.model
    assert open_tokenizer(folder).model == tokenizer.model
    assert (exported.vocabulary_size, exported.end_of_text) == (
        tokenizer.vocabulary_size,
        tokenizer.end_of_text,
    )
    for text in EVERY_TEXT:
        tokens = tokenizer.encode(text)
        assert exported.encode(text).tolist() == tokens.tolist(), repr(text)
        assert exported.decode(tokens) == tokenizer.decode(tokens), repr(text)
        assert exported.decode([1, *tokens, 1, 0]) == tokenizer.decode([1, *tokens, 1, 0]), repr(
            text
        )


def test_ordinary_pieces_in_any_order_are_decoded_alike(written):
    """As a model may write them, except for what no encoding has: bytes that are no UTF-8, and a
    space's byte.
    """
    tokenizer, folder = written
    exported = JsonTokenizer((folder / "tokenizer.json").read_bytes())
    odd, draw = {4 + ord(" "), *range(4 + 128, 4 + 256)}, random.Random(0)
    for _ in range(500):
        tokens = draw.choices(
            [i for i in range(3, tokenizer.vocabulary_size) if i not in odd], k=12
        )
        assert exported.decode(tokens) == tokenizer.decode(tokens)


@pytest.mark.parametrize("family", [None, "gpt2", "llama"])
def test_transformers_opens_it_with_the_same_encodings(written, family):
    tokenizer, folder = written
    theirs = auto(folder, family)
    end = "<|endoftext|>"
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token, theirs.unk_token) == (
        end,
        end,
        "<pad>",
        "<unk>",
    )
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.unk_token_id) == (1, 0, 2)
    assert (len(theirs), theirs.model_max_length) == (tokenizer.vocabulary_size, 128)
    for text in EVERY_TEXT[:600] if family else EVERY_TEXT:
        tokens = tokenizer.encode(text).tolist()
        assert theirs(text)["input_ids"] == theirs.encode(text) == tokens, repr(text)
        assert theirs.decode(tokens) == tokenizer.decode(tokens), repr(text)
        assert theirs.decode([1, *tokens, 1, 0], skip_special_tokens=True) == tokenizer.decode(
            tokens
        ), repr(text)


def test_the_same_tokenizer_in_two_kinds_of_files_is_the_same(written):
    tokenizer, folder = written
    exported = JsonTokenizer((folder / "tokenizer.json").read_bytes())
    assert exported.model != tokenizer.model and same_tokens(tokenizer, exported)
    assert not same_tokens(tokenizer, train_tokenizer(TEXTS[:100] + CODE[:9], 800))


def test_tokenizers_are_compared_whole():
    """One sentence is cut alike by all of these; and none is another's."""
    content = json.loads(byte_level())
    probe = "Once upon a time"

    def changed(change):
        other = json.loads(byte_level())
        change(other)
        return JsonTokenizer(json.dumps(other).encode())

    def swap_pieces(other):
        names = list(other["model"]["vocab"])
        one = next(name for name in names if "z" in name)
        two = next(name for name in names if "q" in name)
        vocab = other["model"]["vocab"]
        vocab[one], vocab[two] = vocab[two], vocab[one]

    one = JsonTokenizer(byte_level())
    others = [
        changed(lambda other: other["model"]["merges"].reverse()),
        changed(swap_pieces),
        changed(lambda other: other["model"].update(ignore_merges=True)),
        changed(lambda other: other.update(normalizer={"type": "NFC"})),
        changed(
            lambda other: other["added_tokens"].append(
                other["added_tokens"][0] | {"id": 601, "content": "~~"}
            )
        ),
        changed(
            lambda other: other.update(
                pre_tokenizer={
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Digits", "individual_digits": True},
                        other["pre_tokenizer"],
                    ],
                }
            )
        ),
    ]
    assert (
        sum(np.array_equal(one.encode(probe), other.encode(probe)) for other in others)
        >= len(others) - 1
    )
    assert not any(same_tokens(one, other) for other in others)
    # as a GGUF file is opened
    in_other_words = {"type": "Sequence", "pretokenizers": [content["pre_tokenizer"]]}
    assert same_tokens(one, changed(lambda other: other.update(pre_tokenizer=in_other_words)))


def test_a_tokenizer_json_is_written_as_it_is(tmp_path):
    tokenizer = JsonTokenizer(byte_level())
    write_tokenizer(tokenizer, tmp_path, 64)
    assert (tmp_path / "tokenizer.json").read_bytes() == byte_level()
    assert not (tmp_path / "tokenizer.model").exists()
    assert open_tokenizer(tmp_path).model == byte_level()
    for family in (None, "gpt2", "llama"):
        theirs = auto(tmp_path, family)
        assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (600, 600, 600)
        assert (len(theirs), theirs.model_max_length) == (601, 64)
        for text in EVERY_TEXT[:600]:
            tokens = tokenizer.encode(text)
            assert theirs(text)["input_ids"] == tokens.tolist(), repr(text)
            assert theirs.decode(tokens) == tokenizer.decode(tokens) == text


def test_end_of_text_that_was_given_is_written(tmp_path):
    write_tokenizer(
        JsonTokenizer(byte_level(["</s>", "<|im_end|>", "<pad>"]), end_of_text=601), tmp_path, 64
    )
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert special == {"bos_token": "<|im_end|>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert special.items() <= settings.items()


def sentencepiece_model(**other) -> Tokenizer:
    """A tokenizer with our settings, but for the `other` ones."""
    settings = {"model_type": "unigram", "normalization_rule_name": "identity"}
    settings |= {"remove_extra_whitespaces": False, "byte_fallback": True, "pad_id": 0, "eos_id": 1}
    settings |= {"unk_id": 2, "bos_id": -1, "minloglevel": 2, "user_defined_symbols": ["\n"]}
    settings |= {"vocab_size": 700, "hard_vocab_limit": False}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, **settings | other
    )
    return Tokenizer(model.getvalue())


def test_symbols_of_the_user_are_taken_as_in_sentencepiece(tmp_path):
    tokenizer = sentencepiece_model(user_defined_symbols=["\n", "the", "ow", "\n\n", "ing"])
    write_tokenizer(tokenizer, tmp_path, 64)
    exported = JsonTokenizer((tmp_path / "tokenizer.json").read_bytes(), end_of_text=1)
    for text in EVERY_TEXT:
        assert exported.encode(text).tolist() == tokenizer.encode(text).tolist(), repr(text)


@pytest.mark.parametrize(
    "other",
    [
        {"normalization_rule_name": "nmt_nfkc"},
        {"remove_extra_whitespaces": True},
        {"add_dummy_prefix": False},
        {"model_type": "bpe"},
    ],
    ids=str,
)
def test_a_sentencepiece_model_with_other_settings_is_refused(other, tmp_path):
    with expect_input_error("tokenizer.model: it was made with other settings"):
        write_tokenizer(sentencepiece_model(**other), tmp_path, 64)
    assert not list(tmp_path.iterdir())
