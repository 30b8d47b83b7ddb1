import math
import re

import numpy as np
import pytest
from story_parser import derivations, log_probability, matching, shown

from memsinks_jax.config import DataConfig
from memsinks_jax.data.embedded import stories, story_grammar
from memsinks_jax.data.embedded.stories import story
from memsinks_jax.data.tokenizer import train_tokenizer

HERO = re.compile(r"(?:named (\w+)|^(\w+) was)")
PINNED = """Once upon a time, there was a funny, friendly girl named Zorobilina. One stormy morning, \
Zorobilina and her funny friend Sophie went to the circus with a sparkly kite. "I want to sort shells!" \
said Zorobilina. Sophie wanted to read and sing. "A friend is better than a tiny charm," said her polite \
dad politely. So they made up and went to the special aquarium to paint and swim. Before bed, she learned \
new words: us, wore, near, thing."""


def _hero(text):
    return next(filter(None, HERO.search(text).groups()))


@pytest.fixture(scope="module")
def many():
    return [story(seed=1, index=index) for index in range(6000)]


def test_a_story_is_a_pure_function_of_seed_and_index():
    later_first = {index: story(3, index) for index in reversed(range(20))}
    assert later_first == {index: story(3, index) for index in range(20)}


def test_the_stream_is_pinned():
    assert story(0, 0).text == PINNED
    assert story(0, 0).log_probability == pytest.approx(-115.96296787141034, abs=1e-9)


def test_seeds_and_indices_give_different_stories(many):
    assert len({one.text for one in many}) == len(many)
    assert not {story(2, index).text for index in range(500)} & {one.text for one in many}
    assert story(4, 5) != story(5, 4)


@pytest.mark.parametrize("key", [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_keys_that_do_not_fit_are_refused(key):
    with pytest.raises(ValueError):
        story(*key)


def test_every_story_has_one_derivation_with_the_recorded_probability(many):
    for one in many[:600]:
        assert derivations(one.text) == pytest.approx([one.log_probability], abs=1e-9), one.text
        assert log_probability(one.text) == pytest.approx(one.log_probability, abs=1e-9)


def test_texts_outside_the_grammar_are_impossible(many):
    for one in many[:50]:
        words = one.text.split(" ")
        words[len(words) // 2] = "zeppelin"
        changed = [" ".join(words), one.text + " ", one.text[:-1], one.text * 2, one.text.lower()]
        assert [log_probability(text) for text in changed] == [-math.inf] * len(changed)
    assert log_probability("") == -math.inf


def test_another_hero_changes_the_probability_by_the_ratio_of_the_names(many):
    """Holds for stories with one child, whose text depends on the name by repetition only."""
    girls = stories._TABLES["girl"]
    logs = dict(zip(girls.words, girls.weighted.logs, strict=True))
    children = set(stories._TABLES["child"].words)
    heroes = [one for one in many if len(children & set(re.findall(r"\w+", one.text))) == 1]
    heroes = [one for one in heroes if _hero(one.text) in logs and _hero(one.text) != "Tess"][:50]
    assert len(heroes) == 50
    for one in heroes:
        changed = re.sub(rf"\b{_hero(one.text)}\b", "Tess", one.text)
        gain = logs["Tess"] - logs[_hero(one.text)]
        assert log_probability(changed) == pytest.approx(one.log_probability + gain, abs=1e-9), (
            changed
        )


def test_openings_come_with_their_weights(many):
    shift, power = story_grammar.SHAPE["rule"]
    weights = np.array([(rank + shift) ** -power for rank in range(6)])
    weights /= weights.sum()
    shares = {"Once": weights[0], "There": weights[4], "Long": weights[5]}
    for word, share in shares.items():
        seen = np.mean([one.text.startswith(word) for one in many])
        assert abs(seen - share) < 4 * math.sqrt(share * (1 - share) / len(many)), (
            word,
            seen,
            share,
        )


def test_names_come_with_their_weights(many):
    heroes = [_hero(one.text) for one in many]
    children = stories._TABLES["child"]
    shares = dict(zip(children.words, children.weighted.probabilities, strict=True))
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    for name in ("Lily", "Mia", "Tim", "Tom", "Grace", "Henry"):
        error = math.sqrt(shares[name] * (1 - shares[name]) / len(many))
        assert abs(heroes.count(name) / len(many) - shares[name]) < 4 * error, name
    common = {name for gender in story_grammar.NAMES.values() for name in stories._words(gender)}
    invented = np.mean([name not in common for name in heroes])
    share = story_grammar.INVENTED_SHARE
    assert abs(invented - share) < 4 * math.sqrt(share * (1 - share) / len(many))


def test_the_probability_of_a_draw_without_a_word_is_renormalized():
    table = stories._Table(["a", "b", "c", "d"], [4.0, 3.0, 2.0, 1.0])
    slot = stories._Slot("x", "", False, True, "x", "last x")
    for barred in (0, 1, 3):
        draw = stories._Draw(slot, table, table.words[barred])
        uniforms = (np.arange(20000) + 0.5) / 20000
        seen = np.bincount([draw.draw(uniform) for uniform in uniforms], minlength=4) / 20000
        allowed = [option for option in range(4) if option != barred]
        assert seen[allowed] == pytest.approx(
            [math.exp(draw.log_probability(o)) for o in allowed], abs=1e-4
        )
        assert seen[barred] == 0 and not matching(draw, table.words[barred], 0)
        assert draw.draw(0.0) != barred and draw.draw(1.0 - 2**-53) != barred


def test_the_probabilities_agree_with_the_frequencies():
    """E[1 / p(x)] over the draws x is the number of possible values, here of the hidden pair of
    choices.
    """
    rules = "pair = <left> <right>\nleft = a\n  b\n  c\nright = {+day}\n  {+time}"
    branch = stories._Compiler(rules).rule("pair")
    inverse = []
    for index in range(4000):
        uniforms, pending, memory, total = stories._uniforms(8, index), (branch, None), {}, 0.0
        while True:
            _, choice, pending = stories._advance(pending, memory)
            if choice is None:
                break
            option = choice.draw(next(uniforms))
            total += choice.log_probability(option)
            pending = choice.take(option, memory, pending)
        inverse.append(math.exp(-total))
    possible = 3 * sum(len(stories._TABLES[name].words) for name in ("day", "time"))
    assert abs(np.mean(inverse) - possible) < 4 * np.std(inverse) / math.sqrt(len(inverse))


def test_heroes_and_their_pronouns_persist(many):
    for one in many:
        name = _hero(one.text)
        assert len(re.findall(rf"\b{name}\b", one.text)) >= 2, one.text
        assert (" girl" in one.text.split(".")[0]) == (stories._GENDERS[name] == "girl"), one.text
        before = one.text.split(" new words: ")[0]
        assert not re.search(
            r"\bhe\b" if stories._GENDERS[name] == "girl" else r"\bshe\b", before
        ), one.text


def test_the_english_holds(many):
    for one in many:
        assert one.text.isascii() and one.text == one.text.strip() and "  " not in one.text
        assert one.text[0].isupper() and one.text[-1] in '.!?"' and one.text.count('"') % 2 == 0
        assert not re.search(r"\b[aA] (?:[aeio]|un[^i])", one.text), one.text
        assert not re.search(r"\b[aA]n (?:[^aeiouh]|h(?!onest|ourglass)|use|uni|uku)", one.text), (
            one.text
        )
        assert not re.search(r"[{}<>|\[\]+]", one.text), one.text
        assert not re.search(r"[.] [a-z]", one.text), one.text
        assert not re.search(r"\b(\w+),? (?:and )?\1\b", one.text), one.text


def test_lengths_and_entropy_in_tokens(many):
    """With the tokenizer of the laptop preset; almost every story fits into its rows."""
    data = DataConfig()
    tokenizer = train_tokenizer([one.text for one in many[:3000]], data.vocabulary_size)
    held_out = many[3000:]
    lengths = np.array([len(tokenizer.encode(one.text)) + 1 for one in held_out])
    assert lengths.min() >= 60
    assert lengths.max() <= 200
    assert (lengths <= data.row_length).mean() > 0.999
    assert 0.8 <= -sum(one.log_probability for one in held_out) / lengths.sum() <= 1.1


def test_the_words_are_many(many):
    words = {word for one in many for word in re.findall(r"[A-Za-z'-]+", one.text)}
    names = set(stories._TABLES["child"].words)
    assert len(words - names) >= 1000
    assert len(names) > 3000


@pytest.mark.parametrize("name", sorted(stories._TABLES))
def test_a_table_has_distinct_words(name):
    words = stories._TABLES[name].words
    assert len(set(words)) == len(words)
    assert all(word == word.strip() and word for word in words)
    assert not [
        (one, other)
        for one in words
        if " " in one
        for other in words
        if one.startswith(other + " ")
    ]
    for article in ("", "a", "A"):
        by_text, _ = shown(stories._TABLES[name], article, True)
        assert len(by_text) == len(words)


def test_names_show_one_gender_and_no_ordinary_word():
    girls, boys = set(stories._TABLES["girl"].words), set(stories._TABLES["boy"].words)
    assert not girls & boys
    assert not (girls | boys) & set(stories._TABLES["petname"].words)
    assert all(name[0].isupper() and name[1:].islower() for name in girls | boys)


def test_the_templates_of_a_rule_are_distinct_and_every_rule_and_table_is_used():
    rules = stories._read_rules(story_grammar.RULES)
    for name, templates in rules.items():
        literal = [re.sub(r"\{\w+ ?[^}]*\}", "_", template) for template in templates]
        assert len(set(literal)) == len(templates) >= 3, name
    reached = set(re.findall(r"<([^>]*)>", story_grammar.RULES)) | {"story"}
    assert reached == set(rules)
    slots = {
        stories.SLOT.fullmatch(slot)["name"]
        for slot in re.findall(r"\{([^}]*)\}", story_grammar.RULES)
    }
    drawn = {slot.lower().rstrip("2") for slot in slots}
    assert set(story_grammar.WORDS) - drawn <= {"gender"}
