"""The chat template of a model: how what a user says becomes the tokens that the model was taught to answer."""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.data.tokenizer import AnyTokenizer, read_object, special_names
from memsinks_jax.interop.source import source_of
from memsinks_jax.interop.tokenizer_files import exported_tokenizer


class Chat:
    """Renders the template of a Hugging Face folder, or of a workdir that came from one, as transformers does.

    Raises:
      InputError: the model has no template, or a damaged one.
    """

    def __init__(self, place: pathlib.Path, tokenizer: AnyTokenizer):
        source = source_of(place)
        template = _template(source) if source else None
        if not template:
            raise InputError(f"{place} has no chat template, so it was not taught to chat; leave chat out")
        # Templates are code of strangers: the sandbox and its functions are those that transformers gives them.
        sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        sandbox.filters["tojson"] = _to_json
        sandbox.globals |= {
            "raise_exception": _refuse,
            "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        }
        try:
            self._template = sandbox.from_string(template)
        except jinja2.TemplateError as error:
            raise InputError(f"{source}: its chat template cannot be read ({error})") from None
        self._source, self._names, self._tokenizer = source, special_names(source), exported_tokenizer(tokenizer)

    def __call__(self, prompt: str) -> np.ndarray:
        """A user's message -> int32 (tokens,), up to where the answer begins. Raises InputError if it is refused."""
        try:
            text = self._template.render(
                messages=[{"role": "user", "content": prompt}], tools=None, documents=None, add_generation_prompt=True,
                **self._names,
            )  # fmt: skip
        except (jinja2.TemplateError, TypeError) as error:
            raise InputError(f"{self._source}: its chat template refuses this prompt ({error})") from None
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the answers for training; here they are rendered like the rest."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _template(source: pathlib.Path) -> str | None:
    alone = source / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text()
    found = read_object(source / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {each["name"]: each["template"] for each in found}.get("default")
    return found


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """jinja's own escapes characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str):
    raise jinja2.TemplateError(message)
