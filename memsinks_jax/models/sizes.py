"""The size of a model and its vocabulary, by the amount of text that it is trained on; the length
of fine-tuning, by its sources.
"""

import logging

from memsinks_jax.config import Config
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.files import matching, open_source, text_bytes
from memsinks_jax.data.prepared import Prepared, is_prepared
from memsinks_jax.data.tokenizer import pieces_for

logger = logging.getLogger(__name__)

# By name, smallest first: parameters of the layers. A wider model trains at a lower rate.
SIZES = {
    "1m": {
        "model.layers": 4,
        "model.d_model": 128,
        "model.heads": 4,
        "model.hidden": 512,
        "optimizer.learning_rate": 5e-3,
    },
    "5m": {
        "model.layers": 6,
        "model.d_model": 256,
        "model.heads": 8,
        "model.hidden": 1024,
        "optimizer.learning_rate": 2.5e-3,
    },
    "20m": {
        "model.layers": 6,
        "model.d_model": 512,
        "model.heads": 8,
        "model.hidden": 2048,
        "optimizer.learning_rate": 1.25e-3,
    },
}
BY_TEXT = {"model.layers": 0}  # the value of `config.model.layers` that asks for the rule
FIELDS = (*SIZES["1m"], "data.vocabulary_size")  # that it decides
_LEAST = {"1m": 0, "5m": 12e6, "20m": 120e6}  # bytes of text
_BYTES_OF_TOKEN = 4  # of a prepared corpus, about
_MULTIPLE = 128  # of embeddings, so that a mesh divides them
# Of fine-tuning: epochs at least; how many steps read a source; and in how many of its documents'
# number of steps an epoch does, if smaller steps can do that. Six sources of 20 questions cost 0.5
# nats a token with 33 steps that read a source, 0.09 with 76, 0.015 with 122 (docs/sources.md).
_EPOCHS, _STEPS, _APART = 5, 100, 0.9


def by_text(files: str) -> dict:
    """The settings of `FIELDS` for the text of `config.data.files`. A prepared corpus has a
    vocabulary already; the embedded stories are little text.

    Raises:
      InputError: no such files.
    """
    if is_prepared(files):
        manifest = Prepared(files).manifest
        amount = _BYTES_OF_TOKEN * manifest["tokens"]
        pieces = -(-manifest["vocabulary_size"] // _MULTIPLE) * _MULTIPLE
    else:
        amount = text_bytes(map(open_source, matching(files))) if files else 0
        pieces = pieces_for(amount)
    name = max((name for name in SIZES if amount >= _LEAST[name]), key=_LEAST.get)
    logger.info(
        "%.1f MB of text: a model of size %s with %s pieces; --config=FILE:SIZE takes another",
        amount / 1e6,
        name,
        f"{pieces:,}",
    )
    return SIZES[name] | {"data.vocabulary_size": pieces}


def by_sources(config: Config, parts: int = 0) -> dict:
    """Epochs and rows a step, so that about `_STEPS` steps read each group of the documents.

    A step updates the sinks of a group once, however many of its documents are there. So the fewer
    groups, the fewer rows a step (`training.batch_size` at most) and the more epochs. A group's
    documents are taken to be drawn for the steps.

    Args:
      parts: what divides the rows of a step: devices and microbatches; 0: the rows stay.
    """
    corpus = Prepared(config.data.files)
    groups, rows = len(corpus.group_names), corpus.manifest["tokens"] / config.data.row_length
    documents = len(corpus) / groups  # of a group

    def reads(size: int) -> float:
        """Steps of an epoch that read a group."""
        steps = max(rows / size, 1)
        without = (1 - 1 / groups) ** (len(corpus) / steps)  # probability of such a step
        return min(documents, steps * (1 - without))

    size = config.training.batch_size
    while parts and size % (2 * parts) == 0 and reads(size) < _APART * documents:
        size //= 2
    epochs = max(_EPOCHS, round(_STEPS / reads(size)))
    logger.info(
        "%s with %.1f documents each: %s with %s a step, so that %d steps read a group",
        in_words(groups, "group"),
        documents,
        in_words(epochs, "epoch"),
        in_words(size, "row"),
        round(epochs * reads(size)),
    )
    return {"training.epochs": epochs, "training.batch_size": size}
