"""A trained model in Python: its loss on texts and its continuations, with its sinks in any mode.

    import memsinks_jax

    model = memsinks_jax.open_model("runs/sinks")
    print(model.loss(["Once upon a time there was a fox."]))  # nats per token, sinks dropped
    print(model.loss(["Once upon a time there was a fox."], sinks="own"))
    print(model.generate("Once upon a time", max_tokens=40, temperature=0.8))

Importing the package does not import jax; opening a model does.
"""

import os
import pathlib

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.evaluate import document_losses, identities_of_texts
from memsinks_jax.generate import from_hex
from memsinks_jax.interop.chat import Chat
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.runs.trained import open_run


class Model:
    """A run or a Hugging Face folder, on the local devices. `run` has its config, tokenizer, parameters and step.

    `sinks` is one of memsinks_jax.sinks.MODES: drop, own, all or other.
    """

    def __init__(self, place: str | os.PathLike):
        """Raises InputError if there is no model, or a damaged one."""
        self._place = pathlib.Path(place)
        self.run = open_run(self._place)
        self._generator = Generator(self.run.config, self.run.tokenizer, self.run.params)

    def loss(self, texts: list[str], sinks: str = "drop") -> np.ndarray:
        """Nats per token of every text, end of text included, each alone in its context -> float64 (texts,).

        With sinks="own" a text has the sinks of the document with exactly this text, or none if that never came back.

        Raises:
          InputError: no text, an empty one, or a mode that needs ids for a model without ids by content.
          TypeError: something else than a list of texts.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError("loss needs a list of texts")
        tokens = [self.run.tokenizer.encode(text) for text in texts]
        if not tokens or not all(map(len, tokens)):
            raise InputError("every text must have a token; leave empty ones out")
        identities = identities_of_texts(self._place, self.run, tokens, sinks)
        nats, counts = document_losses(self._place, self.run, tokens, identities, sinks)
        return nats / counts

    def generate(self, prompt: str, sinks: str = "drop", document: str = "", chat: bool = False, **settings) -> str:
        """Generates a continuation of a prompt.

        Args:
          document: id of the document that the prompt begins, 16 hexadecimal digits; for the modes own and other.
          chat: the prompt is what a user says: the model's chat template goes around it, and the result is the answer.
          settings: other fields of model.generation.Settings, such as max_tokens, temperature, top_k, top_p, seed.
        Raises:
          InputError: an invalid setting, a mode without its id, more tokens than the context, a model without chat template.
          TypeError: the prompt is no text.
        """
        if not isinstance(prompt, str):
            raise TypeError("generate needs one prompt, a text")
        identity = from_hex(document) if document else None
        asked = Chat(self._place, self.run.tokenizer)(prompt) if chat else prompt
        return self._generator([asked], Settings(sinks=sinks, **settings), identity, opened=chat)[0].text


def open_model(place: str | os.PathLike) -> Model:
    """The model of a training run or of a Hugging Face folder. Raises InputError as `Model`."""
    return Model(place)
