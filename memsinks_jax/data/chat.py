"""Chat templates: how a conversation becomes text, and which parts of the text are answers."""

import datetime
import itertools
import json
import os.path
import pathlib
import re
from collections.abc import Sequence

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np
import tokenizers

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import read_object, special_names, whole

_CUT = "\ufdd0"  # Unicode assigns it to no character, so no text needs it
_MARK = 2 * _CUT  # cutting never makes two in a row
ANSWERS = "assistant"  # the role whose messages are answers
# Fields that need no text of their own: which call a result is of (tool_call_id), often follows
# from the order alone.
_ALWAYS = "role", "content", "tool_call_id"
# Names for what an answer thinks before it speaks. transformers fills these in from each other too.
_REASONING = "reasoning_content", "thinking", "reasoning"
SOURCE = "source"  # folder of a workdir with the small files of its initial model
_FILES = "chat_template.jinja", "special_tokens_map.json"


class Template:
    """A chat template, rendered as transformers does.

    A message that spells a special token stays ordinary text: only the template itself writes
    special tokens. So what a user types cannot end a turn, or open another.

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
        self,
        source: str,
        names: dict[str, str],
        tokenizer: tokenizers.Tokenizer,
        where: str,
        day: datetime.datetime | None = None,
    ):
        # Templates are code of strangers: the sandbox and its functions are those that transformers
        # gives them.
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
        either = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._special, self._ends = re.compile(either), re.compile(f"(?:{either})+")
        self._first = re.compile(rf"\s*(?:{either})")

    @property
    def files(self) -> dict[str, bytes]:
        """{name: content}, from which `open_template` makes this template again."""
        return dict(
            zip(_FILES, (self._source.encode(), json.dumps(self._names).encode()), strict=True)
        )

    def __call__(self, prompt: str | Sequence[dict]) -> np.ndarray:
        """A user's message, or a conversation as `parts` takes it -> int32 (tokens,), up to where
        the next answer begins. Raises InputError if it is refused.
        """
        talk = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self.encode(self._render([self._cut(message) for message in talk], {}, asks=True))

    def encode(self, text: str) -> np.ndarray:
        """A part of a rendered text -> int32 (tokens,)."""
        parts = [
            self._tokenizer.encode(part, add_special_tokens=False).ids
            for part in whole(text).split(_CUT)
        ]
        return np.asarray(list(itertools.chain.from_iterable(parts)), np.int32)

    def parts(self, messages: Sequence[dict], arguments: dict | None = None) -> list[str]:
        """A conversation -> [what comes before an answer, the answer, what comes before the next,
        ...], for `encode`.

        Joined, the parts are the text that transformers renders. An answer begins where the model
        is asked for it, and ends with the special tokens that end its turn, if there are any. What
        follows the last answer is left out.

        Args:
          messages: each {"role", "content", ...}; a content is a text, or a list of {"type":
            "text", "text"}. The template gets all other fields too, but the "weight" of an answer:
            if it is 0, the answer is part of what comes before.
          arguments: other arguments of the template, {"tools": [...], "documents": [...]}.
        Raises:
          InputError: the template refuses the conversation, does not write a field of it, or does
            not show where an answer begins and ends.
        """
        arguments = self._cut(arguments or {})
        given = [
            self._cut({name: message[name] for name in message if name != "weight"})
            for message in messages
        ]
        talk = [message | _joined(message) for message in given]
        try:
            whole = self._render(talk, arguments)
        except InputError as error:
            more = [
                name
                for name in dict.fromkeys(itertools.chain(*talk, arguments))
                if name not in ("role", "content")
            ]
            raise InputError(
                f"{error}{', with the fields ' * bool(more)}{', '.join(more)}"
            ) from None
        if given != talk and self._rendered(given, arguments) != whole:
            number = next(
                number for number, message in enumerate(given, start=1) if _joined(message)
            )
            raise InputError(
                f"{self._where}: its chat template does not write the content of message "
                f"{number}, a list of parts, as "
                "their text; make it one text"
            )
        lost = self._lost(whole, talk, range(len(talk)), arguments)
        for name in arguments:
            if (
                self._rendered(talk, {key: arguments[key] for key in arguments if key != name})
                == whole
            ):
                lost = name
        if lost:
            raise InputError(
                f'{self._where}: its chat template does not write the field "{lost}"; remove the '
                "field"
            )
        cuts, number = [0], 0
        for place, message in enumerate(messages):
            if message["role"] != ANSWERS:
                continue
            number += 1
            if message.get("weight") != 0:
                cuts += self._answer(whole, talk, place, arguments, f"answer {number}")
        if cuts != sorted(cuts):
            raise InputError(f"{self._where}: its chat template writes answers in another order")
        return [whole[start:stop] for start, stop in itertools.pairwise(cuts)]

    def ends(self) -> str:
        """The special tokens that end an answer, for `encode`; empty: there are none."""
        # Not by `parts`: a template that asks for an answer with <think> refuses one without it.
        talk = [{"role": "user", "content": "a"}, {"role": ANSWERS, "content": _MARK}]
        ended = self._ends.search(self._render(talk, {}).split(_MARK)[-1])
        return ended[0] if ended else ""

    def _answer(
        self, whole: str, talk: list[dict], place: int, arguments: dict, name: str
    ) -> tuple[int, int]:
        """Where in the text of a conversation the answer in this place begins and ends.

        With another answer in its place, the text is another from where the model is asked to where
        this one is over. So nothing of an answer is outside of what is found here.
        """
        hidden = f"{self._where}: its chat template hides where {name}"
        way_out = 'give it "weight": 0, or change the template'
        asked, other = (
            self._rendered(talk[:place], arguments, asks=True),
            {"role": ANSWERS, "content": _MARK},
        )
        if asked is None:
            raise InputError(f"{hidden} begins: it refuses what comes before, alone; {way_out}")
        if not whole.startswith(asked):
            same = len(os.path.commonprefix([whole, asked]))
            raise InputError(
                f"{hidden} begins: it asks for one with {_shown(asked[same:])}, and writes "
                f"{_shown(whole[same:])}; {way_out}"
            )
        before, *after = (
            self._rendered([*talk[:place], other, *talk[place + 1 :]], arguments) or ""
        ).split(_MARK)
        if len(after) != 1 or not whole.endswith(after[0]):
            raise InputError(f"{hidden} ends; {way_out}")
        start, stop = len(asked), len(whole) - len(after[0])
        if self._special.search(before, start) and asked == self._render(talk[:place], arguments):
            raise InputError(
                f"{hidden} begins: it has no add_generation_prompt; change the template"
            )
        lost, text = (
            self._lost(whole, talk, [place], arguments),
            _unspaced(talk[place].get("content", "")),
        )
        # An answer may spell what asks for it, as "<think>".
        if text not in _unspaced(whole[start:stop]):
            opens = min(start, len(self._render(talk[:place], arguments)))
            lost = lost if text in _unspaced(whole[opens:stop]) else "content"
        if lost:
            raise InputError(
                f'{self._where}: its chat template does not write all of the field "{lost}" of '
                f"{name}; change the field, or "
                'give the answer "weight": 0'
            )
        # The tokens that end a turn are those that follow the text in any case, with an end of the
        # conversation and without.
        last = after[0]
        if place < len(talk) - 1:
            last = (self._rendered([*talk[:place], other], arguments) or "").split(_MARK)[-1]
        ended = self._ends.search(os.path.commonprefix([last, *after])) or self._first.match(
            after[0]
        )
        return start, stop + (ended.end() if ended else 0)

    def _lost(
        self, whole: str, talk: list[dict], places: Sequence[int], arguments: dict
    ) -> str | None:
        """A field of the messages in these places without which the text of the conversation is the
        same.
        """
        for name in dict.fromkeys(itertools.chain(*(talk[place] for place in places))):
            less = [message.copy() for message in talk]
            for place in places:
                less[place].pop(name, None)
            if name not in _ALWAYS and self._rendered(less, arguments) == whole:
                return name
        return None

    def _rendered(self, talk: list[dict], arguments: dict, asks: bool = False) -> str | None:
        """As `_render`; None if the template refuses the conversation."""
        try:
            return self._render(talk, arguments, asks)
        except InputError:
            return None

    def _cut(self, value):
        """A value of JSON, with _CUT inside of special tokens that its texts spell."""
        if isinstance(value, str):
            if _CUT in value:
                raise InputError(
                    f"{self._where}: a message holds U+FDD0, which is no character; remove it"
                )
            return self._special.sub(lambda found: found[0][0] + _CUT + found[0][1:], value)
        if isinstance(value, dict):
            return {self._cut(name): self._cut(each) for name, each in value.items()}
        return [self._cut(each) for each in value] if isinstance(value, list) else value

    def _render(self, talk: list[dict], arguments: dict, asks: bool = False) -> str:
        """The text of a conversation.

        Args:
          asks: it ends where the model is to answer.
        """
        about = (
            {"tools": None, "documents": None, "add_generation_prompt": asks}
            | arguments
            | self._names
        )
        try:
            return self._template.render(messages=list(map(_with_reasoning, talk)), **about)
        except Exception as error:  # a template is a program, which may fail in any way
            raise InputError(
                f"{self._where}: its chat template refuses this prompt ({_line(error)})"
            ) from None


def check_messages(messages: object, where: str) -> list[dict]:
    """A conversation so far, unchanged. Raises InputError unless it is a list of messages, each a
    role and a content, the last of which is no answer.
    """
    good = isinstance(messages, list) and all(
        isinstance(each, dict) and all(isinstance(each.get(n), str) for n in ("role", "content"))
        for each in messages
    )
    if not good or not messages or messages[-1]["role"] == ANSWERS:
        raise InputError(
            f'{where} is no conversation; give a list of messages, {{"role": "user", "content": '
            '"..."}}, that does not end with an answer'
        )
    return messages


def has_template(folder: pathlib.Path) -> bool:
    """Whether `open_template` finds one."""
    return bool(_source(folder))


def _source(folder: pathlib.Path) -> str | None:
    alone = folder / _FILES[0]
    source = (
        alone.read_text()
        if alone.is_file()
        else read_object(folder / "tokenizer_config.json").get("chat_template")
    )
    if isinstance(source, list):  # several, by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    return source


def open_template(
    folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, day: datetime.datetime | None = None
) -> Template | None:
    """The template of a Hugging Face folder, or of one with the `files` of one; None if it has
    none. As `Template`.
    """
    source = _source(folder)
    return Template(source, special_names(folder), tokenizer, str(folder), day) if source else None


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the answers for training; here they are rendered like the rest."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _joined(message: dict) -> dict[str, str]:
    """A message's content as one text, if it is a list of parts."""
    content = message.get("content")
    return (
        {"content": "".join(part["text"] for part in content)} if isinstance(content, list) else {}
    )


def _with_reasoning(message: dict) -> dict:
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return (
        message
        if reasoning is None
        else {"thinking": reasoning} | message | {"reasoning_content": reasoning}
    )


def _unspaced(text: str) -> str:
    """Without white space, which templates strip."""
    return "".join(text.split())


def _shown(text: str) -> str:
    return repr(text[:24].replace(_CUT, "") + "..." * (len(text) > 24))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """jinja's own escapes characters of HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str):
    raise jinja2.TemplateError(message)
