"""Datasets of the Hugging Face hub, read as a stream: `hf://dataset[:split]`, such as
hf://roneneldan/TinyStories:train.

`datasets` is not a requirement, since it brings pandas and more. Install it to read from the hub.
"""

import collections.abc

from memsinks_jax.config import InputError
from memsinks_jax.data.files import Segment, Source
from memsinks_jax.data.reading import Fields, Record, take

PREFIX = "hf://"


def revision(path: str) -> str:
    """The commit that a dataset's name stands for now, so that a resumed run reads the same
    data.
    """
    import huggingface_hub

    name, _ = _name_and_split(path)
    return _asked(path, lambda: huggingface_hub.HfApi().dataset_info(name, timeout=30).sha)


def parts(path: str, commit: str) -> int:
    """Number of parts in which the dataset can be read."""
    return _asked(path, lambda: _load(path, commit).num_shards)


def records(source: Source, segment: Segment, fields: Fields) -> collections.abc.Iterator[Record]:
    """Rows of one part, in the form in which `data.reading.read_segment` gives those of a file."""
    for row, values in enumerate(rows(source.path, source.revision, segment.start, segment.stop)):
        record = Record(
            row,
            row + 1,
            0,
            where=f"{source.path}, part {segment.start} of {segment.stop}, row {row}",
        )
        take(record, values, fields)
        yield record


def rows(path: str, commit: str, part: int, of: int) -> collections.abc.Iterator[dict]:
    """Rows of one part, in order."""
    from datatrove.pipeline.readers import HuggingFaceDatasetReader

    name, split = _name_and_split(path)
    reader = HuggingFaceDatasetReader(
        name,
        dataset_options={"split": split, "revision": commit},
        streaming=True,
        # Asks for all columns of the row: otherwise the reader silently drops rows without text.
        adapter=lambda self, row, source, number: {
            "text": "row",
            "id": number,
            "metadata": {"row": row},
        },
    )
    stream = reader.run(None, part, of)
    while (document := _asked(path, lambda: next(stream, None))) is not None:
        yield document.metadata["row"]


def _load(path: str, commit: str):
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"{path}: reading from the hub needs `datasets`; pip install '.[hub]'"
        ) from None
    name, split = _name_and_split(path)
    return datasets.load_dataset(name, split=split, revision=commit, streaming=True)


def _name_and_split(path: str) -> tuple[str, str]:
    name, _, split = path.removeprefix(PREFIX).partition(":")
    return name, split or "train"


def _asked(path: str, question):
    """Asks the hub. Turns any failure into a one-line message for the user."""
    try:
        return question()
    except InputError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
            type(error).__name__
        ]
        raise InputError(
            f"{path}: the hub cannot be read ({lines[0]}); check the name and the network, or "
            "download the files and "
            "give their folder"
        ) from None
