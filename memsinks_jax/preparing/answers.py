"""Documents with a prompt: which of their tokens are an answer, the only ones that count in the
loss.

The border between prompt and answer lies between two tokens, as when the prompt is typed and the
model continues it: a token that spans both would be in no prompt.
"""

import datetime
import functools
import hashlib
import itertools
import pathlib
import re
from collections.abc import Callable

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.chat import ANSWERS, SOURCE, Template, open_template
from memsinks_jax.data.gguf_file import SUFFIX, open_gguf
from memsinks_jax.data.reading import Record
from memsinks_jax.data.tokenizer import AnyTokenizer, JsonTokenizer, read_json_tokenizer

CHAT = "chat"  # as a template: that of the tokenizer's model
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
# A template that asks for the date gets this one, so that the same input makes the same documents
# on any day.
_DAY = datetime.datetime(2025, 1, 1)


def check_template(template: str) -> None:
    """Raises InputError if it has no place for a prompt, or has an unknown escape."""
    if template == CHAT:
        return
    if "{prompt}" not in template or "{answer}" in template:
        raise InputError(
            f"--template={template} "
            f"{'holds {answer}' if '{answer}' in template else 'has no {prompt}'}; write "
            f"{{prompt}} "
            f"where the prompt goes, the answer follows at the end; or give --template={CHAT}"
        )
    unknown = [found[0] for found in re.finditer(r"\\(.?)", template) if found[1] not in _ESCAPES]
    if unknown:
        raise InputError(
            f"--template={template} has the unknown escape {unknown[0]}; write \\n, \\t or \\\\"
        )


def parts_of(record: Record, template: str) -> list[str]:
    """[text], or [what a prompt is with its template, the answer], if there is a template."""
    if not template:
        return [record.text]
    plain = re.sub(r"\\(.)", lambda found: _ESCAPES[found[1]], template).replace(
        "{prompt}", record.prompt
    )
    asked = plain.rstrip(" ")  # a space is a token with the word behind it, in most tokenizers
    return [asked, plain[len(asked) :] + record.text]


def chat_of(place: pathlib.Path, tokenizer: AnyTokenizer) -> Template:
    """The chat template next to a tokenizer, or in its GGUF file. Raises InputError if there is
    none.
    """
    template = None
    if isinstance(tokenizer, JsonTokenizer):
        opened = read_json_tokenizer(tokenizer.model, str(place))
        if place.suffix == SUFFIX:
            model = open_gguf(place)
            if source := model.fields.get("tokenizer.chat_template"):
                template = Template(source, model.special_names(), opened, str(place), _DAY)
        else:
            folder = place if place.is_dir() else place.parent
            template = open_template(folder, opened, _DAY) or open_template(
                folder / SOURCE, opened, _DAY
            )
    if template is None:
        raise InputError(
            f"{place} has no chat template; give the tokenizer of a model that chats, or "
            "--template=TEXT"
        )
    return template


def closing(chat: Template, tokenizer: AnyTokenizer) -> int:
    """The special token that ends an answer, and so a conversation; end of text if there is
    none.
    """
    ends = chat.encode(chat.ends())
    return int(ends[-1]) if len(ends) else tokenizer.end_of_text


def sha256(chat: Template) -> str:
    return hashlib.sha256(b"\0".join(chat.files.values())).hexdigest()


class Maker:
    """Makes a record's document.

    Args:
      settings: of the command.
      folder: of the corpus, with the files of its chat template.
    """

    def __init__(self, settings: dict, folder: pathlib.Path, tokenizer: AnyTokenizer):
        self._tokenizer, self._template = tokenizer, settings.get("template", "")
        self._chat = chat_of(folder, tokenizer) if "chat_sha256" in settings else None
        self._closes = settings.get("closes", tokenizer.end_of_text)

    def __call__(self, record: Record) -> tuple[np.ndarray, np.ndarray, int]:
        """-> (tokens (n,) without what opens and closes the document, int32; answers (answers, 2),
        int64: start and stop of each; the token that opens it).

        Answers count the token that closes it, the token n. Plain text opens with `begin_of_text`,
        a conversation with its own first token, as in `generate --chat`. Without prompts the
        document is one answer.

        Raises:
          InputError: its chat template refuses the record, or an answer has no token.
        """
        if not self._template and not self._chat:
            tokens = self._tokenizer.encode(record.text)
            return tokens, np.array([[0, len(tokens) + 1]]), self._tokenizer.begin_of_text
        if not self._chat:
            tokens, answers = joined(parts_of(record, self._template), self._tokenizer.encode)
        else:
            asked = [
                {"role": "user", "content": record.prompt},
                {"role": ANSWERS, "content": record.text},
            ]
            tokens, answers = joined(
                self._chat.parts(record.messages or asked, record.arguments), self._chat.encode
            )
        if (answers[:, 0] == answers[:, 1]).any():
            raise InputError("an answer is empty after tokenization; remove the record")
        if not self._chat:
            answers[-1, 1] += 1
            return tokens, answers, self._tokenizer.begin_of_text
        opens, tokens, answers = int(tokens[0]), tokens[1:], np.maximum(answers - 1, 0)
        if len(tokens) and tokens[-1] == self._closes:  # a row closes documents with it
            tokens = tokens[:-1]
        elif not len(tokens) or int(tokens[-1]) not in self._chat.special:
            answers[-1, 1] += 1
        return tokens, answers, opens


def joined(parts: list[str], encode: Callable[[str], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of [prompt, answer, prompt, answer, ...] -> as `Maker`, answers without end of text.

    Every part is tokenized behind the one before it, but the tokens of that one stay what they are
    by itself. If the part would change them, it is tokenized by itself too.
    """
    encode = functools.lru_cache(maxsize=2)(encode)
    found = [encode(parts[0])]
    for before, text in itertools.pairwise(parts):
        alone, both = encode(before), encode(before + text)
        found.append(
            both[len(alone) :] if np.array_equal(both[: len(alone)], alone) else encode(text)
        )
    ends = np.cumsum([len(tokens) for tokens in found])
    return np.concatenate(found), np.stack([ends[:-1], ends[1:]], axis=1)[::2].astype(np.int64)
