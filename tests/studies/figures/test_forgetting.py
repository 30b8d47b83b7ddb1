"""Figure forgetting: its corpus, the arithmetic of its claims, and all of it on a tiny model."""

import dataclasses
import re

import numpy as np
import pytest
from conftest import tiny_config
from measured import settings_of, trained

from memsinks_jax.config import with_fields
from memsinks_jax.data.prepared import Prepared
from memsinks_jax.studies.figures import forgetting
from memsinks_jax.studies.figures import forgetting_corpus as corpus
from memsinks_jax.studies.figures.runs import Run


def test_a_copy_has_so_many_other_words():
    text, words = "  ".join(f"word{n}" for n in range(40)), ["other"]
    for level, count in ((0.05, 2), (0.1, 4), (0.2, 8)):
        made = corpus.copies(text, level, words, 3)
        for copy in made:
            pairs = zip(text.split(), copy.split(), strict=True)
            assert sum(word != other for word, other in pairs) == count
        assert len(set(made)) > 0.9 * len(made)
        assert all(re.findall(r"\s+", copy) == re.findall(r"\s+", text) for copy in made)
        assert made != corpus.copies(text, level, words, 4)


def test_a_dialect_exchanges_words():
    common = ["the", "was", "little", "happy", "dog"]
    text = "The little dog was happy, so was the cat."
    texts = [corpus.in_dialect(text, common, number) for number in range(6)]
    assert len(set(texts)) > 3
    for text in texts:
        assert re.fullmatch(r"The (\w+) (\w+) (\w+) (\w+), so \3 (\w+) cat\.", text)
        assert sorted(set(re.findall(r"\w+", text)) - {"The", "so", "cat"}) == sorted(common)


def test_gaps_and_ratios_by_hand():
    def run(variant, copied, **more):
        metrics = {"held_out_loss": 2.0, "repeated_loss": 1.0, "unread": 2.0}
        for level in corpus.LEVELS:
            metrics |= {f"copied_{level}": copied, f"copies_{level}": 2.5}
            metrics[f"unread_copies_{level}"] = 3.0
        return Run(variant, 0, None, metrics | more, [])

    runs = [run("standard", 1.0), run("content", 1.25), run("near_duplicate", 1.75)]
    claims = {claim.id: claim.values for claim in forgetting.FIGURE.claims(runs)}
    assert claims["cluster_0.1"] == [pytest.approx(0.75)]
    assert claims["over_content_0.1"] == [pytest.approx(0.5)]
    assert not claims["group_read"]
    rises = np.array([[4.0, 1.0], [0.5, 5.0]])
    assert forgetting._ratio(rises) == pytest.approx(4.5 / 0.75)
    # nothing else rises: it holds, as it should
    assert forgetting._ratio(np.eye(2)) == pytest.approx(1e4)


@pytest.mark.slow
def test_all_of_it_on_a_tiny_model(tmp_path, monkeypatch):
    sizes = {"STORIES": 24, "ORDINARY": 4, "HELD_OUT": 4, "BASES": 1, "COPIES": 12}
    sizes |= {"OF_A_DIALECT": 6, "EXCHANGED": 20, "LEVELS": (0.05,), "DIALECTS": ("north", "south")}
    for name, value in sizes.items():
        monkeypatch.setattr(corpus, name, value)
    monkeypatch.setattr(forgetting, "_EDITED", (0.0, 0.05))
    flags = settings_of(forgetting.prepare(tmp_path))
    assert forgetting._clusters_of(flags["general.files"]) == [(0.05, 1.0, 0.0)]
    mixed = Prepared(flags["general.files"])
    assert set(mixed.group_names) >= {"north", "south", "ordinary 0", "copy 0.05 0 11"}
    assert np.bincount(mixed.groups).max() == 6
    fields = {name: flags[name] for name in ("data.files", "general.files")}
    fields |= {"data.ids": "group", "data.unique_documents": 19, "data.repeated_documents": 1}
    # an epoch, in which the dialects come back
    fields |= {"data.repetitions": 2, "data.vocabulary_size": 2048, "training.steps": 21}
    run = trained(with_fields(tiny_config(), fields), tmp_path / "run", "group")
    (run,) = forgetting.measure([run])
    runs = [dataclasses.replace(run, variant=variant) for variant in forgetting.VARIANTS]
    details = run.details
    assert np.array(details["unread"]).shape == np.array(details["read"]).shape == (2, 2)
    assert np.array(details["plain"]).shape == (2, 1)
    assert np.abs(np.diagonal(details["read"])).min() > 0
    columns, labels, rows = forgetting.FIGURE.table(runs)
    assert [len(row) for row in rows] == [len(columns)] * len(labels)
    forgetting.FIGURE.draw(runs, tmp_path / "figure.png")
    # all copies found
    assert '<td class="number">1.00</td>' in "".join(forgetting.sections(runs, tmp_path))
    texts = {claim.id: claim.values for claim in forgetting.FIGURE.claims(runs)}
    assert texts["cluster_0.05"] == texts["over_content_0.05"] == [0.0]  # it is the same model
