"""The size of a model that the amount of its text decides, and the length of fine-tuning that its
sources decide.
"""

import json

import numpy as np
import pytest
from conftest import expect_input_error

from memsinks_jax.config import flatten, to_json, validate, with_fields
from memsinks_jax.data.tokenizer import pieces_for
from memsinks_jax.models import sizes
from memsinks_jax.models.initial import inherit
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.variants import CONFIGS, open_config

OWN = open_config(CONFIGS / "own_text.py")
FINETUNE = open_config(CONFIGS / "finetune.py")


def of_size(tmp_path, size, name="a.txt"):
    """A file that holds nothing but takes up room."""
    with open(tmp_path / name, "wb") as file:
        file.truncate(size)
    return str(tmp_path / name)


@pytest.mark.parametrize(
    ("text_bytes", "pieces"),
    [(0, 2048), (10**5, 2048), (4 * 10**5, 4096), (15 * 10**5, 8192), (7 * 10**6, 16384)]
    + [(10**8, 32768), (10**12, 32768)],
)
def test_a_vocabulary_grows_with_the_text(text_bytes, pieces):
    assert pieces_for(text_bytes) == pieces


@pytest.mark.parametrize(
    ("text_bytes", "size"), [(10**6, "1m"), (12 * 10**6, "5m"), (10**8, "5m"), (2 * 10**8, "20m")]
)
def test_more_text_has_a_larger_model(tmp_path, text_bytes, size):
    config = with_fields(OWN.get_config(), {"data.files": of_size(tmp_path, text_bytes)})
    found, named = inherit(config, given={"data.files"}), OWN.get_config(f"{size},context")
    assert {name: flatten(found)[name] for name in sizes.SIZES[size]} == sizes.SIZES[size]
    assert found.model == named.model and found.sinks == named.sinks
    assert found.data.vocabulary_size == pieces_for(text_bytes)


def test_compressed_text_counts_as_text(tmp_path):
    plain, packed = (of_size(tmp_path, 5 * 10**6, name) for name in ("a.txt", "a.txt.gz"))
    assert sizes.by_text(plain)["model.d_model"] == 128
    assert sizes.by_text(packed)["model.d_model"] == 256


@pytest.mark.parametrize("given", [{"model.hidden"}, None])
def test_what_is_given_stays(tmp_path, given):
    fields = {"data.files": of_size(tmp_path, 2 * 10**7), "model.hidden": 640}
    found = inherit(with_fields(OWN.get_config(), fields), given=given)
    assert (found.model.hidden, found.model.d_model, found.model.layers) == (640, 256, 6)
    with expect_input_error("d_model is 256; it must be a multiple of config.model.heads"):
        inherit(with_fields(OWN.get_config(), fields | {"model.heads": 3}), given={"model.heads"})


def test_a_run_keeps_its_size_when_its_text_grows(tmp_path):
    config = with_fields(OWN.get_config(), {"data.files": of_size(tmp_path, 10**6)})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(to_json(inherit(config)))
    of_size(tmp_path, 10**9)
    assert inherit(config, tmp_path / "run").model == OWN.get_config("1m").model


def test_a_prepared_corpus_has_its_vocabulary(tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\n<|endoftext|>\nA river runs. " * 20)
    prepare([str(tmp_path / "a.txt")], None, tmp_path / "corpus", vocabulary_size=300)
    config = with_fields(OWN.get_config(), {"data.files": str(tmp_path / "corpus")})
    # 279, made divisible by the devices of a mesh
    assert validate(inherit(config)).data.vocabulary_size == 384


def of_sources(tmp_path, sources, documents, rows):
    """A config of fine-tuning on so many sources with so many documents, which fill some rows."""
    lines = [
        json.dumps({"text": f"{number} and {source} are here.", "author": f"author {source:02}"})
        for source in range(sources)
        for number in range(documents)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    fields = {"group_field": "author", "near_duplicates": "none", "vocabulary_size": 300}
    report = prepare([str(tmp_path / "a.jsonl")], None, tmp_path / "corpus", **fields)
    about = {"data.files": str(tmp_path / "corpus"), "data.row_length": report["tokens"] // rows}
    return with_fields(FINETUNE.get_config(), about | {"data.vocabulary_size": 384})


@pytest.mark.parametrize(
    ("sources", "documents", "rows", "parts", "length"),
    [
        (40, 20, 400, 1, (5, 4)),
        (40, 20, 100, 1, (5, 1)),  # 8 documents a row
        (6, 20, 28, 1, (7, 1)),
        (6, 20, 28, 2, (9, 2)),  # two devices
        (6, 20, 28, 0, (15, 4)),  # not known how many
        (1, 10, 2, 1, (50, 1)),
        (10, 2, 8, 1, (54, 1)),
    ],
)
def test_few_sources_are_read_in_as_many_steps(tmp_path, sources, documents, rows, parts, length):
    config = of_sources(tmp_path, sources, documents, rows)
    found = inherit(config, given=set(), parts=parts).training
    assert (found.epochs, found.batch_size) == length
    # As many of the steps read a source, if its documents are drawn for them.
    steps, draw = max(round(rows / found.batch_size), 1), np.random.default_rng(0)
    placed = draw.integers(steps, size=(4000, documents))
    reads = np.mean([len(set(row)) for row in placed.tolist()]) * found.epochs
    assert 90 <= reads < 105


def test_what_is_given_of_the_length_stays(tmp_path):
    config = of_sources(tmp_path, 2, 10, 10)
    given = inherit(config, given={"training.batch_size"}, parts=1).training
    assert (given.epochs, given.batch_size) == (40, 4)
    asked = {"training.epochs": 0}
    found = inherit(with_fields(config, asked), given=asked.keys(), parts=1).training
    assert (found.epochs, found.batch_size) == (13, 1)
    asked = {"training.epochs": 3}
    given = inherit(with_fields(config, asked), given=asked.keys(), parts=1).training
    assert (given.epochs, given.batch_size) == (3, 4)
    asked = {"training.steps": 7}
    assert inherit(with_fields(config, asked), given=asked.keys(), parts=1).training.epochs == 0


def test_a_run_keeps_its_length(tmp_path):
    config = of_sources(tmp_path, 2, 10, 10)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(to_json(inherit(config, given=set(), parts=1)))
    again = inherit(config, tmp_path / "run", given=set(), parts=4).training
    assert (again.epochs, again.batch_size) == (13, 1)


def test_without_sources_a_length_is_asked_for(tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat on the mat.")
    fields = {"data.files": str(tmp_path / "a.txt"), "training.epochs": 0}
    with expect_input_error("training.epochs is 0.*no groups: .*a.txt is not prepared"):
        inherit(with_fields(OWN.get_config("1m"), fields), given=fields.keys())
