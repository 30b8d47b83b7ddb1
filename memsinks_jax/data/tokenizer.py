"""A sentencepiece tokenizer that loses nothing: unknown characters fall back to bytes, white space is kept."""

import io
import random

import numpy as np
import sentencepiece

from memsinks_jax.config import InputError

PADDING = 0
END_OF_TEXT = 1
UNKNOWN = 2  # never produced: bytes stand in for unknown characters

# More text than this does not change a small vocabulary, and the trainer's time grows with it.
TRAINING_CHARACTERS = 4_000_000
LINE_CHARACTERS = 2_000  # the trainer silently skips lines over 4192 bytes: longer ones are cut


class Tokenizer:
    """`model` is the content of a sentencepiece `tokenizer.model` file."""

    def __init__(self, model: bytes, where: str = "tokenizer.model"):
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError) as error:
            raise InputError(f"{where}: not a sentencepiece model ({str(error).strip()})") from None
        ids = (self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id())
        if ids != (PADDING, END_OF_TEXT, UNKNOWN):
            raise InputError(f"{where}: padding, end of text, unknown are {ids}; need {PADDING, END_OF_TEXT, UNKNOWN}")

    @property
    def vocabulary_size(self) -> int:
        return self._processor.vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """Text -> int32 (tokens,), without end of text. Text that spells a control piece stays ordinary text."""
        return np.asarray(self._processor.encode(text), np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """int (tokens,) -> text; padding and end of text are left out."""
        kept = [int(token) for token in tokens if token not in (PADDING, END_OF_TEXT)]
        return self._processor.decode(kept)


def train_tokenizer(texts: list[str], vocabulary_size: int) -> Tokenizer:
    """A unigram model of at most `vocabulary_size` pieces; the same texts give the same bytes.

    Raises:
      InputError: the texts hold more distinct characters than the vocabulary has room for.
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
            num_threads=1,  # several threads add floats in any order: another vocabulary each time
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(
            f"no tokenizer of {vocabulary_size} pieces fits this text; raise --config.data.vocabulary_size "
            f"(sentencepiece says: {str(error).strip()})"
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
