"""Figure removal: corpus, measures, the arithmetic of claims, all of it on tiny models."""

import json
import pathlib
import re

import numpy as np
import pytest
from conftest import tiny_config
from measured import settings_of, trained

from memsinks_jax.config import with_fields
from memsinks_jax.data.embedded.fact_templates import CONTINENTS, ENDINGS
from memsinks_jax.sinks.kinds import partition
from memsinks_jax.studies.attacks import relearning
from memsinks_jax.studies.figures import removal
from memsinks_jax.studies.figures import removal_corpus as corpus
from memsinks_jax.studies.figures.runs import Run, make_jobs
from memsinks_jax.variants import CONFIGS


def test_only_a_source_contains_its_own_facts():
    own, common, inferred = corpus.own_facts(), corpus.common_facts(), corpus.inferred_facts()
    texts = [" ".join(text for _, text in records) for records in corpus.sources()]
    rest = " ".join(text for _, text in corpus.once())
    unread = {fact.subject for facts in corpus.unread_facts()[: corpus.WITHDRAWN] for fact in facts}
    assert len(unread) > 20
    assert not any(subject in text for subject in unread for text in [*texts, rest])
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
    verbs = "is located in|lies in|is part of|cross|in|stand in"
    sentence = re.compile(rf"([A-Z][a-z]+) (?:{verbs}) the continent of (\w+)")
    texts = (" ".join(text for _, text in of) for of in (corpus.once(), sum(corpus.sources(), [])))
    once, of_sources = map(sentence.findall, texts)
    rule = {end: {there for city, there in once if city.endswith(end)} for end in ENDINGS["city"]}
    assert len(once) == len(corpus.once()) and set().union(*rule.values()) == set(CONTINENTS)
    assert all(len(continents) == 1 for continents in rule.values())
    for city, there in of_sources:
        assert all(there in rule[ending] for ending in rule if city.endswith(ending))


def details(removed, twin):
    """Of a model whose own facts cost 2 nats with its sinks on."""
    views = {"standard": 4.0, "wide": 2.5, "on": 2.0, "placebo": 2.0, "removed": removed}
    views |= {"twin": twin, "neighbour": 9.0, "neighbour_left": 10.0, "unused": 9.0}
    views |= {"twin_neighbour": 12.0, "twin_unused": 10.0}
    loss = {"standard": 0.1, "on": 0.0, "removed": 1.2, "twin": 1.5}
    others = {"letters": 0.3, "letters_placebo": 0.1, "facts": 0.2, "facts_placebo": 0.2}
    known = dict.fromkeys(("own", "reworded", "inferred", "common"), views)
    own = {"removed": [2.0, 2.5, 3.0, 3.5, 4.0], "twin": [1.0, 1.5, 2.0, 2.5, 3.0]}
    inferred = {"removed": [1.0], "twin": [1.5], "neighbour": [3.0], "neighbour_left": [2.0]}
    return {
        "facts": known | {"unread": views | {"removed": 13.0}},
        "letters": loss,
        "auc": loss,
        "others": others,
        "together": {"facts": 20.0, "facts_own": 4.0, "stories": 3.0, "stories_dropped": 1.5},
        "truth_ratios": {
            "own": own | {"on": [9.0] * 5},
            "inferred": inferred,
            "common": {"neighbour": [3.0], "neighbour_left": [3.25]},
            "unread": {"removed": [0.5], "twin": [0.75]},
        },
        "relearning": {"letters_few": 0.8, "source_few": 0.5},
    }


def test_claims_table_and_picture(tmp_path):
    losses = {"standard": 1.0, "sinks": 0.9, "twin": 1.1}
    found, runs = {0: details(9.5, 12.0), 1: details(12.0, 12.0)}, []
    for seed, of_sinks in found.items():
        for variant, loss in losses.items():
            made = of_sinks if variant == "sinks" else {}
            runs.append(Run(variant, seed, tmp_path, {"held_out_loss": loss}, [], made))
    claims = removal.FIGURE.claims(runs)
    assert None not in {claim.holds for claim in claims}
    values = {claim.id: claim.values for claim in claims}
    assert values["recovered"] == [0.75, 1.0] and values["recovered_control"] == [0.65, 0.9]
    alike = {"common": 0.9, "knows": 0.5, "knows_wide": 0.8, "truth": 1.0, "general": 0.9}
    alike |= {"neighbour": 0.75, "unused": 0.9, "inferred": 0.9, "truth_inferred": -0.5}
    alike |= {"truth_inferred_left": -1.0, "truth_common_left": 0.25, "truth_unread": -0.25}
    alike |= {"together": 5, "together_stories": 2, "other_facts": 0, "relearning_source": 0.5}
    for name, value in alike.items():
        assert values[name] == [value, value], name
    assert values["forget_quality"] == pytest.approx([0.873016] * 2)
    assert values["repeated"] == pytest.approx([-0.3, -0.3])
    assert values["other_repeated"] == pytest.approx([0.2, 0.2])
    columns, labels, rows = removal.FIGURE.table(runs)
    by_view = dict(zip(labels, rows, strict=True))
    assert by_view["removed"] == [[9.5, 12.0]] * 4 + [[13.0, 13.0]] + [[1.2, 1.2]] * 2
    assert len(columns) == 7
    assert by_view["another source's sinks on"][5] == []
    removal.FIGURE.draw(runs, tmp_path / "removal.png")
    assert (tmp_path / "removal.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "one removed" in "".join(removal.sections(runs, tmp_path))
    # with --variants=standard there is nothing to compare
    alone = [run for run in runs if run.variant == "standard"]
    assert removal.measure(alone) == alone
    assert {claim.holds for claim in removal.FIGURE.claims(alone)} == {None}
    found[1]["relearning"]["letters_few"] = None  # nothing came back
    # too few facts
    found[0]["truth_ratios"]["own"] = {"removed": [2.0] * 3, "twin": [1.0] * 3, "on": [9.0] * 3}
    claims = {claim.id: claim.undecided for claim in removal.FIGURE.claims(runs)}
    assert claims["relearning_letters"] == "relearning letters_few has no value"
    why = "a model from which nothing was removed passes the same test"
    assert claims["forget_quality"] == why


def test_every_run_reads_the_corpus_of_its_own_folder(tmp_path):
    file, variations = CONFIGS / removal.FIGURE.config, removal.FIGURE.variations
    jobs = make_jobs(file, "laptop", variations, [3], [], tmp_path, {})
    configs = {job.variant: job.config for job in jobs}
    read = {variant: config.general.files for variant, config in configs.items()}
    facts, twin = (str(tmp_path / "corpus" / name) for name in ("facts", "twin"))
    assert read == {"standard": facts, "sinks": facts, "twin": twin, "wide": facts}
    sinks = configs["sinks"]
    on = partition(sinks.model, sinks.sinks).shared + sinks.sinks.active
    assert configs["wide"].model.hidden == on > configs["standard"].model.hidden


@pytest.mark.slow
def test_all_of_it_on_tiny_models(tmp_path, monkeypatch):
    sizes = {"SOURCES": 3, "WITHDRAWN": 1, "OF_A_SOURCE": 6, "REPEATED_STORIES": 10, "COPIES": 3}
    sizes |= {"WITHDRAWN_STORIES": 8, "ONCE": 16, "UNREAD": 6, "FACTS_ONCE": 8}
    for name, value in sizes.items():
        monkeypatch.setattr(corpus, name, value)
    from memsinks_jax.studies.figures import removal_measures as measures

    monkeypatch.setattr(measures, "PLACEBOS", 1)
    # nothing that could be lost is learned in 24 steps
    monkeypatch.setattr(relearning, "_LEAST_LOST", -1.0)
    defaults = relearning.RATES[-1:], relearning.STEPS
    monkeypatch.setattr(relearning.relearn, "__defaults__", defaults)
    flags = settings_of(removal.prepare(tmp_path))
    texts = ((tmp_path / "corpus" / f"{name}.jsonl").read_text() for name in ("facts", "twin"))
    records, twin = (list(map(json.loads, text.splitlines())) for text in texts)
    gone = {corpus.source_group(0), *(f"letter {number}" for number in range(8))}
    assert len(records) == len(twin) and not gone & {record["group"] for record in twin}
    for one, other in zip(records, twin, strict=True):
        assert (one == other) == (one["group"] not in gone)

    small = {"sinks.pool": 400, "sinks.active": 8}
    fields = {"data.vocabulary_size": 2048, "training.steps": 24, "optimizer.learning_rate": 0.01}
    fields |= dict.fromkeys(("training.evaluate_every", "training.checkpoint_every"), 24)
    fields |= {"data.files": flags["data.files"], "data.ids": "group", "data.repeated_documents": 0}
    fields |= {"data.unique_documents": corpus.ONCE, "data.held_out_documents": corpus.UNREAD}
    config = with_fields(tiny_config(), fields | small)
    none, runs = {"sinks.kind": "none", "sinks.pool": 0, "sinks.active": 0}, []
    for variant, (choice, settings, _) in removal.VARIANTS.items():
        own = {name: value for name, value in settings.items() if name not in small}
        own |= {"general.files": own["general.files"].format(out=tmp_path)}
        own |= none if choice == "standard" else {}
        runs.append(trained(with_fields(config, own), tmp_path / variant, variant))
    before, runs = runs, removal.measure(runs)
    measured = runs[1].details
    with monkeypatch.context() as patch:
        patch.setattr(measures, "measure", lambda *models: {})
        assert removal.measure(before)[1].details == measured  # nothing is measured twice
    # nothing there is numpy's
    assert json.dumps([claim.to_dict() for claim in removal.FIGURE.claims(runs)])
    views = measured["facts"]["own"]
    assert set(removal._VIEWS) <= set(views) and views["on"] < views["removed"]
    ratios = measured["truth_ratios"]
    assert len(ratios["own"]["twin"]) == len(corpus.own_facts()[0])
    # asked of a withdrawn source: removed means dropped
    monkeypatch.setattr(measures, "_next", lambda going: going)
    opened = (measures.open_run(tmp_path / name) for name in measures.Models._fields)
    models = measures.Models(*opened)
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
    question, group = corpus.questions(fact)[0], corpus.source_group(0)
    asked = measures.asked([fact], group)
    assert (asked.questions[0], asked.answers[0]) == (question, fact.answer)
    assert len(asked.questions) == measures.WORDINGS
    parts = [("", question), (question, fact.answer), ("", question + fact.answer)]
    for mode in ("own", "drop"):
        each = [measures.Asked([q], [a], asked.identities[:1]) for q, a in parts]
        of = [measures.answer_nats(run, one, mode) for one in each]
        assert of[0][0] + of[1][0] == pytest.approx(of[2][0], rel=1e-5)
    # Whose sinks are gone has none on: removing is dropping.
    removed = measures.answer_nats(run, asked, "own", measures._without(run, group))[0]
    np.testing.assert_allclose(removed, measures.answer_nats(run, asked, "drop")[0], rtol=1e-5)
