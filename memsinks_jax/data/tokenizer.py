"""Tokenizers: our own lossless sentencepiece models, and any tokenizer.json."""

import io
import pathlib
import random

import numpy as np
import sentencepiece
import tokenizers

from memsinks_jax.config import InputError

PADDING = 0  # pads rows with every tokenizer, at weight 0; in other tokenizers it may be an ordinary token
END_OF_TEXT = 1  # of our own models; elsewhere use the tokenizer's `end_of_text`
UNKNOWN = 2  # never produced: unknown characters become bytes

# More text than this does not change a small vocabulary, and the trainer's time grows with it.
TRAINING_CHARACTERS = 4_000_000
LINE_CHARACTERS = 2_000  # the trainer silently skips lines over 4192 bytes, so longer ones are split

# Names of end of text in tokenizer.json files: GPT-2 and SmolLM, Llama and Llama 2, Llama 3.
END_OF_TEXT_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>")


class Tokenizer:
    """`model` is the content of one of our sentencepiece `tokenizer.model` files.

    It is lossless: unknown characters fall back to bytes, and white space is kept.
    """

    file_name = "tokenizer.model"
    end_of_text = END_OF_TEXT

    def __init__(self, model: bytes, where: str = "tokenizer.model"):
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError):
            raise InputError(
                f"{where}: not a sentencepiece model; give a tokenizer.model, a tokenizer.json, or their folder"
            ) from None
        ids = (self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id())
        if ids != (PADDING, END_OF_TEXT, UNKNOWN):
            raise InputError(f"{where}: padding, end of text, unknown are {ids}; need {PADDING, END_OF_TEXT, UNKNOWN}")

    @property
    def vocabulary_size(self) -> int:
        return self._processor.vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """Text -> int32 (tokens,), without end of text. Text that spells a control piece stays ordinary text."""
        return np.asarray(self._processor.encode(_whole(text)), np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """int (tokens,) -> text, without padding, end of text, and ids without a piece: a model may have such ids, and
        generate them early in training."""
        kept = [int(t) for t in tokens if t not in (PADDING, END_OF_TEXT) and t < self.vocabulary_size]
        return self._processor.decode(kept)


def _whole(text: str) -> str:
    """The text. Raises InputError for a lone surrogate: a command line makes one of bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{text[:40]!a}: no text, but half a character at {error.start}; give UTF-8") from None
    return text


class JsonTokenizer:
    """`model` is the content of a Hugging Face `tokenizer.json` file, such as GPT-2's, SmolLM's or Llama's.

    Args:
      end_of_text: id of the token that ends documents; None: the one with a name of END_OF_TEXT_NAMES.
    Raises:
      InputError: no such file, or no such token in it.
    """

    file_name = "tokenizer.json"

    def __init__(self, model: bytes, where: str = "tokenizer.json", end_of_text: int | None = None):
        self.model = model
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(model)
        except ValueError as error:
            raise InputError(f"{where}: not a tokenizer.json ({' '.join(str(error).split())})") from None
        # What a file may ask for and would change documents: truncation, padding, special tokens in plain text.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        pieces = self._tokenizer.get_vocab(with_added_tokens=True)
        if not pieces:
            raise InputError(f"{where}: the tokenizer has no pieces; take another file")
        self.vocabulary_size = max(pieces.values()) + 1  # not their number: files may leave ids out
        if end_of_text is None:
            named = [pieces[name] for name in END_OF_TEXT_NAMES if name in pieces]
            if not named:
                raise InputError(f"{where}: no token is called {' or '.join(END_OF_TEXT_NAMES)}; take another file")
            end_of_text = named[0]
        elif self._tokenizer.id_to_token(end_of_text) is None:
            raise InputError(f"{where}: end of text is to be token {end_of_text}, which the tokenizer does not have")
        self.end_of_text = end_of_text

    def encode(self, text: str) -> np.ndarray:
        """Text -> int32 (tokens,), without end of text or any other token that the file would add.

        Text that spells a special token of the file stays ordinary text.
        """
        # The fast one skips the tokens' places in the text, which are not needed here: a sixth of the time.
        (encoded,) = self._tokenizer.encode_batch_fast([_whole(text)], add_special_tokens=False)
        return np.asarray(encoded.ids, np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """int (tokens,) -> text; without end of text and special tokens. Padding is identified only by its weight."""
        kept = [int(token) for token in tokens if token != self.end_of_text]
        return self._tokenizer.decode(kept, skip_special_tokens=True)


AnyTokenizer = Tokenizer | JsonTokenizer


def open_tokenizer(path: pathlib.Path, end_of_text: int | None = None) -> AnyTokenizer:
    """A tokenizer.model or tokenizer.json, or the folder of one.

    If a folder has both, tokenizer.model is used if it is one of ours, because tokenizer.json is then a copy.

    Args:
      end_of_text: as in JsonTokenizer; a tokenizer.model has its own.
    Raises:
      InputError: no file, another kind of file, a damaged file.
    """
    if path.is_dir():
        ours, other = path / Tokenizer.file_name, path / JsonTokenizer.file_name
        if not ours.is_file() and not other.is_file():
            raise InputError(f"{path} holds neither {ours.name} nor {other.name}; give the file or a folder with one")
        if ours.is_file() and other.is_file():
            try:
                return open_tokenizer(ours)
            except InputError:  # Llama's own, for example: its ids differ, and its tokenizer.json says the same
                return open_tokenizer(other, end_of_text)
        path = ours if ours.is_file() else other
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give a tokenizer.model or .json file") from None
    if path.suffix == ".json":
        return JsonTokenizer(content, str(path), end_of_text)
    return Tokenizer(content, str(path))


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
            num_threads=1,  # several threads add floats in any order, which gives another vocabulary each time
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(
            f"no tokenizer of {vocabulary_size} pieces fits this text; raise --config.data.vocabulary_size, of prepare "
            f"--vocabulary_size (sentencepiece says: {str(error).strip()})"
        ) from None
    return Tokenizer(model.getvalue())


def _training_lines(texts: list[str]) -> list[str]:
    lines = []
    for text in texts:
        for line in text.split("\n"):
            lines += [line[at : at + LINE_CHARACTERS] for at in range(0, len(line), LINE_CHARACTERS)]
    if sum(map(len, lines)) <= TRAINING_CHARACTERS:
        return lines
    random.Random(0).shuffle(lines)
    kept, characters = [], 0
    for line in lines:
        characters += len(line)
        if characters > TRAINING_CHARACTERS:
            break
        kept.append(line)
    return kept
