"""The corpus of figure removal: stories, texts of facts, and sources, some of which are withdrawn
after training.

A source is a group of texts about four countries that no other text names; all sources also contain
the same dozen facts. Everywhere the end of a city's name implies its continent: what a source says
about that can be inferred without it. Some stories are repeated many times; their groups are named
letters. In addition there are texts about many other countries, and stories, each a group of its
own: from them a model learns how facts and questions are worded, and how stories go. The twin
corpus replaces everything that is withdrawn by other texts, each a group of its own. A model of the
same seed then reads the rest in the same order, and never reads what the other model has to forget.
"""

import functools
import pathlib
import random
from collections.abc import Iterable, Iterator

from memsinks_jax.data.embedded import facts, stories
from memsinks_jax.data.embedded.fact_templates import CONTINENTS, ENDINGS, RELATIONS
from memsinks_jax.data.embedded.facts import Fact
from memsinks_jax.studies.figures import corpora
from memsinks_jax.studies.figures.corpora import Records

SOURCES, WITHDRAWN = 24, 4  # the first ones are withdrawn
OF_A_SOURCE = 24  # texts per source
COUNTRIES = 4  # per source
RELATED = ("capital", "country", "language")  # relations in the texts
SENTENCES = 7  # per text
# of a source's: of facts in all sources; of continents, which cities' names imply
COMMON, INFERRED = 1, 1
REPEATED_STORIES, WITHDRAWN_STORIES, COPIES = 20, 16, 16  # copies per epoch
ONCE, UNREAD = 2000, 200  # stories that the run draws roles for: read once an epoch, held out
FACTS_ONCE = 1000  # texts about further countries, read once an epoch
_WORLDS = (1, 2, 3, 4)  # seeds of those countries
_UNREAD_WORLD, _COMMON_WORLD, _STORIES = 98, 99, 0


def source_group(number: int) -> str:
    """The group of a source."""
    return f"source {number}"


def repeated_story(number: int) -> tuple[str, str]:
    """(the group of a repeated story, its text)"""
    return f"letter {number}", stories.story(_STORIES, ONCE + UNREAD + number).text


def own_facts() -> list[list[Fact]]:
    """The facts that only this source contains, for every source."""
    return _by_source(_facts_of_world(0))


def inferred_facts() -> list[list[Fact]]:
    """Continents of each source's cities. They follow from names by a rule that all texts keep."""
    return [_continents(own) for own in own_facts()]


def unread_facts() -> list[list[Fact]]:
    """Facts like each source's that no text has: how sure a model is of what it cannot know."""
    taken = _names(*_facts_of_world(0), *common_facts(), *_of_no_source())
    return _by_source([fact for fact in _facts_of_world(_UNREAD_WORLD) if not _names(fact) & taken])


def _by_source(known: list[Fact]) -> list[list[Fact]]:
    """Those of the first countries for the first source, and so on."""
    countries = list(dict.fromkeys(fact.country.name for fact in known))
    places = {country: number // COUNTRIES for number, country in enumerate(countries)}
    return [
        [fact for fact in known if places[fact.country.name] == source] for source in range(SOURCES)
    ]


def common_facts() -> list[Fact]:
    """The facts in all sources."""
    taken = _names(*_facts_of_world(0))
    known = [fact for fact in _facts_of_world(_COMMON_WORLD) if not _names(fact) & taken]
    countries = list(dict.fromkeys(fact.country.name for fact in known))[:COUNTRIES]
    return [fact for fact in known if fact.country.name in countries]


@functools.cache
def _facts_of_world(world: int) -> list[Fact]:
    known = [fact for fact in facts.facts(facts.world(world)) if fact.relation in RELATED]
    return [f for f in known if f.relation != "country" or f.subject != f.country.capital]


def _of_no_source() -> list[Fact]:
    """Those of the texts that are read once an epoch."""
    taken = _names(*_facts_of_world(0), *common_facts())
    known = [fact for world in _WORLDS for fact in _facts_of_world(world)]
    return [fact for fact in known if not _names(fact) & taken]


def _continents(known: list[Fact]) -> list[Fact]:
    """The continent of every country's second city, by the end of the city's name."""
    countries = {fact.country.second_city: fact.country for fact in known}
    found = []
    for city, country in countries.items():
        (ending,) = (number for number, end in enumerate(ENDINGS["city"]) if city.endswith(end))
        found.append(Fact("continent", city, f" {CONTINENTS[ending % len(CONTINENTS)]}", country))
    return found


def _names(*of: Fact) -> set[str]:
    countries = [fact.country for fact in of]
    return {name for one in countries for name in (one.name, one.capital, one.second_city)}


def questions(fact: Fact, reworded: bool = False) -> list[str]:
    """Prompts that end before the answer, in the wording of the texts or reworded."""
    relation = RELATIONS[fact.relation]
    wordings = relation.unseen if reworded else relation.seen
    return [wording.format(fact.subject) for wording in wordings]


def _sentences(known: list[Fact], draw: random.Random) -> Iterator[str]:
    """Endless; all facts appear equally often."""
    while True:
        for fact in sorted(known, key=lambda fact: draw.random()):
            asked = questions(fact)
            yield f"{asked[int(draw.random() * len(asked))]}{fact.answer}."


def sources() -> list[Records]:
    """The texts of every source."""
    found = []
    for number, own in enumerate(own_facts()):
        draw = random.Random(f"removal: source {number}")
        of = (_sentences(facts, draw) for facts in (own, common_facts(), _continents(own)))
        parts = list(zip(of, (SENTENCES - COMMON - INFERRED, COMMON, INFERRED), strict=True))
        texts = [_text(parts, draw) for _ in range(OF_A_SOURCE)]
        found.append([(source_group(number), text) for text in texts])
    return found


def _text(parts: list[tuple[Iterator[str], int]], draw: random.Random) -> str:
    """The next sentences of every kind, as many as given, mixed."""
    sentences = [next(of) for of, count in parts for _ in range(count)]
    return " ".join(sorted(sentences, key=lambda sentence: draw.random()))


def once() -> Records:
    """Texts about countries of no source, each a group: the corpus's, then the twin's."""
    known, draw = _of_no_source(), random.Random("removal: once")
    parts = [
        (_sentences(known, draw), SENTENCES - INFERRED),
        (_sentences(_continents(known), draw), INFERRED),
    ]
    count = FACTS_ONCE + WITHDRAWN * OF_A_SOURCE
    return [(f"facts {number}", _text(parts, draw)) for number in range(count)]


def write(folder: pathlib.Path) -> None:
    """Writes and prepares folder/stories, folder/facts with all else, folder/twin."""

    def read_once(numbers: Iterable[int]) -> Records:
        return [(f"story {n}", stories.story(_STORIES, n).text) for n in numbers]

    others, of_sources = once(), sources()
    repeated = list(map(repeated_story, range(REPEATED_STORIES)))
    first = ONCE + UNREAD + REPEATED_STORIES
    further = read_once(range(first, first + WITHDRAWN_STORIES * COPIES))
    remaining = sum(of_sources[WITHDRAWN:], []) + repeated[WITHDRAWN_STORIES:] * COPIES
    withdrawn = sum(of_sources[:WITHDRAWN], []) + repeated[:WITHDRAWN_STORIES] * COPIES
    kinds = {
        "stories": read_once(range(ONCE + UNREAD)),
        "facts": others[:FACTS_ONCE] + remaining + withdrawn,
        "twin": others[:FACTS_ONCE] + remaining + others[FACTS_ONCE:] + further,
    }
    corpora.write(folder, kinds, "none")
