"""Trains a tokenizer for the corpus, on the beginnings of documents sampled from all of the input.

The sample depends only on the input, so a restarted command trains the same tokenizer.
"""

import collections.abc
import contextlib
import itertools
import logging

from memsinks_jax.config import InputError
from memsinks_jax.data.documents import in_words
from memsinks_jax.data.reading import Fields, Record
from memsinks_jax.data.tokenizer import TRAINING_CHARACTERS, Tokenizer, train_tokenizer
from memsinks_jax.preparing import inputs
from memsinks_jax.preparing.answers import parts_of
from memsinks_jax.preparing.inputs import Plan, Segment

logger = logging.getLogger("memsinks_jax.prepare")

_PLACES = 256  # most places to open the input at; takes seconds for any size of input
# A record counts as at least this many characters, and as one character per this many bytes on
# disk. So reading also stops if there is hardly any usable text.
_CHARACTERS_A_RECORD, _BYTES_A_CHARACTER = 16, 256


def train_on_sample(plan: Plan) -> Tokenizer:
    """A tokenizer of at most settings["vocabulary_size"] pieces. Raises InputError as `sample` and
    `train_tokenizer` do.
    """
    texts = sample(plan)
    logger.info(
        "no --tokenizer: training one of at most %s on %s sampled from the input, %s",
        in_words(plan.settings["vocabulary_size"], "piece"),
        in_words(len(texts), "document"),
        in_words(sum(map(len, texts)), "character"),
    )
    return train_tokenizer(texts, plan.settings["vocabulary_size"])


def sample(plan: Plan, characters: int = TRAINING_CHARACTERS) -> list[str]:
    """Samples distinct beginnings of documents, at most `characters` in all; takes all of a small
    input.

    Raises:
      InputError: a record cannot be used (unless such records are skipped), or there is no text at
      all.
    """
    settings = plan.settings
    fields = inputs.fields_of(settings)
    texts, problems, first = {}, 0, None
    places = _places(plan)
    bytes_left = sum(size for _, size in places)
    for segments, size in places:
        # passes on the unused share of a place to those after it
        share = characters * size // bytes_left
        bytes_left -= size
        with contextlib.closing(_records(plan, segments, fields)) as records:
            while share > 0 and (read := next(records, None)):
                record, on_disk = read
                if record.problem and settings["on_error"] == "stop":
                    raise InputError(f"{record.place}: {record.problem}, or give --on_error=skip")
                if record.problem:
                    problems, first = problems + 1, first or record
                else:
                    texts["".join(parts_of(record, settings.get("template", "")))[:share]] = None
                cost = max(
                    len(record.prompt) + len(record.text),
                    _CHARACTERS_A_RECORD,
                    on_disk // _BYTES_A_CHARACTER,
                )
                share, characters = share - cost, characters - min(cost, share)
    if not texts and first:
        raise InputError(
            f"none of the {problems:,} sampled records can be used to train a tokenizer; the "
            f"first is {first.place}: "
            f"{first.problem}"
        )
    if not texts:
        raise InputError(
            "the input holds no record to train a tokenizer on; give files with documents"
        )
    return list(texts)


def _places(plan: Plan) -> list[tuple[list[Segment], int]]:
    """Segments to read from their start until there is enough, and their bytes: all of the input if
    it is small, else evenly spaced pieces of it, and evenly spaced places in each.
    """
    sizes = plan.bytes_of_segments()
    pieces = _bounds(len(plan.pieces), _PLACES)[:-1]
    return [
        (plan.pieces[piece][start:stop], sum(sizes[piece][start:stop]))
        for piece in pieces
        for start, stop in itertools.pairwise(
            _bounds(len(plan.pieces[piece]), _PLACES // len(pieces))
        )
    ]


def _bounds(length: int, parts: int) -> list[int]:
    """Bounds that cut range(length) into even parts, at most one part per number."""
    parts = min(length, parts)
    return [length * part // parts for part in range(parts + 1)]


def _records(
    plan: Plan, segments: list[Segment], fields: Fields
) -> collections.abc.Iterator[tuple[Record, int]]:
    """Records of segments, one after the other, each with its bytes on disk."""
    for segment in segments:
        before = 0
        with contextlib.closing(
            inputs.records(plan.sources[segment.source], segment, fields)
        ) as records:
            for record in records:
                yield record, record.consumed - before
                before = record.consumed
