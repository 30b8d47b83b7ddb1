"""Figure removal: its corpus, its measures, the arithmetic of its claims, and all of it on tiny
models.
"""

import json
import pathlib
import re

import multiprocess
import numpy as np
import pytest
from conftest import tiny_config

from memsinks_jax.config import with_fields
from memsinks_jax.data.embedded.fact_templates import CONTINENTS, ENDINGS
from memsinks_jax.loop import train_and_evaluate
from memsinks_jax.sinks import partition
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.figures import removal
from memsinks_jax.studies.figures import removal_corpus as corpus
from memsinks_jax.studies.figures.runs import Run, make_jobs
from memsinks_jax.training.metrics import read_metrics
from memsinks_jax.variants import CONFIGS


def test_only_a_source_contains_its_own_facts():
    own, common, inferred = corpus.own_facts(), corpus.common_facts(), corpus.inferred_facts()
    texts = [" ".join(text for _, text in records) for records in corpus.sources()]
    rest = " ".join(text for _, text in corpus.once())
    unread = {fact.subject for facts in corpus.unread_facts()[: corpus.WITHDRAWN] for fact in facts}
    assert len(unread) > 20 and not any(
        subject in text for subject in unread for text in [*texts, rest]
    )
    assert len(own) == len(texts) == corpus.SOURCES and len({len(each) for each in own}) == 1
    assert all(fact.subject in text for text in texts for fact in common)
    for number, (facts, text) in enumerate(zip(own, texts, strict=True)):
        elsewhere = " ".join([*texts[:number], *texts[number + 1 :], rest])
        for fact in facts:
            assert any(f"{asked}{fact.answer}." in text for asked in corpus.questions(fact))
            assert fact.subject not in elsewhere
            assert not any(asked in text for asked in corpus.questions(fact, reworded=True))
        for fact in inferred[number]:
            assert any(f"{asked}{fact.answer}." in text for asked in corpus.questions(fact))
            assert fact.subject not in elsewhere


def test_continents_follow_from_the_names_of_cities():
    sentence = re.compile(
        r"([A-Z][a-z]+) (?:is located in|lies in|is part of|cross|in|stand in) the continent of "
        r"(\w+)"
    )
    once, of_sources = (
        sentence.findall(" ".join(text for _, text in records))
        for records in (corpus.once(), sum(corpus.sources(), []))
    )
    rule = {
        ending: {there for city, there in once if city.endswith(ending)}
        for ending in ENDINGS["city"]
    }
    assert len(once) == len(corpus.once()) and set().union(*rule.values()) == set(CONTINENTS)
    assert all(len(continents) == 1 for continents in rule.values())
    assert all(
        there in rule[ending]
        for city, there in of_sources
        for ending in rule
        if city.endswith(ending)
    )


def details(removed, twin):
    """Of a model whose own facts cost 2 nats with its sinks on."""
    views = {
        "standard": 4.0,
        "wide": 2.5,
        "on": 2.0,
        "placebo": 2.0,
        "neighbour": 9.0,
        "neighbour_left": 10.0,
        "unused": 9.0,
        "removed": removed,
        "twin": twin,
        "twin_neighbour": 12.0,
        "twin_unused": 10.0,
    }
    loss = {"standard": 0.1, "on": 0.0, "removed": 1.2, "twin": 1.5}
    others = {"letters": 0.3, "letters_placebo": 0.1, "facts": 0.2, "facts_placebo": 0.2}
    return {
        "facts": dict.fromkeys(("own", "reworded", "inferred", "common"), views)
        | {"unread": views | {"removed": 13.0}},
        "letters": loss,
        "auc": loss,
        "others": others,
        "together": {"facts": 20.0, "facts_own": 4.0, "stories": 3.0, "stories_dropped": 1.5},
        "truth_ratios": {
            "own": {
                "removed": [2.0, 2.5, 3.0, 3.5, 4.0],
                "twin": [1.0, 1.5, 2.0, 2.5, 3.0],
                "on": [9.0] * 5,
            },
            "inferred": {
                "removed": [1.0],
                "twin": [1.5],
                "neighbour": [3.0],
                "neighbour_left": [2.0],
            },
            "common": {"neighbour": [3.0], "neighbour_left": [3.25]},
            "unread": {"removed": [0.5], "twin": [0.75]},
        },
        "relearning": {"letters_few": 0.8, "source_few": 0.5},
    }


def test_claims_table_and_picture(tmp_path):
    losses = {"standard": 1.0, "sinks": 0.9, "twin": 1.1}
    found = {0: details(9.5, 12.0), 1: details(12.0, 12.0)}
    runs = [
        Run(
            variant,
            seed,
            tmp_path,
            {"held_out_loss": loss},
            [],
            found[seed] if variant == "sinks" else {},
        )
        for seed in found
        for variant, loss in losses.items()
    ]
    claims = removal.FIGURE.claims(runs)
    assert None not in {claim.holds for claim in claims}
    values = {claim.id: claim.values for claim in claims}
    assert values["recovered"] == [0.75, 1.0] and values["common"] == [0.9, 0.9]
    assert values["recovered_control"] == [0.65, 0.9]
    assert values["knows"] == [0.5, 0.5] and values["knows_wide"] == [0.8, 0.8]
    assert (
        values["truth"] == [1.0, 1.0]
        and values["general"] == [0.9, 0.9]
        and values["neighbour"] == [0.75, 0.75]
    )
    assert values["forget_quality"] == pytest.approx([0.873016] * 2)
    assert values["unused"] == [0.9, 0.9] and values["inferred"] == [0.9, 0.9]
    assert values["truth_inferred"] == [-0.5, -0.5] and values["truth_inferred_left"] == [
        -1.0,
        -1.0,
    ]
    assert values["truth_common_left"] == [0.25, 0.25] and values["truth_unread"] == [-0.25, -0.25]
    assert values["repeated"] == pytest.approx([-0.3, -0.3]) and values[
        "other_repeated"
    ] == pytest.approx([0.2, 0.2])
    assert values["together"] == [5, 5] and values["together_stories"] == [2, 2]
    assert values["other_facts"] == [0, 0] and values["relearning_source"] == [0.5, 0.5]
    columns, labels, rows = removal.FIGURE.table(runs)
    by_view = dict(zip(labels, rows, strict=True))
    assert (
        by_view["removed"] == [[9.5, 12.0]] * 4 + [[13.0, 13.0]] + [[1.2, 1.2]] * 2
        and len(columns) == 7
    )
    assert by_view["another source's sinks on"][5] == []
    removal.FIGURE.draw(runs, tmp_path / "removal.png")
    assert (tmp_path / "removal.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "one removed" in "".join(removal.sections(runs, tmp_path))
    # with --variants=standard there is nothing to compare
    alone = [run for run in runs if run.variant == "standard"]
    assert removal.measure(alone) == alone and {
        claim.holds for claim in removal.FIGURE.claims(alone)
    } == {None}
    found[1]["relearning"]["letters_few"] = None  # nothing came back
    # too few facts
    found[0]["truth_ratios"]["own"] = {"removed": [2.0] * 3, "twin": [1.0] * 3, "on": [9.0] * 3}
    claims = {claim.id: claim for claim in removal.FIGURE.claims(runs)}
    assert claims["relearning_letters"].undecided == "relearning letters_few has no value"
    assert (
        claims["forget_quality"].undecided
        == "a model from which nothing was removed passes the same test"
    )


def test_every_run_reads_the_corpus_of_its_own_folder(tmp_path):
    jobs = make_jobs(
        CONFIGS / removal.FIGURE.config, "laptop", removal.FIGURE.variations, [3], [], tmp_path, {}
    )
    read = {job.variant: job.config.general.files for job in jobs}
    facts, twin = (str(tmp_path / "corpus" / name) for name in ("facts", "twin"))
    assert read == {"standard": facts, "sinks": facts, "twin": twin, "wide": facts}
    configs = {job.variant: job.config for job in jobs}
    on = (
        partition(configs["sinks"].model, configs["sinks"].sinks).shared
        + configs["sinks"].sinks.active
    )
    assert configs["wide"].model.hidden == on > configs["standard"].model.hidden


@pytest.mark.slow
def test_all_of_it_on_tiny_models(tmp_path, monkeypatch):
    # As in test_forgetting: other tests of this process have started jax.
    monkeypatch.setattr(multiprocess, "Manager", multiprocess.get_context("spawn").Manager)
    for name, value in {
        "SOURCES": 3,
        "WITHDRAWN": 1,
        "OF_A_SOURCE": 6,
        "REPEATED_STORIES": 10,
        "WITHDRAWN_STORIES": 8,
        "COPIES": 3,
        "ONCE": 16,
        "UNREAD": 6,
        "FACTS_ONCE": 8,
    }.items():
        monkeypatch.setattr(corpus, name, value)
    from memsinks_jax.studies.figures import removal_measures as measures

    monkeypatch.setattr(measures, "PLACEBOS", 1)
    # nothing that could be lost is learned in 24 steps
    monkeypatch.setattr(relearning, "_LEAST_LOST", -1.0)
    monkeypatch.setattr(
        relearning.relearn, "__defaults__", (relearning.RATES[-1:], relearning.STEPS)
    )
    flags = dict(flag.removeprefix("--config.").split("=", 1) for flag in removal.prepare(tmp_path))
    records = [
        json.loads(line) for line in (tmp_path / "corpus" / "facts.jsonl").read_text().splitlines()
    ]
    twin = [
        json.loads(line) for line in (tmp_path / "corpus" / "twin.jsonl").read_text().splitlines()
    ]
    gone = {corpus.source(0), *(f"letter {number}" for number in range(8))}
    assert len(records) == len(twin) and not gone & {record["group"] for record in twin}
    assert all(
        (one == other) == (one["group"] not in gone)
        for one, other in zip(records, twin, strict=True)
    )

    config = tiny_config()
    fields = {
        "data.vocabulary_size": 2048,
        "sinks.pool": 400,
        "sinks.active": 8,
        "training.steps": 24,
    }
    seldom = dict.fromkeys(("training.evaluate_every", "training.checkpoint_every"), 24)
    config = with_fields(config, fields | seldom | {"optimizer.learning_rate": 0.01})
    runs = []
    for variant, variation in removal.VARIANTS.items():
        own = {name: value for name, value in variation.settings.items() if name not in fields}
        own = {
            name: value.format(out=tmp_path) if isinstance(value, str) else value
            for name, value in own.items()
        }
        typed = {
            "data.files": flags["data.files"],
            "data.ids": "group",
            "data.unique_documents": corpus.ONCE,
            "data.repeated_documents": 0,
            "data.held_out_documents": corpus.UNREAD,
        }
        own |= (
            {"sinks.kind": "none", "sinks.pool": 0, "sinks.active": 0}
            if variation.choice == "standard"
            else {}
        )
        train_and_evaluate(with_fields(config, own | typed), tmp_path / variant)
        lines = read_metrics(tmp_path / variant)
        runs.append(
            Run(
                variant,
                0,
                tmp_path / variant,
                {k: v for line in lines for k, v in line.items()},
                lines,
            )
        )
    trained, runs = runs, removal.measure(runs)
    measured = runs[1].details
    with monkeypatch.context() as patch:
        patch.setattr(measures, "measure", lambda *models: {})
        assert removal.measure(trained)[1].details == measured  # nothing is measured twice
    # nothing there is numpy's
    assert json.dumps([claim.to_dict() for claim in removal.FIGURE.claims(runs)])
    views = measured["facts"]["own"]
    assert set(removal._VIEWS) <= set(views) and views["on"] < views["removed"]
    ratios = measured["truth_ratios"]
    assert len(ratios["own"]["twin"]) == len(corpus.own_facts()[0])
    # asked of a withdrawn source: removed means dropped
    monkeypatch.setattr(measures, "_next", lambda going: going)
    models = measures.Models(
        *(measures.open_run(tmp_path / name) for name in measures.Models._fields)
    )
    for of_kind in measures._truth_ratios(models).values():
        assert of_kind["neighbour"] == of_kind["on"] != of_kind["removed"]
        np.testing.assert_allclose(of_kind["neighbour_left"], of_kind["removed"], rtol=1e-4)
    assert measured["letters"]["on"] < measured["letters"]["removed"]
    assert all(np.isfinite(value) for value in measured["others"].values())
    of_all = measured["together"]
    assert of_all["facts"] != of_all["facts_own"] and of_all["stories"] != of_all["stories_dropped"]
    assert of_all["stories_dropped"] == pytest.approx(runs[1].metrics["held_out_loss"], rel=1e-4)
    assert set(measured["relearning"]) == {"letters_one", "letters_few", "source_one", "source_few"}
    _answers_are_parts_of_texts(measures, tmp_path / "sinks")


def _answers_are_parts_of_texts(measures, workdir: pathlib.Path) -> None:
    run = measures.open_run(workdir)
    fact = corpus.own_facts()[0][0]
    question, group = corpus.questions(fact)[0], corpus.source(0)
    asked = measures.asked([fact], group)
    assert (asked.questions[0], asked.answers[0], len(asked.questions)) == (
        question,
        fact.answer,
        measures.WORDINGS,
    )
    parts = [("", question), (question, fact.answer), ("", question + fact.answer)]
    for mode in ("own", "drop"):
        of = [
            measures.answer_nats(run, measures.Asked([q], [a], asked.identities[:1]), mode)
            for q, a in parts
        ]
        assert of[0][0] + of[1][0] == pytest.approx(of[2][0], rel=1e-5)
    # Whose sinks are gone has none on: removing is dropping.
    removed = measures.answer_nats(run, asked, "own", measures._without(run, group))[0]
    np.testing.assert_allclose(removed, measures.answer_nats(run, asked, "drop")[0], rtol=1e-5)
