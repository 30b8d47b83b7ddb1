"""A tokenizer as the files of a Hugging Face folder, which `transformers.AutoTokenizer` opens with
the same encodings.

For a sentencepiece model an equivalent tokenizer.json is built. Both choose the segmentation with
the highest sum of scores, sentencepiece in 32 bits and the other in 64, so they may differ for
equal and almost equal sums. Measured: no difference on real documents of a thousand tokens; about
ten tokens if a whole book is one document; and a repeated character can be split as "000", "0" or
as "0", "000". Decoding differs only for generated tokens: bytes that are not UTF-8 become another
number of replacement characters, and a first token that is a space's byte is dropped.
"""

import json
import pathlib
import re

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import AnyTokenizer, Tokenizer, read_json_tokenizer, read_object

SPACE = "\u2581"  # sentencepiece's character for a space

# Characters that other settings of sentencepiece than ours would change.
_PROBES = (
    "",
    " ",
    "\n",
    "  lead and  double space ",
    "line\n\nbreaks\tand tabs\r\n",
    f"{SPACE} and {SPACE}{SPACE}",
    "\ufb01\uff11 e\u0301\u00e9 \u6f22\u5b57 \U0001f600\u200d\U0001f525",
    "nul\x00 \xa0\u3000\u2028\ufeff",
    "A\u0130\u00df",
)

# What the ways to cut text before it is encoded treat differently: contractions, digits,
# punctuation, white space.
_CUT = (
    *_PROBES,
    "It's 12 \xd7 3456, isn't it? 'Twas (foo_bar2)!!\n\n\tx = [1,2]; SHE'LL ",
    "ABCdef  x1y22\u0660 a-b..c\u2019s",
)


def write_tokenizer(
    tokenizer: AnyTokenizer, folder: pathlib.Path, context: int, source: pathlib.Path | None = None
) -> None:
    """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json and, if it is one, the
    tokenizer.model.

    Text that spells a special token stays ordinary text there too, and encodings of a sentencepiece
    model get no special tokens. If another tokenizer.json adds some, it still does, unless it is
    called with add_special_tokens=False.

    Args:
      context: the model's maximum number of tokens.
      source: a folder whose tokenizer_config.json, if it has one, is taken over, but for a context
        that has changed.
    Raises:
      InputError: a sentencepiece model with settings that tokenizer.json cannot express.
    """
    exported, content = exported_tokenizer(tokenizer), tokenizer.model
    settings = read_object(source / "tokenizer_config.json") if source else {}
    if settings:
        before = read_object(source / "config.json")
        if context not in (before.get("max_position_embeddings"), before.get("n_positions")):
            settings["model_max_length"] = context
    else:
        begin, end = map(exported.id_to_token, (tokenizer.begin_of_text, tokenizer.end_of_text))
        padding = end if exported.token_to_id("<pad>") is None else "<pad>"
        special = {"bos_token": begin, "eos_token": end, "pad_token": padding}
        if isinstance(tokenizer, Tokenizer):
            special["unk_token"] = "<unk>"
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,
            **special,
        }
        (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
    if isinstance(tokenizer, Tokenizer):
        (folder / tokenizer.file_name).write_bytes(tokenizer.model)
        content = exported.to_str(pretty=True).encode()
    (folder / "tokenizer.json").write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def exported_tokenizer(tokenizer: AnyTokenizer) -> tokenizers.Tokenizer:
    """The tokenizer of the written tokenizer.json, which takes the names of special tokens in a
    text for these.
    """
    if isinstance(tokenizer, Tokenizer):
        return _from_sentencepiece(tokenizer)
    return read_json_tokenizer(tokenizer.model, tokenizer.file_name)


def same_tokens(one: AnyTokenizer, other: AnyTokenizer) -> bool:
    """Whether two tokenizers cut every text alike: files of two kinds can hold the same tokenizer.

    Vocabulary, merges or scores, added tokens and normalizer must be equal. What cuts text before
    can be written in many ways, of which a GGUF file has only a name, so that is compared on texts.
    """
    if one.model == other.model:
        return True
    first, second = map(exported_tokenizer, (one, other))
    return _decides(first) == _decides(second) and all(
        _cuts(first, text) == _cuts(second, text) for text in _CUT
    )


def _decides(tokenizer: tokenizers.Tokenizer) -> dict:
    """What decides the tokens of a text that is cut. A vocabulary may contain the added tokens, or
    not.
    """
    content = json.loads(tokenizer.to_str())
    model, added = content["model"], content["added_tokens"]
    pieces = model.pop("vocab")
    # In 32 bits, as sentencepiece has them: a tokenizer.json rounds their last digit.
    scores = [np.float32(score) for _, score in pieces] if isinstance(pieces, list) else None
    return {
        "vocabulary": tokenizer.get_vocab(with_added_tokens=True),
        "scores": scores,
        "model": {name: value or None for name, value in model.items()},
        "special": {token["id"] for token in added if token["special"]},  # not looked for in text
        "added": {token["id"]: token for token in added if not token["special"]},
        "normalizer": content["normalizer"],
    }


def _cuts(tokenizer: tokenizers.Tokenizer, text: str) -> list:
    cut = tokenizer.pre_tokenizer
    return [(text, (0, len(text)))] if cut is None else cut.pre_tokenize_str(text)


def _from_sentencepiece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    everything = list(range(model.vocab_size()))
    pieces, scores = model.id_to_piece(everything), model.get_score(everything)
    control = [i for i in everything if model.is_control(i) or model.is_unknown(i)]
    reserved = {*control, *(i for i in everything if model.is_byte(i))}

    # Text may spell a reserved piece ("<0x41>", "<|endoftext|>"). sentencepiece never takes it for
    # one; here every piece is looked for in text. So they cost more than any spelling in known
    # characters, and text is cut around characters that no piece has: those are bytes of their own
    # in any case.
    known = {character for i in everything if i not in reserved for character in pieces[i]}
    unknown = sorted({character for i in reserved for character in pieces[i]} - known)
    unreachable = min(scores) * (1 + max(len(pieces[i]) for i in reserved))
    for i in reserved:
        scores[i] = unreachable
    exported = tokenizers.Tokenizer(
        models.Unigram(
            list(zip(pieces, scores, strict=True)), unk_id=model.unk_id(), byte_fallback=True
        )
    )
    # Not Metaspace, which adds no space before text that begins with one.
    exported.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    if unknown:
        pattern = tokenizers.Regex("|".join(map(re.escape, unknown)))
        exported.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    exported.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    exported.add_special_tokens([pieces[i] for i in control])
    _compare(model, exported, pieces)
    return exported


def _compare(
    model: sentencepiece.SentencePieceProcessor, exported: tokenizers.Tokenizer, pieces: list[str]
) -> None:
    """Raises InputError if the two are not the same tokenizer."""
    exported.encode_special_tokens = True

    def differ(text: str) -> bool:
        return model.encode(text) != exported.encode(text, add_special_tokens=False).ids

    # A few pieces may be split in another way with the same sum.
    if (
        any(map(differ, _PROBES))
        or sum(differ(piece.replace(SPACE, " ")) for piece in pieces) > len(pieces) / 100
    ):
        raise InputError(
            "tokenizer.model: it was made with other settings than those of the tokenizers trained "
            "here, so that no equal tokenizer.json can be written; take a run with a tokenizer "
            "that was trained here, or a tokenizer.json"
        )
