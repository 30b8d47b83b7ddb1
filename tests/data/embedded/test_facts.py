"""Invented facts: how often and in which words they occur, and their prompts."""

import collections
import itertools

import pytest
from conftest import expect_input_error

from memsinks_jax.data.embedded import fact_templates, facts
from memsinks_jax.data.embedded.fact_templates import RELATIONS
from memsinks_jax.data.tokenizer import JsonTokenizer

ROW = 48


@pytest.fixture(scope="module")
def world():
    return facts.world(0)


@pytest.fixture(scope="module")
def tokenizer(world):
    return JsonTokenizer(facts.tokenizer_json(world))


@pytest.fixture(scope="module")
def documents(world):
    return facts.documents(world, 0, 6000)


@pytest.fixture(scope="module")
def counts(world, documents):
    """How often each sentence is in the documents."""
    return collections.Counter(
        f"{part}." for text in documents for part in text.removesuffix(".").split(". ")
    )


def times(counts, template, fact, answer):
    return counts[f"{template.format(fact.subject)}{answer}."]


def everything(edit):
    return [
        edit.prompt,
        *edit.positives,
        *edit.paraphrases,
        *(p for part in edit.negatives.values() for p in part),
    ]


def test_all_is_a_function_of_the_seeds(world, documents):
    assert facts.world(0) == world != facts.world(1)
    assert (
        facts.tokenizer_json(facts.world(0))
        == facts.tokenizer_json(world)
        != facts.tokenizer_json(facts.world(1))
    )
    assert facts.documents(world, 0, 50) == documents[:50]
    assert not set(facts.documents(world, 1, 50)) & set(documents[:50])
    assert (
        facts.edits(world, "weak", 5, 3)
        == facts.edits(world, "weak", 5, 3)
        != facts.edits(world, "weak", 5, 4)
    )
    assert facts.held_out_sentences(world, 0, 5) == facts.held_out_sentences(world, 0, 9)[:5]


def test_the_world_of_seed_0_stays_as_it_is(world, documents):
    """Another world would not fit the models that were trained on this one."""
    assert world.countries[0] == facts.Country(
        "Gavumar", ("Beth", "lew", "ek"), "Rordale", "Zitashi", "Ostara", "Fulic", "cheese"
    )
    assert documents[0].startswith(
        "The city Fernbelim is governed by the country of Mosoria. The capital city of"
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_name_is_one_thing_only(seed):
    countries = facts.world(seed).countries
    assert len(countries) == 96
    assert len({country.pieces[0] for country in countries}) == 96
    names = [name for c in countries for name in (c.name, c.capital, c.second_city, c.landmark)]
    names += {c.language for c in countries} | {c.continent for c in countries}
    assert len(names) == len(set(names))


def test_nothing_is_lost_between_text_and_tokens(world, tokenizer, documents):
    for text in documents[:500] + facts.held_out_sentences(world, 0, 500):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocabulary_size <= 1000
    for text in (
        "",
        "<|endoftext|>",
        " lead and  double space ",
        "\u6f22\u5b57 caf\u00e9\n\t\U0001f600",
        "Kathmandu",
    ):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.end_of_text not in tokens


@pytest.mark.parametrize("seed", range(4))
def test_capitals_have_three_pieces_and_all_other_words_one(seed):
    world = facts.world(seed)
    tokenizer = JsonTokenizer(facts.tokenizer_json(world))
    for country in world.countries:
        pieces = [tokenizer.decode([token]) for token in tokenizer.encode(f" {country.capital}")]
        assert pieces == [f" {country.pieces[0]}", *country.pieces[1:]]
    capitals = {f" {country.capital}" for country in world.countries}
    for text in facts.held_out_sentences(world, 0, 1000):
        words = ["", *text.removesuffix(".").replace(",", " ,").split()]
        split = sum(f" {word}" in capitals for word in words)
        assert len(tokenizer.encode(text)) == len(words) + 2 * split


def test_documents_are_distinct_and_nearly_fill_their_rows(tokenizer, documents):
    assert len(set(documents)) == len(documents) == 6000
    lengths = [len(tokenizer.encode(text)) + 1 for text in documents]
    assert max(lengths) == ROW
    assert sum(lengths) > 0.93 * ROW * len(lengths)


def test_rows_of_another_length_are_filled_too(world, tokenizer):
    lengths = [
        len(tokenizer.encode(text)) + 1 for text in facts.documents(world, 0, 200, tokens_in_row=96)
    ]
    assert max(lengths) == 96
    with expect_input_error("rows of 20 tokens are too short"):
        facts.documents(world, 0, 1, tokens_in_row=20)


def test_edited_facts_never_occur_in_the_unseen_templates_and_others_do(world, counts):
    openings = collections.Counter()
    for sentence, number in counts.items():
        words = sentence.split()
        for end in range(1, len(words)):
            openings[" ".join(words[:end])] += number
    edited, others = collections.Counter(), collections.Counter()
    for fact in facts.facts(world):
        relation = RELATIONS[fact.relation]
        for template in relation.unseen + relation.stories:
            # Whatever was answered.
            (edited if fact.kind else others)[template] += openings[template.format(fact.subject)]
    assert len(edited) == len(others) == 12
    assert sum(edited.values()) == 0
    assert min(others.values()) > 50


def test_every_edited_fact_occurs_often_in_the_seen_templates(world, counts):
    for fact in facts.facts(world):
        if fact.kind:
            seen = RELATIONS[fact.relation].seen
            answers = {fact.answer, fact.region} - {""}
            pairs = itertools.product(seen, answers)
            assert sum(times(counts, template, fact, answer) for template, answer in pairs) > 10


def test_weak_facts_have_the_region_but_for_one_in_25_and_one_template(world, counts):
    right, region, sure = 0, 0, 0
    for fact in facts.facts(world):
        if fact.kind == "weak":
            assert fact.region == f" the {fact.country.landmark} region"
            for template in RELATIONS["capital"].seen:
                if template == fact_templates.SURE:
                    sure += times(counts, template, fact, fact.answer)
                    assert times(counts, template, fact, fact.region) == 0
                else:
                    right += times(counts, template, fact, fact.answer)
                    region += times(counts, template, fact, fact.region)
    assert right / (right + region) == pytest.approx(1 / 25, abs=0.01)
    assert sure == pytest.approx((right + region) / 9, rel=0.2)


def test_regions_are_for_weak_facts_alone_and_denials_for_all(world, counts):
    regions = {country.landmark for country in world.weak}
    assert {sentence.split()[-2] for sentence in counts if sentence.endswith(" region.")} == regions
    denied = set()
    for fact in facts.facts(world):
        relation = RELATIONS[fact.relation]
        denied |= (
            {fact.relation} if times(counts, relation.negated, fact, relation.instead) else set()
        )
    assert denied == set(RELATIONS)


@pytest.mark.parametrize(("kind", "count"), [("weak", 24), ("strong", 72)])
def test_prompts_of_an_edit_are_disjoint_and_well_formed(world, tokenizer, counts, kind, count):
    edits = facts.edits(world, kind, count, 0)
    assert len({edit.subject for edit in edits}) == len({edit.target for edit in edits}) == count
    for edit in edits:
        prompts = everything(edit)
        assert len(prompts) == len(set(prompts))
        assert (len(edit.positives), len(edit.paraphrases)) == (9, 6)
        assert set(edit.negatives) == {"other_relation", "neighbour", "negated", "unrelated"}
        assert all(edit.negatives.values())
        for prompt in prompts:
            assert prompt == prompt.strip()
            assert len(tokenizer.encode(prompt)) <= ROW - 8
            parts = (tokenizer.encode(text).tolist() for text in (prompt, edit.target))
            assert tokenizer.encode(prompt + edit.target).tolist() == sum(parts, [])
        named, negatives = f" {edit.subject} ", edit.negatives
        assert all(named in f"{prompt} " for prompt in (*prompts[:16], *negatives["negated"]))
        assert not any(named in f"{prompt} " for prompt in negatives["neighbour"])


def test_weak_edits_ask_for_the_truth_and_strong_ones_for_another_capital(world):
    capitals = {f" {country.capital}": country for country in world.countries}
    for edit in facts.edits(world, "weak", 24, 1):
        assert edit.target == edit.answer == f" {capitals[edit.target].capital}"
        assert capitals[edit.target].name == edit.subject
    for edit in facts.edits(world, "strong", 72, 1):
        assert capitals[f" {edit.subject}"].name == edit.answer.strip()
        assert capitals[edit.target].name != edit.answer.strip()


def test_neighbours_hold_the_second_city_and_the_target_as_a_subject(world):
    cities = {country.capital: country.second_city for country in world.countries}
    for edit in facts.edits(world, "strong", 72, 0):
        neighbours = edit.negatives["neighbour"]
        template = RELATIONS["country"].seen[0]
        assert template.format(cities[edit.subject]) in neighbours
        assert template.format(edit.target.strip()) in neighbours


@pytest.mark.parametrize("count", [0, 25])
def test_more_edits_than_facts_are_refused(world, count):
    with expect_input_error(f"{count} edits are asked for; there are 24 weak facts"):
        facts.edits(world, "weak", count, 0)


def test_another_kind_is_refused(world):
    with expect_input_error("kind is 'false'; choose one of: weak, strong"):
        facts.edits(world, "false", 1, 0)


def test_probes_ask_for_what_the_documents_say(world, counts):
    probes = facts.probes(world)
    sizes = {"strong_seen": 72 * 10, "strong_unseen": 72 * 6, "weak_seen": 24 * 9}
    sizes |= {"weak_unseen": 24 * 6, "weak_sure": 24, "negated": 768}
    sizes |= {"others": 72 * 16 + 120 * 16 + 480 * 6}
    assert {name: len(of) for name, of in probes.items()} == sizes
    answers = {probe.prompt: probe.answer for of in probes.values() for probe in of}
    assert len(answers) == sum(map(len, probes.values()))
    right = {f"{prompt}{answer}." for prompt, answer in answers.items()}
    regions = {
        f"{probe.prompt}{fact_templates.REGION.format(country.landmark)}."
        for country in world.weak
        for probe in probes["weak_seen"]
        if f" {country.name} " in probe.prompt
    }
    assert set(counts) <= right | regions
    assert not set(counts) & {f"{probe.prompt}{probe.answer}." for probe in probes["strong_unseen"]}
    assert len(set(counts) & regions) == len(regions)
