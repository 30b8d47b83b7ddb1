"""The chat template of a model: how what a user says becomes the tokens that the model was trained
to answer.
"""

import pathlib

from memsinks_jax.config import InputError
from memsinks_jax.data.chat import Template, open_template
from memsinks_jax.data.tokenizer import AnyTokenizer
from memsinks_jax.models.origin import source_of
from memsinks_jax.models.tokenizer_files import exported_tokenizer


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
