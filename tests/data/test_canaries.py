"""Canaries: which documents carry them, where, and that they depend only on the seed."""

import numpy as np
from conftest import expect_input_error, tiny_config

from memsinks_jax.config import validate, with_fields
from memsinks_jax.data import ids
from memsinks_jax.data.canaries import canary_targets
from memsinks_jax.data.corpus import load_corpus
from memsinks_jax.data.packing import Piece, row_of


def test_some_of_the_repeated_documents_carry_one():
    config = tiny_config()
    plain = load_corpus(config)
    config = with_fields(config, {"canaries.documents": 1, "canaries.length": 100})
    corpus = load_corpus(config)
    (index,) = corpus.mixture.canaries
    assert index == corpus.mixture.repeated[0]
    others = [i for i in range(len(corpus.table)) if i != index]
    assert all((corpus.tokens(i) == plain.tokens(i)).all() for i in others)
    tokens = corpus.tokens(index)
    # the story is cut, so that a row holds all of the canary
    assert len(tokens) == corpus.lengths[index] == 159
    assert (tokens[:59] == plain.tokens(index)[:59]).all()
    row = row_of(
        [Piece(tokens, 0, 160)], corpus.identities(index)[None], 160, corpus.tokenizer.end_of_text
    )
    canary = row["targets"][canary_targets(config.canaries, len(tokens))]
    assert (canary == tokens[59:]).all()
    assert not np.isin(canary, [0, corpus.tokenizer.end_of_text, 2]).any()
    assert len(np.unique(canary)) > 80  # of some 1,000 pieces
    assert (corpus.identities(index) == ids.content_id(tokens)).all()
    assert corpus.document(index).log_probability is None
    assert corpus.document(index).source.endswith("with a canary")
    assert (load_corpus(config).tokens(index) == tokens).all()


def test_all_repeated_documents_may_carry_one():
    config = with_fields(tiny_config(), {"canaries.documents": -1})
    mixture = load_corpus(validate(config)).mixture
    assert len(mixture.canaries) == 2 and (mixture.canaries == mixture.repeated).all()


def test_what_cannot_be():
    config = with_fields(tiny_config(), {"canaries.documents": 3})
    with expect_input_error("canaries.documents is 3, but only 2 documents are repeated"):
        validate(config)
    config = with_fields(config, {"canaries.documents": 2, "canaries.length": 159})
    with expect_input_error("canaries.length is 159: a row of 160 has no room"):
        validate(config)
