"""The small files of the Hugging Face folder that a model came from: config, tokenizer settings,
chat template, licence.

A workdir keeps them in `source/`. So a model that is exported again differs from what came in only
where it was changed.
"""

import atexit
import functools
import pathlib
import re
import shutil
import tempfile

from memsinks_jax.config import InputError
from memsinks_jax.data.chat import SOURCE, Template, open_template
from memsinks_jax.data.gguf_file import SUFFIX
from memsinks_jax.data.tokenizer import AnyTokenizer, read_object
from memsinks_jax.models.gguf_model import GgufModel
from memsinks_jax.models.hub import PREFIX
from memsinks_jax.models.tokenizer_files import exported_tokenizer

_ORIGIN = "origin.txt"  # the place that was named: a folder, or hf://organisation/name
# What an exported folder takes over as it is; config.json, tokenizer_config.json and the card are
# written from theirs.
UNCHANGED = (
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "LICENSE*",
    "NOTICE*",
)
_COPIED = (*UNCHANGED, "config.json", "tokenizer_config.json", "README.md")


def source_of(place: pathlib.Path) -> pathlib.Path | None:
    """Where a Hugging Face folder or a workdir has these files; None: the model was made here.
    Those of a GGUF file are written to a temporary folder.
    """
    if place.suffix == SUFFIX:
        return _of_gguf(place)
    folder = place if "model_type" in read_object(place / "config.json") else place / SOURCE
    return folder if folder.is_dir() else None


@functools.lru_cache(maxsize=4)
def _of_gguf(path: pathlib.Path) -> pathlib.Path:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="memsinks_gguf_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in GgufModel(path).small_files().items():
        (folder / name).write_text(content)
    return folder


def keep(source: pathlib.Path | None, workdir: pathlib.Path, named: str) -> None:
    """Copies the small files of a model to a workdir that starts from it; `named` is the place as
    the user calls it.
    """
    if source is None:
        return
    (workdir / SOURCE).mkdir()
    copy(source, workdir / SOURCE, (*_COPIED, _ORIGIN))
    if not (workdir / SOURCE / _ORIGIN).exists():
        (workdir / SOURCE / _ORIGIN).write_text(named + "\n")


def copy(source: pathlib.Path, folder: pathlib.Path, patterns: tuple[str, ...]) -> None:
    for path in (path for pattern in patterns for path in source.glob(pattern)):
        shutil.copyfile(path, folder / path.name)


def origin(source: pathlib.Path | None) -> str:
    """The place that was imported; empty if that is not known."""
    known = source is not None and (source / _ORIGIN).is_file()
    return (source / _ORIGIN).read_text().strip() if known else ""


def front_matter(source: pathlib.Path | None, named: str, unknown: str) -> list[str]:
    """The lines of a model card on the base model and its licence, as far as they are known.

    Args:
      named: the place that the model came from.
      unknown: whose licence the reader has to find, if it is not known.
    """
    card = source / "README.md" if source else None
    text = card.read_text(errors="replace") if card and card.is_file() else ""
    head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    stated = r"^(license\w*|base_model):(?: *|\s*- *)([^\s#]+)"
    fields = dict(re.findall(stated, head[1], re.MULTILINE)) if head else {}
    if named.startswith(PREFIX) or (
        re.fullmatch(r"[\w.-]+/[\w.-]+", named) and not pathlib.Path(named).exists()
    ):
        fields["base_model"] = named.removeprefix(PREFIX)
    if fields.get("license", "unknown") == "unknown":
        fields["license"] = f"unknown # that of {unknown}; say which"
    return [f"{name}: {value}" for name, value in fields.items()]


def open_chat(place: pathlib.Path, tokenizer: AnyTokenizer) -> Template:
    """The template of a Hugging Face folder, or of a workdir that came from one.

    Raises:
      InputError: the model has no template, or a damaged one.
    """
    source = source_of(place)
    template = open_template(source, exported_tokenizer(tokenizer)) if source else None
    if template is None:
        raise InputError(
            f"{place} has no chat template, so it was not trained to chat; leave chat out"
        )
    return template
