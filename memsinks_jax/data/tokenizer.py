"""Tokenizers: our own lossless sentencepiece models, any tokenizer.json, and those of GGUF
files.
"""

import io
import json
import math
import pathlib
import random
from collections.abc import Sequence

import numpy as np
import sentencepiece
import tokenizers

from memsinks_jax.config import DataConfig, InputError
from memsinks_jax.data.gguf_file import SUFFIX, open_gguf

# pads rows with every tokenizer, at weight 0; in other tokenizers it may be an ordinary token
PADDING = 0
END_OF_TEXT = 1  # of our own models; elsewhere use the tokenizer's `end_of_text`
UNKNOWN = 2  # never produced: unknown characters become bytes

# More text than this does not change a small vocabulary, and the trainer's time grows with it.
TRAINING_CHARACTERS = 4_000_000
# the trainer silently skips lines over 4192 bytes, so longer ones are split
LINE_CHARACTERS = 2_000
_PIECES = 6.7  # of a vocabulary, over the root of the bytes of text
_MOST_PIECES = 2**15

# Names of end of text in tokenizer.json files: GPT-2 and SmolLM, Llama and Llama 2, Llama 3.
END_OF_TEXT_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>")

# Next to the tokenizer.json of a workdir or a prepared corpus: the tokens around documents, which
# that file lacks.
_SPECIAL = "special_tokens.json"


class Tokenizer:
    """`model` is the content of one of our sentencepiece `tokenizer.model` files.

    It is lossless: unknown characters fall back to bytes, and white space is kept.
    """

    file_name = "tokenizer.model"
    end_of_text = begin_of_text = END_OF_TEXT
    stops = (END_OF_TEXT,)
    absent = ()  # ids below vocabulary_size without a token
    special = (PADDING, END_OF_TEXT, UNKNOWN)  # no text is encoded as these

    def __init__(self, model: bytes, where: str = "tokenizer.model"):
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError):
            raise InputError(
                f"{where}: not a sentencepiece model; give a tokenizer.model, a tokenizer.json, "
                "or their folder"
            ) from None
        ids = (self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id())
        if ids != (PADDING, END_OF_TEXT, UNKNOWN):
            raise InputError(
                f"{where}: padding, end of text, unknown are {ids}; need "
                f"{PADDING, END_OF_TEXT, UNKNOWN}"
            )

    @property
    def vocabulary_size(self) -> int:
        return self._processor.vocab_size()

    @property
    def files(self) -> dict[str, bytes]:
        """{name: content}, from which `open_tokenizer` makes this tokenizer again."""
        return {self.file_name: self.model}

    def encode(self, text: str) -> np.ndarray:
        """Text -> int32 (tokens,), without end of text. Text that spells a control piece stays
        ordinary text.
        """
        return np.asarray(self._processor.encode(whole(text)), np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """int (tokens,) -> text, without padding, end of text, and ids without a piece: a model may
        have such ids, and generate them early in training.
        """
        of_text = [
            int(t) for t in tokens if t not in (PADDING, END_OF_TEXT) and t < self.vocabulary_size
        ]
        return self._processor.decode(of_text)


def half_character(text: str) -> int | None:
    """Where half of a character stands in a text; None if nowhere. JSON may spell one, and a
    command line makes one of bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def whole(text: str) -> str:
    """The text. Raises InputError for half of a character in it."""
    if (at := half_character(text)) is not None:
        raise InputError(f"{text[:40]!a}: no text, but half a character at {at}; give UTF-8")
    return text


class JsonTokenizer:
    """`model` is the content of a Hugging Face `tokenizer.json` file, such as GPT-2's, SmolLM's or
    Llama's.

    Args:
      end_of_text: id of the token that ends documents; None: the one with a name of
        END_OF_TEXT_NAMES.
      begin_of_text: id of the token that opens documents; None: end of text.
      stops: other ids that end what is generated.
    Raises:
      InputError: no such file, or no such token in it.
    """

    file_name = "tokenizer.json"

    def __init__(
        self,
        model: bytes,
        where: str = "tokenizer.json",
        end_of_text: int | None = None,
        begin_of_text: int | None = None,
        stops: Sequence[int] = (),
    ):
        self.model = model
        self._tokenizer = read_json_tokenizer(model, where)
        self._tokenizer.encode_special_tokens = True
        pieces = self._tokenizer.get_vocab(with_added_tokens=True)
        if not pieces:
            raise InputError(f"{where}: the tokenizer has no pieces; take another file")
        self.vocabulary_size = max(pieces.values()) + 1  # not their number: files may leave ids out
        if end_of_text is None:
            end_of_text = next((pieces[name] for name in END_OF_TEXT_NAMES if name in pieces), None)
        if end_of_text is None:
            raise InputError(
                f"{where}: no token is called {' or '.join(END_OF_TEXT_NAMES)}; name the one "
                "that ends documents: eos_token "
                "in a tokenizer_config.json next to it, or memsinks_jax.prepare --end_of_text=TOKEN"
            )
        self.end_of_text = end_of_text
        self.begin_of_text = end_of_text if begin_of_text is None else begin_of_text
        known = set(pieces.values())
        self.absent = tuple(sorted(set(range(self.vocabulary_size)) - known))
        for token in (end_of_text, self.begin_of_text, *stops):
            if not isinstance(token, int) or token not in known:
                raise InputError(
                    f"{where}: end of text is to be token {token}, which the tokenizer does not "
                    "have"
                )
        self.stops = tuple(dict.fromkeys([end_of_text, *stops]))
        added = self._tokenizer.get_added_tokens_decoder()
        named = (number for number, token in added.items() if token.special)
        plain, whole = (
            self._tokenizer.encode("", add_special_tokens=adds).ids for adds in (False, True)
        )
        around = set(whole).difference(plain)  # what the file itself puts around a text
        self.special = tuple(sorted({self.begin_of_text, *self.stops, *named, *around}))

    @property
    def files(self) -> dict[str, bytes]:
        """{name: content}, from which `open_tokenizer` makes this tokenizer again."""
        special = {
            "end_of_text": self.end_of_text,
            "begin_of_text": self.begin_of_text,
            "stops": self.stops,
        }
        return {self.file_name: self.model, _SPECIAL: (json.dumps(special) + "\n").encode()}

    def encode(self, text: str) -> np.ndarray:
        """Text -> int32 (tokens,), without end of text or any other token that the file would add.

        Text that spells a special token of the file stays ordinary text.
        """
        # The fast one skips the tokens' places in the text, which are not needed here: a sixth of
        # the time.
        (encoded,) = self._tokenizer.encode_batch_fast([whole(text)], add_special_tokens=False)
        return np.asarray(encoded.ids, np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """int (tokens,) -> text; without end of text and special tokens. Padding is identified only
        by its weight.
        """
        around = {self.begin_of_text, *self.stops}
        of_text = [int(token) for token in tokens if int(token) not in around]
        return self._tokenizer.decode(of_text, skip_special_tokens=True)


AnyTokenizer = Tokenizer | JsonTokenizer


def read_json_tokenizer(model: bytes, where: str) -> tokenizers.Tokenizer:
    """Without what a file may ask for and would change documents: truncation and padding."""
    try:
        opened = tokenizers.Tokenizer.from_buffer(model)
    except ValueError as error:
        raise InputError(
            f"{where}: not a tokenizer.json ({' '.join(str(error).split())})"
        ) from None
    opened.no_truncation()
    opened.no_padding()
    return opened


def open_tokenizer(path: pathlib.Path, end_of_text: int | str | None = None) -> AnyTokenizer:
    """A tokenizer.model or tokenizer.json, the folder of one, or a GGUF file.

    If a folder has both, tokenizer.model is used if it is one of ours, because tokenizer.json is
    then a copy.

    Args:
      end_of_text: of a tokenizer.json: a token's name; or its id, if the files next to it do not
        matter. None: what these files have, else as in JsonTokenizer.
    Raises:
      InputError: no file, another kind of file, a damaged file.
    """
    if path.is_dir():
        ours, other = path / Tokenizer.file_name, path / JsonTokenizer.file_name
        if not ours.is_file() and not other.is_file():
            raise InputError(
                f"{path} holds neither {ours.name} nor {other.name}; give the file or a folder "
                "with one"
            )
        if ours.is_file() and other.is_file():
            try:
                return open_tokenizer(ours)
            # Llama's own, for example: its ids differ, and its tokenizer.json has the same
            except InputError:
                return open_tokenizer(other, end_of_text)
        path = ours if ours.is_file() else other
    if path.suffix == SUFFIX:
        model = open_gguf(path)
        return JsonTokenizer(model.tokenizer(), str(path), *model.tokens_around())
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; give a tokenizer.model or .json file"
        ) from None
    if path.suffix == ".json":
        return JsonTokenizer(content, str(path), *_special(path, content, end_of_text))
    if isinstance(end_of_text, str):
        raise InputError(
            f"--end_of_text={end_of_text} is for a tokenizer.json; {path} has its own, so leave "
            "it out"
        )
    return Tokenizer(content, str(path))


def _special(
    path: pathlib.Path, content: bytes, end_of_text: int | str | None
) -> tuple[int | None, int | None, list[int]]:
    """The tokens around documents, from the files next to a tokenizer.json -> the arguments of
    JsonTokenizer.
    """
    folder = path.parent
    if not isinstance(end_of_text, str) and (special := read_object(folder / _SPECIAL)):
        try:
            return special["end_of_text"], special["begin_of_text"], special["stops"]
        except KeyError as error:
            raise InputError(
                f"{folder / _SPECIAL}: {error.args[0]} is missing; put a copy in its place"
            ) from None
    if isinstance(end_of_text, int):
        return end_of_text, None, []
    opened, names = read_json_tokenizer(content, str(path)), special_names(folder)

    def known(token: str | None) -> list[int]:
        return [] if token is None or (number := opened.token_to_id(token)) is None else [number]

    if isinstance(end_of_text, str):
        ends = known(end_of_text)
        if not ends:
            raise InputError(
                f"{path}: end of text is to be {end_of_text!r}, which the tokenizer does not have"
            )
    else:
        settings = (
            read_object(folder / name) for name in ("config.json", "generation_config.json")
        )
        ends = [token for each in settings for token in listed(each.get("eos_token_id"))]
        ends = ends or known(names.get("eos_token"))
    adds = read_object(folder / "tokenizer_config.json").get("add_bos_token")
    if adds is None:
        plain, whole = opened.encode("a", add_special_tokens=False).ids, opened.encode("a").ids
        begins = whole[:1] if whole[:1] != plain[:1] and whole[1 : 1 + len(plain)] == plain else []
    else:
        begins = known(names.get("bos_token")) if adds else []
    return (ends[0] if ends else None), (begins[0] if begins else None), ends


def special_names(folder: pathlib.Path) -> dict[str, str]:
    """The special tokens of a Hugging Face folder, {"eos_token": "</s>", ...}."""
    stated = read_object(folder / "special_tokens_map.json") | read_object(
        folder / "tokenizer_config.json"
    )
    found = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in stated.items()
    }
    return {
        name: token
        for name, token in found.items()
        if name.endswith("_token") and isinstance(token, str)
    }


def listed(ids: int | list[int] | None) -> list[int]:
    """Ids that a file of a Hugging Face folder has as a number or as a list."""
    return [] if ids is None else ids if isinstance(ids, list) else [ids]


def read_object(path: pathlib.Path) -> dict:
    """The object in a JSON file; {} if there is no such file. Raises InputError if it is
    damaged.
    """
    try:
        content = json.loads(path.read_text()) if path.is_file() else {}
        if not isinstance(content, dict):
            raise ValueError("no object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); put a copy in its place") from None


def pieces_for(text_bytes: int) -> int:
    """The size of a vocabulary that fits an amount of text: a power of two that grows with its
    root, at least as many as `train` takes by default (measured in docs/data.md).
    """
    nearest = 2 ** round(math.log2(_PIECES * math.sqrt(max(text_bytes, 1))))
    return min(max(nearest, DataConfig.vocabulary_size), _MOST_PIECES)


def train_tokenizer(texts: list[str], vocabulary_size: int) -> Tokenizer:
    """A unigram model of at most `vocabulary_size` pieces; the same texts give the same bytes.

    Raises:
      InputError: the texts have more distinct characters than the vocabulary has room for.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_training_lines(texts)),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,  # a small corpus may not fill the vocabulary
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            user_defined_symbols=["\n"],
            pad_id=PADDING,
            eos_id=END_OF_TEXT,
            eos_piece="<|endoftext|>",
            unk_id=UNKNOWN,
            bos_id=-1,
            # several threads add floats in any order, which gives another vocabulary each time
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(
            f"no tokenizer of {vocabulary_size} pieces fits this text; raise "
            "--config.data.vocabulary_size, of prepare "
            f"--vocabulary_size (sentencepiece says: {str(error).strip()})"
        ) from None
    return Tokenizer(model.getvalue())


def _training_lines(texts: list[str]) -> list[str]:
    lines = []
    for text in texts:
        for line in text.split("\n"):
            lines += [
                line[at : at + LINE_CHARACTERS] for at in range(0, len(line), LINE_CHARACTERS)
            ]
    if sum(map(len, lines)) <= TRAINING_CHARACTERS:
        return lines
    random.Random(0).shuffle(lines)
    chosen, characters = [], 0
    for line in lines:
        characters += len(line)
        if characters > TRAINING_CHARACTERS:
            break
        chosen.append(line)
    return chosen
