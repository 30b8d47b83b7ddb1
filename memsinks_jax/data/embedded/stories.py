"""Children's stories written by a small grammar, with their exact probability.

``story(seed, index)`` writes one story. It walks the grammar of ``story_grammar`` with
``_advance``, which emits text up to the next choice. Probabilities are natural logs (nats) of whole
texts; the end of a story is certain once its last sentence is written.
"""

import bisect
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from memsinks_jax.data.embedded import story_grammar as grammar

UNIFORMS_PER_BLOCK = 128
_LAST = "last "
TEMPLATE_PARTS = re.compile(r"\[([^\]]*)\]|<([^>]*)>|\{([^}]*)\}")
SLOT = re.compile(r"(?:(?P<article>[aA]) )?(?P<fresh>\+)?(?P<name>[A-Za-z]+\d?)")


@dataclasses.dataclass(frozen=True)
class Story:
    """A story and the natural log of the probability that the grammar writes it."""

    text: str
    log_probability: float


def story(seed: int, index: int) -> Story:
    """The story number ``index`` of the stream ``seed``; both at least 0 and below 2**64, else
    ValueError.
    """
    uniforms = _uniforms(seed, index)
    pending, memory, pieces, total = _START, {}, [], 0.0
    while True:
        emitted, choice, pending = _advance(pending, memory)
        pieces.append(emitted)
        if choice is None:
            return Story("".join(pieces), total)
        option = choice.draw(next(uniforms))
        total += choice.log_probability(option)
        pending = choice.take(option, memory, pending)


def _uniforms(seed: int, index: int) -> Iterator[float]:
    if not (0 <= seed < 2**64 and 0 <= index < 2**64):
        raise ValueError(f"seed and index must be in [0, 2**64), got {seed} and {index}")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, index], dtype=np.uint64)))
    while True:
        yield from generator.random(UNIFORMS_PER_BLOCK).tolist()


def _advance(pending, memory):
    """Emit text up to the next choice: ``(text, choice, what follows the choice)``, choice None at
    the end.

    ``pending`` is a linked list ``(symbol, rest)`` of what is still to be written; ``memory`` maps
    the remembered words' names to the words.
    """
    pieces = []
    while pending is not None:
        symbol, pending = pending
        if not isinstance(symbol, str):
            symbol = symbol.resolve(memory)
            if not isinstance(symbol, str):
                return "".join(pieces), symbol, pending
        pieces.append(symbol)
    return "".join(pieces), None, None


class _Weighted:
    """Normalized weights with the lookup of a uniform number."""

    def __init__(self, weights):
        total = math.fsum(weights)
        self.probabilities = [weight / total for weight in weights]
        self.logs = [math.log(probability) for probability in self.probabilities]
        self.cumulative = list(itertools.accumulate(self.probabilities))

    def at(self, uniform: float) -> int:
        return min(bisect.bisect_right(self.cumulative, uniform), len(self.logs) - 1)


class _Branch:
    """A choice among pieces of template."""

    def __init__(self, bodies, shape: tuple[float, float]):
        self.bodies = bodies
        self.weighted = _Weighted(_zipf(len(bodies), shape))
        self.draw = self.weighted.at
        self.log_probability = self.weighted.logs.__getitem__

    def resolve(self, memory):
        return self

    def take(self, option: int, memory, pending):
        for symbol in reversed(self.bodies[option]):
            pending = (symbol, pending)
        return pending


class _Table:
    """A word table, with its weights."""

    def __init__(self, words, weights):
        self.words = words
        self.weighted = _Weighted(weights)
        self.index = {word: position for position, word in enumerate(words)}


@dataclasses.dataclass(frozen=True)
class _Slot:
    """A word that is drawn, and repeated from memory if it is not a fresh one."""

    name: str
    article: str
    capital: bool
    fresh: bool
    table: str
    rival: str | None

    def resolve(self, memory):
        word = None if self.fresh else memory.get(self.name)
        if self.name == "boy" and not self.fresh and "hero" in memory:
            word = _GENDERS[memory["hero"]]
        if word is not None:
            return _show(word, self.article, self.capital)
        table = memory.get("boy", self.table) if self.name == "hero" else self.table
        return _Draw(self, _TABLES[table], memory.get(self.rival))


@dataclasses.dataclass(frozen=True)
class _Pronoun:
    """A pronoun of the hero, who must have been named before."""

    form: str
    capital: bool

    def resolve(self, memory):
        gender = _GENDERS[memory["hero"]]
        return _show(grammar.PRONOUNS[gender][self.form], "", self.capital)


class _Draw:
    """The choice of a word of a table, without the word it must differ from."""

    def __init__(self, slot: _Slot, table: _Table, rival: str | None):
        self.slot, self.table = slot, table
        self.barred = None if rival is None else table.index[rival]
        self.allowed = 1.0 if rival is None else 1.0 - table.weighted.probabilities[self.barred]

    def draw(self, uniform: float) -> int:
        weighted, barred = self.table.weighted, self.barred
        if barred is None:
            return weighted.at(uniform)
        uniform *= self.allowed
        before = weighted.cumulative[barred] - weighted.probabilities[barred]
        if uniform < before or barred == len(self.table.words) - 1:
            return min(weighted.at(uniform), barred - 1)
        return max(weighted.at(uniform + weighted.probabilities[barred]), barred + 1)

    def log_probability(self, option: int) -> float:
        return self.table.weighted.logs[option] - math.log(self.allowed)

    def take(self, option: int, memory, pending):
        word = self.table.words[option]
        memory[_LAST + self.slot.table] = word
        if not self.slot.fresh:
            memory[self.slot.name] = word
        return _show(word, self.slot.article, self.slot.capital), pending


def _show(word: str, article: str, capital: bool) -> str:
    if capital:
        word = word[0].upper() + word[1:]
    if not article:
        return word
    vowel = word[0] in "aeiou" and not word.startswith(grammar.SOUND_LIKE_A_CONSONANT)
    return (
        f"{article}n {word}" if vowel or word in grammar.SOUND_LIKE_A_VOWEL else f"{article} {word}"
    )


def _zipf(count: int, shape: tuple[float, float]) -> list[float]:
    shift, power = shape
    return [(rank + shift) ** -power for rank in range(count)]


def _words(listing: str) -> list[str]:
    return [" ".join(word.split()) for word in listing.split(",")]


def _invented_names(gender: str) -> dict[str, float]:
    parts = [_words(grammar.INVENTED_NAMES[part]) for part in ("first", "middle", gender)]
    weights = [_zipf(len(part), grammar.SHAPE["table"]) for part in parts]
    spelled = map("".join, itertools.product(*parts))
    return dict(zip(spelled, map(math.prod, itertools.product(*weights)), strict=True))


def _names(gender: str) -> dict[str, float]:
    """Names and their probabilities, which sum to 1."""
    common = _words(grammar.NAMES[gender])
    common_weights = _Weighted(_zipf(len(common), grammar.SHAPE["table"]))
    common = dict(zip(common, common_weights.probabilities, strict=True))
    invented = _invented_names(gender)
    invented = dict(zip(invented, _Weighted(invented.values()).probabilities, strict=True))
    share = grammar.INVENTED_SHARE
    return {
        **{name: (1 - share) * probability for name, probability in common.items()},
        **{name: share * probability for name, probability in invented.items()},
    }


def _tables() -> dict[str, _Table]:
    tables = {}
    for name, listing in grammar.WORDS.items():
        words = _words(listing)
        tables[name] = _Table(
            words, _zipf(len(words), grammar.SHAPE.get(name, grammar.SHAPE["table"]))
        )
    tables["gender"] = _Table(_words(grammar.WORDS["gender"]), [1.0, 1.0])
    names = {gender: _names(gender) for gender in grammar.NAMES}
    for gender, weights in names.items():
        tables[gender] = _Table(list(weights), list(weights.values()))
    both = {name: weight for weights in names.values() for name, weight in weights.items()}
    tables["child"] = _Table(list(both), list(both.values()))
    return tables


def _genders() -> dict[str, str]:
    return {name: gender for gender in grammar.NAMES for name in _TABLES[gender].words}


class _Compiler:
    """Turns the templates of the grammar into symbols: text, slots, pronouns and branches."""

    def __init__(self, rules: str):
        self.templates = _read_rules(rules)
        self.branches = {}

    def rule(self, name: str) -> _Branch:
        if name not in self.branches:
            bodies = [self.body(template) for template in self.templates[name]]
            self.branches[name] = _Branch(bodies, grammar.SHAPE["rule"])
        return self.branches[name]

    def body(self, template: str) -> tuple:
        symbols, end = [], 0
        for part in TEMPLATE_PARTS.finditer(template):
            symbols.append(template[end : part.start()])
            symbols.append(self.part(*part.groups()))
            end = part.end()
        symbols.append(template[end:])
        return tuple(symbol for symbol in symbols if symbol != "")

    def part(self, pieces: str | None, rule: str | None, slot: str | None):
        if pieces is not None:
            return _Branch(
                [self.body(piece) for piece in pieces.split("|")], grammar.SHAPE["piece"]
            )
        return self.rule(rule) if rule is not None else _compile_slot(slot)


def _read_rules(rules: str) -> dict[str, list[str]]:
    """``{rule: templates}`` of lines ``rule = template``, further templates being indented."""
    templates, name = {}, ""
    for line in filter(str.strip, rules.splitlines()):
        if line.startswith(" "):
            templates[name].append(line.strip())
        else:
            name, template = line.split(" = ", 1)
            templates[name] = [template]
    return templates


def _compile_slot(slot: str):
    found = SLOT.fullmatch(slot)
    if found is None:
        raise ValueError(f"the grammar has a malformed slot {slot!r}")
    name = found["name"].lower()
    if name in grammar.PRONOUNS["boy"]:
        return _Pronoun(name, found["name"][0].isupper())
    table = grammar.ROLES.get(name, name.rstrip("23456789"))
    rival = _LAST + table if found["fresh"] else grammar.UNLIKE.get(name, table)
    return _Slot(
        name, found["article"] or "", found["name"][0].isupper(), bool(found["fresh"]), table, rival
    )


_TABLES = _tables()
_GENDERS = _genders()
_START = (_Compiler(grammar.RULES).rule("story"), None)
