"""Chat templates: how a conversation becomes text, and which parts of the text are answers."""

import datetime
import itertools
import json
import pathlib
import re

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np
import tokenizers

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import read_object, special_names, whole

_CUT = "\ufdd0"  # Unicode assigns it to no character, so no text needs it
ANSWERS = "assistant"  # the role whose messages are answers
SOURCE = "source"  # folder of a workdir with the small files of its initial model
_FILES = "chat_template.jinja", "special_tokens_map.json"


class Template:
    """A chat template, rendered as transformers does.

    A message that spells a special token stays ordinary text: only the template itself writes special tokens. So what a
    user types cannot end a turn, or open another.

    Args:
      source: the template, in jinja.
      names: special tokens by name, {"bos_token": "<s>", ...}, as templates use them.
      tokenizer: one that takes the names of special tokens in a text for these.
      where: its origin, for messages.
      day: the date for a template that asks for it; None: today.
    Raises:
      InputError: the template cannot be read.
    """

    def __init__(
        self, source: str, names: dict[str, str], tokenizer: tokenizers.Tokenizer, where: str,
        day: datetime.datetime | None = None,
    ):  # fmt: skip
        # Templates are code of strangers: the sandbox and its functions are those that transformers gives them.
        sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        sandbox.filters["tojson"] = _to_json
        sandbox.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: (day or datetime.datetime.now()).strftime(form),
        }
        try:
            self._template = sandbox.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(f"{where}: its chat template cannot be read ({error})") from None
        self._source, self._names, self._tokenizer, self._where = source, names, tokenizer, where
        added = tokenizer.get_added_tokens_decoder()
        self.special = {number: token.content for number, token in added.items() if token.special}
        longest_first = sorted(filter(None, self.special.values()), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @property
    def files(self) -> dict[str, bytes]:
        """{name: content}, from which `open_template` makes this template again."""
        return dict(zip(_FILES, (self._source.encode(), json.dumps(self._names).encode()), strict=True))

    def __call__(self, prompt: str) -> np.ndarray:
        """A user's message -> int32 (tokens,), up to where the answer begins. Raises InputError if it is refused."""
        return self.encode(self._render([{"role": "user", "content": prompt}], asks=True))

    def encode(self, text: str) -> np.ndarray:
        """A part of a rendered text -> int32 (tokens,)."""
        parts = [self._tokenizer.encode(part, add_special_tokens=False).ids for part in whole(text).split(_CUT)]
        return np.asarray(list(itertools.chain.from_iterable(parts)), np.int32)

    def parts(self, messages: list[dict[str, str]]) -> list[str]:
        """A conversation -> [what comes before an answer, the answer, what comes before the next, ...], for `encode`.

        An answer begins where the model is asked for it, and ends with the special token that ends its turn, if there is
        one. What follows the last answer is left out.

        Raises:
          InputError: the template refuses the conversation, or its answers cannot be distinguished from the rest.
        """
        whole, cuts = self._render(messages), [0]
        for number, message in enumerate(messages):
            if message["role"] != ANSWERS:
                continue
            before = self._render(messages[:number], asks=True)
            start, ended = len(before), self._special.search(whole, len(before))
            stop = ended.start() if ended else len(whole)
            if not whole.startswith(before) or start < cuts[-1] or not whole[start:stop].strip():
                raise InputError(f"{self._where}: its chat template hides where answer {len(cuts) // 2 + 1} begins")
            cuts += [start, ended.end() if ended else stop]
        return [whole[start:stop] for start, stop in itertools.pairwise(cuts)]

    def _render(self, messages: list[dict[str, str]], asks: bool = False) -> str:
        """The text of a conversation, with _CUT inside of special tokens that messages spell.

        Args:
          asks: it ends where the model is to answer.
        """
        if any(_CUT in text for message in messages for text in message.values()):
            raise InputError(f"{self._where}: a message holds U+FDD0, which is no character; remove it")
        cut = [{name: self._special.sub(_cut, text) for name, text in message.items()} for message in messages]
        try:
            return self._template.render(
                messages=cut, tools=None, documents=None, add_generation_prompt=asks, **self._names
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InputError(f"{self._where}: its chat template refuses this prompt ({error})") from None


def open_template(
    folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, day: datetime.datetime | None = None
) -> Template | None:
    """The template of a Hugging Face folder, or of one with the `files` of one; None if it has none. As `Template`."""
    alone = folder / _FILES[0]
    source = (
        alone.read_text() if alone.is_file() else read_object(folder / "tokenizer_config.json").get("chat_template")
    )
    if isinstance(source, list):  # several, by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    return Template(source, special_names(folder), tokenizer, str(folder), day) if source else None


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the answers for training; here they are rendered like the rest."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _cut(special: re.Match) -> str:
    return special[0][0] + _CUT + special[0][1:]


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """jinja's own escapes characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str):
    raise jinja2.TemplateError(message)
