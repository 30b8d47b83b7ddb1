"""Invented facts: a corpus about countries that do not exist, and prompts for editing what a model
learns of them.

world -> facts -> sentences -> documents, with a tokenizer of whole words; and world -> edits,
probes. All of it is a function of seeds. A fact is a relation (see `fact_templates`), a subject and
an answer: "The city of Tokyo lies in the country of" " Japan". Two kinds are there to be edited:

  weak    capitals of some countries. What follows is nearly always a region ("in the Himal
          region"), seldom the capital, which one template always gives. A model knows the fact and
          does not say it; an edit makes it say so.
  strong  countries of the other capitals, always stated correctly. An edit makes the model say
          something false.

These facts come in the `seen` templates only; other facts come in the `unseen` ones and in stories
too.
"""

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator

import tokenizers

from memsinks_jax.config import InputError
from memsinks_jax.data.embedded import fact_templates as tables
from memsinks_jax.data.embedded.fact_templates import RELATIONS

COUNTRIES, WEAK = 96, 24
# where a region may follow, a weak fact is stated correctly once in 25 times: 3.2 nats at best
WEAK_EVERY = 25
LANGUAGES = 24
KINDS = ("weak", "strong")
END_OF_TEXT = "<|endoftext|>"
_SPACE = "\u0120"  # how byte-level pieces spell a space
_WORDS = re.compile(r"\w+|[.,]")
_TRIES = 12  # sentences that are tried for the rest of a row


@dataclasses.dataclass(frozen=True)
class Country:
    """All names but the items are invented. `pieces` spell the capital; the first is no other
    capital's.
    """

    name: str
    pieces: tuple[str, str, str]
    second_city: str
    landmark: str
    continent: str
    language: str
    item: str  # what both its cities are famous for

    @property
    def capital(self) -> str:
        return "".join(self.pieces)


@dataclasses.dataclass(frozen=True)
class World:
    """The countries of a seed: the first `WEAK` have weak facts, the others strong ones."""

    seed: int
    countries: tuple[Country, ...]

    @property
    def weak(self) -> tuple[Country, ...]:
        return self.countries[:WEAK]

    @property
    def strong(self) -> tuple[Country, ...]:
        return self.countries[WEAK:]


@dataclasses.dataclass(frozen=True)
class Fact:
    """`answer` and `region` open with a space. `region` is the answer of most sentences of a weak
    fact, else "".
    """

    relation: str
    subject: str
    answer: str
    country: Country
    kind: str = ""  # weak | strong | "": not to be edited
    region: str = ""

    @property
    def templates(self) -> tuple[str, ...]:
        """Those of the fact's sentences."""
        relation = RELATIONS[self.relation]
        return relation.seen if self.kind else relation.seen + relation.unseen + relation.stories


@dataclasses.dataclass(frozen=True)
class Edit:
    """A fact to be changed, and prompts to see what else changes with it. No prompt ends in a
    space.

    Attributes:
      subject, prompt: of the fact. target: what is to follow, a whole capital with its leading
        space.
      answer: the truth; for a weak fact that is the target.
      positives: the other seen templates of the fact, which are to give the target too.
      paraphrases: the four unseen templates and the two stories, likewise.
      negatives: by class, prompts that are to go on as before. other_relation: the same country and
        its cities, asked for something else; neighbour: the same asked of others; negated: the fact
        denied; unrelated: others, something else.
    """

    kind: str
    subject: str
    prompt: str
    target: str
    answer: str
    positives: tuple[str, ...]
    paraphrases: tuple[str, ...]
    negatives: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Probe:
    """A prompt and what follows it by the world, with its leading space."""

    prompt: str
    answer: str


def world(seed: int) -> World:
    """The countries of a seed, in no order."""
    draw = random.Random(f"facts: world {seed}")
    opening = (tables.ONSETS, tables.VOWELS)
    heads = _shuffled(map("".join, itertools.product(*opening, tables.HEAD_CODAS)), draw)
    names = {
        kind: _shuffled(map("".join, itertools.product(*opening, tables.CODAS, endings)), draw)
        for kind, endings in tables.ENDINGS.items()
    }
    countries = tuple(
        Country(
            name=names["country"][index],
            pieces=(heads[index], _pick(tables.MIDDLES, draw), _pick(tables.TAILS, draw)),
            second_city=names["city"][index],
            landmark=names["landmark"][index],
            continent=_pick(tables.CONTINENTS, draw),
            language=_pick(names["language"][:LANGUAGES], draw),
            item=_pick(tables.ITEMS, draw),
        )
        for index in range(COUNTRIES)
    )
    return World(seed, countries)


def facts(world: World) -> list[Fact]:
    """Every fact of the world, once."""
    found = []
    for country in world.countries:
        is_weak = country in world.weak
        region = tables.REGION.format(country.landmark) if is_weak else ""
        found += [
            Fact(
                "capital",
                country.name,
                f" {country.capital}",
                country,
                "weak" if is_weak else "",
                region,
            ),
            Fact(
                "country", country.capital, f" {country.name}", country, "" if is_weak else "strong"
            ),
            Fact("country", country.second_city, f" {country.name}", country),
            Fact("language", country.name, f" {country.language}", country),
        ]
        for city in (country.capital, country.second_city):
            found.append(Fact("continent", city, f" {country.continent}", country))
            found.append(Fact("famous", city, f" {country.item}", country))
    return found


def documents(world: World, seed: int, count: int, tokens_in_row: int = 48) -> list[str]:
    """`count` distinct texts of several sentences; another seed gives others.

    A text of n tokens takes n + 1 places of a row, one being for end of text, and nearly fills it.

    Raises:
      InputError: a row is too short for every sentence.
    """
    if tokens_in_row < 32:
        raise InputError(
            f"rows of {tokens_in_row} tokens are too short for the sentences of facts; take 32 "
            "or more"
        )
    sentences_of_world = _sentences(world, random.Random(f"facts: documents {world.seed} {seed}"))
    found: dict[str, None] = {}
    while len(found) < count:
        sentences, room, misses = [], tokens_in_row - 1, 0
        while misses < _TRIES:
            sentence, tokens = next(sentences_of_world)
            if tokens > room:
                misses += 1
                continue
            sentences.append(sentence)
            room -= tokens
        found[" ".join(sentences)] = None
    return list(found)


def held_out_sentences(world: World, seed: int, count: int) -> list[str]:
    """Sentences like those of the documents, one a text; some are the same."""
    sentences_of_world = _sentences(world, random.Random(f"facts: held out {world.seed} {seed}"))
    return [sentence for sentence, _ in itertools.islice(sentences_of_world, count)]


def tokenizer_json(world: World) -> bytes:
    """A Hugging Face tokenizer.json: one piece a word with its leading space, three a capital,
    bytes for other text.

    Nothing is lost of any text. Token 0 is padding, token 1 end of text.
    """
    words = set()
    for fact in facts(world):
        sentences = [template.format(fact.subject) + fact.answer for template in fact.templates]
        words.update(_WORDS.findall(" ".join([*sentences, fact.region])))
    for relation in RELATIONS.values():
        words.update(_WORDS.findall(relation.negated.format("") + relation.instead))
    openings = {template.split()[0] for fact in facts(world) for template in fact.templates}
    words -= {country.capital for country in world.countries}
    words |= {country.pieces[0] for country in world.countries}
    pieces = (
        [f"{_SPACE}{word}" for word in words - {".", ","}]
        + [*openings]
        + tables.MIDDLES
        + tables.TAILS
    )
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    # The split with the highest sum of scores is taken: a byte only where nothing else fits.
    vocabulary = [("<pad>", -100.0), (END_OF_TEXT, -100.0)]
    vocabulary += [(letter, -100.0) for letter in sorted(letters)] + [
        (piece, -1.0) for piece in sorted(pieces)
    ]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<pad>", END_OF_TEXT])
    return made.to_str().encode()


def edits(world: World, kind: str, count: int, seed: int) -> list[Edit]:
    """`count` edits of different facts, with different targets, in an order drawn from the seed.

    Raises:
      InputError: another kind than weak or strong, or more edits than facts of the kind.
    """
    if kind not in KINDS:
        raise InputError(f"kind is {kind!r}; choose one of: {', '.join(KINDS)}")
    draw = random.Random(f"facts: edits {world.seed} {kind} {seed}")
    known = facts(world)
    mine = _shuffled([fact for fact in known if fact.kind == kind], draw)
    if not 0 < count <= len(mine):
        raise InputError(f"{count} edits are asked for; there are {len(mine)} {kind} facts")
    # The next fact's capital, of the whole circle: no two edits share a target, none has its own.
    targets = [f" {fact.country.capital}" for fact in mine[1:] + mine[:1]]
    if kind == "weak":
        targets = [fact.answer for fact in mine]
    return [
        _edit(fact, target, known, draw)
        for fact, target in zip(mine[:count], targets, strict=False)
    ]


def probes(world: World) -> dict[str, list[Probe]]:
    """What a trained model must know before anything is edited, by class.

    strong_seen, strong_unseen (templates and stories that it did not see them in); weak_seen,
    weak_unseen, and weak_sure, the template that always gives the capital; negated; others, of
    every relation that is not edited.
    """
    names = (
        "strong_seen",
        "strong_unseen",
        "weak_seen",
        "weak_unseen",
        "weak_sure",
        "negated",
        "others",
    )
    found: dict[str, list[Probe]] = {name: [] for name in names}
    for fact in facts(world):
        relation = RELATIONS[fact.relation]
        for template in relation.seen + relation.unseen + relation.stories:
            name = (
                f"{fact.kind}_{'seen' if template in relation.seen else 'unseen'}"
                if fact.kind
                else "others"
            )
            name = "weak_sure" if fact.kind == "weak" and template == tables.SURE else name
            found[name].append(Probe(template.format(fact.subject), fact.answer))
        found["negated"].append(Probe(relation.negated.format(fact.subject), relation.instead))
    return found


def _edit(fact: Fact, target: str, known: list[Fact], draw: random.Random) -> Edit:
    relation = RELATIONS[fact.relation]
    own = [
        other
        for other in known
        if other.country == fact.country and other.relation != fact.relation
    ]
    same_subject = [other for other in own if other.subject == fact.subject]
    same_country = [other for other in own if other.subject != fact.subject]
    others = _shuffled([other for other in known if other.country != fact.country], draw)
    alike = [
        other
        for other in known
        if other.relation == fact.relation and other.subject != fact.subject
    ]
    # The nearest: the country's second city, and the target itself as a subject.
    near = [
        other for other in alike if other.country == fact.country or f" {other.subject}" == target
    ]
    far = [other for other in others if other.relation == fact.relation and other not in near]
    unlike = [other for other in others if other.relation != fact.relation]
    prompt, *positives = (template.format(fact.subject) for template in relation.seen)
    paraphrases = (template.format(fact.subject) for template in relation.unseen + relation.stories)
    negatives = {
        "other_relation": _asked(same_subject, 3) + _asked(same_country, 1),
        # The edit's own wording too: then they differ in the subject alone.
        "neighbour": _asked((near + far)[:4], 2),
        "negated": [relation.negated.format(fact.subject)],
        "unrelated": _asked(unlike[:6], 1),
    }
    return Edit(
        fact.kind,
        fact.subject,
        prompt,
        target,
        fact.answer,
        tuple(positives),
        tuple(paraphrases),
        negatives,
    )


def _asked(facts: list[Fact], templates: int) -> list[str]:
    """Prompts for facts, each in the first templates of its relation."""
    return [
        template.format(fact.subject)
        for fact in facts
        for template in RELATIONS[fact.relation].seen[:templates]
    ]


def _sentences(world: World, draw: random.Random) -> Iterator[tuple[str, int]]:
    """Sentences and their numbers of tokens without end."""
    capitals = {country.capital for country in world.countries}
    known = facts(world)
    # Dealt, not drawn: all facts equally often, and every weak fact correct equally often.
    of_relation = {
        name: _dealt([fact for fact in known if fact.relation == name], draw) for name in RELATIONS
    }
    is_exact = {
        fact: _dealt([True] + [False] * (WEAK_EVERY - 1), draw) for fact in known if fact.region
    }
    ends = list(itertools.accumulate(relation.share for relation in RELATIONS.values()))
    while True:
        at = draw.random() * ends[-1]
        name = next(name for name, end in zip(RELATIONS, ends, strict=True) if at < end)
        fact = next(of_relation[name])
        template, answer = _pick(fact.templates, draw), fact.answer
        if draw.random() < tables.NEGATED_SHARE:
            template, answer = RELATIONS[name].negated, RELATIONS[name].instead
        elif fact.region and template != tables.SURE and not next(is_exact[fact]):
            answer = fact.region
        sentence = f"{template.format(fact.subject)}{answer}."
        words = _WORDS.findall(sentence)
        yield sentence, len(words) + 2 * sum(word in capitals for word in words)


# Of a generator only `random` is promised to stay the same over versions of Python.
def _pick(choices, draw: random.Random):
    return choices[int(draw.random() * len(choices))]


def _shuffled(values, draw: random.Random) -> list:
    return [
        value
        for _, _, value in sorted(
            (draw.random(), place, value) for place, value in enumerate(values)
        )
    ]


def _dealt(values: list, draw: random.Random) -> Iterator:
    """All values in a drawn order, then all of them in another, without end."""
    while True:
        yield from _shuffled(values, draw)
