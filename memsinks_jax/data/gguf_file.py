"""GGUF files, in which llama.cpp stores a model: their metadata, their tensors, and their tokenizer
as a tokenizer.json.
"""

import functools
import pathlib
import re

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from memsinks_jax.config import InputError

SUFFIX = ".gguf"
_SPACE = "\u2581"
# types of tokens; an unused one is an embedding without a token
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")

# Here whole words come before merges, and bos opens a document unless the file sets it.
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
# How text is cut before pairs are merged, by `tokenizer.ggml.pre`: a regular expression of its own,
# or GPT-2's (None), with digits cut apart or not. transformers ignores this name.
_CONTRACTIONS, _REST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CUTS = {name: (None, False) for name in ("gpt-2", "olmo", "jais", "mpt")}
_CUTS |= {
    name: (None, True) for name in ("smollm", "starcoder", "refact", "command-r", "codeshell")
}
_CUTS |= {
    name: (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}", False)
    for name in (*_LLAMA3, "smaug-bpe", "dbrx")
}
_CUTS["qwen2"] = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}", False)


class GgufFile:
    """A GGUF file, or all parts of one that is split. Tensors are memory-mapped.

    Attributes:
      fields: {name: value}, such as "general.architecture": "llama".
    Raises:
      InputError: it is damaged, or a part of it is missing.
    """

    def __init__(self, path: pathlib.Path):
        import gguf  # takes a third of a second

        self.path, self._tensors, self.fields = path, {}, {}
        for part in _parts(path):
            try:
                reader = gguf.GGUFReader(part)
                fields = {name: field.contents() for name, field in reader.fields.items()}
            except (OSError, ValueError, KeyError, IndexError) as error:
                raise InputError(
                    f"{part}: cannot be read as GGUF ({' '.join(str(error).split())})"
                ) from None
            self._tensors |= {tensor.name: tensor for tensor in reader.tensors}
            self.fields = fields | self.fields
        self.shapes = {
            name: tuple(int(n) for n in tensor.shape[::-1])
            for name, tensor in self._tensors.items()
        }

    def field(self, name: str, default=None):
        """A field's value; "{arch}" in its name is the architecture. Without a default a missing
        one raises InputError.
        """
        name = name.replace("{arch}", str(self.fields.get("general.architecture")))
        value = self.fields.get(name, default)
        if value is None:
            raise InputError(f"{self.path}: {name} is missing; take another file of this model")
        return value

    def read(self, name: str) -> np.ndarray:
        """-> a tensor, dequantised to float32."""
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        try:
            found = (
                dequantize(tensor.data, tensor.tensor_type)
                .astype(np.float32, copy=False)
                .reshape(self.shapes[name])
            )
        except (NotImplementedError, KeyError, ValueError) as error:
            raise InputError(
                f"{self.path}: tensor {name} is {tensor.tensor_type.name}, which the gguf "
                f"package cannot read ({error}); "
                "take another quantisation of this model, such as Q8_0"
            ) from None
        if not np.isfinite(found).all():
            raise InputError(
                f"{self.path}: tensor {name} holds nan or inf; this model is broken, take another"
            )
        return found

    def same(self, one: str, other: str) -> bool:
        """Whether the file has two tensors with the same bytes."""
        if not {one, other} <= self._tensors.keys():
            return False
        one, other = self._tensors[one], self._tensors[other]
        parts = ((x.data[:1], x.data) for x in (one, other))  # most differ in the first row
        return one.tensor_type == other.tensor_type and all(map(np.array_equal, *parts))

    def tokens_around(self) -> tuple[int, int | None, list[int]]:
        """The tokens around documents: end of text, what opens one (None: end of text), what ends
        an answer.
        """
        end = self.field("tokenizer.ggml.eos_token_id")
        opens = (
            self.fields.get("tokenizer.ggml.model") == "llama"
            or self.fields.get("tokenizer.ggml.pre") in _LLAMA3
        )
        opens &= self.fields.get("tokenizer.ggml.bos_token_id") is not None
        begins = self.fields.get("tokenizer.ggml.add_bos_token", opens)
        answered = self.fields.get("tokenizer.ggml.eot_token_id")
        stops = [end] if answered in (None, end) else [end, answered]
        return end, self.field("tokenizer.ggml.bos_token_id") if begins else None, stops

    def special_names(self) -> dict[str, str]:
        """Its special tokens, {"bos_token": "<s>", ...}."""
        pieces, names = (
            self.field("tokenizer.ggml.tokens"),
            {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"},
        )
        numbers = {
            name: self.fields.get(f"tokenizer.ggml.{here}_token_id") for here, name in names.items()
        }
        return {
            f"{name}_token": pieces[number]
            for name, number in numbers.items()
            if number is not None
        }

    def tokenizer(self) -> bytes:
        """Its tokenizer, as the content of a tokenizer.json."""
        kind, pieces = self.field("tokenizer.ggml.model"), self.field("tokenizer.ggml.tokens")
        if kind not in ("gpt2", "llama"):
            raise InputError(
                f"{self.path}: its tokenizer is of the kind {kind!r}; only gpt2 and llama can be "
                "read"
            )
        types = self.fields.get("tokenizer.ggml.token_type", [1] * len(pieces))
        named = {number for name, number in self.fields.items() if name.endswith("_token_id")}
        numbers = {
            piece: number
            for number, (piece, of) in enumerate(zip(pieces, types, strict=True))
            if of != _UNUSED or number in named
        }
        made = self._byte_level(numbers) if kind == "gpt2" else self._with_scores(numbers)
        for chosen, special in ((_CONTROL, True), (_USER_DEFINED, False)):
            added = [piece for piece, of in zip(pieces, types, strict=True) if of == chosen]
            made.add_tokens(
                [AddedToken(piece, special=special, normalized=False) for piece in added]
            )
        return made.to_str().encode()

    def _byte_level(self, numbers: dict[str, int]) -> tokenizers.Tokenizer:
        # Early files do not have it. GPT-2's and Pythia's are cut the same.
        early = (
            "gpt-2" if self.fields.get("general.architecture") in ("gpt2", "gptneox") else "default"
        )
        cut = self.fields.get("tokenizer.ggml.pre") or early
        if cut not in _CUTS:
            raise InputError(
                f"{self.path}: its tokenizer cuts text as {cut!r}, which is not known here; "
                "import the model from its "
                "Hugging Face folder"
            )
        merges = [tuple(pair.split(" ")) for pair in self.field("tokenizer.ggml.merges")]
        try:
            made = tokenizers.Tokenizer(models.BPE(numbers, merges, ignore_merges=cut in _LLAMA3))
        except Exception as error:  # the library has no kind of its own
            raise InputError(
                f"{self.path}: its tokenizer is damaged ({error}); take another file of this model"
            ) from None
        expression, digits = _CUTS[cut]
        before = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
        if expression:
            before = [pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not expression)
        made.pre_tokenizer = pre_tokenizers.Sequence([*before, last])
        if cut == "qwen2":
            made.normalizer = normalizers.NFC()
        made.decoder = decoders.ByteLevel()
        return made

    def _with_scores(self, numbers: dict[str, int]) -> tokenizers.Tokenizer:
        """sentencepiece's: the pair with the highest score is merged first, unknown characters
        become bytes.
        """
        scores, pieces = self.field("tokenizer.ggml.scores"), self.field("tokenizer.ggml.tokens")
        merges = [
            (-scores[number], number, piece[:cut], piece[cut:])
            for piece, number in numbers.items()
            for cut in range(1, len(piece))
            if piece[:cut] in numbers and piece[cut:] in numbers
        ]
        pairs = [(left, right) for _, _, left, right in sorted(merges)]
        unknown = pieces[self.fields.get("tokenizer.ggml.unknown_token_id", 0)]
        made = tokenizers.Tokenizer(
            models.BPE(numbers, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        prefix = self.fields.get("tokenizer.ggml.add_space_prefix", True)
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend(_SPACE)] * prefix + [normalizers.Replace(" ", _SPACE)]
        )
        made.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
            + [decoders.Strip(" ", 1, 0)] * prefix
        )
        return made


@functools.lru_cache(maxsize=2)
def _opened(path: pathlib.Path, changed: int) -> GgufFile:
    return GgufFile(path)


def open_gguf(path: pathlib.Path) -> GgufFile:
    """The file, which is read once by whoever asks."""
    try:
        return _opened(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a GGUF file") from None


def _parts(path: pathlib.Path) -> list[pathlib.Path]:
    named = _PART.fullmatch(path.name)
    if not named:
        return [path]
    parts = [
        path.with_name(f"{named[1]}-{n:05d}-of-{named[3]}.gguf")
        for n in range(1, int(named[3]) + 1)
    ]
    if missing := [part for part in parts if not part.is_file()]:
        raise InputError(
            f"{missing[0]} is missing, a part of {path.name}; put all {len(parts)} parts into "
            "one folder"
        )
    return parts
